// Stored prefixes as a list: size, uses and age of each one.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Row } from "../../api";
import { ago, bytes, count, tierName } from "../../format";
import { LongList } from "../../parts";
import type { Node, Stored } from "./rows";

export type Order = "last" | "bytes" | "hits" | "tokens";

const ORDERS: Record<Order, (row: Row) => number> = {
  last: (row) => row.last_used ?? row.created,
  bytes: (row) => row.bytes,
  hits: (row) => row.hits ?? 0,
  tokens: (row) => row.tokens,
};

/** The height of a line. */
const LINE = 34;

export function RowTable(props: {
  stored: Stored;
  order: Order;
  chosen: string | null;
  onChoose: (key: string) => void;
}): JSX.Element {
  const { stored, order, chosen, onChoose } = props;
  const sorted = useMemo(() => {
    const rank = ORDERS[order];
    return [...stored.nodes.values()].sort((one, two) => rank(two.row) - rank(one.row));
  }, [stored, order]);
  const draw = ({ row, text }: Node) => (
    <div class={`line row-line ${chosen === row.key ? "selected" : ""}`}>
      <button
        type="button"
        class="line-open"
        onClick={() => onChoose(row.key)}
        aria-label={`Row ${row.key.slice(0, 8)}: ${count(row.tokens)} tokens`}
      />
      <span class="row-name">
        {row.pinned ? <b title="Pinned">● </b> : null}
        {text || row.key.slice(0, 12)}
      </span>
      <span class="right">{count(row.tokens)}</span>
      <span class="right">{bytes(row.bytes)}</span>
      <span class="right">{count(row.hits)}</span>
      <span class="right">{ago(row.last_used ?? row.created)}</span>
      <span class="wide">{row.tiers.map(tierName).join(", ")}</span>
    </div>
  );
  return (
    <section aria-label="Stored prefixes, list">
      <div class="line line-head row-line" aria-hidden="true">
        <span>Prefix</span>
        <span class="right">Tokens</span>
        <span class="right">Size</span>
        <span class="right">Uses</span>
        <span class="right">Used</span>
        <span class="wide">Tiers</span>
      </div>
      <LongList items={sorted} label="Stored prefixes" keyOf={({ row }) => row.key} height={LINE} draw={draw} />
    </section>
  );
}

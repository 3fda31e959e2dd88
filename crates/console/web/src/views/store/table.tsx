// Stored prefixes as a list: size, uses and age of each one.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Row } from "../../api";
import { ago, bytes, count, tierName } from "../../format";
import { type Item, LongList } from "../../parts";

export type Order = "last" | "bytes" | "hits" | "tokens";

const ORDERS: Record<Order, (row: Row) => number> = {
  last: (row) => row.last_used ?? row.created,
  bytes: (row) => row.bytes,
  hits: (row) => row.hits ?? 0,
  tokens: (row) => row.tokens,
};

/** The text of the row that each row begins with. */
export function beginnings(rows: Row[]): Map<string, string> {
  const byKey = new Map(rows.map((row) => [row.key, row]));
  const texts = new Map<string, string>();
  for (const row of rows) {
    const chain: string[] = [];
    let at: Row | undefined = row;
    while (at && !texts.has(at.key)) {
      chain.push(at.key);
      if (at.parent === null || at.text) break;
      at = byKey.get(at.parent);
    }
    const text = at ? (texts.get(at.key) ?? at.text ?? "") : "";
    for (const key of chain) texts.set(key, text);
  }
  return texts;
}

export function RowTable(props: {
  rows: Row[];
  order: Order;
  chosen: string | null;
  onChoose: (key: string) => void;
}): JSX.Element {
  const { rows, order } = props;
  const sorted = useMemo(() => [...rows].sort((one, two) => ORDERS[order](two) - ORDERS[order](one)), [rows, order]);
  const texts = useMemo(() => beginnings(rows), [rows]);
  const items: Item[] = sorted.map((row) => ({
    key: row.key,
    height: 34,
    draw: () => (
      <div class={`line row-line ${props.chosen === row.key ? "selected" : ""}`}>
        <button
          type="button"
          class="line-open"
          onClick={() => props.onChoose(row.key)}
          aria-label={`Row ${row.key.slice(0, 8)}: ${count(row.tokens)} tokens`}
        />
        <span class="row-name">
          {row.pinned ? <b title="Pinned">● </b> : null}
          {texts.get(row.key) || row.key.slice(0, 12)}
        </span>
        <span class="right">{count(row.tokens)}</span>
        <span class="right">{bytes(row.bytes)}</span>
        <span class="right">{count(row.hits)}</span>
        <span class="right">{ago(row.last_used ?? row.created)}</span>
        <span class="wide">{row.tiers.map(tierName).join(", ")}</span>
      </div>
    ),
  }));
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
      <LongList items={items} label="Stored prefixes" />
    </section>
  );
}

// Stored prefixes as an icicle: left to right is the position in the prompt, each branch has its own line.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Row } from "../../api";
import { ago, bytes, count, short, tierName } from "../../format";
import { useSeen } from "../../parts";
import { type Node, type Stored, seenNodes } from "./rows";

const LINE = 26;
/** New cells of one frame; the others follow in the next ones. */
const FRESH = 120;
/** Pixels of a cell below which it has no words. */
const WORDS = 36;

/** Size, uses and age of a row. */
export function rowWords(row: Row): string {
  const uses = row.hits === null ? "" : `, ${count(row.hits)} ${row.hits === 1 ? "use" : "uses"}`;
  return `${count(row.tokens)} tokens, ${bytes(row.bytes)}${uses}, ${ago(row.last_used ?? row.created)}`;
}

/** Of the nodes that are seen, those that were drawn before and some more. */
function useSome(nodes: Node[]): Node[] {
  const before = useRef(new Set<string>());
  const [, again] = useState(0);
  let fresh = 0;
  const some = nodes.filter(({ row }) => {
    if (before.current.has(row.key)) return true;
    fresh += 1;
    return fresh <= FRESH;
  });
  const isAll = some.length === nodes.length;
  useEffect(() => {
    before.current = new Set(some.map(({ row }) => row.key));
    if (isAll) return;
    const frame = requestAnimationFrame(() => again((n) => n + 1));
    return () => cancelAnimationFrame(frame);
  });
  return some;
}

export function Icicle(props: { stored: Stored; chosen: string | null; onChoose: (key: string) => void }): JSX.Element {
  const { stored } = props;
  const { most } = stored;
  const [box, seen] = useSeen<[from: number, to: number, width: number]>([0, 48, 800], (old, pane) => {
    const next: [number, number, number] = [
      Math.floor(pane.top / LINE / 4) * 4 - 4,
      Math.ceil((pane.top + pane.height) / LINE / 4) * 4 + 4,
      pane.width,
    ];
    return old.every((one, at) => one === next[at]) ? old : next;
  });
  const { nodes, narrow } = useMemo(() => seenNodes(stored, ...seen), [stored, seen]);
  const some = useSome(nodes);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * most));
  return (
    <section class="icicle" aria-label="Stored prefixes by position in the prompt">
      <div class="axis" aria-hidden="true">
        {marks.map((mark) => (
          <span key={mark}>{short(mark)}</span>
        ))}
      </div>
      <div ref={box} class="icicle-box" style={{ height: `${stored.lines * LINE}px` }}>
        {some.map((node) => {
          const { row } = node;
          const tier = row.tiers[0] ?? "none";
          const words = rowWords(row);
          const hasWords = ((row.tokens - row.start) * seen[2]) / most >= WORDS;
          const name = row.text ?? `+${short(row.tokens - row.start)}`;
          return (
            <button
              key={row.key}
              type="button"
              class={`cell source-${tier} ${node.lines > 1 ? "tall" : ""} ${row.pinned ? "pinned" : ""} ${props.chosen === row.key ? "chosen" : ""}`}
              aria-label={`${name}: ${words}, ${tierName(tier)}${row.pinned ? ", pinned" : ""}`}
              title={words}
              style={{
                left: `${(100 * row.start) / most}%`,
                width: `max(${narrow}px, ${(100 * (row.tokens - row.start)) / most}%)`,
                top: `${node.top * LINE}px`,
                height: `${node.lines * LINE - 2}px`,
              }}
              onClick={() => props.onChoose(row.key)}
            >
              {hasWords ? (
                <span>
                  {name}
                  {row.text ? <small> {words}</small> : null}
                </span>
              ) : null}
            </button>
          );
        })}
      </div>
    </section>
  );
}

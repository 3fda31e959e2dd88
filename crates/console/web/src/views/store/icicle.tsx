// Stored prefixes as an icicle: left to right is the position in the prompt, each branch has its own line.
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Row } from "../../api";
import { ago, bytes, count, short, tierName } from "../../format";

const LINE = 26;

export interface Node {
  row: Row;
  children: Node[];
  /** The first line and how many lines its branches take. */
  top: number;
  lines: number;
}

export function forest(rows: Row[]): { roots: Node[]; lines: number } {
  const nodes = new Map(rows.map((row) => [row.key, { row, children: [], top: 0, lines: 0 } as Node]));
  const roots: Node[] = [];
  for (const node of nodes.values()) {
    const parent = node.row.parent ? nodes.get(node.row.parent) : undefined;
    (parent ? parent.children : roots).push(node);
  }
  const newest = (node: Node): number => node.row.last_used ?? node.row.created;
  const sort = (list: Node[]) => list.sort((one, two) => newest(two) - newest(one) || two.row.tokens - one.row.tokens);
  sort(roots);
  let at = 0;
  // Without recursion: a chain may be thousands of rows long.
  const stack: { node: Node; next: number }[] = [];
  for (const root of roots) {
    stack.push({ node: root, next: 0 });
    while (stack.length > 0) {
      const step = stack[stack.length - 1]!;
      if (step.next === 0) {
        step.node.top = at;
        sort(step.node.children);
      }
      const child = step.node.children[step.next];
      if (child) {
        step.next += 1;
        stack.push({ node: child, next: 0 });
      } else {
        if (step.node.children.length === 0) at += 1;
        step.node.lines = at - step.node.top;
        stack.pop();
      }
    }
  }
  return { roots, lines: at };
}

function seenNodes(roots: Node[], from: number, to: number): Node[] {
  const found: Node[] = [];
  const stack = [...roots].reverse();
  while (stack.length > 0) {
    const node = stack.pop()!;
    if (node.top + node.lines < from || node.top > to) continue;
    found.push(node);
    for (const child of node.children) stack.push(child);
  }
  return found;
}

/** Size, uses and age of a row. */
export function rowWords(row: Row): string {
  const uses = row.hits === null ? "" : `, ${count(row.hits)} ${row.hits === 1 ? "use" : "uses"}`;
  return `${count(row.tokens)} tokens, ${bytes(row.bytes)}${uses}, ${ago(row.last_used ?? row.created)}`;
}

export function Icicle(props: {
  roots: Node[];
  lines: number;
  chosen: string | null;
  onChoose: (key: string) => void;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState<[number, number]>([0, 60]);
  useLayoutEffect(() => {
    const pane = box.current?.closest(".pane");
    if (!pane) return;
    const look = () => {
      const top = pane.getBoundingClientRect().top - box.current!.getBoundingClientRect().top;
      const next: [number, number] = [
        Math.floor(top / LINE / 8) * 8 - 8,
        Math.ceil((top + pane.clientHeight) / LINE / 8) * 8 + 8,
      ];
      setSeen((old) => (old[0] === next[0] && old[1] === next[1] ? old : next));
    };
    look();
    pane.addEventListener("scroll", look, { passive: true });
    return () => pane.removeEventListener("scroll", look);
  }, []);
  const most = useMemo(() => {
    let max = 1;
    const stack = [...props.roots];
    for (let node = stack.pop(); node; node = stack.pop()) {
      max = Math.max(max, node.row.tokens);
      stack.push(...node.children);
    }
    return max;
  }, [props.roots]);
  const nodes = seenNodes(props.roots, seen[0], seen[1]);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * most));
  return (
    <section class="icicle" aria-label="Stored prefixes by position in the prompt">
      <div class="axis" aria-hidden="true">
        {marks.map((mark) => (
          <span key={mark}>{short(mark)}</span>
        ))}
      </div>
      <div ref={box} class="icicle-box" style={{ height: `${props.lines * LINE}px` }}>
        {nodes.map((node) => {
          const { row } = node;
          const tier = row.tiers[0] ?? "none";
          const name = row.text ?? `+${short(row.tokens - row.start)}`;
          return (
            <button
              key={row.key}
              type="button"
              class={`cell source-${tier} ${row.pinned ? "pinned" : ""} ${props.chosen === row.key ? "chosen" : ""}`}
              aria-label={`${name}: ${rowWords(row)}, ${tierName(tier)}${row.pinned ? ", pinned" : ""}`}
              title={rowWords(row)}
              style={{
                left: `${(100 * row.start) / most}%`,
                width: `max(4px, ${(100 * (row.tokens - row.start)) / most}%)`,
                top: `${node.top * LINE}px`,
                height: `${node.lines * LINE - 2}px`,
              }}
              onClick={() => props.onChoose(row.key)}
            >
              <span>
                {name}
                {row.text ? <small> {rowWords(row)}</small> : null}
              </span>
            </button>
          );
        })}
      </div>
    </section>
  );
}

// Store: stored prefixes as an icicle. Left to right is the position in the prompt, each branch has its own line.
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { type CacheInfo, get, post, type Row, send } from "../api";
import { ago, bytes, count, short } from "../format";
import { usePolled } from "../live";
import { Announce, Badge, Drawer, Notice, Tile } from "../parts";

const PAGE = 1000;
const LINE = 26;

interface Node {
  row: Row;
  children: Node[];
  /** The first line and how many lines its branches take. */
  top: number;
  lines: number;
}

async function allRows(signal: AbortSignal): Promise<Row[]> {
  const rows: Row[] = [];
  for (let offset = 0; ; ) {
    const page = await get<{ rows: Row[]; next_offset: number | null }>(
      `/api/cache/rows?offset=${offset}&limit=${PAGE}`,
      signal,
    );
    // The first words of a template name a role.
    const bare = (text: string | null) => text?.replace(/^(system|user|developer) /, "") ?? null;
    rows.push(...page.rows.map((row) => ({ ...row, text: bare(row.text) })));
    if (page.next_offset === null) return rows;
    offset = page.next_offset;
  }
}

function forest(rows: Row[]): { roots: Node[]; lines: number } {
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

export function StoreView(): JSX.Element {
  const rows = usePolled(allRows, 10_000);
  const cache = usePolled((signal) => get<CacheInfo>("/api/cache", signal).catch(() => null), 5000);
  const [chosen, setChosen] = useState<string | null>(null);
  const [said, setSaid] = useState("");
  const tree = useMemo(() => forest(rows.value ?? []), [rows.value]);
  const byKey = useMemo(() => new Map((rows.value ?? []).map((row) => [row.key, row])), [rows.value]);
  const row = chosen ? byKey.get(chosen) : undefined;
  const total = (rows.value ?? []).reduce((sum, one) => sum + one.bytes, 0);
  const used = (rows.value ?? []).reduce((sum, one) => sum + (one.hits ?? 0), 0);
  const evicted = cache.value?.counters.evictions ?? cache.value?.counters.evicted_rows;
  const remove = async (one: Row) => {
    const { removed } = (await (await send("DELETE", `/api/cache/rows/${one.key}`)).json()) as { removed: boolean };
    setSaid(removed ? "The row is evicted" : "The row is in use, or others build on it");
    if (removed) setChosen(null);
    rows.again();
  };
  const collect = async () => {
    const { freed_bytes } = await post<{ freed_bytes: number }>("/api/cache/gc", {});
    setSaid(`${bytes(freed_bytes)} of damaged files removed`);
  };
  return (
    <>
      <header class="head">
        <h1>Store</h1>
        <div class="controls">
          <button type="button" onClick={rows.again}>
            Refresh
          </button>
          <button type="button" onClick={collect} title="Remove files that can never be used again">
            Collect garbage
          </button>
        </div>
      </header>
      <section class="tiles" aria-label="Summary">
        <Tile label="Prefixes" value={count(rows.value?.length)} hint={`${count(tree.roots.length)} beginnings`} />
        <Tile label="Size" value={bytes(total)} hint={tierWords(cache.value)} />
        <Tile label="Uses" value={count(used)} hint="of these rows" />
        <Tile label="Evictions" value={count(evicted)} hint="since the server started" />
      </section>
      <Announce text={said} />
      {said ? <p class="said">{said}.</p> : null}
      {rows.error ? (
        <Notice kind="error" title="The store cannot be read">
          {rows.error.message}
        </Notice>
      ) : null}
      {rows.value && rows.value.length === 0 ? (
        <Notice kind="empty" title="Nothing is stored yet">
          Prompts are saved when they have enough tokens; see the setting save_min_tokens.
        </Notice>
      ) : null}
      {tree.lines > 0 ? <Icicle roots={tree.roots} lines={tree.lines} chosen={chosen} onChoose={setChosen} /> : null}
      {row ? <RowDrawer row={row} onClose={() => setChosen(null)} onRemove={remove} /> : null}
    </>
  );
}

function tierWords(cache: CacheInfo | null): string {
  const used = (cache?.tiers ?? []).filter((tier) => tier.bytes > 0);
  return used.length > 0
    ? used.map((tier) => `${bytes(tier.bytes)} ${tier.tier.replace("_", " ")}`).join(", ")
    : "all tiers";
}

function Icicle(props: {
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
      <ul class="legend" aria-label="Colours">
        {[
          ["ram", "RAM"],
          ["ram_file", "RAM file"],
          ["disk", "Disk"],
          ["shared", "Shared"],
        ].map(([tier, name]) => (
          <li key={tier}>
            <i class={`cell source-${tier}`} /> {name}
          </li>
        ))}
      </ul>
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
              class={`cell source-${tier} ${props.chosen === row.key ? "chosen" : ""}`}
              aria-label={`${name}: ${count(row.tokens)} tokens, ${tier}, ${bytes(row.bytes)}`}
              style={{
                left: `${(100 * row.start) / most}%`,
                width: `max(4px, ${(100 * (row.tokens - row.start)) / most}%)`,
                top: `${node.top * LINE}px`,
                height: `${node.lines * LINE - 2}px`,
              }}
              onClick={() => props.onChoose(row.key)}
            >
              <span>{name}</span>
            </button>
          );
        })}
      </div>
    </section>
  );
}

function RowDrawer(props: { row: Row; onClose: () => void; onRemove: (row: Row) => void }): JSX.Element {
  const { row } = props;
  const facts: [string, string][] = [
    ["Tokens", `${count(row.tokens)}${row.start > 0 ? `, ${count(row.tokens - row.start)} of its own` : ""}`],
    ["Size", bytes(row.bytes)],
    ["Uses", count(row.hits)],
    ["Saved", ago(row.created)],
    ["Last used", row.last_used === null ? "–" : ago(row.last_used)],
    ["Reason", row.reason],
    ["Built on by", `${count(row.children)} rows`],
  ];
  return (
    <Drawer title={row.text ? row.text.slice(0, 60) : `${count(row.tokens)} tokens`} onClose={props.onClose}>
      <p>
        {row.tiers.map((tier) => (
          <Badge key={tier} kind={`tier source-${tier}`}>
            {tier.replace("_", " ")}
          </Badge>
        ))}
        {row.pending ? <Badge kind="running">being written</Badge> : null}
      </p>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <p class="mono dim wrap">{row.key}</p>
      {row.text ? <pre class="excerpt-alone">{row.text} …</pre> : null}
      <button type="button" class="danger" disabled={row.children > 0} onClick={() => props.onRemove(row)}>
        Evict this row
      </button>
      {row.children > 0 ? <p class="dim">Other rows build on it. Evict those first.</p> : null}
    </Drawer>
  );
}

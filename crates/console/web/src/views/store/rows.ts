// The stored rows: read page by page, and arranged in steps that are short enough to draw a frame between them.
import { get, type Row } from "../../api";

const PAGE = 1000;
/** Milliseconds of work between two looks at the clock of the browser. */
const STEP = 12;
/** Nodes between two looks at our own clock. */
const SOME = 256;

export interface Node {
  row: Row;
  children: Node[];
  /** The first line and how many lines its branches take. */
  top: number;
  lines: number;
  /** The first words of the row that it begins with. */
  text: string;
}

/** All rows, and what the views need to know of them together. */
export interface Stored {
  rows: Row[];
  nodes: Map<string, Node>;
  roots: Node[];
  lines: number;
  /** The tokens of the longest row. */
  most: number;
  bytes: number;
  hits: number;
  pinned: number;
}

/** Lets the browser draw if the work since the last time took long. */
function breather(signal: AbortSignal): () => Promise<void> | undefined {
  let begun = performance.now();
  return () => {
    if (performance.now() - begun < STEP) return undefined;
    return new Promise((wake) => setTimeout(wake)).then(() => {
      signal.throwIfAborted();
      begun = performance.now();
    });
  };
}

export async function readStore(signal: AbortSignal): Promise<Stored> {
  const rows: Row[] = [];
  for (let offset: number | null = 0; offset !== null; ) {
    const page: { rows: Row[]; next_offset: number | null } = await get(
      `/api/cache/rows?offset=${offset}&limit=${PAGE}`,
      signal,
    );
    for (const row of page.rows) {
      // The first words of a template name a role.
      if (row.text) row.text = row.text.replace(/^(system|user|developer) /, "");
      rows.push(row);
    }
    offset = page.next_offset;
  }
  return arrange(rows, signal);
}

const newest = ({ row }: Node): number => row.last_used ?? row.created;
const sort = (list: Node[]) => list.sort((one, two) => newest(two) - newest(one) || two.row.tokens - one.row.tokens);

async function arrange(rows: Row[], signal: AbortSignal): Promise<Stored> {
  const pause = breather(signal);
  const stored: Stored = { rows, nodes: new Map(), roots: [], lines: 0, most: 1, bytes: 0, hits: 0, pinned: 0 };
  for (const [at, row] of rows.entries()) {
    stored.nodes.set(row.key, { row, children: [], top: 0, lines: 0, text: "" });
    stored.most = Math.max(stored.most, row.tokens);
    stored.bytes += row.bytes;
    stored.hits += row.hits ?? 0;
    stored.pinned += row.pinned ? 1 : 0;
    if (at % SOME === 0) await pause();
  }
  let done = 0;
  for (const node of stored.nodes.values()) {
    const parent = node.row.parent ? stored.nodes.get(node.row.parent) : undefined;
    (parent ? parent.children : stored.roots).push(node);
    done += 1;
    if (done % SOME === 0) await pause();
  }
  sort(stored.roots);
  await pause();
  // Without recursion: a chain may be thousands of rows long.
  const stack: { node: Node; next: number }[] = [];
  for (const root of stored.roots) {
    stack.push({ node: root, next: 0 });
    while (stack.length > 0) {
      const { node, next } = stack.at(-1)!;
      if (next === 0) {
        node.top = stored.lines;
        node.text = node.row.text ?? stack.at(-2)?.node.text ?? "";
        sort(node.children);
        done += 1;
        if (done % SOME === 0) await pause();
      }
      const child = node.children[next];
      if (child) {
        stack.at(-1)!.next += 1;
        stack.push({ node: child, next: 0 });
      } else {
        if (node.children.length === 0) stored.lines += 1;
        node.lines = stored.lines - node.top;
        stack.pop();
      }
    }
  }
  return stored;
}

/** Cells that are narrower than the first number of pixels are drawn as one; if there are many, up to the second. */
const NARROW = [4, 64] as const;
const MANY = 600;

export interface Seen {
  nodes: Node[];
  /** The least width of a cell, in pixels. */
  narrow: number;
}

/** The nodes to draw for some lines: of cells that would cover each other, the first. */
export function seenNodes(stored: Stored, from: number, to: number, width: number): Seen {
  let narrow: number = NARROW[0];
  let nodes = uncovered(stored, from, to, width, narrow);
  while (nodes.length > MANY && narrow < NARROW[1]) {
    narrow *= 2;
    nodes = uncovered(stored, from, to, width, narrow);
  }
  return { nodes, narrow };
}

function uncovered(stored: Stored, from: number, to: number, width: number, narrow: number): Node[] {
  const found: Node[] = [];
  const pixels = width / stored.most;
  // How far each line is covered.
  const covered = new Map<number, number>();
  const stack: Node[] = [];
  const add = (siblings: Node[]) => {
    for (let at = firstSeen(siblings, from); at < siblings.length; at += 1) {
      if (siblings[at]!.top > to) break;
      stack.push(siblings[at]!);
    }
  };
  add(stored.roots);
  for (let node = stack.pop(); node; node = stack.pop()) {
    const end = node.row.tokens * pixels;
    const line = Math.max(node.top, from);
    if (end >= (covered.get(line) ?? 0)) {
      found.push(node);
      covered.set(line, Math.max(end, node.row.start * pixels + narrow));
    }
    add(node.children);
  }
  return found;
}

/** The first of some siblings that reaches a line; they are in the order of their lines. */
function firstSeen(nodes: Node[], line: number): number {
  let [low, high] = [0, nodes.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const node = nodes[middle]!;
    if (node.top + node.lines <= line) low = middle + 1;
    else high = middle;
  }
  return low;
}

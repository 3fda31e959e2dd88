// Small parts that several views share: tiles, bars, badges, notices, a list that draws only what is seen.
import type { ComponentChildren, JSX, RefObject } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { RequestRow } from "./api";
import { count, sourceName } from "./format";

export function Tile(props: { label: string; value: string; hint?: string }): JSX.Element {
  return (
    <div class="tile">
      <div class="tile-label">{props.label}</div>
      <div class="tile-value">{props.value}</div>
      {props.hint ? <div class="tile-hint">{props.hint}</div> : null}
    </div>
  );
}

export function Badge(props: { kind: string; children: ComponentChildren }): JSX.Element {
  return <span class={`badge badge-${props.kind}`}>{props.children}</span>;
}

/** Names and values. */
export function Facts(props: { facts: [string, string][] }): JSX.Element {
  return (
    <dl class="facts">
      {props.facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Notice(props: { kind?: "error" | "empty"; title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class={`notice ${props.kind ?? ""}`} role={props.kind === "error" ? "alert" : undefined}>
      <strong>{props.title}</strong>
      {props.children ? <p>{props.children}</p> : null}
    </div>
  );
}

export function Meter(props: { label: string; part: number; whole: number; kind?: string }): JSX.Element {
  const share = props.whole > 0 ? Math.min(100, (100 * props.part) / props.whole) : 0;
  return (
    <div
      class="meter"
      role="progressbar"
      aria-label={props.label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(share)}
    >
      <div class={`meter-fill ${props.kind ?? ""}`} style={{ width: `${share}%` }} />
    </div>
  );
}

/** What a prompt was made of: restored, computed, still to compute, generated. */
export function TokenBar(props: { row: RequestRow; most: number }): JSX.Element {
  const { row } = props;
  const cached = row.cached_tokens ?? 0;
  const fresh = row.new_tokens ?? 0;
  const done =
    row.stage === "prefilling" ? Math.max(0, Math.min(fresh, (row.processed_tokens ?? cached) - cached)) : fresh;
  const waits = row.stage === "queued" || row.stage === "restoring";
  const parts: [string, number][] = [
    [`restored source-${row.source ?? "cache"}`, cached],
    ["computed", waits ? 0 : done],
    ["to-compute", waits ? fresh : fresh - done],
    ["generated", row.generated_tokens],
  ];
  const most = Math.max(1, props.most);
  return (
    <div class="token-bar" aria-hidden="true">
      {parts.map(([kind, tokens]) =>
        tokens > 0 ? (
          <i key={kind} class={`part ${kind}`} style={{ width: `max(2px, ${(100 * tokens) / most}%)` }} />
        ) : null,
      )}
    </div>
  );
}

/** The same in words, for screen readers and tooltips. */
export function tokenWords(row: RequestRow): string {
  if (row.prompt_tokens === null) return "no figures yet";
  const cached = row.cached_tokens ?? 0;
  const from = cached > 0 ? `${count(cached)} tokens from ${sourceName(row.source)}` : "nothing cached";
  return `${from}, ${count(row.new_tokens)} computed, ${count(row.generated_tokens)} generated`;
}

/** The first place of a growing list that is above a number. */
function firstAbove(list: number[], number: number): number {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle]! > number) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Follows what is seen of a box while the nearest pane scrolls; `look` gets what the pane shows, from the top of the box. */
export function useSeen<S>(
  first: S,
  look: (old: S, pane: { top: number; height: number; width: number }) => S,
): [RefObject<HTMLDivElement | null>, S] {
  const box = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState<S>(first);
  useLayoutEffect(() => {
    const pane = box.current?.closest(".pane");
    if (!pane) return;
    const follow = () => {
      const { top, width } = box.current!.getBoundingClientRect();
      const shown = { top: pane.getBoundingClientRect().top - top, height: pane.clientHeight, width };
      setSeen((old) => look(old, shown));
    };
    follow();
    pane.addEventListener("scroll", follow, { passive: true });
    window.addEventListener("resize", follow);
    return () => {
      pane.removeEventListener("scroll", follow);
      window.removeEventListener("resize", follow);
    };
  }, []);
  return [box, seen];
}

/** A list of any length that draws only what is seen. It scrolls with the nearest pane. */
export function LongList<T>(props: {
  items: T[];
  label: string;
  keyOf: (item: T) => string;
  /** In pixels; all the same, or of each item. */
  height: number | ((item: T) => number);
  draw: (item: T) => ComponentChildren;
}): JSX.Element {
  const { items, height } = props;
  const [box, seen] = useSeen<[number, number]>([0, 1200], (old, pane) => {
    const next: [number, number] = [Math.floor(pane.top / 200) * 200 - 200, pane.top + pane.height + 400];
    return old[0] === next[0] && Math.abs(old[1] - next[1]) < 200 ? old : next;
  });
  /** Where each item ends. */
  const ends = useMemo(() => {
    let at = 0;
    return items.map((item) => {
      at += typeof height === "number" ? height : height(item);
      return at;
    });
  }, [items]);
  const [first, last] = [firstAbove(ends, seen[0]), firstAbove(ends, seen[1])];
  return (
    <div ref={box} class="long-list" style={{ height: `${ends.at(-1) ?? 0}px` }}>
      <ul aria-label={props.label}>
        {items.slice(first, last + 1).map((item, at) => {
          const top = ends[first + at - 1] ?? 0;
          return (
            <li
              key={props.keyOf(item)}
              class="long-item"
              style={{ top: `${top}px`, height: `${ends[first + at]! - top}px` }}
            >
              {props.draw(item)}
            </li>
          );
        })}
      </ul>
    </div>
  );
}

/** A panel beside the view; Escape closes it and the focus goes back. */
export function Drawer(props: { title: string; onClose: () => void; children: ComponentChildren }): JSX.Element {
  const heading = useRef<HTMLHeadingElement>(null);
  const close = useRef(props.onClose);
  close.current = props.onClose;
  // At once: the next key must not go to what is behind the panel.
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    heading.current?.focus();
    const leave = (event: KeyboardEvent) => event.key === "Escape" && close.current();
    document.addEventListener("keydown", leave);
    return () => {
      document.removeEventListener("keydown", leave);
      before?.focus();
    };
  }, []);
  return (
    <aside class="drawer" aria-label={props.title}>
      <header class="drawer-head">
        <h2 ref={heading} tabIndex={-1}>
          {props.title}
        </h2>
        <button type="button" class="quiet" onClick={props.onClose} aria-label="Close">
          ✕
        </button>
      </header>
      {/* It may be all that the keyboard can scroll. */}
      <section class="drawer-body" tabIndex={0} aria-label={`${props.title}, details`}>
        {props.children}
      </section>
    </aside>
  );
}

/** Stacked columns over time, with a sentence for screen readers. */
export function Columns(props: {
  label: string;
  max: string;
  ends: string[];
  columns: { key: string; title: string; parts: [kind: string, percent: number][] }[];
}): JSX.Element {
  return (
    <>
      <div class="columns" role="img" aria-label={props.label}>
        <span class="column-max">{props.max}</span>
        {props.columns.map((column) => (
          <span key={column.key} class="column" title={column.title}>
            {column.parts.map(([kind, percent]) => (
              <i key={kind} class={`part ${kind}`} style={{ height: `${percent}%` }} />
            ))}
          </span>
        ))}
      </div>
      <div class="axis" aria-hidden="true">
        {props.ends.map((end) => (
          <span key={end}>{end}</span>
        ))}
      </div>
    </>
  );
}

/** Announces something to screen readers. */
export function Announce(props: { text: string }): JSX.Element {
  return (
    <div class="unseen" role="status" aria-live="polite">
      {props.text}
    </div>
  );
}

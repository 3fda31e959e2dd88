// Requests: the last ones as bars, grouped by conversation, newest first.
import type { JSX } from "preact";
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { type RequestRow, send } from "../api";
import { clock, count, ms, percent, short, span } from "../format";
import type { Live } from "../live";
import { Announce, Badge, LongList, Notice, Tile, TokenBar, tokenWords } from "../parts";
import { WhyDrawer } from "./why";

const WINDOWS: [string, number][] = [
  ["1 min", 60_000],
  ["10 min", 600_000],
  ["1 hour", 3_600_000],
  ["All", 0],
];

interface Group {
  id: string;
  title: string;
  model: string;
  rows: RequestRow[];
  last: number;
}

function endOf(row: RequestRow, now: number): number {
  return row.stage === "ended" ? row.arrived_ms + (row.total_ms ?? 0) : now;
}

function grouped(rows: RequestRow[]): Group[] {
  const groups = new Map<string, Group>();
  for (const row of rows) {
    const id = `${row.key ?? ""}/${row.model}/${row.conversation}`;
    let group = groups.get(id);
    if (!group) {
      // A prompt may be a list of tokens.
      const own = row.title && /^\[\d+(, \d+)*\]$/.test(row.title) ? "A prompt of tokens" : row.title;
      const title = own ?? (row.key === null ? "Conversation" : `Conversation of key ${row.key}`);
      group = { id, title: title || "Empty prompt", model: row.model, rows: [], last: 0 };
      groups.set(id, group);
    }
    group.rows.push(row);
    group.last = Math.max(group.last, row.arrived_ms);
  }
  const all = [...groups.values()].sort((one, two) => two.last - one.last);
  for (const group of all) group.rows.sort((one, two) => two.id - one.id);
  return all;
}

/** A line of the list: the head of a conversation, or a request with the most tokens of one in its conversation. */
type Item = { group: Group } | { row: RequestRow; most: number };

function listed(rows: RequestRow[]): Item[] {
  return grouped(rows).flatMap((group) => {
    // Each conversation has its own scale: one long prompt must not make all others invisible.
    const most = group.rows.reduce((max, row) => Math.max(max, (row.prompt_tokens ?? 0) + row.generated_tokens), 1);
    return [{ group }, ...group.rows.map((row) => ({ row, most }))];
  });
}

/** Tokens of prompts, and how many of them were reused. A prompt that was given up before it was computed tells nothing. */
function reused(rows: RequestRow[]): { cached: number; prompt: number } {
  const known = rows.filter((row) => row.stage !== "ended" || row.new_tokens !== null);
  return {
    cached: known.reduce((sum, row) => sum + (row.cached_tokens ?? 0), 0),
    prompt: known.reduce((sum, row) => sum + (row.prompt_tokens ?? 0), 0),
  };
}

function isShown(row: RequestRow, only: string): boolean {
  if (only === "all") return true;
  if (only === "running") return row.stage !== "ended";
  return row.stage === "ended" && (row.new_tokens ?? 0) > (row.cached_tokens ?? 0);
}

export function RequestsView(props: { live: Live }): JSX.Element {
  const { live } = props;
  // A server that started again counts from 1: the number alone may mean another request.
  const [open, setOpen] = useState<{ id: number; arrived: number } | null>(null);
  const [frame, setFrame] = useState(600_000);
  const [only, setOnly] = useState("all");
  const [said, setSaid] = useState("");
  const all = useMemo(() => [...live.requests.values()], [live.version]);
  const items = useMemo(() => listed(all.filter((row) => isShown(row, only))), [all, only]);
  const running = all.filter((row) => row.stage !== "ended");
  const now = Date.now();
  const earliest = all.reduce((least, row) => Math.min(least, row.arrived_ms), now);
  const from = frame > 0 ? now - frame : earliest;
  const cancel = useCallback(async (row: RequestRow) => {
    try {
      const answer = await send("DELETE", `/api/requests/${row.id}`);
      const { cancelled } = (await answer.json()) as { cancelled: boolean };
      setSaid(cancelled ? `Request ${row.id} is cancelled` : `Request ${row.id} had ended`);
    } catch (error) {
      setSaid(`Request ${row.id} is not cancelled: ${(error as Error).message}`);
    }
  }, []);
  const [, tick] = useState(0);
  useEffect(() => {
    if (running.length === 0) return;
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [running.length]);
  const found = open ? live.requests.get(open.id) : undefined;
  const chosen = found?.arrived_ms === open?.arrived ? found : undefined;
  const draw = (item: Item) =>
    "row" in item ? (
      <RequestLine
        row={item.row}
        most={item.most}
        from={from}
        now={now}
        isOpen={chosen?.id === item.row.id}
        onOpen={setOpen}
        onCancel={cancel}
      />
    ) : (
      <GroupHead group={item.group} />
    );
  const { cached, prompt } = reused(all);
  const first = all.flatMap((row) =>
    row.prefill_ms != null ? [(row.queue_ms ?? 0) + (row.restore_ms ?? 0) + row.prefill_ms] : [],
  );
  first.sort((one, two) => one - two);
  return (
    <>
      <header class="head">
        <h1>Requests</h1>
        <div class="controls">
          <label>
            <span class="unseen">Which requests</span>
            <select value={only} onChange={(event) => setOnly(event.currentTarget.value)}>
              <option value="all">All requests</option>
              <option value="running">Running</option>
              <option value="missed">Mostly computed</option>
            </select>
          </label>
          <fieldset class="segments">
            <legend class="unseen">Time axis</legend>
            {WINDOWS.map(([name, length]) => (
              <button key={name} type="button" aria-pressed={frame === length} onClick={() => setFrame(length)}>
                {name}
              </button>
            ))}
          </fieldset>
        </div>
      </header>
      <section class="tiles" aria-label="Summary">
        <Tile
          label="Running"
          value={count(running.filter((row) => row.stage !== "queued").length)}
          hint={`${count(running.filter((row) => row.stage === "queued").length)} waiting`}
        />
        <Tile
          label="Prompt tokens reused"
          value={percent(cached, prompt)}
          hint={`${short(cached)} of ${short(prompt)}`}
        />
        <Tile
          label="First token, median"
          value={ms(first[Math.floor(first.length / 2)])}
          hint={`${count(first.length)} replies`}
        />
        <Tile label="Kept" value={count(all.length)} hint={all.length ? `since ${clock(earliest)}` : "none yet"} />
      </section>
      <Legend />
      <Announce text={said} />
      {live.kept === 0 ? (
        <Notice kind="empty" title="Requests are not kept">
          This server was started with console_requests set to 0.
        </Notice>
      ) : all.length === 0 && !live.open ? (
        <p class="dim">Asking the server …</p>
      ) : items.length === 0 ? (
        <Notice kind="empty" title={all.length === 0 ? "No requests yet" : "No such requests"}>
          {all.length === 0
            ? "Send one to this server, or use the chat. It appears here while it runs."
            : "Choose another filter."}
        </Notice>
      ) : (
        <>
          <div class="line line-head" aria-hidden="true">
            <span>Time</span>
            <span>Prompt and reply, in tokens</span>
            <span class="wide">Timeline{frame > 0 ? `, last ${span(frame / 1000)}` : ""}</span>
            <span>Hit</span>
            <span class="right">Total</span>
            <span />
          </div>
          <LongList
            items={items}
            label="Requests by conversation"
            keyOf={(item) => ("row" in item ? String(item.row.id) : item.group.id)}
            height={(item) => ("row" in item ? 36 : 46)}
            draw={draw}
          />
        </>
      )}
      {chosen ? <WhyDrawer row={chosen} onClose={() => setOpen(null)} onCancel={cancel} /> : null}
    </>
  );
}

function Legend(): JSX.Element {
  const parts: [string, string][] = [
    ["restored source-sequence", "Live"],
    ["restored source-ram", "RAM"],
    ["restored source-disk", "Disk"],
    ["restored source-shared", "Shared"],
    ["computed", "Computed"],
    ["generated", "Generated"],
    ["waiting", "Queue"],
  ];
  return (
    <ul class="legend" aria-label="Colours">
      {parts.map(([kind, name]) => (
        <li key={name}>
          <i class={`part ${kind}`} /> {name}
        </li>
      ))}
    </ul>
  );
}

function GroupHead(props: { group: Group }): JSX.Element {
  const { group } = props;
  const { cached, prompt } = reused(group.rows);
  return (
    <div class="group-head">
      <h2>{group.title}</h2>
      <span class="dim">{group.model}</span>
      {group.rows[0]?.key != null ? <span class="dim">key {group.rows[0].key}</span> : null}
      <span class="dim push">
        {count(group.rows.length)} {group.rows.length === 1 ? "request" : "requests"}, {percent(cached, prompt)} reused
      </span>
    </div>
  );
}

function RequestLine(props: {
  row: RequestRow;
  most: number;
  from: number;
  now: number;
  isOpen: boolean;
  onOpen: (request: { id: number; arrived: number }) => void;
  onCancel: (row: RequestRow) => void;
}): JSX.Element {
  const { row } = props;
  const isOpen = row.stage !== "ended";
  return (
    <div class={`line ${props.isOpen ? "selected" : ""} ${isOpen ? "under-way" : ""}`} data-request={row.id}>
      <button
        type="button"
        class="line-open"
        onClick={() => props.onOpen({ id: row.id, arrived: row.arrived_ms })}
        aria-label={`Request ${row.id} at ${clock(row.arrived_ms)}: ${label(row)}`}
      />
      <span class="time">{clock(row.arrived_ms)}</span>
      <span class="tokens" title={tokenWords(row)}>
        {row.stage === "prefilling" ? <Prefill row={row} /> : <TokenBar row={row} most={props.most} />}
        <small>{tokensShort(row)}</small>
      </span>
      <Timeline row={row} from={props.from} now={props.now} />
      <span>
        <State row={row} />
      </span>
      <span class="right">{ms(isOpen ? Math.max(row.age_ms ?? 0, props.now - row.arrived_ms) : row.total_ms)}</span>
      <span class="right">
        {isOpen ? (
          <button
            type="button"
            class="small"
            onClick={() => props.onCancel(row)}
            aria-label={`Cancel request ${row.id}`}
          >
            Cancel
          </button>
        ) : null}
      </span>
    </div>
  );
}

function label(row: RequestRow): string {
  return `${row.stage === "ended" ? (row.hit ?? row.outcome ?? "ended") : row.stage}, ${tokenWords(row)}`;
}

function tokensShort(row: RequestRow): string {
  if (row.prompt_tokens === null) return "";
  if (row.stage === "prefilling") return row.left_ms != null ? `${ms(row.left_ms)} left` : "";
  return `${short(row.cached_tokens ?? 0)} + ${short(row.new_tokens ?? 0)} → ${short(row.generated_tokens)}`;
}

/** A prompt that is being computed: what was there, what is done, what is left. */
function Prefill(props: { row: RequestRow }): JSX.Element {
  const { row } = props;
  const whole = Math.max(1, row.prompt_tokens ?? 0);
  const cached = row.cached_tokens ?? 0;
  const done = Math.max(cached, row.processed_tokens ?? cached);
  return (
    <div
      class="meter"
      role="progressbar"
      aria-label={`Prompt of request ${row.id}`}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round((100 * done) / whole)}
    >
      <i class="part restored" style={{ width: `${(100 * cached) / whole}%` }} />
      <i class="part computed" style={{ width: `${(100 * (done - cached)) / whole}%` }} />
    </div>
  );
}

function State(props: { row: RequestRow }): JSX.Element {
  const { row } = props;
  if (row.stage !== "ended") return <Badge kind="running">{row.stage}</Badge>;
  if (row.outcome === "failed" || row.outcome === "cancelled" || row.outcome === "abandoned") {
    return <Badge kind={row.outcome}>{row.outcome}</Badge>;
  }
  return <Badge kind={row.hit ?? "none"}>{row.hit ?? "–"}</Badge>;
}

/** When it waited, restored, computed and generated, on the axis of the view. */
export function Timeline(props: { row: RequestRow; from: number; now: number }): JSX.Element {
  const { row, from, now } = props;
  const whole = Math.max(1, now - from);
  const place = (at: number) => Math.max(0, Math.min(100, (100 * (at - from)) / whole));
  const steps: [string, number][] =
    row.prefill_ms != null
      ? [
          ["waiting", row.queue_ms ?? 0],
          [`restored source-${row.source ?? "cache"}`, row.restore_ms ?? 0],
          ["computed", row.prefill_ms],
          ["generated", row.decode_ms ?? 0],
        ]
      : [
          [
            row.stage === "queued" ? "waiting" : row.stage === "generating" ? "generated" : "computed",
            endOf(row, now) - row.arrived_ms,
          ],
        ];
  let at = row.arrived_ms;
  return (
    <span class="timeline wide" aria-hidden="true">
      {steps.map(([kind, length]) => {
        const left = place(at);
        const right = place(at + length);
        at += length;
        return length > 0 && right > 0 ? (
          <i
            key={kind}
            class={`part ${kind}`}
            style={{ left: `min(${left}%, calc(100% - 3px))`, width: `max(3px, ${right - left}%)` }}
          />
        ) : null;
      })}
    </span>
  );
}

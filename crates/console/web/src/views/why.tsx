// One request: its figures, and why its prompt was not found to its end.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type Around, get, type RequestRow, type Why } from "../api";
import { count, gained, ms, percent, sourceName, words } from "../format";
import { Badge, Drawer, Facts, Meter, Notice } from "../parts";

/** Fewer computed tokens than this need no explanation: the last message is always new. */
const FEW = 16;

export function WhyDrawer(props: {
  row: RequestRow;
  onClose: () => void;
  onCancel: (row: RequestRow) => void;
}): JSX.Element {
  const { row } = props;
  const [why, setWhy] = useState<Why | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const isReady = row.prompt_tokens !== null && row.stage !== "queued" && row.stage !== "restoring";
  useEffect(() => {
    setWhy(null);
    setError(null);
    if (!isReady) return;
    const stop = new AbortController();
    get<Why>(`/api/requests/${row.id}/why`, stop.signal)
      .then(setWhy)
      .catch((failed: Error) => !stop.signal.aborted && setError(failed));
    return () => stop.abort();
  }, [row.id, isReady]);
  return (
    <Drawer title={`Request ${row.id}`} onClose={props.onClose}>
      <p class="dim drawer-sub">
        {row.model}
        {row.request_id ? ` · ${row.request_id}` : ""}
      </p>
      {row.stage === "prefilling" ? (
        <div class="block">
          <div class="spread">
            <span>Computing the prompt</span>
            <span>
              {count(row.processed_tokens)} of {count(row.prompt_tokens)}
              {row.left_ms != null ? `, ${ms(row.left_ms)} left` : ""}
            </span>
          </div>
          <Meter label="Prompt" part={row.processed_tokens ?? 0} whole={row.prompt_tokens ?? 0} kind="computed" />
        </div>
      ) : null}
      {row.stage !== "ended" ? (
        <p>
          <button type="button" onClick={() => props.onCancel(row)}>
            Cancel this request
          </button>
        </p>
      ) : null}
      <Figures row={row} />
      <h3>Why</h3>
      {error ? (
        <Notice kind="error" title="No explanation">
          {error.message}
        </Notice>
      ) : null}
      {!error && !why ? (
        <p class="dim">
          {isReady
            ? "Comparing with the store …"
            : row.stage === "ended"
              ? `The prompt was never looked up: the request ${row.error ? `failed with ${row.error}` : "ended before"}.`
              : "The prompt is not looked up yet."}
        </p>
      ) : null}
      {why ? <Explanation why={why} row={row} /> : null}
    </Drawer>
  );
}

function Figures(props: { row: RequestRow }): JSX.Element {
  const { row } = props;
  // What is under way is not done, and the speed is that of the stage.
  const computed =
    row.stage === "prefilling"
      ? Math.max(0, (row.processed_tokens ?? 0) - (row.cached_tokens ?? 0))
      : row.stage === "queued" || row.stage === "restoring"
        ? 0
        : row.new_tokens;
  const speed = (stage: string) =>
    row.stage === stage && row.tokens_per_second ? ` at ${row.tokens_per_second}/s` : "";
  const facts: [string, string][] = [
    ["Restored", `${count(row.cached_tokens)}${row.source ? ` from ${sourceName(row.source)}` : ""}`],
    ["Computed", `${count(computed)}${speed("prefilling")}`],
    ["Generated", `${count(row.generated_tokens)}${speed("generating")}`],
    ["Queue", ms(row.queue_ms)],
    ["Restore", ms(row.restore_ms)],
    ["Prefill", ms(row.prefill_ms)],
    ["Decode", ms(row.decode_ms)],
    ["Total", ms(row.total_ms ?? row.age_ms)],
  ];
  if (row.drafts) {
    const { drafted, accepted, tokens_per_step, saved_ms } = row.drafts;
    facts.push(
      ["Drafts", `${count(accepted)} of ${count(drafted)} kept`],
      ["Tokens a step", `${tokens_per_step.toFixed(2)}, ${gained(saved_ms / 1000)}`],
    );
  }
  return <Facts facts={facts} />;
}

function Explanation(props: { why: Why; row: RequestRow }): JSX.Element {
  const { why, row } = props;
  const isFine = why.cause === "cached" || why.cause === "grown" || (row.new_tokens ?? 0) <= FEW;
  return (
    <section class="why" aria-label="Explanation" data-cause={why.cause}>
      <p class="why-head">
        <Badge kind={isFine ? "exact" : why.fix ? "failed" : "none"}>{words(why.cause)}</Badge>
        <span>{why.reason.charAt(0).toUpperCase() + why.reason.slice(1)}.</span>
      </p>
      <div
        class="prompt-bar"
        role="img"
        aria-label={`${count(why.found)} of ${count(why.tokens)} tokens were found; ${count(why.lost)} more are stored behind the difference`}
      >
        <i class="part restored source-ram" style={{ width: `${(100 * why.found) / Math.max(1, why.tokens)}%` }} />
        <i
          class="part lost"
          style={{ width: `${(100 * Math.min(why.lost, why.tokens - why.found)) / Math.max(1, why.tokens)}%` }}
        />
      </div>
      <p class="dim">
        {percent(why.found, why.tokens)} found.{" "}
        {why.lost > 0 ? `${count(why.lost)} more tokens are stored behind the difference and were computed again.` : ""}
      </p>
      {why.fix ? (
        <div class="fix">
          <strong>What to change</strong>
          <p>{why.fix}</p>
        </div>
      ) : null}
      {why.cached && why.asked ? (
        <>
          <h3>
            Where they part, token {count(why.offset)}
            {why.message ? `, message ${why.message.number} (${why.message.role})` : ""}
          </h3>
          <Excerpt title="Stored" around={why.cached} other={why.asked} kind="old" />
          <Excerpt title="Sent" around={why.asked} other={why.cached} kind="new" />
        </>
      ) : null}
      {why.hygiene.length > 0 ? (
        <p class="dim">
          Hygiene made equal:{" "}
          {why.hygiene
            .map((one) => `${words(one.rule)} (${count(one.places)} ${one.places === 1 ? "place" : "places"})`)
            .join(", ")}
          .
        </p>
      ) : null}
    </section>
  );
}

/** How many words at the end of two texts are the same. */
function sameWords(one: string[], two: string[]): number {
  let same = 0;
  while (same < one.length - 1 && same < two.length - 1 && one.at(-1 - same) === two.at(-1 - same)) same += 1;
  return same;
}

function Excerpt(props: { title: string; around: Around; other: Around; kind: string }): JSX.Element {
  const parts = props.around.after.split(/(?<=\s)/);
  const same = sameWords(parts, props.other.after.split(/(?<=\s)/));
  // A few equal words at the end are a coincidence.
  const end = same >= 3 ? parts.length - same : parts.length;
  return (
    <figure class={`excerpt ${props.kind}`}>
      <figcaption>{props.title}</figcaption>
      <pre>
        <span class="same">{props.around.before}</span>
        <mark>{parts.slice(0, end).join("") || "(end)"}</mark>
        <span class="same">{parts.slice(end).join("")}</span>
      </pre>
    </figure>
  );
}

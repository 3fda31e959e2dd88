// Models: what is loaded and what is installed, how it fits; load, unload, pull.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type DraftSums, get, lines, type Plan, post, type Running, type SystemInfo, send, type Tags } from "../api";
import { bytes, count, gained, percent, short } from "../format";
import { usePolled } from "../live";
import { Announce, Badge, Meter, Notice } from "../parts";

interface Pull {
  name: string;
  status: string;
  done: number;
  total: number;
  ended: boolean;
  error: boolean;
}

const bare = (name: string) => name.replace(/:latest$/, "");

export function ModelsView(): JSX.Element {
  const tags = usePolled((signal) => get<Tags>("/api/tags", signal), 5000);
  const running = usePolled((signal) => get<Running>("/api/ps", signal), 2000);
  const system = usePolled((signal) => get<SystemInfo>("/api/system", signal).catch(() => null), 2000);
  const [busy, setBusy] = useState<string | null>(null);
  const [said, setSaid] = useState("");
  const [pull, setPull] = useState<Pull | null>(null);
  const [name, setName] = useState("");
  const act = async (what: "load" | "unload", model: string) => {
    // Not a disabled button, which would lose the focus.
    if (busy !== null) return;
    setBusy(model);
    try {
      const answer = await post<{ state: string }>(`/api/models/${what}`, { model });
      setSaid(`${model}: ${answer.state}`);
    } catch (error) {
      setSaid((error as Error).message);
    }
    setBusy(null);
    running.again();
    system.again();
  };
  const fetchModel = async (event: Event) => {
    event.preventDefault();
    const wanted = name.trim();
    if (!wanted) return;
    setPull({ name: wanted, status: "asking", done: 0, total: 0, ended: false, error: false });
    try {
      const answer = await send("POST", "/api/pull", { model: wanted });
      for await (const line of lines(answer)) {
        if (!line) continue;
        const step = JSON.parse(line) as { status?: string; completed?: number; total?: number; error?: string };
        if (step.error) throw new Error(step.error);
        setPull((old) => ({
          name: wanted,
          status: step.status ?? old?.status ?? "",
          done: step.completed ?? (step.total ? 0 : (old?.done ?? 0)),
          total: step.total ?? old?.total ?? 0,
          ended: step.status === "success",
          error: false,
        }));
      }
      tags.again();
    } catch (error) {
      setPull({ name: wanted, status: (error as Error).message, done: 0, total: 0, ended: true, error: true });
    }
  };
  const loaded = new Map((running.value?.models ?? []).map((model) => [bare(model.name), model]));
  const facts = new Map((system.value?.models ?? []).map((model) => [bare(model.id), model]));
  const names = [...new Set([...loaded.keys(), ...(tags.value?.models ?? []).map((model) => bare(model.name))])];
  const sizes = new Map((tags.value?.models ?? []).map((model) => [bare(model.name), model]));
  const most = Math.max(1, ...[...facts.values()].map((model) => model.weights_bytes + model.context_bytes));
  return (
    <>
      <header class="head">
        <h1>Models</h1>
      </header>
      <form class="pull" onSubmit={fetchModel}>
        <label for="pull">Fetch a model</label>
        <input
          id="pull"
          value={name}
          placeholder="name, or hf.co/owner/repository"
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <button type="submit" disabled={pull !== null && !pull.ended}>
          Pull
        </button>
      </form>
      {pull ? (
        <section class={`card ${pull.error ? "card-error" : ""}`} aria-label={`Download of ${pull.name}`}>
          <div class="spread">
            <strong>{pull.name}</strong>
            <span role={pull.error ? "alert" : undefined}>{pull.status}</span>
          </div>
          {pull.error ? null : (
            <>
              <Meter
                label={`Download of ${pull.name}`}
                part={pull.ended ? 1 : pull.done}
                whole={pull.ended ? 1 : pull.total}
              />
              <span class="dim">{pull.total > 0 ? `${bytes(pull.done)} of ${bytes(pull.total)}` : " "}</span>
            </>
          )}
        </section>
      ) : null}
      <Announce text={said} />
      {said ? <p class="said">{said}</p> : null}
      {tags.error ? (
        <Notice kind="error" title="The models cannot be read">
          {tags.error.message}
        </Notice>
      ) : null}
      {names.length === 0 && tags.value && running.value ? (
        <Notice kind="empty" title="No models">
          Fetch one above.
        </Notice>
      ) : null}
      <ul class="cards">
        {names.map((model) => {
          const fact = facts.get(model);
          const isLoaded = loaded.has(model);
          const details = sizes.get(model)?.details;
          return (
            <li key={model} class="card">
              <div class="spread">
                <h2>{model}</h2>
                <Badge kind={isLoaded ? "exact" : "none"}>
                  {isLoaded ? (fact?.status.phase ?? "loaded") : "not loaded"}
                </Badge>
              </div>
              <p class="dim">
                {[
                  fact?.architecture,
                  fact ? `${short(fact.parameters).replace("G", "B")} parameters` : details?.parameter_size,
                  fact?.quantisation ?? details?.quantization_level,
                  fact ? `context ${count(fact.context)}` : null,
                ]
                  .filter(Boolean)
                  .join(" · ") || bytes(sizes.get(model)?.size ?? 0)}
              </p>
              {fact ? (
                <>
                  <div
                    class="memory"
                    role="img"
                    aria-label={`Memory: ${bytes(fact.weights_bytes)} weights, ${bytes(fact.context_bytes)} context`}
                  >
                    <i class="part weights" style={{ width: `${(100 * fact.weights_bytes) / most}%` }} />
                    <i class="part cells" style={{ width: `${(100 * fact.context_bytes) / most}%` }} />
                  </div>
                  <p class="dim">
                    {bytes(fact.weights_bytes)} weights, {bytes(fact.context_bytes)} context ·{" "}
                    {count(fact.status.active)} running, {count(fact.status.pending)} waiting
                  </p>
                  <p class="dim">
                    {count(fact.status.prefilled_tokens)} prompt tokens computed, {count(fact.status.generated_tokens)}{" "}
                    generated
                  </p>
                  <p class="dim">{draftWords(fact.status.drafts)}</p>
                  {fact.plan ? <FitPlan plan={fact.plan} /> : null}
                </>
              ) : null}
              <div class="card-actions">
                <button
                  type="button"
                  aria-disabled={busy !== null}
                  onClick={() => act(isLoaded ? "unload" : "load", model)}
                >
                  {busy === model ? "Working …" : isLoaded ? "Unload" : "Load"}
                </button>
              </div>
            </li>
          );
        })}
      </ul>
    </>
  );
}

/** What guessing replies ahead brought since the model was loaded. */
function draftWords(drafts: DraftSums): string {
  if (drafts.off !== null) return `No drafts: ${drafts.off}`;
  if (drafts.drafted === 0) return "Drafts: none computed yet";
  const kept = `${count(drafts.drafted)} tokens, ${percent(drafts.accepted, drafts.drafted)} kept`;
  return `Drafts: ${kept}, ${drafts.tokens_per_step?.toFixed(2)} tokens a step, ${gained(drafts.saved_seconds)}`;
}

/** How a model fits on this machine: each choice with the flags that change it, and the memory by device. */
function FitPlan(props: { plan: Plan }): JSX.Element {
  const { lines, warning, memory } = props.plan;
  const total = (one: Plan["memory"][number]) => one.weights_bytes + one.context_bytes + one.buffer_bytes;
  const most = Math.max(1, ...memory.map(total));
  return (
    <section class="plan" aria-label="Fit plan">
      <h3>Fit plan</h3>
      <ul>
        {lines.map((line) => (
          <li key={line.text}>
            {line.text}
            {line.flags.map((flag) => (
              <span key={flag}>
                {" "}
                <span class="mono dim flag">{flag}</span>
              </span>
            ))}
          </li>
        ))}
      </ul>
      {warning ? <p class="wrong">{warning}</p> : null}
      {memory.some((one) => total(one) > 0) ? (
        <ul class="devices" aria-label="Memory by device">
          {memory.map((one) => (
            <li key={one.device}>
              <div class="spread">
                <span>{one.device}</span>
                <span class="dim">{bytes(total(one))}</span>
              </div>
              <div class="memory" aria-hidden="true">
                <i class="part weights" style={{ width: `${(100 * one.weights_bytes) / most}%` }} />
                <i class="part cells" style={{ width: `${(100 * one.context_bytes) / most}%` }} />
                <i class="part generated" style={{ width: `${(100 * one.buffer_bytes) / most}%` }} />
              </div>
              <p class="dim">
                {bytes(one.weights_bytes)} weights, {bytes(one.context_bytes)} KV, {bytes(one.buffer_bytes)} buffers
              </p>
            </li>
          ))}
        </ul>
      ) : null}
    </section>
  );
}

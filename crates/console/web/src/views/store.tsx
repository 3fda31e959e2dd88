// Store: stored prefixes as an icicle or a list, what leaves them, and what can be done with a row.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { type CacheInfo, type Eviction, get, post } from "../api";
import { bytes, count, tierName } from "../format";
import { usePolled } from "../live";
import { Announce, Notice, Tile } from "../parts";
import { RowDrawer } from "./store/drawer";
import { Evictions } from "./store/evictions";
import { Icicle } from "./store/icicle";
import { readStore } from "./store/rows";
import { type Order, RowTable } from "./store/table";

const ORDERS: [Order, string][] = [
  ["last", "Last used"],
  ["bytes", "Size"],
  ["hits", "Uses"],
  ["tokens", "Tokens"],
];

export function StoreView(): JSX.Element {
  const rows = usePolled(readStore, 10_000);
  const cache = usePolled((signal) => get<CacheInfo>("/api/cache", signal).catch(() => null), 5000);
  const evictions = usePolled(
    (signal) => get<{ evictions: Eviction[] }>("/api/cache/evictions", signal).catch(() => null),
    10_000,
  );
  const [chosen, setChosen] = useState<string | null>(null);
  const [said, setSaid] = useState("");
  const [shape, setShape] = useState<"icicle" | Order>("icicle");
  const stored = rows.value;
  const row = chosen ? stored?.nodes.get(chosen)?.row : undefined;
  // Drawn again when the rows change, not when a figure beside them does.
  const drawn = useMemo(() => {
    if (!stored || stored.rows.length === 0) return null;
    return shape === "icicle" ? (
      <Icicle stored={stored} chosen={chosen} onChoose={setChosen} />
    ) : (
      <RowTable stored={stored} order={shape} chosen={chosen} onChoose={setChosen} />
    );
  }, [stored, shape, chosen]);
  const done = (text: string, isGone: boolean) => {
    setSaid(text);
    if (isGone) setChosen(null);
    rows.again();
    evictions.again();
  };
  const collect = async () => {
    try {
      const { freed_bytes } = await post<{ freed_bytes: number }>("/api/cache/gc", {});
      setSaid(`${bytes(freed_bytes)} of damaged files removed`);
    } catch (error) {
      setSaid((error as Error).message);
    }
  };
  return (
    <>
      <header class="head">
        <h1>Store</h1>
        <div class="controls">
          <fieldset class="segments">
            <legend class="unseen">Shape</legend>
            <button type="button" aria-pressed={shape === "icicle"} onClick={() => setShape("icicle")}>
              Icicle
            </button>
            <button type="button" aria-pressed={shape !== "icicle"} onClick={() => setShape("last")}>
              List
            </button>
          </fieldset>
          {shape !== "icicle" ? (
            <label>
              <span class="unseen">Order</span>
              <select value={shape} onChange={(event) => setShape(event.currentTarget.value as Order)}>
                {ORDERS.map(([order, name]) => (
                  <option key={order} value={order}>
                    {name}
                  </option>
                ))}
              </select>
            </label>
          ) : null}
          <button type="button" onClick={rows.again}>
            Refresh
          </button>
          <button type="button" onClick={collect} title="Remove files that can never be used again">
            Collect garbage
          </button>
        </div>
      </header>
      <section class="tiles" aria-label="Summary">
        <Tile
          label="Prefixes"
          value={count(stored?.rows.length)}
          hint={`${count(stored?.roots.length)} beginnings, ${count(stored?.pinned)} pinned`}
        />
        <Tile label="Size" value={bytes(stored?.bytes ?? 0)} hint={tierWords(cache.value)} />
        <Tile label="Uses" value={count(stored?.hits)} hint="of these rows" />
        <Tile label="Evictions" value={count(cache.value?.counters.evictions)} hint="since the server started" />
      </section>
      <Announce text={said} />
      {said ? <p class="said">{said}.</p> : null}
      {rows.error ? (
        <Notice kind="error" title="The store cannot be read">
          {rows.error.message}
        </Notice>
      ) : null}
      {stored?.rows.length === 0 ? (
        <Notice kind="empty" title="Nothing is stored yet">
          Prompts are saved when they have enough tokens; see the setting save_min_tokens.
        </Notice>
      ) : null}
      <Evictions evictions={evictions.value?.evictions ?? []} />
      {drawn && shape === "icicle" ? (
        <ul class="legend" aria-label="Colours">
          {["ram", "ram_file", "disk", "shared"].map((tier) => (
            <li key={tier}>
              <i class={`cell source-${tier}`} /> {tierName(tier)}
            </li>
          ))}
        </ul>
      ) : null}
      {drawn}
      {row ? <RowDrawer row={row} onClose={() => setChosen(null)} onDone={done} /> : null}
    </>
  );
}

function tierWords(cache: CacheInfo | null): string {
  const used = (cache?.tiers ?? []).filter((tier) => tier.bytes > 0);
  return used.length > 0 ? used.map((tier) => `${bytes(tier.bytes)} ${tierName(tier.tier)}`).join(", ") : "all tiers";
}

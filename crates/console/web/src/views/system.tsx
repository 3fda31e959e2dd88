// System: tiers, settings with their sources, counters, the last warnings.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type CacheInfo, get, type SystemInfo } from "../api";
import { bytes, count, words } from "../format";
import { usePolled } from "../live";
import { Badge, Meter, Notice } from "../parts";

export function SystemView(): JSX.Element {
  const system = usePolled((signal) => get<SystemInfo>("/api/system", signal), 5000);
  const cache = usePolled((signal) => get<CacheInfo>("/api/cache", signal), 5000);
  const [filter, setFilter] = useState("");
  const info = system.value;
  const settings = (info?.settings ?? []).filter((one) =>
    `${one.name} ${one.value} ${one.origin}`.toLowerCase().includes(filter.toLowerCase()),
  );
  return (
    <>
      <header class="head">
        <h1>System</h1>
        <span class="dim">{info ? `Poncho ${info.version}` : ""}</span>
      </header>
      {system.error ? (
        <Notice kind="error" title="Only for an admin">
          {system.error.message}
        </Notice>
      ) : null}
      <section aria-labelledby="tiers">
        <h2 id="tiers">Tiers</h2>
        <ul class="cards">
          {(cache.value?.tiers ?? []).map((tier) => (
            <li key={tier.tier} class="card">
              <div class="spread">
                <h3>{words(tier.tier).replace("Ram", "RAM")}</h3>
                <Badge kind={tier.on ? (tier.slow_because ? "failed" : "exact") : "none"}>
                  {tier.on ? (tier.slow_because ? "slow" : "on") : "off"}
                </Badge>
              </div>
              <Meter label={`${tier.tier} used`} part={tier.bytes} whole={tier.quota} kind={`source-${tier.tier}`} />
              <p class="dim">
                {tier.quota > 0 ? `${bytes(tier.bytes)} of ${bytes(tier.quota)}, ${count(tier.rows)} rows` : "Not used"}
              </p>
              {tier.off_because || tier.slow_because ? (
                <p class="wrong">{tier.off_because ?? tier.slow_because}</p>
              ) : null}
            </li>
          ))}
        </ul>
      </section>
      <section aria-labelledby="warnings">
        <h2 id="warnings">Warnings</h2>
        {info && info.warnings.length === 0 ? <p class="dim">None since the server started.</p> : null}
        {info && info.warnings.length > 0 ? (
          <ol class="log" tabIndex={0} aria-label="Last warnings, newest first">
            {[...info.warnings].reverse().map((line, at) => (
              <li key={at}>{line}</li>
            ))}
          </ol>
        ) : null}
      </section>
      <section aria-labelledby="settings">
        <div class="spread">
          <h2 id="settings">Settings</h2>
          <input
            type="search"
            aria-label="Filter settings"
            placeholder="Filter"
            value={filter}
            onInput={(event) => setFilter(event.currentTarget.value)}
          />
        </div>
        {info && info.settings.length === 0 ? <p class="dim">The program that runs this server lists none.</p> : null}
        {settings.length > 0 ? (
          <section class="scroll-x" tabIndex={0} aria-label="Settings, table">
            <table>
              <thead>
                <tr>
                  <th scope="col">Setting</th>
                  <th scope="col">Value</th>
                  <th scope="col">From</th>
                </tr>
              </thead>
              <tbody>
                {settings.map((one) => (
                  <tr key={one.name} class={one.origin === "default" ? "dim" : ""}>
                    <th scope="row" class="mono">
                      {one.name}
                    </th>
                    <td class="mono wrap">{one.value}</td>
                    <td class="mono wrap">{one.origin}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </section>
        ) : null}
      </section>
      <section aria-labelledby="counters">
        <h2 id="counters">Counters of the cache</h2>
        <dl class="facts facts-wide">
          {Object.entries(cache.value?.counters ?? {}).map(([name, value]) => (
            <div key={name}>
              <dt>{words(name)}</dt>
              <dd>{count(value)}</dd>
            </div>
          ))}
        </dl>
        {info ? <p class="dim">Hygiene rules that are on: {info.hygiene.map(words).join(", ") || "none"}.</p> : null}
      </section>
    </>
  );
}

// System: devices, nodes, tiers, settings with their sources, counters, the last warnings.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type CacheInfo, get, isForbidden, type SystemInfo } from "../api";
import { bytes, count, tierName, words } from "../format";
import { usePolled } from "../live";
import { Badge, Meter, Notice } from "../parts";

export function SystemView(props: { onLeave?: (() => void) | undefined }): JSX.Element {
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
        {props.onLeave ? (
          // A narrow window has no room for it in the navigation.
          <button type="button" class="quiet push narrow" onClick={props.onLeave}>
            Change key
          </button>
        ) : null}
      </header>
      {system.error ? (
        <Notice kind="error" title={isForbidden(system.error) ? "Only for an admin" : "The system cannot be read"}>
          {system.error.message}
        </Notice>
      ) : null}
      {info && info.devices.length + info.unused_devices.length > 0 ? <Devices info={info} /> : null}
      {info && info.nodes.length > 0 ? <Nodes info={info} /> : null}
      <section aria-labelledby="tiers">
        <h2 id="tiers">Tiers</h2>
        <ul class="cards">
          {(cache.value?.tiers ?? []).map((tier) => (
            <li key={tier.tier} class="card">
              <div class="spread">
                <h3>{tierName(tier.tier)}</h3>
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

/** What models can be computed on, and what was found and is not used. */
function Devices(props: { info: SystemInfo }): JSX.Element {
  const { devices, unused_devices: unused } = props.info;
  return (
    <section aria-labelledby="devices">
      <h2 id="devices">Devices</h2>
      <ul class="cards">
        {devices.map((device) => (
          <li key={device.name} class="card">
            <div class="spread">
              <h3>{device.name}</h3>
              <Badge kind="none">{device.kind === "accelerator" ? device.kind : device.kind.toUpperCase()}</Badge>
            </div>
            <p class="dim">{device.description}</p>
            <Meter
              label={`Memory of ${device.name} that was in use before models were loaded`}
              part={device.total_bytes - device.free_bytes}
              whole={device.total_bytes}
            />
            <p class="dim">
              {bytes(device.free_bytes)} of {bytes(device.total_bytes)} free before models were loaded
            </p>
          </li>
        ))}
        {unused.map((one) => (
          <li key={one.what} class="card">
            <div class="spread">
              <h3>{one.what}</h3>
              <Badge kind="failed">not used</Badge>
            </div>
            <p class="wrong">{one.why}</p>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The processes that compute, on this machine or on others. */
function Nodes(props: { info: SystemInfo }): JSX.Element {
  return (
    <section aria-labelledby="nodes">
      <h2 id="nodes">Nodes</h2>
      <ul class="cards">
        {props.info.nodes.map((node) => (
          <li key={node.name} class="card">
            <div class="spread">
              <h3>{node.name}</h3>
              <Badge kind={node.state === "up" ? "exact" : node.state === "down" ? "failed" : "running"}>
                {node.state}
              </Badge>
            </div>
            <p class="dim">{node.models.join(", ") || "no models"}</p>
            {node.reason ? <p class="wrong">{node.reason}</p> : null}
          </li>
        ))}
      </ul>
    </section>
  );
}

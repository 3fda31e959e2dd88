// Savings: tokens and time that the cache saved, by day and by model.
import type { JSX } from "preact";
import { get, type Saving, type Savings } from "../api";
import { count, percent, short, span } from "../format";
import { usePolled } from "../live";
import { Columns, Notice, Tile } from "../parts";

const DAYS = 30;

function sum(rows: Saving[]): Saving {
  const all: Saving = {
    model: "",
    requests: 0,
    cached_tokens: 0,
    new_tokens: 0,
    generated_tokens: 0,
    restore_seconds: 0,
    saved_seconds: 0,
  };
  for (const row of rows) {
    all.requests += row.requests;
    all.cached_tokens += row.cached_tokens;
    all.new_tokens += row.new_tokens;
    all.generated_tokens += row.generated_tokens;
    all.restore_seconds += row.restore_seconds;
    all.saved_seconds = (all.saved_seconds ?? 0) + (row.saved_seconds ?? 0);
  }
  return all;
}

export function SavingsView(): JSX.Element {
  const savings = usePolled((signal) => get<Savings>("/api/savings", signal), 5000);
  const days = savings.value?.days ?? [];
  const all = sum(days.flatMap((day) => day.models));
  const models = [
    ...Map.groupBy(
      days.flatMap((day) => day.models),
      (row) => row.model,
    ),
  ].map(([model, rows]) => ({ ...sum(rows), model }));
  models.sort((one, two) => two.cached_tokens - one.cached_tokens);
  return (
    <>
      <header class="head">
        <h1>Savings</h1>
      </header>
      {savings.error ? (
        <Notice kind="error" title="The savings cannot be read">
          {savings.error.message}
        </Notice>
      ) : null}
      <section class="tiles" aria-label="Summary">
        <Tile
          label="Tokens not computed"
          value={short(all.cached_tokens)}
          hint={`${percent(all.cached_tokens, all.cached_tokens + all.new_tokens)} of all prompt tokens`}
        />
        <Tile label="Time saved" value={span(all.saved_seconds ?? 0)} hint="of GPU or CPU, estimated" />
        <Tile label="Restoring took" value={span(all.restore_seconds)} hint="already subtracted" />
        <Tile
          label="Requests"
          value={count(all.requests)}
          hint={`${count(days.length)} ${days.length === 1 ? "day" : "days"}`}
        />
      </section>
      {days.length === 0 && !savings.error ? (
        <Notice kind="empty" title="No figures yet">
          They are counted from the first request on and kept over restarts.
        </Notice>
      ) : null}
      {days.length > 0 ? (
        <>
          <Chart days={days} />
          <h2>By model</h2>
          <section class="scroll-x" tabIndex={0} aria-label="Savings by model, table">
            <table>
              <thead>
                <tr>
                  <th scope="col">Model</th>
                  <th scope="col" class="right">
                    Requests
                  </th>
                  <th scope="col" class="right">
                    From the cache
                  </th>
                  <th scope="col" class="right">
                    Computed
                  </th>
                  <th scope="col" class="right">
                    Reused
                  </th>
                  <th scope="col" class="right">
                    Time saved
                  </th>
                </tr>
              </thead>
              <tbody>
                {models.map((row) => (
                  <tr key={row.model}>
                    <th scope="row">{row.model}</th>
                    <td class="right">{count(row.requests)}</td>
                    <td class="right">{count(row.cached_tokens)}</td>
                    <td class="right">{count(row.new_tokens)}</td>
                    <td class="right">{percent(row.cached_tokens, row.cached_tokens + row.new_tokens)}</td>
                    <td class="right">{span(row.saved_seconds ?? 0)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </section>
          <p class="dim">
            The time is an estimate: cached tokens at the speed at which the same model computed prompts, less the time
            for restoring them.
          </p>
        </>
      ) : null}
    </>
  );
}

function Chart(props: { days: Savings["days"] }): JSX.Element {
  const known = new Map(props.days.map((day) => [day.day, sum(day.models)]));
  const today = new Date();
  const days = Array.from({ length: DAYS }, (_, back) => {
    const date = new Date(today.getTime() - (DAYS - 1 - back) * 86_400_000).toISOString().slice(0, 10);
    return { date, sums: known.get(date) };
  });
  const most = Math.max(1, ...days.map(({ sums }) => (sums ? sums.cached_tokens + sums.new_tokens : 0)));
  return (
    <figure class="chart">
      <figcaption>
        Prompt tokens by day, last {DAYS} days
        <ul class="legend inline">
          <li>
            <i class="part restored source-ram" /> From the cache
          </li>
          <li>
            <i class="part computed" /> Computed
          </li>
        </ul>
      </figcaption>
      <Columns
        label={days
          .filter((day) => day.sums)
          .map(({ date, sums }) => `${date}: ${short(sums!.cached_tokens)} cached, ${short(sums!.new_tokens)} computed`)
          .join("; ")}
        max={short(most)}
        ends={[days[0]?.date.slice(5) ?? "", days[Math.floor(DAYS / 2)]?.date.slice(5) ?? "", "today"]}
        columns={days.map(({ date, sums }) => ({
          key: date,
          title: sums ? `${date}: ${count(sums.cached_tokens)} cached, ${count(sums.new_tokens)} computed` : date,
          parts: [
            ["computed", (100 * (sums?.new_tokens ?? 0)) / most],
            ["restored source-ram", (100 * (sums?.cached_tokens ?? 0)) / most],
          ],
        }))}
      />
    </figure>
  );
}

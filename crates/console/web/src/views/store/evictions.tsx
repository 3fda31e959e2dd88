// Evictions over time: how many rows left which tier in each hour, and why.
import type { JSX } from "preact";
import type { Eviction } from "../../api";
import { bytes, count, short, tierName } from "../../format";
import { Columns } from "../../parts";

const HOURS = 48;
const TIERS = ["ram", "ram_file", "disk"];

/** The causes as people read them. */
export const CAUSES: Record<string, string> = {
  room: "made room for another row",
  pressure: "memory of the machine ran short",
  quota: "the tier became smaller",
  asked: "somebody asked for it",
  thinned: "other rows of its conversation are close by",
};

const plural = (rows: number) => `${count(rows)} ${rows === 1 ? "row" : "rows"}`;

export function Evictions(props: { evictions: Eviction[] }): JSX.Element | null {
  const { evictions } = props;
  if (evictions.length === 0) return null;
  const now = Math.floor(Date.now() / 3_600_000);
  const hours = Array.from({ length: HOURS }, (_, back) => {
    const hour = (now - HOURS + 1 + back) * 3600;
    return { hour, sums: evictions.filter((one) => one.hour === hour) };
  });
  const rowsOf = (sums: Eviction[]) => sums.reduce((sum, one) => sum + one.rows, 0);
  const most = Math.max(1, ...hours.map(({ sums }) => rowsOf(sums)));
  const time = (hour: number) => new Date(hour * 1000).toISOString().slice(5, 13).replace("T", " ");
  const causes = Map.groupBy(evictions, (one) => one.cause);
  const words = (sums: Eviction[]) =>
    sums.map((one) => `${count(one.rows)} from ${tierName(one.tier)}, ${CAUSES[one.cause] ?? one.cause}`).join("; ");
  return (
    <figure class="chart small-chart">
      <figcaption>
        Evicted rows by hour (UTC), last {HOURS} hours
        <ul class="legend inline">
          {TIERS.map((tier) => (
            <li key={tier}>
              <i class={`part source-${tier}`} /> {tierName(tier)}
            </li>
          ))}
        </ul>
      </figcaption>
      <Columns
        label={hours
          .filter(({ sums }) => sums.length > 0)
          .map(({ hour, sums }) => `${time(hour)} h: ${words(sums)}`)
          .join(". ")}
        max={short(most)}
        ends={[time(hours[0]!.hour), "now"]}
        columns={hours.map(({ hour, sums }) => ({
          key: String(hour),
          title: `${time(hour)} h${sums.length > 0 ? `: ${words(sums)}` : ""}`,
          parts: TIERS.map((tier) => [
            `source-${tier}`,
            (100 * rowsOf(sums.filter((one) => one.tier === tier))) / most,
          ]),
        }))}
      />
      <ul class="causes" aria-label="Evicted rows in 30 days by cause">
        {[...causes].map(([cause, sums]) => (
          <li key={cause}>
            {plural(rowsOf(sums))}, {bytes(sums.reduce((sum, one) => sum + one.bytes, 0))} in 30 days:{" "}
            {CAUSES[cause] ?? cause}
          </li>
        ))}
      </ul>
    </figure>
  );
}

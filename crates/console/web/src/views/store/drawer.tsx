// One stored row: its figures, and what can be done with it.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { post, type Row, type RowCheck, send } from "../../api";
import { ago, bytes, count, tierName } from "../../format";
import { Badge, Drawer, Facts } from "../../parts";

export function RowDrawer(props: {
  row: Row;
  onClose: () => void;
  /** Something was done; the store is read again. */
  onDone: (said: string, isGone: boolean) => void;
}): JSX.Element {
  const { row, onDone } = props;
  const [check, setCheck] = useState<RowCheck | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => setCheck(null), [row.key]);
  const path = `/api/cache/rows/${row.key}`;
  const act = async (work: () => Promise<[said: string, isGone: boolean]>) => {
    // Not a disabled button, which would lose the focus.
    if (busy) return;
    setBusy(true);
    try {
      onDone(...(await work()));
    } catch (error) {
      onDone((error as Error).message, false);
    }
    setBusy(false);
  };
  const remove = () =>
    act(async () => {
      const { removed } = (await (await send("DELETE", path)).json()) as { removed: boolean };
      return [removed ? "The row is evicted" : "The row is in use, or others build on it", removed];
    });
  const pin = () =>
    act(async () => {
      await send(row.pinned ? "DELETE" : "PUT", `${path}/pin`);
      return [row.pinned ? "The row is not pinned anymore" : "The row is pinned", false];
    });
  const verify = () =>
    act(async () => {
      const checked = await post<RowCheck>(`${path}/verify`, {});
      setCheck(checked);
      return [checked.whole ? "The row is whole" : "The row is damaged and was moved aside", false];
    });
  const facts: [string, string][] = [
    ["Tokens", `${count(row.tokens)}${row.start > 0 ? `, ${count(row.tokens - row.start)} of its own` : ""}`],
    ["Size", bytes(row.bytes)],
    ["Uses", count(row.hits)],
    ["Saved", ago(row.created)],
    ["Last used", row.last_used === null ? "–" : ago(row.last_used)],
    ["Reason", row.reason],
    ["Built on by", `${count(row.children)} ${row.children === 1 ? "row" : "rows"}`],
  ];
  return (
    <Drawer title={row.text ? row.text.slice(0, 60) : `${count(row.tokens)} tokens`} onClose={props.onClose}>
      <p class="badges">
        {row.tiers.map((tier) => (
          <Badge key={tier} kind={`tier source-${tier}`}>
            {tierName(tier)}
          </Badge>
        ))}
        {row.pending ? <Badge kind="running">being written</Badge> : null}
        {row.pinned ? <Badge kind="exact">pinned</Badge> : null}
      </p>
      <Facts facts={facts} />
      <p class="mono dim wrap">{row.key}</p>
      {row.text ? <pre class="excerpt-alone">{row.text} …</pre> : null}
      <div class="actions">
        <a class="button" href={`#chat/${row.key}`}>
          Continue in chat
        </a>
        <button type="button" aria-disabled={busy} onClick={pin}>
          {row.pinned ? "Unpin" : "Pin"}
        </button>
        <button type="button" aria-disabled={busy} onClick={verify}>
          Verify
        </button>
        <button
          type="button"
          class="danger"
          disabled={row.children > 0 || row.pinned}
          aria-disabled={busy}
          onClick={remove}
        >
          Evict this row
        </button>
      </div>
      {row.pinned ? <p class="dim">A pinned row stays while others are evicted. Unpin it to evict it.</p> : null}
      {row.children > 0 && !row.pinned ? <p class="dim">Other rows build on it. Evict those first.</p> : null}
      {check ? (
        <ul class="checks" aria-label="Checked copies">
          {check.copies.map((copy, at) => (
            <li key={at} class={copy.problem ? "wrong" : ""}>
              {tierName(copy.tier)}:{" "}
              {copy.problem ??
                (copy.checked_bytes > 0 ? `${bytes(copy.checked_bytes)} match their checksums` : "nothing to check")}
            </li>
          ))}
        </ul>
      ) : null}
    </Drawer>
  );
}

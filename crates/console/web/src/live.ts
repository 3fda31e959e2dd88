// The requests of the server, kept up to date by its stream of changes.
import { useEffect, useState } from "preact/hooks";
import { events, Refused, type RequestRow, send } from "./api";

export interface Live {
  requests: Map<number, RequestRow>;
  /** Whether the stream is open. */
  open: boolean;
  /** Whether it ended or could not be opened, and is tried again. */
  lost: boolean;
  /** Grows with each change. */
  version: number;
  /** How many the server keeps, and so the page. */
  kept: number;
}

/** As the server does by default. */
const KEPT = 1000;

export function useRequests(onRefused: (refused: Refused) => void): Live {
  const [live, setLive] = useState<Live>({ requests: new Map(), open: false, lost: false, version: 0, kept: KEPT });
  useEffect(() => {
    const stop = new AbortController();
    const requests = new Map<number, RequestRow>();
    let pause = 500;
    let frame = 0;
    let kept = KEPT;
    // Changes are drawn once a frame, and not at all while the page is hidden.
    const change = (open: boolean) => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() =>
        setLive((old) => ({ requests, open, lost: !open, version: old.version + 1, kept })),
      );
    };
    const follow = async () => {
      while (!stop.signal.aborted) {
        try {
          const answer = await send("GET", "/api/requests?follow=1", undefined, stop.signal);
          requests.clear();
          for await (const data of events(answer)) {
            pause = 500;
            const news = JSON.parse(data) as { kept?: number; requests: RequestRow[] };
            kept = news.kept ?? kept;
            for (const row of news.requests) requests.set(row.id, row);
            for (const id of requests.keys()) {
              if (requests.size <= kept) break;
              requests.delete(id);
            }
            change(true);
          }
        } catch (error) {
          if (stop.signal.aborted) return;
          if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
            requests.clear();
            change(false);
            onRefused(error);
            return;
          }
        }
        if (stop.signal.aborted) return;
        change(false);
        await new Promise((wake) => setTimeout(wake, pause));
        pause = Math.min(pause * 2, 8000);
      }
    };
    void follow();
    return () => {
      stop.abort();
      cancelAnimationFrame(frame);
    };
  }, [onRefused]);
  return live;
}

/** After a read the page waits this many times as long as the read took, but not longer than the second number of ms. */
const REST: [times: number, most: number] = [50, 30_000];

/** Loads something now and then, and again when asked. What takes long to load is loaded less often. */
export function usePolled<T>(
  load: (signal: AbortSignal) => Promise<T>,
  every: number,
): { value: T | null; error: Error | null; again: () => void } {
  const [state, setState] = useState<{ value: T | null; error: Error | null }>({ value: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const step = async () => {
      const begun = performance.now();
      try {
        const value = await load(stop.signal);
        if (stop.signal.aborted) return;
        setState({ value, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        setState((old) => ({ value: old.value, error: error as Error }));
      }
      const rest = Math.min((performance.now() - begun) * REST[0], REST[1]);
      const pause = Math.max(document.hidden ? every * 4 : every, rest);
      if (!stop.signal.aborted && every > 0) timer = setTimeout(step, pause);
    };
    void step();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [round, every]);
  return { ...state, again: () => setRound((n) => n + 1) };
}

// The console: navigation, the key, and which view is open.
import { type JSX, render } from "preact";
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { get, Refused, savedKey, saveKey } from "./api";
import { type Live, useRequests } from "./live";
import { Notice } from "./parts";
import "./style.css";
import { ChatView } from "./views/chat";
import { forgetTalk } from "./views/chat/talk";
import { ModelsView } from "./views/models";
import { RequestsView } from "./views/requests";
import { SavingsView } from "./views/savings";
import { StoreView } from "./views/store";
import { SystemView } from "./views/system";

const VIEWS = [
  ["requests", "Requests", "M3 5h9M3 9h13M3 13h6"],
  ["store", "Store", "M3 4h6v12H3zM9 4h8v6H9zM9 10h5v6H9z"],
  ["savings", "Savings", "M4 16V9M8 16V5M12 16v-4M16 16V3"],
  ["models", "Models", "M10 2l7 4v8l-7 4-7-4V6zM3 6l7 4 7-4M10 10v8"],
  ["chat", "Chat", "M3 4h14v9H9l-4 4v-4H3z"],
  [
    "system",
    "System",
    "M10 7a3 3 0 100 6 3 3 0 000-6zM10 2v2M10 16v2M2 10h2M16 10h2M4.5 4.5l1.4 1.4M14.1 14.1l1.4 1.4M4.5 15.5l1.4-1.4M14.1 5.9l1.4-1.4",
  ],
] as const;

type View = (typeof VIEWS)[number][0];

function viewOfAddress(): View {
  const name = location.hash.slice(1).split("/")[0];
  return VIEWS.find(([view]) => view === name)?.[0] ?? "requests";
}

function App(): JSX.Element {
  const [session, setSession] = useState<{ number: number; locked: boolean; wrong: boolean } | null>(null);
  const check = useCallback(async (number: number, tried: boolean) => {
    try {
      await get("/api/version");
      setSession({ number, locked: false, wrong: false });
    } catch (error) {
      const refused = error instanceof Refused && error.status === 401;
      if (refused) saveKey(null);
      setSession({ number, locked: refused, wrong: refused && tried });
    }
  }, []);
  useEffect(() => {
    void check(0, savedKey() !== null);
  }, [check]);
  const refused = useCallback(() => {
    forgetTalk();
    saveKey(null);
    setSession((old) => ({ number: (old?.number ?? 0) + 1, locked: true, wrong: true }));
  }, []);
  if (!session) return <div class="boot" />;
  if (session.locked) {
    const enter = (key: string) => {
      saveKey(key);
      void check(session.number + 1, true);
    };
    return <KeyForm wrong={session.wrong} onKey={enter} />;
  }
  const leave = () => {
    forgetTalk();
    saveKey(null);
    void check(session.number + 1, false);
  };
  return <Shell key={session.number} onRefused={refused} onLeave={leave} />;
}

function KeyForm(props: { wrong: boolean; onKey: (key: string) => void }): JSX.Element {
  const [key, setKey] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    if (key.trim()) props.onKey(key.trim());
  };
  return (
    <main class="key-form">
      <form onSubmit={submit}>
        <img src="/console/icon.svg" alt="" width="44" height="44" />
        <h1>Poncho</h1>
        <p>This server needs an API key. It is kept for this tab only.</p>
        <label for="key">API key</label>
        <input
          id="key"
          type="password"
          autocomplete="off"
          value={key}
          onInput={(event) => setKey(event.currentTarget.value)}
          aria-invalid={props.wrong}
          aria-describedby={props.wrong ? "key-wrong" : undefined}
        />
        {props.wrong ? (
          <p id="key-wrong" class="wrong" role="alert">
            The server does not know this key.
          </p>
        ) : null}
        <button type="submit" class="primary">
          Open the console
        </button>
      </form>
    </main>
  );
}

function Shell(props: { onRefused: (refused: Refused) => void; onLeave: () => void }): JSX.Element {
  const [view, setView] = useState<View>(viewOfAddress);
  const live = useRequests(props.onRefused);
  useEffect(() => {
    const change = () => setView(viewOfAddress());
    window.addEventListener("hashchange", change);
    // The address may have changed since the first look.
    change();
    return () => window.removeEventListener("hashchange", change);
  }, []);
  useEffect(() => {
    document.title = `${VIEWS.find(([name]) => name === view)?.[1]} · Poncho`;
  }, [view]);
  const running = useMemo(
    () => [...live.requests.values()].filter((row) => row.stage !== "ended").length,
    [live.version],
  );
  // A change of a request is drawn by the view of the requests; the others keep what they have.
  const drawn = useMemo(
    () => draw(view, live, savedKey() ? props.onLeave : undefined),
    [view, view === "requests" ? live : null],
  );
  return (
    <div class="shell">
      <a class="skip" href={`#${view}`} onClick={() => document.querySelector<HTMLElement>("main")?.focus()}>
        Skip to content
      </a>
      <nav class="side" aria-label="Views">
        <div class="brand">
          <img src="/console/icon.svg" alt="" width="22" height="22" />
          <span>Poncho</span>
        </div>
        <ul>
          {VIEWS.map(([name, title, path]) => (
            <li key={name}>
              <a href={`#${name}`} aria-current={view === name ? "page" : undefined}>
                <svg viewBox="0 0 20 20" aria-hidden="true">
                  <path d={path} />
                </svg>
                <span>{title}</span>
                {name === "requests" && running > 0 ? <b class="running">{running}</b> : null}
              </a>
            </li>
          ))}
        </ul>
        <div class="side-foot">
          <span class={`dot ${live.open ? "on" : "off"}`} /> {live.open ? "Live" : "Connecting"}
          {savedKey() ? (
            <button type="button" class="quiet" onClick={props.onLeave}>
              Change key
            </button>
          ) : null}
        </div>
      </nav>
      <main class="pane" tabIndex={0}>
        {live.lost ? (
          // A narrow window has no other sign of it.
          <Notice kind="error" title="The server does not answer">
            The page shows what it knew last, and tries again.
          </Notice>
        ) : null}
        {drawn}
      </main>
    </div>
  );
}

function draw(view: View, live: Live, onLeave?: () => void): JSX.Element {
  switch (view) {
    case "requests":
      return <RequestsView live={live} />;
    case "store":
      return <StoreView />;
    case "savings":
      return <SavingsView />;
    case "models":
      return <ModelsView />;
    case "chat":
      return <ChatView />;
    case "system":
      return <SystemView onLeave={onLeave} />;
  }
}

const root = document.getElementById("app");
if (root) render(<App />, root);

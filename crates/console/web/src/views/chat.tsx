// Chat: a small one, to see what each turn reuses. It can begin with a stored prefix. Its history stays in this browser.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { get, type RequestRow } from "../api";
import { ago, count } from "../format";
import { usePolled } from "../live";
import { Notice, TokenBar, tokenWords } from "../parts";
import { type Start, startFrom } from "./chat/prefix";
import { ask, beginTalk, change, type Facts, type Message, stopReply, useTalk } from "./chat/talk";
import { type Node, readStore, type Stored } from "./store/rows";

/** Prefixes to choose from. */
const OFFERED = 50;
/** Pixels from the end of the conversation within which the view follows it. */
const NEAR = 160;

export function ChatView(): JSX.Element {
  const { model, system, messages, text, error, start, busy } = useTalk();
  const begin = async (key: string) => {
    change({ error: "" });
    try {
      const from = await startFrom(key);
      const own = from.messages ?? [];
      // A question without a reply is the next one to send.
      const last = own.at(-1)?.role === "user" ? own.at(-1) : undefined;
      beginTalk({
        start: from,
        model: from.model,
        system: own.find((one) => one.role === "system")?.content ?? "",
        text: last?.content ?? "",
        messages: own.filter((one) => one.role !== "system" && one !== last) as Message[],
      });
    } catch (failed) {
      change({ error: (failed as Error).message });
    }
  };
  useEffect(() => {
    const [view, key] = location.hash.slice(1).split("/");
    if (view !== "chat" || !key) return;
    history.replaceState(null, "", "#chat");
    void begin(key);
  }, []);
  const end = useRef<HTMLDivElement>(null);
  const written = useRef<HTMLTextAreaElement>(null);
  const models = usePolled((signal) => get<{ data: { id: string }[] }>("/v1/models", signal), 10_000);
  const names = (models.value?.data ?? []).map((one) => one.id);
  const chosen = names.includes(model) ? model : (names[0] ?? "");
  const shown = useRef(0);
  useLayoutEffect(() => {
    const pane = end.current?.closest(".pane");
    const isNew = shown.current !== messages.length;
    shown.current = messages.length;
    // Somebody who reads further up is left there.
    const isNear = pane && pane.scrollHeight - pane.scrollTop - pane.clientHeight < NEAR;
    if (isNew || isNear) end.current?.scrollIntoView({ block: "end" });
  }, [messages]);
  const submit = (event: Event) => {
    event.preventDefault();
    void ask(chosen);
  };
  const keys = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  return (
    <div class="chat">
      <header class="head">
        <h1>Chat</h1>
        <div class="controls">
          <label>
            <span class="unseen">Model</span>
            <select value={chosen} onChange={(event) => change({ model: event.currentTarget.value })}>
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
          <Prefixes busy={busy} onBegin={begin} />
          <button type="button" disabled={(messages.length === 0 && !start) || busy} onClick={() => beginTalk({})}>
            New chat
          </button>
        </div>
      </header>
      <details class="system-prompt">
        <summary>System prompt</summary>
        <textarea
          rows={3}
          aria-label="System prompt"
          value={system}
          onInput={(event) => change({ system: event.currentTarget.value })}
        />
      </details>
      <div class="messages" role="log" aria-label="Conversation">
        {start ? <StartCard start={start} /> : null}
        {messages.length === 0 && !start ? (
          <Notice kind="empty" title="Say something">
            Each reply shows how much of its prompt came from the cache. The conversation stays in this browser.
          </Notice>
        ) : null}
        {messages.map((message, at) => (
          <article key={at} class={`message ${message.role}`} aria-label={message.role}>
            {message.thinking ? (
              <details>
                <summary>Thinking</summary>
                <p class="dim">{message.thinking}</p>
              </details>
            ) : null}
            <div class="message-text">{message.content || (busy && at === messages.length - 1 ? "…" : "")}</div>
            {message.facts ? <TurnBar facts={message.facts} /> : null}
          </article>
        ))}
        {models.error && names.length === 0 ? (
          <Notice kind="error" title="The models cannot be read">
            {models.error.message}
          </Notice>
        ) : null}
        {error ? (
          <Notice kind="error" title="No reply">
            {error}
          </Notice>
        ) : null}
        <div ref={end} />
      </div>
      <form class="composer" onSubmit={submit}>
        <textarea
          ref={written}
          rows={2}
          aria-label="Message"
          placeholder="Message"
          value={text}
          onInput={(event) => change({ text: event.currentTarget.value })}
          onKeyDown={keys}
        />
        {busy ? (
          <button
            type="button"
            onClick={(event) => {
              // The same button sends as soon as the reply has ended: this click must not.
              event.preventDefault();
              // Nor may the focus get lost.
              written.current?.focus();
              stopReply();
            }}
          >
            Stop
          </button>
        ) : (
          <button type="submit" class="primary" disabled={!text.trim() || !chosen}>
            Send
          </button>
        )}
      </form>
    </div>
  );
}

/** The rows to choose from, the last used first. */
function lastUsed(stored: Stored): [key: string, words: string][] {
  const used = ({ row }: Node) => row.last_used ?? row.created;
  const named = [...stored.nodes.values()].filter((node) => node.text);
  const last = named.sort((one, two) => used(two) - used(one)).slice(0, OFFERED);
  return last.map((node) => {
    const words = `${count(node.row.tokens)} tokens, ${ago(used(node))}: ${node.text.slice(0, 60)}`;
    return [node.row.key, words];
  });
}

/** A choice of stored prefixes. */
function Prefixes(props: { busy: boolean; onBegin: (key: string) => void }): JSX.Element | null {
  const stored = usePolled(readStore, 30_000).value;
  const offered = useMemo(() => (stored ? lastUsed(stored) : []), [stored]);
  if (offered.length === 0) return null;
  return (
    <label>
      <span class="unseen">Start from a stored prefix</span>
      <select
        class="prefixes"
        value=""
        disabled={props.busy}
        onChange={(event) => {
          const key = event.currentTarget.value;
          event.currentTarget.value = "";
          if (key) props.onBegin(key);
        }}
      >
        <option value="">Start from a stored prefix</option>
        {offered.map(([key, words]) => (
          <option key={key} value={key}>
            {words}
          </option>
        ))}
      </select>
    </label>
  );
}

/** What the conversation began with. */
function StartCard(props: { start: Start }): JSX.Element {
  const { start } = props;
  return (
    <section class="card start" aria-label="Stored prefix">
      <strong>Begins with a stored prefix of {count(start.tokens.length)} tokens</strong>
      <p class="dim">
        {start.messages
          ? "Its messages are below and in the system prompt."
          : "Its text is not one of plain messages, so the model goes on with the text itself."}
      </p>
      <details>
        <summary>Text</summary>
        <pre class="excerpt-alone">{start.text}</pre>
      </details>
    </section>
  );
}

function TurnBar(props: { facts: Facts & { generated: number } }): JSX.Element {
  const { facts } = props;
  const row = {
    cached_tokens: facts.cached_tokens,
    new_tokens: facts.new_tokens,
    prompt_tokens: facts.cached_tokens + facts.new_tokens,
    generated_tokens: facts.generated,
    stage: "ended",
  } as RequestRow;
  return (
    <div class="turn-bar">
      <TokenBar row={row} most={facts.cached_tokens + facts.new_tokens + facts.generated} />
      <small class="dim">
        {facts.hit}: {tokenWords(row)}
      </small>
    </div>
  );
}

// Chat: a small one, to see what each turn reuses. It can begin with a stored prefix. Its history stays in this browser.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { events, get, post, type RequestRow, send } from "../api";
import { ago, count } from "../format";
import { usePolled } from "../live";
import { Notice, TokenBar, tokenWords } from "../parts";
import { type Start, startFrom } from "./chat/prefix";
import { type Node, readStore, type Stored } from "./store/rows";

interface Facts {
  hit: string;
  cached_tokens: number;
  new_tokens: number;
}

interface Message {
  role: "user" | "assistant";
  content: string;
  thinking?: string;
  facts?: Facts & { generated: number };
}

interface Chunk {
  choices?: { text?: string; delta?: { content?: string; reasoning_content?: string } }[];
  usage?: { completion_tokens: number };
  poncho?: Facts;
}

const HISTORY = "poncho-chat";
/** Prefixes to choose from. */
const OFFERED = 50;
/** Tokens of a reply that goes on from tokens: nothing marks its end. */
const MOST_TOKENS = 512;

function read(): { model: string; system: string; messages: Message[] } {
  try {
    const kept = JSON.parse(localStorage.getItem(HISTORY) ?? "null");
    if (kept && Array.isArray(kept.messages)) return kept;
  } catch {
    // A history that cannot be read is a new one.
  }
  return { model: "", system: "", messages: [] };
}

export function ChatView(): JSX.Element {
  const [kept] = useState(read);
  const [model, setModel] = useState(kept.model);
  const [system, setSystem] = useState(kept.system);
  const [messages, setMessages] = useState<Message[]>(kept.messages);
  const [text, setText] = useState("");
  const [error, setError] = useState("");
  const stop = useRef<AbortController | null>(null);
  const [busy, setBusy] = useState(false);
  const [start, setStart] = useState<Start | null>(null);
  const begin = async (key: string) => {
    setError("");
    try {
      const from = await startFrom(key);
      const own = from.messages ?? [];
      // A question without a reply is the next one to send.
      const last = own.at(-1)?.role === "user" ? own.at(-1) : undefined;
      setStart(from);
      setModel(from.model);
      setSystem(own.find((one) => one.role === "system")?.content ?? "");
      setText(last?.content ?? "");
      setMessages(own.filter((one) => one.role !== "system" && one !== last) as Message[]);
    } catch (failed) {
      setError((failed as Error).message);
    }
  };
  const clear = () => {
    setStart(null);
    setMessages([]);
    setError("");
  };
  useEffect(() => {
    const [view, key] = location.hash.slice(1).split("/");
    if (view !== "chat" || !key) return;
    history.replaceState(null, "", "#chat");
    void begin(key);
  }, []);
  const end = useRef<HTMLDivElement>(null);
  const models = usePolled((signal) => get<{ data: { id: string }[] }>("/v1/models", signal), 0);
  const names = (models.value?.data ?? []).map((one) => one.id);
  const chosen = names.includes(model) ? model : (names[0] ?? "");
  useEffect(() => {
    // One that goes on from tokens is nothing without them. A reply is kept when it has ended.
    if (busy || (start && !start.messages)) return;
    try {
      localStorage.setItem(HISTORY, JSON.stringify({ model: chosen, system, messages }));
    } catch {
      // A full or closed store loses the history and nothing else.
    }
  }, [messages, chosen, system, busy]);
  useEffect(() => end.current?.scrollIntoView({ block: "end" }), [messages]);
  const submit = async (event: Event) => {
    event.preventDefault();
    const asked = text.trim();
    if (!asked || busy || !chosen) return;
    const before: Message[] = [...messages, { role: "user", content: asked }];
    const reply: Message = { role: "assistant", content: "" };
    setText("");
    setError("");
    setMessages([...before, reply]);
    setBusy(true);
    stop.current = new AbortController();
    const show = () => setMessages([...before, { ...reply }]);
    let frame = 0;
    try {
      const [path, body] = await requestOf(start, chosen, system, before);
      const streamed = { ...body, model: chosen, stream: true, stream_options: { include_usage: true } };
      const answer = await send("POST", path, streamed, stop.current.signal);
      let generated = 0;
      for await (const data of events(answer)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data) as Chunk & { error?: { message: string } };
        if (chunk.error) throw new Error(chunk.error.message);
        const delta = chunk.choices?.[0]?.delta;
        reply.content += delta?.content ?? chunk.choices?.[0]?.text ?? "";
        if (delta?.reasoning_content) reply.thinking = (reply.thinking ?? "") + delta.reasoning_content;
        generated = chunk.usage?.completion_tokens ?? generated;
        if (chunk.poncho?.hit) reply.facts = { ...chunk.poncho, generated };
        if (reply.facts) reply.facts.generated = generated;
        // Tokens that come close together are drawn together.
        cancelAnimationFrame(frame);
        frame = requestAnimationFrame(show);
      }
    } catch (failed) {
      if (!stop.current.signal.aborted) setError((failed as Error).message);
    }
    cancelAnimationFrame(frame);
    show();
    setBusy(false);
  };
  const keys = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) void submit(event);
  };
  return (
    <div class="chat">
      <header class="head">
        <h1>Chat</h1>
        <div class="controls">
          <label>
            <span class="unseen">Model</span>
            <select value={chosen} onChange={(event) => setModel(event.currentTarget.value)}>
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
          <Prefixes busy={busy} onBegin={begin} />
          <button type="button" disabled={(messages.length === 0 && !start) || busy} onClick={clear}>
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
          onInput={(event) => setSystem(event.currentTarget.value)}
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
        {error ? (
          <Notice kind="error" title="No reply">
            {error}
          </Notice>
        ) : null}
        <div ref={end} />
      </div>
      <form class="composer" onSubmit={submit}>
        <textarea
          rows={2}
          aria-label="Message"
          placeholder="Message"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={keys}
        />
        {busy ? (
          <button type="button" onClick={() => stop.current?.abort()}>
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

/** Where the conversation goes, and what is sent: messages, or all tokens so far. */
async function requestOf(
  start: Start | null,
  model: string,
  system: string,
  messages: Message[],
): Promise<[path: string, body: object]> {
  if (start && !start.messages) {
    const content = messages.map((message) => message.content).join("");
    const { tokens } = await post<{ tokens: number[] }>("/tokenize", { model, content });
    return ["/v1/completions", { prompt: [...start.tokens, ...tokens], max_tokens: MOST_TOKENS }];
  }
  // A stored system prompt must stay as it is, to the last space.
  const own = start ? system : system.trim();
  const sent = [
    ...(own ? [{ role: "system", content: own }] : []),
    ...messages.map(({ role, content }) => ({ role, content })),
  ];
  return ["/v1/chat/completions", { messages: sent }];
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

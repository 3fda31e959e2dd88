// Chat: a small one, to see what each turn reuses. Its history stays in this browser.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { events, get, type RequestRow, send } from "../api";
import { usePolled } from "../live";
import { Notice, TokenBar, tokenWords } from "../parts";

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
  choices?: { delta?: { content?: string; reasoning_content?: string } }[];
  usage?: { completion_tokens: number };
  poncho?: Facts;
}

const HISTORY = "poncho-chat";

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
  const end = useRef<HTMLDivElement>(null);
  const models = usePolled((signal) => get<{ data: { id: string }[] }>("/v1/models", signal), 0);
  const names = (models.value?.data ?? []).map((one) => one.id);
  const chosen = names.includes(model) ? model : (names[0] ?? "");
  useEffect(() => {
    try {
      localStorage.setItem(HISTORY, JSON.stringify({ model: chosen, system, messages }));
    } catch {
      // A full or closed store loses the history and nothing else.
    }
    end.current?.scrollIntoView({ block: "end" });
  }, [messages, chosen, system]);
  const submit = async (event: Event) => {
    event.preventDefault();
    const asked = text.trim();
    if (!asked || busy || !chosen) return;
    const before: Message[] = [...messages, { role: "user", content: asked }];
    const reply: Message = { role: "assistant", content: "" };
    setText("");
    setError("");
    setMessages([...before, { ...reply }]);
    setBusy(true);
    stop.current = new AbortController();
    try {
      const sent = [
        ...(system.trim() ? [{ role: "system", content: system.trim() }] : []),
        ...before.map(({ role, content }) => ({ role, content })),
      ];
      const body = { model: chosen, messages: sent, stream: true, stream_options: { include_usage: true } };
      const answer = await send("POST", "/v1/chat/completions", body, stop.current.signal);
      let generated = 0;
      for await (const data of events(answer)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data) as Chunk & { error?: { message: string } };
        if (chunk.error) throw new Error(chunk.error.message);
        const delta = chunk.choices?.[0]?.delta;
        if (delta?.content) reply.content += delta.content;
        if (delta?.reasoning_content) reply.thinking = (reply.thinking ?? "") + delta.reasoning_content;
        generated = chunk.usage?.completion_tokens ?? generated;
        if (chunk.poncho?.hit) reply.facts = { ...chunk.poncho, generated };
        if (reply.facts) reply.facts.generated = generated;
        setMessages([...before, { ...reply }]);
      }
    } catch (failed) {
      if (!stop.current.signal.aborted) setError((failed as Error).message);
    }
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
          <button type="button" disabled={messages.length === 0 || busy} onClick={() => setMessages([])}>
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
        {messages.length === 0 ? (
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

// The conversation of the chat. It goes on while another view is open, and is kept in this browser.
//
// A question without a word of a reply (an error, a stop, a closed page) goes back to where it was written: an empty reply
// must never be a part of the next prompt.
import { useEffect, useState } from "preact/hooks";
import { events, post, send } from "../../api";
import type { Start } from "./prefix";

export interface Facts {
  hit: string;
  cached_tokens: number;
  new_tokens: number;
}

export interface Message {
  role: "user" | "assistant";
  content: string;
  thinking?: string;
  facts?: Facts & { generated: number };
}

export interface Talk {
  model: string;
  system: string;
  messages: Message[];
  /** What is written and not sent. */
  text: string;
  error: string;
  start: Start | null;
  busy: boolean;
}

interface Chunk {
  choices?: { text?: string; delta?: { content?: string; reasoning_content?: string } }[];
  usage?: { completion_tokens: number };
  poncho?: Facts;
  error?: { message: string };
}

const HISTORY = "poncho-chat";
/** Tokens of a reply that goes on from tokens: nothing marks its end. */
const MOST_TOKENS = 512;

let talk: Talk | null = null;
let stop: AbortController | null = null;
const drawn = new Set<() => void>();

/** Without what never became a part of the conversation: a reply without a word, and the question before it. */
function settled(now: Talk): Talk {
  const messages = [...now.messages];
  const last = messages.at(-1);
  if (last?.role === "assistant" && !last.content && !last.thinking) messages.pop();
  const open = messages.at(-1)?.role === "user" ? messages.pop() : undefined;
  return { ...now, messages, text: now.text || (open?.content ?? "") };
}

function read(): Talk {
  const fresh = { model: "", system: "", messages: [], text: "", error: "", start: null, busy: false };
  try {
    const kept = JSON.parse(localStorage.getItem(HISTORY) ?? "null");
    if (kept && Array.isArray(kept.messages)) return settled({ ...fresh, ...kept });
  } catch {
    // A history that cannot be read is a new one.
  }
  return fresh;
}

function now(): Talk {
  talk ??= read();
  return talk;
}

/** One that goes on from tokens is nothing without them. */
function keep({ model, system, messages, start }: Talk): void {
  if (start && !start.messages) return;
  try {
    localStorage.setItem(HISTORY, JSON.stringify({ model, system, messages }));
  } catch {
    // A full or closed store loses the history and nothing else.
  }
}

function show(part: Partial<Talk>): void {
  talk = { ...now(), ...part };
  for (const draw of drawn) draw();
}

/** Changes the conversation; it is kept if no reply is being written. */
export function change(part: Partial<Talk>): void {
  show(part);
  if (!now().busy) keep(now());
}

export function useTalk(): Talk {
  const [, draw] = useState(0);
  useEffect(() => {
    const again = () => draw((n) => n + 1);
    drawn.add(again);
    again();
    return () => void drawn.delete(again);
  }, []);
  return now();
}

export function stopReply(): void {
  stop?.abort();
}

/** The key is another one: what it read is not the next one's. */
export function forgetTalk(): void {
  stopReply();
  talk = null;
}

/** Sends what is written to a model. */
export async function ask(model: string): Promise<void> {
  const { text, messages, start, system, busy } = now();
  const asked = text.trim();
  if (!asked || busy || !model) return;
  const before: Message[] = [...messages, { role: "user", content: asked }];
  const reply: Message = { role: "assistant", content: "" };
  const mine = new AbortController();
  stop = mine;
  show({ model, text: "", error: "", messages: before });
  // The question is kept before there is a reply.
  keep(now());
  show({ messages: [...before, reply], busy: true });
  const grow = () => show({ messages: [...before, { ...reply }] });
  let frame = 0;
  let error = "";
  try {
    const [path, body] = await requestOf(start, model, system, before);
    const streamed = { ...body, model, stream: true, stream_options: { include_usage: true } };
    const answer = await send("POST", path, streamed, mine.signal);
    let generated = 0;
    for await (const data of events(answer)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices?.[0]?.delta;
      reply.content += delta?.content ?? chunk.choices?.[0]?.text ?? "";
      if (delta?.reasoning_content) reply.thinking = (reply.thinking ?? "") + delta.reasoning_content;
      generated = chunk.usage?.completion_tokens ?? generated;
      if (chunk.poncho?.hit) reply.facts = { ...chunk.poncho, generated };
      if (reply.facts) reply.facts.generated = generated;
      // Tokens that come close together are drawn together.
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(grow);
    }
  } catch (failed) {
    if (!mine.signal.aborted) error = (failed as Error).message;
  }
  cancelAnimationFrame(frame);
  // A conversation that was begun or forgotten meanwhile is not this one.
  if (stop !== mine || talk === null) return;
  // A model may end at once: such a reply is empty and a part of the conversation.
  const isEmpty = !reply.content && !reply.thinking;
  const isOver = reply.facts !== undefined && !error;
  const ended = { ...now(), messages: [...before, { ...reply }], busy: false, error };
  change(isEmpty && !isOver ? settled(ended) : ended);
}

/** Begins another conversation. */
export function beginTalk(part: Partial<Talk>): void {
  stopReply();
  stop = null;
  change({ messages: [], error: "", start: null, busy: false, ...part });
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

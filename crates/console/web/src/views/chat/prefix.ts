// A stored prefix as the beginning of a conversation.
//
// The marks of the model's chat template are found by rendering messages with known texts. The stored text is split at
// those marks, and the messages are rendered again: only if they give the stored tokens does the chat go on with them.
// Otherwise it goes on with the tokens themselves, without messages.
import { get, post, type RowText } from "../../api";

export interface Plain {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface Start {
  key: string;
  model: string;
  tokens: number[];
  text: string;
  /** The messages, or null if the text is not one of messages. */
  messages: Plain[] | null;
}

/** Tokens at the end of a row that the next message may replace: marks of the template. */
const ENDING = 8;

/** The texts around messages. */
export interface Marks {
  /** Before the first message, by its role. */
  first: { system: string; user: string };
  /** After a message and before the next one. */
  next: { system: string; user: string; assistant: string };
}

interface Rendered {
  prompt: string;
  tokens: number[];
}

const render = (model: string, messages: Plain[]) => post<Rendered>("/apply-template", { model, messages });

/** What stands before, between and after some texts; null if one of them is not there. */
export function around(text: string, known: string[]): string[] | null {
  const parts: string[] = [];
  let at = 0;
  for (const one of known) {
    const found = text.indexOf(one, at);
    if (found < 0) return null;
    parts.push(text.slice(at, found));
    at = found + one.length;
  }
  return [...parts, text.slice(at)];
}

async function marksOf(model: string): Promise<Marks | null> {
  const texts = ["poncho-text-a", "poncho-text-b", "poncho-text-c", "poncho-text-d"];
  const [system, user, assistant, again] = texts as [string, string, string, string];
  const turns: Plain[] = [
    { role: "user", content: user },
    { role: "assistant", content: assistant },
    { role: "user", content: again },
  ];
  const [whole, bare] = await Promise.all([
    render(model, [{ role: "system", content: system }, ...turns]),
    render(model, turns),
  ]);
  const [with_, without] = [around(whole.prompt, texts), around(bare.prompt, texts.slice(1))];
  if (!with_ || !without) return null;
  return {
    first: { system: with_[0]!, user: without[0]! },
    next: { system: with_[1]!, user: with_[2]!, assistant: with_[3]! },
  };
}

/** The messages of a text; null if it does not begin as a conversation does. */
export function split(text: string, marks: Marks): Plain[] | null {
  const roles = (["system", "user"] as const).filter((role) => marks.first[role] && text.includes(marks.first[role]));
  // The first one in the text; a token before it may have a text of its own.
  const [first] = roles.sort((one, two) => text.indexOf(marks.first[one]) - text.indexOf(marks.first[two]));
  if (!first) return null;
  const messages: Plain[] = [];
  let role: Plain["role"] = first;
  let rest = text.slice(text.indexOf(marks.first[first]) + marks.first[first].length);
  for (;;) {
    const mark: string = marks.next[role];
    const end: number = mark ? rest.indexOf(mark) : -1;
    if (end < 0) break;
    messages.push({ role, content: rest.slice(0, end) });
    rest = rest.slice(end + mark.length);
    role = role === "user" ? "assistant" : "user";
  }
  // The row may end within a mark.
  const mark = marks.next[role];
  let cut = Math.min(mark.length, rest.length);
  while (cut > 0 && !rest.endsWith(mark.slice(0, cut))) cut -= 1;
  const last = rest.slice(0, rest.length - cut);
  if (last) messages.push({ role, content: last });
  return messages;
}

function agreeing(one: number[], two: number[]): number {
  let at = 0;
  while (at < one.length && one[at] === two[at]) at += 1;
  return at;
}

export async function startFrom(key: string): Promise<Start> {
  const row = await get<RowText>(`/api/cache/rows/${key}/text`);
  if (row.text === null || row.model === null) {
    throw new Error("No loaded model can read this prefix. Load the model that computed it.");
  }
  const start: Start = { key, model: row.model, tokens: row.tokens, text: row.text, messages: null };
  try {
    const marks = await marksOf(row.model);
    const messages = marks ? split(row.text, marks) : null;
    if (messages && messages.length > 0) {
      const { tokens } = await render(row.model, messages);
      if (agreeing(row.tokens, tokens) >= row.tokens.length - ENDING) start.messages = messages;
    }
  } catch {
    // A template that refuses these messages: the tokens are enough.
  }
  return start;
}

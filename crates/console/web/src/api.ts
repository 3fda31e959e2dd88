// Calls of the server: one place that adds the key, and the shapes of the answers.
// The key is kept for the tab and sent to this server only.

const KEY = "poncho-key";

export function savedKey(): string | null {
  return sessionStorage.getItem(KEY);
}

export function saveKey(key: string | null): void {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string | null,
    message: string,
  ) {
    super(message);
  }
}

/** Whether the server answered, and the key may not see this. */
export function isForbidden(error: Error): boolean {
  return error instanceof Refused && error.status === 403;
}

export async function send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = {};
  const key = savedKey();
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  if (path === "/v1/chat/completions" || path === "/v1/completions") headers["x-poncho"] = "1";
  const init: RequestInit = { method, headers, cache: "no-store" };
  if (body !== undefined) init.body = JSON.stringify(body);
  if (signal) init.signal = signal;
  const answer = await fetch(path, init);
  if (answer.ok) return answer;
  let message = `${answer.status} ${answer.statusText}`;
  let code: string | null = null;
  try {
    const said = (await answer.json()).error;
    message = typeof said === "string" ? said : (said.message ?? message);
    code = said.code ?? null;
  } catch {
    // An answer without JSON has its status.
  }
  throw new Refused(answer.status, code, message);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send("GET", path, undefined, signal)).json();
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  return (await send("POST", path, body)).json();
}

/** Reads a body line by line. */
export async function* lines(answer: Response): AsyncGenerator<string> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop() ?? "";
    yield* parts;
  }
  if (rest) yield rest;
}

/** Reads the data of server-sent events. */
export async function* events(answer: Response): AsyncGenerator<string> {
  let data: string[] = [];
  for await (const line of lines(answer)) {
    if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    else if (line === "" && data.length > 0) {
      yield data.join("\n");
      data = [];
    }
  }
}

export type Stage = "queued" | "restoring" | "prefilling" | "generating" | "ended";

export interface Hygiene {
  rule: string;
  places: number;
}

/** What drafts did for a reply. */
export interface DraftFacts {
  drafted: number;
  accepted: number;
  tokens_per_step: number;
  saved_ms: number;
}

/** What drafts did for a model since it was loaded; `off` is the reason where there are none. */
export interface DraftSums {
  off: string | null;
  drafted: number;
  accepted: number;
  tokens_per_step: number | null;
  saved_seconds: number;
  index_tokens: number;
  index_bytes: number;
}

export interface RequestRow {
  id: number;
  request_id: string | null;
  model: string;
  key: number | null;
  conversation: string;
  title: string | null;
  arrived_ms: number;
  stage: Stage;
  prompt_tokens: number | null;
  cached_tokens: number | null;
  new_tokens: number | null;
  generated_tokens: number;
  processed_tokens?: number | null;
  tokens_per_second?: number | null;
  left_ms?: number | null;
  age_ms?: number;
  outcome?: "stop" | "length" | "cancelled" | "failed" | "abandoned";
  error?: string | null;
  hit?: string | null;
  source?: string | null;
  queue_ms?: number | null;
  restore_ms?: number | null;
  prefill_ms?: number | null;
  decode_ms?: number | null;
  total_ms?: number;
  drafts?: DraftFacts | null;
  hygiene?: Hygiene[] | null;
}

export interface Around {
  before: string;
  after: string;
}

export interface Why {
  model: string;
  tokens: number;
  agree: number;
  usable: number;
  lost: number;
  found: number;
  offset: number | null;
  message: { number: number; role: string } | null;
  cause: string;
  reason: string;
  fix: string | null;
  cached: Around | null;
  asked: Around | null;
  hygiene: Hygiene[];
}

export interface Row {
  key: string;
  parent: string | null;
  fingerprint: string;
  tokens: number;
  start: number;
  children: number;
  tiers: string[];
  pending: boolean;
  bytes: number;
  hits: number | null;
  created: number;
  last_used: number | null;
  reason: string;
  pinned: boolean;
  text: string | null;
}

/** All tokens of a row; the text is null if no loaded model can read them. */
export interface RowText {
  key: string;
  model: string | null;
  tokens: number[];
  text: string | null;
}

export interface RowCheck {
  whole: boolean;
  copies: { tier: string; checked_bytes: number; problem: string | null }[];
}

/** Rows that left a tier within one hour for one cause. */
export interface Eviction {
  hour: number;
  tier: string;
  cause: string;
  rows: number;
  bytes: number;
}

export interface Tier {
  tier: string;
  bytes: number;
  quota: number;
  rows: number;
  on: boolean;
  off_because: string | null;
  slow_because: string | null;
}

export interface CacheInfo {
  counters: Record<string, number>;
  tiers: Tier[];
  rows: number;
  pinned_rows: number;
  write_queue: number;
  index_bytes: number;
}

export interface Saving {
  model: string;
  requests: number;
  cached_tokens: number;
  new_tokens: number;
  generated_tokens: number;
  restore_seconds: number;
  saved_seconds: number | null;
}

export interface Savings {
  days: { day: string; models: Saving[] }[];
}

export interface Plan {
  lines: { text: string; flags: string[]; is_set: boolean }[];
  warning: string | null;
  memory: { device: string; weights_bytes: number; context_bytes: number; buffer_bytes: number }[];
}

export interface SystemInfo {
  version: string;
  in_flight: number;
  models: {
    id: string;
    architecture: string;
    parameters: number;
    quantisation: string | null;
    context: number;
    weights_bytes: number;
    context_bytes: number;
    plan: Plan | null;
    status: {
      phase: string;
      active: number;
      pending: number;
      sessions: number;
      prefilled_tokens: number;
      generated_tokens: number;
      drafts: DraftSums;
    };
  }[];
  devices: { name: string; description: string; kind: string; total_bytes: number; free_bytes: number }[];
  unused_devices: { what: string; why: string }[];
  nodes: { name: string; state: "up" | "starting" | "down"; reason: string | null; models: string[] }[];
  settings: { name: string; value: string; origin: string }[];
  warnings: string[];
  hygiene: string[];
}

export interface Tags {
  models: { name: string; size: number; details?: { parameter_size?: string; quantization_level?: string } }[];
}

export interface Running {
  models: { name: string; size: number; context_length?: number; expires_at?: string }[];
}

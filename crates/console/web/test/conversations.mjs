// The conversations that the tests send: recorded ones with a planted change each, and one that takes long.
function tools(names) {
  return names.map((name) => ({
    type: "function",
    function: {
      name,
      description: `Does ${name} with a file of the workshop.`,
      parameters: { type: "object", properties: { file: { type: "string" } } },
    },
  }));
}

const SYSTEM =
  "You are a careful assistant for the files of a small workshop. Read a file before you speak of it, and name it in the " +
  "answer. Keep answers short, never invent a file, and say so if you do not know.";
const NAMES = ["list", "read", "write"];

/** A recorded conversation: what changes is planted by the caller. */
export function conversation({
  system = SYSTEM,
  first,
  edited = "Oak, ash and a little walnut, all of it dry.",
  names = NAMES,
}) {
  return {
    model: "stub",
    max_tokens: 12,
    ignore_eos: true,
    tools: tools(names),
    messages: [
      { role: "system", content: system },
      { role: "user", content: first },
      { role: "assistant", content: edited },
      { role: "user", content: "Put all of it into one list, sorted by how much there is of it." },
    ],
  };
}

export const PLANTED = [
  {
    cause: "clock",
    before: { first: "Which kinds of wood are in the workshop?", system: `The time is 12:04:11. ${SYSTEM}` },
    after: { first: "Which kinds of wood are in the workshop?", system: `The time is 12:05:37. ${SYSTEM}` },
  },
  {
    cause: "tool_order",
    before: { first: "Plan a small bench for the garden." },
    after: { first: "Plan a small bench for the garden.", names: ["write", "read", "list"] },
  },
  {
    cause: "edited_history",
    before: { first: "How do I sharpen a plane iron?" },
    after: { first: "How do I sharpen a plane iron?", edited: "With water stones, first coarse and then fine ones." },
  },
];

/** A prompt that takes the stub some seconds. */
export function slow(words) {
  return {
    model: "stub",
    max_tokens: 400,
    ignore_eos: true,
    messages: [{ role: "user", content: `${words} `.repeat(700) }],
  };
}

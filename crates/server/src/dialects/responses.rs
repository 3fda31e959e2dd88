//! OpenAI's Responses API: one request, one response object, a stream of typed events, and a memory of past ones.
//!
//! `types` is what comes in, `item` what conversations are made of, `object` what goes out. `input` and `turn` make a
//! chat turn out of a request, `compose` makes items and events out of a reply, `store` remembers. The handlers are in
//! `create` and `stored`. Nothing here talks to the engine except through `Call`.
//!
//! Thinking is sent as the content of a reasoning item (`reasoning_text`). If the request asks for a summary,
//! the same text is sent as the summary instead: local models write none of their own, and one text in two places
//! would be read twice by the next turn. With `include: ["reasoning.encrypted_content"]` it also travels as an opaque
//! text, because clients that keep the conversation themselves send back only that.

mod compose;
pub(crate) mod create;
mod custom;
pub(crate) mod ignored;
mod input;
mod maker;
mod mcp;
mod messages;
mod namespace;
pub(crate) mod object;
mod rounds;
pub(crate) mod stored;
mod tools;
mod turn;
pub(crate) mod types;

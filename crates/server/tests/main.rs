//! The server over real sockets, on stub models: every endpoint, every refusal, and what happens when somebody leaves.

#[cfg(test)]
mod chat;
#[cfg(test)]
mod completions;
#[cfg(test)]
mod endpoints;
#[cfg(test)]
mod errors;
#[cfg(test)]
mod life;
#[cfg(test)]
mod ollama;
#[cfg(test)]
mod ollama_errors;
#[cfg(test)]
mod ollama_models;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tools;

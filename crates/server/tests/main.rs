//! The server over real sockets, on stub models: every endpoint, every refusal, and what happens when somebody leaves.

#[cfg(test)]
mod adapters;
#[cfg(test)]
mod anthropic;
#[cfg(test)]
mod anthropic_errors;
#[cfg(test)]
mod anthropic_stream;
#[cfg(test)]
mod browser;
#[cfg(test)]
mod cache_api;
#[cfg(test)]
mod chat;
#[cfg(test)]
mod completions;
#[cfg(test)]
mod embed_turns;
#[cfg(test)]
mod embeddings;
#[cfg(test)]
mod endpoints;
#[cfg(test)]
mod errors;
#[cfg(test)]
mod generic_tools;
#[cfg(test)]
mod hygiene;
#[cfg(test)]
mod life;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod loading;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod mutations;
#[cfg(test)]
mod ollama;
#[cfg(test)]
mod ollama_errors;
#[cfg(test)]
mod ollama_library;
#[cfg(test)]
mod ollama_models;
#[cfg(test)]
mod openapi;
#[cfg(test)]
mod overload;
#[cfg(test)]
mod owners;
#[cfg(test)]
mod poncho_options;
#[cfg(test)]
mod pulling;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod request_ids;
#[cfg(test)]
mod response_fields;
#[cfg(test)]
mod response_store;
#[cfg(test)]
mod responses;
#[cfg(test)]
mod schemas;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod speculation;
#[cfg(test)]
mod stalled;
#[cfg(test)]
mod stalled_disk;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tenants;
#[cfg(test)]
mod tools;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod uploads;
#[cfg(test)]
mod worker_death;

//! The server over real llama.cpp and over scripted replies with llama.cpp's templates: one binary, one module per topic.

#[cfg(test)]
mod adapters;
#[cfg(test)]
#[path = "../../../crates/models/tests/loopback.rs"]
mod loopback;
#[cfg(test)]
mod modelfile_templates;
#[cfg(test)]
mod pulled;
#[cfg(test)]
mod replaced;
#[cfg(test)]
mod restarts;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod sizes;
#[cfg(test)]
mod smollm2;
#[cfg(test)]
#[allow(dead_code, reason = "shared with the server's tests, which use the rest")]
#[path = "../../../crates/server/tests/support.rs"]
mod support;
#[cfg(test)]
mod template_families;

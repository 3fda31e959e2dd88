//! The integration tests of the engine: one binary, one module per promise.

#[cfg(test)]
mod batching;
#[cfg(test)]
mod embedding;
#[cfg(test)]
#[cfg(feature = "llama")]
mod exact;
#[cfg(test)]
mod faults;
#[cfg(test)]
#[cfg(feature = "llama")]
mod hits;
#[cfg(test)]
#[cfg(feature = "llama")]
mod idle;
#[cfg(test)]
#[cfg(feature = "llama")]
mod invariance;
#[cfg(test)]
#[cfg(feature = "llama")]
mod models;
#[cfg(test)]
#[cfg(feature = "llama")]
mod real;
#[cfg(test)]
mod replies;
#[cfg(test)]
#[cfg(feature = "llama")]
mod resume;
#[cfg(test)]
#[cfg(feature = "llama")]
mod rows;
#[cfg(test)]
#[cfg(feature = "llama")]
mod segments;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod sharing;
#[cfg(test)]
#[cfg(feature = "llama")]
mod smollm2;
#[cfg(test)]
mod stalled;
#[cfg(test)]
mod state_machine;
#[cfg(test)]
mod stub;
#[cfg(test)]
mod supervision;
#[cfg(test)]
mod support;

//! The integration tests of the engine: one binary, one module per promise.

#[cfg(test)]
mod batching;
#[cfg(test)]
mod embedding;
#[cfg(test)]
mod faults;
#[cfg(test)]
#[cfg(feature = "llama")]
mod llama;
#[cfg(test)]
mod replies;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod sharing;
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
#[cfg(test)]
mod turns;

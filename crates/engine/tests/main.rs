//! The integration tests of the engine: one binary, one module per promise.

#[cfg(test)]
mod batching;
#[cfg(test)]
mod embedding;
#[cfg(test)]
mod exact;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod hits;
#[cfg(test)]
mod idle;
#[cfg(test)]
mod invariance;
#[cfg(test)]
mod models;
#[cfg(test)]
mod real;
#[cfg(test)]
mod replies;
#[cfg(test)]
mod resume;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod segments;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod sharing;
#[cfg(test)]
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

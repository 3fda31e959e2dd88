//! The integration tests of the cache: one binary, one module per promise.

#[cfg(test)]
mod chains;
#[cfg(test)]
mod concurrency;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod kill;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod model;
#[cfg(test)]
mod support;

//! The integration tests of the cache: one binary, one module per promise.
//!
//! Under the feature `shuttle` the locks of the crate work inside shuttle's runs only, so only its module is there.

#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod chains;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod compaction;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod concurrency;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod economy;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod faults;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod fingerprints;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod kill;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod lifecycle;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod model;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod pressure;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod privacy;
#[cfg(test)]
#[cfg(feature = "shuttle")]
mod shuttle;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod strange_files;
#[cfg(test)]
mod support;

//! Tests of the cluster crate, one module per topic.

#[cfg(test)]
mod bus;
#[cfg(test)]
mod choice;
#[cfg(test)]
mod hints;
#[cfg(test)]
mod index;
#[cfg(test)]
mod kv_events;
#[cfg(test)]
mod support;
#[cfg(test)]
mod turmoil;

//! Tests of the cluster crate, one module per topic.

mod bus;
mod choice;
mod hints;
mod index;
mod kv_events;
mod turmoil;

//! KV events for routers of other projects: the rows of the cache in the format of vLLM, over ZeroMQ.
//!
//! Used by `serve` and `node` if `--kv-events` is set. The format carries the tokens of prompts in plain, so it must never
//! be published where other machines can connect unless a second setting allows it.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::bail;
use poncho_api::Node;
use poncho_cluster::kv_events::KvEvents;
use poncho_node::{KvRows, follow};
use tokio::runtime::Runtime;

use crate::settings::args::cluster::KvEventsArgs;

/// Fails before a model is loaded if the tokens of prompts would be readable on other machines.
pub(crate) fn check(args: &KvEventsArgs) -> anyhow::Result<()> {
    for address in [&args.kv_events, &args.kv_events_replay].into_iter().flatten() {
        if !args.kv_events_open && !is_this_machine(address) {
            bail!(
                "other machines can reach {address}, and KV events contain the tokens of prompts in plain; publish them on \
                 127.0.0.1, or allow it with --kv-events-open on a network that only the router reaches"
            );
        }
    }
    Ok(())
}

/// Publishes the rows of a node from now on, until the runtime ends.
pub(crate) fn publish(args: &KvEventsArgs, runtime: &Runtime, node: Arc<dyn Node>) -> anyhow::Result<()> {
    let Some(address) = &args.kv_events else { return Ok(()) };
    let (endpoint, replay) = (endpoint(address), args.kv_events_replay.as_deref().map(endpoint));
    let events = runtime.block_on(KvEvents::bind(&endpoint, replay.as_deref(), ""))?;
    tracing::info!(address = events.endpoint(), replay = events.replay(), "KV events are published");
    runtime.spawn(follow(node, KvRows::new(events, args.kv_events_block as usize)));
    Ok(())
}

fn endpoint(address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("tcp://{address}") }
}

fn is_this_machine(address: &str) -> bool {
    let address = address.rsplit_once("://").map_or(address, |(_, rest)| rest);
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_published_on_this_machine_unless_a_second_setting_allows_more() {
        let at = |address: &str, open| {
            let args = KvEventsArgs { kv_events: Some(address.to_owned()), ..KvEventsArgs::default() };
            check(&KvEventsArgs { kv_events_open: open, ..args })
        };
        for here in ["127.0.0.1:5557", "tcp://127.0.0.1:5557", "localhost:1", "[::1]:7"] {
            assert!(at(here, false).is_ok(), "{here}");
        }
        for there in ["0.0.0.0:5557", "tcp://*:5557", "10.0.0.1:1", "[::]:7", "gpu-1:5557"] {
            let error = at(there, false).unwrap_err().to_string();
            assert!(error.contains("--kv-events-open"), "{error}");
            assert!(at(there, true).is_ok(), "{there}");
        }
        let replay = KvEventsArgs { kv_events_replay: Some("0.0.0.0:1".to_owned()), ..KvEventsArgs::default() };
        assert!(check(&replay).is_err());
        assert_eq!(
            (endpoint("127.0.0.1:1"), endpoint("tcp://*:1")),
            ("tcp://127.0.0.1:1".to_owned(), "tcp://*:1".to_owned())
        );
    }
}

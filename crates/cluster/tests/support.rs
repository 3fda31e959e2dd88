//! A model as a node announces it.

use poncho_cluster::hints::ModelBeat;
use poncho_cluster::member::{Load, Rates};

/// An idle model with that many sequences, on a node that pulls that many bytes in a second from others.
pub(crate) fn idle(namespace: [u8; 32], places: u32, peer_bytes: f64) -> ModelBeat {
    let rates = Rates {
        prefill_tokens: 1_000.0,
        decode_step: 0.01,
        decode_stream: 0.001,
        bytes_per_token: 1_000.0,
        ram_bytes: 1e9,
        disk_bytes: 1e9,
        peer_bytes,
        shared_bytes: 0.0,
        remote_delay: 0.001,
    };
    let load =
        Load { running: 0, places, waiting: 0, queue: places, backlog_tokens: 0.0, line_bytes: 0.0, mean_stay: 1.0 };
    ModelBeat { name: "m".to_owned(), namespace, can_cut: true, rates, load }
}

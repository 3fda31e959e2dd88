//! Measures a pull between two nodes on loopback beside a plain GET of the same bytes.
//!
//! `cargo run --release -p poncho-shared --example pull_rate -- 256` for 256 MB. A pull exports the row from one cache,
//! sends it, and checks every byte; the plain GET only sends. Prints one line each, in bytes per second.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a measurement ends at the first thing that does not work"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::{
    Cache, CacheConfig, Cancellation, ImportRequest, Key, NO_TENANT, Namespace, PartKind, Patience, PayloadPart,
    QuantType, RemoteQuery, RemoteTier, SaveRequest,
};
use poncho_shared::{Holder, PeerTier, PullLimits, PullSecret, RowServer, Whereabouts};

const NAMESPACE: Namespace = Namespace { fingerprint: [7; 32], quant: QuantType::F16, context_hash: [9; 32] };
const SECRET: PullSecret = PullSecret::from_bytes([1; 32]);
const ROUNDS: usize = 5;

#[derive(Debug)]
struct One(SocketAddr);

impl Whereabouts for One {
    fn holders(&self, keys: &[Key]) -> Vec<Holder> {
        keys.iter().take(1).map(|key| Holder { address: self.0.to_string(), key: *key }).collect()
    }

    fn has_peers(&self) -> bool {
        true
    }
}

fn patience() -> Patience {
    Patience { deadline: Instant::now() + Duration::from_secs(600), cancelled: Cancellation::default() }
}

fn save(cache: &Cache, tokens: &[u32], bytes: usize) -> Key {
    let state: Vec<u8> = (0..bytes as u64).map(|place| (place.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    let parts = vec![PayloadPart { kind: PartKind::Attention, bytes: state.into() }];
    cache.save(SaveRequest::new(NAMESPACE, tokens, parts)).unwrap().key
}

/// Seconds of a plain GET of these bytes, the best of some.
fn plain(bytes: &[u8]) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).unwrap();
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", bytes.len()).unwrap();
                stream.write_all(bytes).unwrap();
            }
        });
        let once = || {
            let started = Instant::now();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
            let mut answer = Vec::with_capacity(bytes.len() + 1024);
            stream.read_to_end(&mut answer).unwrap();
            assert!(answer.ends_with(bytes), "the bytes came");
            started.elapsed().as_secs_f64()
        };
        (0..ROUNDS).map(|_| once()).fold(f64::MAX, f64::min)
    })
}

fn main() {
    let megabytes: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(64);
    let bytes = megabytes * 1_000_000;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let from = Arc::new(Cache::open(CacheConfig::in_memory(8 * bytes as u64)).unwrap());
    // Nothing is kept between two pulls: each one exports the row.
    let limits = PullLimits { memory: 8 * bytes as u64, keep: Duration::ZERO, ..PullLimits::default() };
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let inside = runtime.enter();
    let server = RowServer::start(listener, &from, SECRET, None, limits).unwrap();
    drop(inside);
    let tier = PeerTier::open(Arc::new(One(server.address())), SECRET, None, limits).unwrap();
    let prompt: Vec<u32> = (0..2000).collect();
    let key = save(&from, &prompt, bytes);
    let (mut pulled, mut imported) = (f64::MAX, f64::MAX);
    let mut row_bytes = Vec::new();
    for _ in 0..ROUNDS {
        let to = Cache::open(CacheConfig::in_memory(8 * bytes as u64)).unwrap();
        let started = Instant::now();
        let query = RemoteQuery { owner: NO_TENANT, namespace: &NAMESPACE, keys: &[key] };
        let row = tier.find(query, &patience()).unwrap().unwrap();
        let chain = tier.fetch(&row, &patience()).unwrap();
        pulled = pulled.min(started.elapsed().as_secs_f64());
        let request = ImportRequest { owner: NO_TENANT, namespace: &NAMESPACE, prompt: &prompt };
        to.import(&chain, request, None).unwrap();
        imported = imported.min(started.elapsed().as_secs_f64());
        row_bytes = chain.rows[0].bytes.to_vec();
    }
    let raw = plain(&row_bytes);
    let length = row_bytes.len() as f64;
    println!("plain GET          {:>8.1} MB/s", length / raw / 1e6);
    println!("pull, checked      {:>8.1} MB/s  ({:.2} of it)", length / pulled / 1e6, raw / pulled);
    println!("pull and import    {:>8.1} MB/s  ({:.2} of it)", length / imported / 1e6, raw / imported);
}

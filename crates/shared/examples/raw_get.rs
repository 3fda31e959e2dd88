//! Lists the rows of a store and reads their bytes as fast as the store sends them: what a restore is measured against.
//!
//! `raw_get s3://BUCKET/PREFIX` reads questions from standard input, one JSON value per line, and answers each with one
//! line. `"rows"` lists the rows; a list of `[path, length]` is read in parallel ranges of the same size and number as a
//! restore uses, and answered with the seconds. Nothing is checked or kept. `make shared-figures` uses it.
#![expect(clippy::unwrap_used, reason = "a measurement ends at the first thing that does not work")]

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt as _};
use poncho_shared::Sizes;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(untagged)]
enum Question {
    Read(Vec<(String, u64)>),
    /// Any other word.
    Rows(serde::de::IgnoredAny),
}

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = std::env::args().nth(1).unwrap();
    let (bucket, prefix) = url.strip_prefix("s3://").unwrap().split_once('/').unwrap();
    let store = AmazonS3Builder::from_env().with_bucket_name(bucket).with_allow_http(true).build().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(store, prefix));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line.unwrap()).unwrap() {
            Question::Rows(_) => runtime.block_on(rows(&store)),
            Question::Read(parts) => {
                let begin = Instant::now();
                runtime.block_on(read(&store, parts));
                json!(begin.elapsed().as_secs_f64())
            }
        };
        println!("{answer}");
        std::io::stdout().flush().unwrap();
    }
}

/// All manifests: their readable heads say what a row needs.
async fn rows(store: &Arc<dyn ObjectStore>) -> Value {
    let listed: Vec<_> = store.list(Some(&Path::from("v1"))).try_collect().await.unwrap();
    let mut rows = Vec::new();
    for meta in listed {
        let Some((tenant, _)) = meta.location.as_ref().split_once("/row/") else { continue };
        let bytes = store.get(&meta.location).await.unwrap().bytes().await.unwrap();
        // A magic word of eight bytes, the length of the head, the head.
        let length = u32::from_le_bytes(bytes.get(8..12).unwrap().try_into().unwrap()) as usize;
        let mut head: Value = serde_json::from_slice(bytes.get(12..12 + length).unwrap()).unwrap();
        for segment in head.get_mut("segments").and_then(Value::as_array_mut).unwrap() {
            let digest = segment.get("digest").and_then(Value::as_str).unwrap();
            *segment = json!([format!("{tenant}/seg/{digest}"), segment.get("length")]);
        }
        rows.push(head);
    }
    Value::Array(rows)
}

/// The ranges of a restore, read and dropped.
async fn read(store: &Arc<dyn ObjectStore>, objects: Vec<(String, u64)>) {
    let Sizes { part, parallel_parts, .. } = Sizes::default();
    let ranges = objects.into_iter().flat_map(|(path, length)| {
        let starts = (0..length).step_by(part);
        starts.map(move |start| (Path::from(path.as_str()), start..(start + part as u64).min(length)))
    });
    let get = |(path, range): (Path, std::ops::Range<u64>)| async move {
        let wanted = range.end - range.start;
        assert_eq!(store.get_range(&path, range).await.unwrap().len() as u64, wanted);
    };
    stream::iter(ranges).map(get).buffered(parallel_parts).for_each(|()| async {}).await;
}

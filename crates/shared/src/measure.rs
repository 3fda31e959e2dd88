//! Measuring a store: a small sample for the running tier, and the long measurement of `poncho doctor --shared`.
//!
//! Called by the tier's background task and by [`SharedStore`](crate::SharedStore). The sample object has known bytes, so
//! that a store that returns wrong ones counts as failing.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::content::names;
use crate::objects::access::{Objects, Trouble, Write};

/// Bytes of the sample.
const SAMPLE: usize = 1 << 20;
/// Bytes of each object of the long measurement, and their number.
const LONG: (usize, usize) = (8 << 20, 4);

/// What a store did just now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// `None` if the sample object could not be written.
    pub(crate) bytes_per_second: Option<f64>,
    pub(crate) round_trip: Duration,
}

/// Times one small request and one of a megabyte. Ends within twice the limit of a small request: the next attempt must not
/// have to wait for one that hangs.
pub(crate) async fn sample(objects: &Objects) -> Result<Sample, Trouble> {
    let limit = 2 * objects.timing().request;
    tokio::time::timeout(limit, take_sample(objects)).await.unwrap_or(Err(Trouble::Late(limit)))
}

async fn take_sample(objects: &Objects) -> Result<Sample, Trouble> {
    let path = names::cluster("sample");
    // The first request may have to connect.
    let _ = exists(objects).await?;
    let begin = Instant::now();
    let exists = exists(objects).await?;
    let round_trip = begin.elapsed();
    let wanted = pattern(SAMPLE, 1);
    if !exists && let Err(trouble) = objects.put(&path, wanted.clone(), Write::Replace).await {
        tracing::debug!(%trouble, "cannot write the sample of the shared tier; its rate is measured by fetches alone");
        return Ok(Sample { bytes_per_second: None, round_trip });
    }
    let begin = Instant::now();
    let read = objects.part(&path, 0..SAMPLE as u64).await?;
    if read != wanted {
        return Err(Trouble::Failed("the store returned other bytes than were written".to_owned()));
    }
    Ok(Sample { bytes_per_second: Some(rate(SAMPLE, begin.elapsed(), round_trip)), round_trip })
}

async fn exists(objects: &Objects) -> Result<bool, Trouble> {
    match objects.head(&names::cluster("sample")).await {
        Ok(meta) => Ok(meta.size == SAMPLE as u64),
        Err(Trouble::Missing) => Ok(false),
        Err(trouble) => Err(trouble),
    }
}

/// What `poncho doctor --shared` prints.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The address without credentials.
    pub location: String,
    /// Time of one small request, the median of several.
    pub round_trip: Duration,
    /// Bytes per second of parallel reads.
    pub get_bytes_per_second: f64,
    /// Bytes per second of parallel writes.
    pub put_bytes_per_second: f64,
    /// Whether the store refuses to create an object that exists. The tier works without it.
    pub conditional_put: bool,
}

impl Measurement {
    /// The number of tokens from which a fetch is faster than to compute them, or `None` if it never is.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and bounded before the cast")]
    pub fn break_even_tokens(&self, bytes_per_token: f64, prefill_tokens_per_second: f64) -> Option<u64> {
        let gain = 1.0 / prefill_tokens_per_second - bytes_per_token / self.get_bytes_per_second;
        // One round for the manifests, one for the segments.
        let tokens = 2.0 * self.round_trip.as_secs_f64() / gain;
        (gain > 0.0 && tokens.is_finite() && tokens < 1e12).then(|| tokens.ceil().max(1.0) as u64)
    }
}

/// Measures a store with some tens of megabytes, and removes them.
pub(crate) async fn measure(objects: &Objects) -> Result<Measurement, Trouble> {
    let name = names::cluster(&format!("doctor-{:016x}", getrandom::u64().unwrap_or(0)));
    let outcome = measure_under(objects, name.as_ref()).await;
    for number in 0..=LONG.1 {
        let _ = objects.delete(&numbered(name.as_ref(), number)).await;
    }
    outcome
}

fn numbered(name: &str, number: usize) -> object_store::path::Path {
    object_store::path::Path::from(format!("{name}-{number}"))
}

async fn measure_under(objects: &Objects, name: &str) -> Result<Measurement, Trouble> {
    let small = numbered(name, LONG.1);
    objects.put(&small, Bytes::from_static(b"poncho"), Write::Create).await.or_else(unsupported)?;
    let again = objects.put(&small, Bytes::from_static(b"poncho"), Write::Create).await;
    let conditional_put = match again {
        Err(Trouble::Conflict) => true,
        Ok(()) | Err(Trouble::Unsupported) => false,
        Err(trouble) => return Err(trouble),
    };
    let mut times = Vec::new();
    for _ in 0..7 {
        let begin = Instant::now();
        match objects.head(&small).await {
            Ok(_) | Err(Trouble::Missing) => times.push(begin.elapsed()),
            Err(trouble) => return Err(trouble),
        }
    }
    times.sort_unstable();
    let round_trip = times.get(times.len() / 2).copied().unwrap_or_default();

    let begin = Instant::now();
    let put = |number: usize| async move {
        objects.put(&numbered(name, number), pattern(LONG.0, number as u64 + 2), Write::Replace).await
    };
    stream::iter(0..LONG.1).map(put).buffer_unordered(LONG.1).try_collect::<Vec<()>>().await?;
    let put_bytes_per_second = rate(LONG.0 * LONG.1, begin.elapsed(), round_trip);

    let begin = Instant::now();
    let get = |number: usize| async move {
        let read = objects.part(&numbered(name, number), 0..LONG.0 as u64).await?;
        if read == pattern(LONG.0, number as u64 + 2) {
            return Ok(());
        }
        Err(Trouble::Failed("the store returned other bytes than were written".to_owned()))
    };
    stream::iter(0..LONG.1).map(get).buffer_unordered(LONG.1).try_collect::<Vec<()>>().await?;
    let get_bytes_per_second = rate(LONG.0 * LONG.1, begin.elapsed(), round_trip);
    let location = objects.name().to_owned();
    Ok(Measurement { location, round_trip, get_bytes_per_second, put_bytes_per_second, conditional_put })
}

/// A store without conditional writes may refuse them altogether.
fn unsupported(trouble: Trouble) -> Result<(), Trouble> {
    if trouble == Trouble::Unsupported { Ok(()) } else { Err(trouble) }
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn rate(bytes: usize, took: Duration, round_trip: Duration) -> f64 {
    let seconds = took.as_secs_f64();
    bytes as f64 / (seconds - round_trip.as_secs_f64()).max(seconds * 0.1).max(1e-6)
}

/// Bytes that do not compress and are the same everywhere.
fn pattern(length: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rate: f64, round_trip_ms: u64) -> Measurement {
        Measurement {
            location: "file:///x".to_owned(),
            round_trip: Duration::from_millis(round_trip_ms),
            get_bytes_per_second: rate,
            put_bytes_per_second: rate,
            conditional_put: true,
        }
    }

    #[test]
    fn a_store_pays_if_its_bandwidth_exceeds_bytes_per_token_times_prefill_rate() {
        // 46 KB a token at 96 tokens a second: 4.4 MB/s are the limit.
        assert_eq!(measured(4.3e6, 1).break_even_tokens(46e3, 96.0), None);
        assert_eq!(measured(100e6, 50).break_even_tokens(46e3, 96.0), Some(11));
        assert_eq!(measured(100e6, 0).break_even_tokens(46e3, 96.0), Some(1));
        assert_eq!(measured(0.0, 1).break_even_tokens(46e3, 96.0), None);
    }
}

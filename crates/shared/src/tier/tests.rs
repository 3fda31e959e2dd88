//! A store that is gone for a while and comes back, with a clock that the test moves.

#[path = "../../tests/fixture/double.rs"]
mod double;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, PutOptions, PutPayload, PutResult, Result};
use tokio::time::Instant;

use self::double::{Double, DoubleStore};
use super::*;
use crate::settings::Timing;

/// How a store is gone.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gone {
    /// Nothing ever comes back, also not to requests that were sent before its return.
    Silent,
    /// Small requests are answered; larger ones never are.
    SilentBodies,
    /// Every request fails at once.
    Failing,
}

/// A store that is gone until a moment.
#[derive(Debug)]
struct Returning {
    how: Gone,
    returns: Instant,
}

impl Returning {
    async fn pass(&self, is_small: bool) -> Result<()> {
        match self.how {
            _ if Instant::now() >= self.returns => Ok(()),
            Gone::SilentBodies if is_small => Ok(()),
            Gone::Silent | Gone::SilentBodies => std::future::pending().await,
            Gone::Failing => Err(Error::Generic { store: "test", source: "gone".into() }),
        }
    }
}

#[async_trait]
impl Double for Returning {
    async fn put(&self, to: &InMemory, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.pass(false).await?;
        to.put_opts(at, payload, options).await
    }

    async fn before_get(&self, options: &GetOptions) -> Result<()> {
        self.pass(options.head).await
    }
}

/// The time from a store's return until it is in use.
async fn back_in_use_after(how: Gone, gone_for: Duration) -> Duration {
    let returns = Instant::now() + gone_for;
    let timing = Timing::default();
    let inner = Arc::new(InMemory::new());
    let location = |store| Location { store, name: "test".to_owned(), folder: None };
    // It was in use before, so the sample is there.
    let before = Objects::new(location(Arc::<InMemory>::clone(&inner)), timing);
    measure::sample(&before).await.expect("measured");
    let store = Arc::new(DoubleStore { inner, double: Returning { how, returns } });
    let vitals = Arc::new(Vitals::new("test".to_owned(), &timing));
    let objects = Objects::new(location(store), timing);
    let probing = tokio::spawn(keep_measuring(objects, Arc::clone(&vitals)));
    while !vitals.is_readable() {
        assert!(returns.elapsed() < Duration::from_secs(600), "{how:?} for {gone_for:?}: never");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    probing.abort();
    returns.elapsed()
}

/// A probe that hung in a body was given a minute, and the pause came after that.
#[tokio::test(start_paused = true)]
async fn a_store_that_returns_is_in_use_within_a_minute_however_long_it_was_gone() {
    for how in [Gone::Failing, Gone::Silent, Gone::SilentBodies] {
        let mut longest = Duration::ZERO;
        for seconds in (0..400).step_by(7) {
            longest = longest.max(back_in_use_after(how, Duration::from_secs(seconds)).await);
        }
        println!("{how:?}: in use {longest:?} after its return at the latest");
        assert!(longest <= Duration::from_secs(60), "{how:?}: {longest:?}");
    }
}

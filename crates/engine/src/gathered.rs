//! All rows of a chain at hand at once: by reference where they are in memory, read into one buffer where they are not.
//!
//! The restorer calls it for contexts that take a chain only as a whole. Two threads read. It must never hand out a row that was not
//! read to its end.

use bytes::Bytes;
use poncho_cache::{PartKind, Segment};

use crate::backend::Backend;
use crate::restore::Failure;
use crate::staging::{Staged, Staging};

/// Below this many bytes another thread costs more than it saves.
const WORTH_A_THREAD: usize = 4 << 20;

/// See the module.
pub(crate) struct Gathered<'a> {
    places: Vec<Place>,
    read: Staged<'a>,
}

enum Place {
    InMemory(Bytes),
    /// So many bytes of the buffer, after those of the rows before.
    Read(usize),
}

/// A row that is to be read, and where to.
type Job<'a> = (&'a Segment, &'a mut [u8]);

impl<'a> Gathered<'a> {
    /// Reads what is not in memory.
    pub(crate) fn read(backend: &dyn Backend, staging: &'a Staging, segments: &[&Segment]) -> Result<Self, Failure> {
        let place = |segment: &&Segment| match segment.bytes(PartKind::Attention) {
            Some(bytes) => Ok(Place::InMemory(bytes)),
            None => {
                let length = segment.length(PartKind::Attention).and_then(|length| usize::try_from(length).ok());
                length.map(Place::Read).ok_or(Failure::Refused)
            }
        };
        let places: Vec<Place> = segments.iter().map(place).collect::<Result<_, _>>()?;
        let total = places.iter().map(Place::in_buffer).sum();
        let mut read = staging.take(backend, total);
        let mut jobs: Vec<Job<'_>> = Vec::new();
        let mut rest = read.as_mut();
        for (segment, place) in segments.iter().zip(&places) {
            let (here, after) = rest.split_at_mut_checked(place.in_buffer()).ok_or(Failure::Refused)?;
            rest = after;
            if matches!(place, Place::Read(_)) {
                jobs.push((segment, here));
            }
        }
        read_jobs(jobs, total)?;
        Ok(Self { places, read })
    }

    /// The rows in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.read.as_ref();
        self.places.iter().map(move |place| match place {
            Place::InMemory(bytes) => bytes.as_ref(),
            Place::Read(length) => {
                let (here, after) = rest.split_at_checked(*length).unwrap_or_default();
                rest = after;
                here
            }
        })
    }
}

impl Place {
    fn in_buffer(&self) -> usize {
        match self {
            Self::InMemory(_) => 0,
            Self::Read(length) => *length,
        }
    }
}

/// Reads rows, half of their bytes in another thread if that pays.
fn read_jobs(mut jobs: Vec<Job<'_>>, total: usize) -> Result<(), Failure> {
    if total < WORTH_A_THREAD || jobs.len() < 2 {
        return read_each(jobs);
    }
    let mut before = 0;
    let half = jobs.iter().position(|(_, place)| {
        before += place.len();
        before >= total / 2
    });
    let others = jobs.split_off(half.map_or(jobs.len(), |half| (half + 1).min(jobs.len())));
    std::thread::scope(|scope| {
        let helper = std::thread::Builder::new().name("poncho-reader".to_owned());
        let helper = helper.spawn_scoped(scope, move || read_each(others)).map_err(|_| Failure::Refused)?;
        let ours = read_each(jobs);
        helper.join().unwrap_or(Err(Failure::Refused)).and(ours)
    })
}

fn read_each(jobs: Vec<Job<'_>>) -> Result<(), Failure> {
    for (segment, place) in jobs {
        segment.read(PartKind::Attention, place).map_err(|error| {
            tracing::debug!(%error, "a row is unusable");
            Failure::Unusable
        })?;
    }
    Ok(())
}

//! An open cache under memory pressure: the watcher's own thread takes rows out of memory and leaves the disk alone.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use poncho_cache::testing::MemoryFs;
use poncho_cache::{
    Cache, CacheConfig, PressureConfig, PressureError, PressureSample, PressureSource, PressureSourceKind, Tier,
};

use crate::support::{conversation, namespace, reach, save, save_to};

/// Says what it was told, and that it is about to be asked again: by then what followed from the last answer is done.
struct Told {
    used: u64,
    asked: SyncSender<()>,
}

impl PressureSource for Told {
    fn name(&self) -> &str {
        "told"
    }

    fn sample(&mut self) -> Result<PressureSample, PressureError> {
        // The test may be over.
        let _ = self.asked.send(());
        Ok(PressureSample { used: self.used, total: 100 })
    }
}

fn told(used: u64) -> (Box<Told>, Receiver<()>) {
    let (asked, times) = sync_channel(0);
    (Box::new(Told { used, asked }), times)
}

#[test]
fn rows_leave_memory_under_pressure_and_stay_on_disk() {
    let pressure = PressureConfig {
        enabled: true,
        interval_ms: 1,
        min_evict_bytes: 1 << 20,
        source: PressureSourceKind::Noop,
        ..PressureConfig::default()
    };
    let fs = Arc::new(MemoryFs::new());
    let config = CacheConfig { fs, pressure, ..CacheConfig::on_disk(Path::new("/cache"), 1 << 20) };
    let cache = Cache::open(config).unwrap();
    let (hot, volatile) = (conversation(1, 60), conversation(2, 60));
    save(&cache, namespace(1), &hot);
    save_to(&cache, namespace(1), &volatile, Some(Tier::Ram));
    cache.flush();
    assert_eq!(cache.counters().tier_rows, [2, 0, 1]);

    let (calm, times) = told(80);
    cache.pressure().set_source(calm);
    times.recv().unwrap();
    times.recv().unwrap();
    assert_eq!(cache.counters().tier_rows, [2, 0, 1], "nothing leaves below the high watermark");

    drop(times);
    let (pressed, times) = told(90);
    cache.pressure().set_source(pressed);
    times.recv().unwrap();
    times.recv().unwrap();
    assert_eq!(cache.counters().tier_rows, [0, 0, 1]);
    assert_eq!(reach(&cache, namespace(1), &hot), 60, "from its file");
    assert_eq!(reach(&cache, namespace(1), &volatile), 0, "it was in memory only");
    let report = cache.pressure().report();
    assert_eq!(report.last_sample.map(|sample| sample.used), Some(90));
    assert!(report.evictions >= 1 && report.last_error.is_none(), "{report:?}");
}

//! The manager on stub models: who shares a load, who goes first, and who never goes. The clock is paused, so that a
//! keep-alive of an hour takes no time; a gate in the backend holds loads until a test lets them go.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Condvar;
use std::time::Duration;

use poncho_api::ChatSettings;
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::stub::{StubBackend, StubCall, StubFaults};
use poncho_engine::backend::{
    Backend, ContextOptions, HostBuffer, LoadError, MemoryKind, Model as BackendModel, ModelOptions,
};
use poncho_engine::{Engine, FingerprintSource, Host, ModelConfig};

use super::*;
use crate::library::LibraryError;

const SECOND: Duration = Duration::from_secs(1);

/// Counts loads and holds them while it is shut.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    is_shut: bool,
    loads: Vec<PathBuf>,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn shut(&self) {
        self.change(|state| state.is_shut = true);
    }

    fn open(&self) {
        self.change(|state| state.is_shut = false);
    }

    fn pass(&self, path: PathBuf) {
        self.change(|state| state.loads.push(path));
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |state| state.is_shut).unwrap());
    }

    fn loads(&self) -> usize {
        self.0.0.lock().unwrap().loads.len()
    }
}

struct GatedBackend {
    stub: StubBackend,
    gate: Gate,
}

impl Backend for GatedBackend {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn build(&self) -> String {
        self.stub.build()
    }

    fn load_model(&self, options: &ModelOptions) -> Result<Arc<dyn BackendModel>, LoadError> {
        self.gate.pass(options.path.clone());
        self.stub.load_model(options)
    }

    fn host_buffer(&self, len: usize) -> HostBuffer {
        self.stub.host_buffer(len)
    }
}

/// Models with files of given sizes.
struct Shelf {
    models: BTreeMap<String, LibraryModel>,
    _folder: tempfile::TempDir,
}

impl Shelf {
    fn new(sizes: &[(&str, usize)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = |name: &str, size: usize| {
            let path = folder.path().join(name);
            std::fs::write(&path, name.repeat(size).as_bytes().get(..size).unwrap()).unwrap();
            let context = ContextOptions { n_ctx: 256, n_seq_max: 2, ..ContextOptions::default() };
            let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
            LibraryModel::new(ModelConfig { context, fingerprint, ..ModelConfig::new(name, path) })
        };
        let models = sizes.iter().map(|(name, size)| ((*name).to_owned(), model(name, *size))).collect();
        Self { models, _folder: folder }
    }
}

impl ModelLibrary for Shelf {
    fn find(&self, name: &str) -> Result<Option<LibraryModel>, LibraryError> {
        Ok(self.models.get(name).cloned())
    }

    fn list(&self) -> Result<Vec<LibraryModel>, LibraryError> {
        Ok(self.models.values().cloned().collect())
    }
}

struct Bench {
    manager: Arc<Manager>,
    engine: Arc<Engine>,
    gate: Gate,
    faults: StubFaults,
}

impl Bench {
    /// Three models of 100 bytes and one of 300.
    async fn new(budget: Option<u64>, keep_alive: KeepAlive) -> Self {
        Self::of(&[("a", 100), ("b", 100), ("c", 100), ("big", 300)], budget, keep_alive).await
    }

    async fn of(sizes: &[(&str, usize)], budget: Option<u64>, keep_alive: KeepAlive) -> Self {
        let (gate, stub) = (Gate::default(), StubBackend::new(MemoryKind::Attention));
        let faults = stub.faults();
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 24)).unwrap());
        let engine = Arc::new(Engine::new(Arc::new(GatedBackend { stub, gate: gate.clone() }), cache));
        let library: Option<Arc<dyn ModelLibrary>> = Some(Arc::new(Shelf::new(sizes)));
        let settings = ManagerSettings { library, budget, keep_alive };
        let node = Arc::new(Host::new(Arc::clone(&engine), ChatSettings::default()));
        let manager = Arc::new(Manager::start(node, settings).await);
        Self { manager, engine, gate, faults }
    }

    async fn found(manager: &Manager, id: &str) -> Found {
        let model = manager.library().unwrap().find(id).unwrap().unwrap();
        Found::new(&*manager.shared.node, model).await.unwrap()
    }

    async fn hold(&self, id: &str) -> Result<Held, ApiError> {
        self.hold_for(id, None).await
    }

    async fn hold_for(&self, id: &str, keep_alive: Option<KeepAlive>) -> Result<Held, ApiError> {
        let found = Self::found(&self.manager, id).await;
        Ok(self.manager.acquire(id, Some(found), keep_alive).await?.expect("it is in the library"))
    }

    fn spawn(&self, id: &'static str) -> JoinHandle<Result<Held, ApiError>> {
        let manager = Arc::clone(&self.manager);
        tokio::spawn(async move {
            let found = Self::found(&manager, id).await;
            Ok(manager.acquire(id, Some(found), None).await?.expect("it is in the library"))
        })
    }

    fn loaded(&self) -> Vec<String> {
        self.engine.models().iter().map(|model| model.id().to_owned()).collect()
    }

    /// Lets everything happen that is due, and waits for the blocking threads.
    async fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        for _ in 0..30_000 {
            if is_so(self) {
                return;
            }
            // Not the paused clock: other threads need real time.
            spawn_blocking(|| std::thread::sleep(Duration::from_millis(1))).await.unwrap();
        }
        panic!("{what} did not happen");
    }
}

#[tokio::test(start_paused = true)]
async fn many_requests_share_one_load() {
    let bench = Bench::new(None, KeepAlive::Forever).await;
    bench.gate.shut();
    let waiters: Vec<_> = (0..20).map(|_| bench.spawn("a")).collect();
    bench.until("all of them waiting", |bench| bench.manager.in_memory().iter().any(|one| one.users == 20)).await;
    bench.until("the load", |bench| bench.gate.loads() > 0).await;
    assert!(matches!(bench.manager.in_memory()[0].place, Place::Loading(_)));
    bench.gate.open();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap().model.report().id, "a");
    }
    assert_eq!(bench.gate.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_while_it_waits_has_no_part_in_the_load() {
    let bench = Bench::new(None, KeepAlive::For(60 * SECOND)).await;
    bench.gate.shut();
    let gone = bench.spawn("a");
    bench.until("the wait", |bench| bench.manager.in_memory().iter().any(|one| one.users == 1)).await;
    gone.abort();
    bench.until("the leaving", |bench| bench.manager.in_memory()[0].users == 0).await;
    bench.gate.open();
    bench.until("the load", |bench| matches!(bench.manager.in_memory()[0].place, Place::Ready(_))).await;
    tokio::time::sleep(61 * SECOND).await;
    bench.until("the end of its time", |bench| bench.loaded().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_load_is_told_to_all_and_tried_again_by_the_next() {
    let bench = Bench::new(Some(100), KeepAlive::Forever).await;
    bench.faults.fail_next(StubCall::LoadModel, 1);
    bench.gate.shut();
    let waiters: Vec<_> = (0..5).map(|_| bench.spawn("a")).collect();
    bench.until("all of them waiting", |bench| bench.manager.in_memory().iter().any(|one| one.users == 5)).await;
    bench.gate.open();
    for waiter in waiters {
        let error = waiter.await.unwrap().err().expect("the load failed");
        assert!(matches!(&error, ApiError::Load { model, .. } if model == "a"), "{error}");
        assert!(!error.to_string().contains("/"), "no path of this machine: {error}");
    }
    assert_eq!((bench.gate.loads(), bench.manager.in_memory().len()), (1, 0));
    bench.hold("a").await.unwrap();
    assert_eq!(bench.gate.loads(), 2, "and its bytes no longer count");
}

#[tokio::test(start_paused = true)]
async fn the_least_recently_used_goes_first() {
    let bench = Bench::new(Some(300), KeepAlive::Forever).await;
    for id in ["a", "b", "c"] {
        bench.hold(id).await.unwrap();
    }
    drop(bench.hold("a").await.unwrap());
    assert_eq!(bench.loaded(), ["a", "b", "c"]);
    let sizes = Bench::of(&[("a", 100), ("b", 100), ("c", 100), ("d", 100)], Some(300), KeepAlive::Forever).await;
    for id in ["a", "b", "c", "a"] {
        sizes.hold(id).await.unwrap();
    }
    sizes.hold("d").await.unwrap();
    assert_eq!(sizes.loaded(), ["a", "c", "d"], "b was used least recently");
    sizes.hold("b").await.unwrap();
    assert_eq!(sizes.loaded(), ["a", "b", "d"]);
    bench.hold("big").await.unwrap();
    assert_eq!(bench.loaded(), ["big"], "all of them had to go");
}

#[tokio::test(start_paused = true)]
async fn what_is_in_use_never_goes() {
    let bench = Bench::new(Some(300), KeepAlive::For(SECOND)).await;
    let held = bench.hold("a").await.unwrap();
    bench.hold("b").await.unwrap();
    let error = bench.hold("big").await.err().expect("a is in use");
    assert!(
        matches!(error, ApiError::NoMemory { needed: 300, used: 200, budget: 300, .. }),
        "it says how much is needed: {error:?}"
    );
    assert_eq!(bench.loaded(), ["a", "b"], "nothing was unloaded without need");
    tokio::time::sleep(3600 * SECOND).await;
    bench.until("b's end", |bench| bench.loaded() == ["a"]).await;
    assert_eq!(bench.manager.unload("a").await, Unloaded::WhenIdle);
    assert_eq!(bench.loaded(), ["a"]);
    drop(held);
    bench.until("its end", |bench| bench.loaded().is_empty()).await;
    bench.hold("big").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_can_never_fit_is_refused_and_nothing_goes_for_it() {
    let bench = Bench::new(Some(299), KeepAlive::Forever).await;
    bench.hold("a").await.unwrap();
    let error = bench.hold("big").await.err().expect("it is too large");
    assert!(matches!(error, ApiError::ModelTooLarge { needed: 300, budget: 299, .. }), "{error:?}");
    assert!(error.to_string().contains("--memory"), "{error}");
    assert_eq!((bench.loaded(), bench.gate.loads()), (vec!["a".to_owned()], 1));
    let exact = Bench::new(Some(300), KeepAlive::Forever).await;
    exact.hold("big").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_loads_that_do_not_fit_together_do_not_both_fail() {
    let bench = Bench::of(&[("a", 60), ("b", 60)], Some(100), KeepAlive::Forever).await;
    bench.gate.shut();
    let first = bench.spawn("a");
    bench.until("the first load", |bench| bench.gate.loads() == 1).await;
    let error = bench.hold("b").await.err().expect("a is being loaded for somebody");
    assert!(matches!(error, ApiError::NoMemory { .. }), "{error:?}");
    bench.gate.open();
    drop(first.await.unwrap().unwrap());
    bench.hold("b").await.unwrap();
    assert_eq!(bench.loaded(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_model_goes_when_its_time_is_over_and_a_request_begins_it_anew() {
    let bench = Bench::new(None, KeepAlive::For(300 * SECOND)).await;
    bench.hold("a").await.unwrap();
    let left = |bench: &Bench| bench.manager.in_memory()[0].expires.unwrap().saturating_duration_since(Instant::now());
    assert_eq!(left(&bench), 300 * SECOND);
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!(left(&bench), 100 * SECOND);
    let held = bench.hold("a").await.unwrap();
    tokio::time::sleep(3600 * SECOND).await;
    assert_eq!((bench.loaded(), left(&bench)), (vec!["a".to_owned()], 300 * SECOND), "not while it is in use");
    drop(held);
    tokio::time::sleep(299 * SECOND).await;
    assert_eq!(bench.loaded(), ["a"]);
    tokio::time::sleep(2 * SECOND).await;
    bench.until("its end", |bench| bench.manager.in_memory().is_empty() && bench.loaded().is_empty()).await;
    bench.hold("a").await.unwrap();
    assert_eq!(bench.gate.loads(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_may_say_how_long() {
    let bench = Bench::new(None, KeepAlive::For(300 * SECOND)).await;
    drop(bench.hold_for("a", Some(KeepAlive::Forever)).await.unwrap());
    drop(bench.hold_for("b", Some(KeepAlive::For(10 * SECOND))).await.unwrap());
    drop(bench.hold_for("c", Some(KeepAlive::For(Duration::ZERO))).await.unwrap());
    bench.until("the end of c", |bench| bench.loaded() == ["a", "b"]).await;
    assert_eq!(bench.manager.in_memory()[0].expires, None);
    // One that says nothing does not change it.
    drop(bench.hold("b").await.unwrap());
    tokio::time::sleep(11 * SECOND).await;
    bench.until("the end of b", |bench| bench.loaded() == ["a"]).await;
    tokio::time::sleep(360_000 * SECOND).await;
    assert_eq!(bench.loaded(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_program_around_loaded_stays_and_what_the_library_knows_may_go() {
    let bench = Bench::new(None, KeepAlive::Forever).await;
    let (outside, known) = (ModelConfig::new("outside", "stub"), Bench::found(&bench.manager, "a").await.model);
    let fingerprint = FingerprintSource::FastUnsafe([1; 32]);
    bench.engine.load(ModelConfig { fingerprint, ..outside }).unwrap();
    bench.engine.load_model(known.load(), &mut |_, _| {}).unwrap();
    let settings = ManagerSettings {
        library: bench.manager.library().cloned(),
        budget: Some(310),
        keep_alive: KeepAlive::For(SECOND),
    };
    let manager = Manager::start(Arc::clone(&bench.manager.shared.node), settings).await;
    assert!(manager.in_memory().iter().all(|listed| listed.expires.is_none()), "both were there from the start");
    let zero = Some(KeepAlive::For(Duration::ZERO));
    drop(manager.acquire("outside", None, zero).await.unwrap().unwrap());
    assert_eq!(manager.unload("outside").await, Unloaded::Kept);
    drop(manager.acquire("big", Some(Bench::found(&manager, "big").await), None).await.unwrap().unwrap());
    assert_eq!(bench.loaded(), ["big", "outside"], "a made room");
    assert!(manager.acquire("nobody", None, None).await.unwrap().is_none());
    // What it unloads is forgotten, also while nobody asks.
    let engine = Arc::clone(&bench.engine);
    spawn_blocking(move || engine.unload("outside").unwrap()).await.unwrap();
    assert!(manager.acquire("outside", None, None).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_a_load_and_refuses_the_next() {
    let bench = Bench::new(None, KeepAlive::Forever).await;
    bench.gate.shut();
    let waiter = bench.spawn("a");
    bench.until("the load", |bench| bench.gate.loads() == 1).await;
    let (manager, end) = (Arc::clone(&bench.manager), Instant::now() + 3600 * SECOND);
    let closing = tokio::spawn(async move { manager.close(end).await });
    bench.until("the shutdown", |bench| bench.manager.shared.lock().is_closed).await;
    assert!(matches!(bench.hold("b").await, Err(ApiError::ShuttingDown)));
    assert!(!closing.is_finished());
    bench.gate.open();
    closing.await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    assert_eq!(bench.loaded(), ["a"], "the owner of the engine unloads it");
    let engine = Arc::clone(&bench.engine);
    spawn_blocking(move || engine.unload_all().unwrap()).await.unwrap();
    assert!(bench.loaded().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_load_that_outlives_the_shutdown_leaves_nothing_behind() {
    let bench = Bench::new(None, KeepAlive::Forever).await;
    bench.gate.shut();
    let waiter = bench.spawn("a");
    bench.until("the load", |bench| bench.gate.loads() == 1).await;
    waiter.abort();
    bench.until("the leaving", |bench| bench.manager.in_memory()[0].users == 0).await;
    bench.manager.close(Instant::now()).await;
    bench.gate.open();
    bench.until("the end", |bench| bench.manager.in_memory().is_empty() && bench.loaded().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn loads_and_unloads_in_any_order_never_break_a_promise() {
    let bench = Arc::new(Bench::new(Some(250), KeepAlive::For(Duration::from_millis(1))).await);
    let tasks: Vec<_> = (0..8_u32)
        .map(|number| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move {
                let mut served = 0;
                for round in 0..60_u32 {
                    let id = ["a", "b", "c"][((number * 7 + round * 5) % 3) as usize];
                    if (number + round) % 5 == 0 {
                        bench.manager.unload(id).await;
                        continue;
                    }
                    match bench.hold(id).await {
                        Ok(held) => {
                            tokio::task::yield_now().await;
                            let phase = held.model.status().phase;
                            assert_ne!(phase, poncho_engine::Phase::Stopped, "{id} went while it was in use");
                            assert!(bench.engine.get(id).is_ok());
                            served += 1;
                        }
                        Err(ApiError::NoMemory { .. }) => tokio::task::yield_now().await,
                        Err(other) => panic!("{other:?}"),
                    }
                    let bytes: u64 = bench.loaded().len() as u64 * 100;
                    assert!(bytes <= 250, "the budget was overdrawn: {:?}", bench.loaded());
                }
                served
            })
        })
        .collect();
    let mut served = 0;
    for task in tasks {
        served += task.await.unwrap();
    }
    assert!(served > 0);
    bench.until("the end of all", |bench| bench.manager.in_memory().is_empty()).await;
    assert!(bench.loaded().is_empty());
}

/// The owner of the engine closes its cache next and may open it again at once, as a restart does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_closed_holds_the_engine_no_more() {
    for _ in 0..50 {
        let bench = Bench::new(None, KeepAlive::Forever).await;
        drop(bench.hold("a").await.unwrap());
        bench.manager.unload("a").await;
        drop(bench.hold("b").await.unwrap());
        bench.manager.close(Instant::now() + Duration::from_secs(60)).await;
        let Bench { manager, engine, .. } = bench;
        drop(manager);
        // A thread that carried a call drops its handle a moment after its answer.
        let deadline = Instant::now() + Duration::from_secs(60);
        while Arc::strong_count(&engine) > 1 && Instant::now() < deadline {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&engine), 1);
    }
}

/// Everyday use 12: a model of the command line came back with an expiry after `poncho stop`.
#[tokio::test(start_paused = true)]
async fn a_configured_model_has_no_expiry_after_it_was_stopped() {
    let bench = Bench::new(None, KeepAlive::Forever).await;
    let known = Bench::found(&bench.manager, "a").await.model;
    bench.engine.load_model(known.load(), &mut |_, _| {}).unwrap();
    let library = bench.manager.library().cloned();
    let settings = ManagerSettings { library, budget: None, keep_alive: KeepAlive::For(SECOND) };
    let manager = Manager::start(Arc::clone(&bench.manager.shared.node), settings).await;
    assert_eq!(manager.unload("a").await, Unloaded::Gone);
    for id in ["a", "b"] {
        drop(manager.acquire(id, Some(Bench::found(&manager, id).await), None).await.unwrap().unwrap());
    }
    let expiries: Vec<(String, bool)> =
        manager.in_memory().into_iter().map(|model| (model.id, model.expires.is_some())).collect();
    assert_eq!(expiries, [("a".to_owned(), false), ("b".to_owned(), true)]);
    // A request may still ask for an end.
    drop(manager.acquire("a", None, Some(KeepAlive::For(SECOND))).await.unwrap().unwrap());
    assert!(manager.in_memory().iter().all(|model| model.expires.is_some()));
}

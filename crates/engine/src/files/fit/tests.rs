//! The planner against arithmetic models: tables of known machines, and what must be true of every one.

use poncho_api::KvType;
use poncho_testkit::{ModelKind, model_path};
use proptest::prelude::*;

use super::*;
use crate::config::ModelConfig;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A model by its figures. Layers are equal; the first device takes everything that is not on the host.
#[derive(Debug, Clone, Copy)]
struct Figures {
    weights: u64,
    experts: u64,
    per_token: u64,
    facts: ModelFacts,
    devices: usize,
}

impl Figures {
    fn dense(weights: u64, per_token: u64, trained: u32, devices: usize) -> Self {
        let facts = ModelFacts { trained: Some(trained), layers: 32, experts: 0 };
        Self { weights, experts: 0, per_token, facts, devices }
    }
}

impl Measure for Figures {
    fn needs(&mut self, choice: &Choice) -> Result<Needs, String> {
        let half = |kind: KvType| if kind == KvType::Q8_0 { 17 } else { 32 };
        let per_token = self.per_token / 64 * (half(choice.type_k) + half(choice.type_v));
        let context = per_token * u64::from(choice.n_ctx) * u64::from(choice.parallel);
        let compute = 64 * MIB + u64::from(choice.n_ctx) * 64;
        let layers = u64::from(self.facts.layers.max(1));
        if self.devices == 0 {
            return Ok(Needs { host: Use { weights: self.weights, context, compute }, devices: Vec::new() });
        }
        let there = choice.gpu_layers.map_or(layers, |count| u64::from(count).min(layers));
        let moved = self.experts / layers * u64::from(choice.n_cpu_moe).min(layers);
        let there_weights = (self.weights - moved) / layers * there;
        let there_context = context / layers * there;
        let host = Use { weights: self.weights - there_weights, context: context - there_context, compute: 32 * MIB };
        let mut devices = vec![Use::default(); self.devices];
        devices[0] = Use { weights: there_weights, context: there_context, compute };
        Ok(Needs { host, devices })
    }
}

fn machine(host: u64, devices: &[u64]) -> Machine {
    let device = |(at, free): (usize, &u64)| DeviceMemory { name: format!("G{at}"), free: *free, total: *free };
    Machine { host_free: host, devices: devices.iter().enumerate().map(device).collect() }
}

fn planned(machine: &Machine, figures: Figures, given: &Given) -> Plan {
    plan(machine, &figures.facts, given, &mut { figures }).unwrap()
}

/// 8B in 4 bits with 128 KiB for a token, as Llama 3 has it.
fn eight_b(devices: usize) -> Figures {
    Figures::dense(4700 * MIB, 128 << 10, 131_072, devices)
}

#[test]
fn known_machines_get_known_plans() {
    let kv = |plan: &Plan| plan.choice.type_k.name();
    for (host, devices, step, n_ctx, parallel, kind) in [
        (512 * GIB, vec![], Step::Wanted, 131_072, 4, "f16"),
        (64 * GIB, vec![], Step::FewerAtOnce, 131_072, 3, "f16"),
        (32 * GIB, vec![], Step::FewerAtOnce, 131_072, 1, "f16"),
        (16 * GIB, vec![], Step::SmallerKv, 131_072, 1, "q8_0"),
        (12 * GIB, vec![], Step::LessContext, 81_920, 1, "q8_0"),
        (8 * GIB, vec![], Step::LessContext, 32_768, 1, "q8_0"),
        (6 * GIB, vec![], Step::LittleContext, 8192, 1, "q8_0"),
        (4 * GIB, vec![], Step::WeightsFromDisk, 24_576, 1, "q8_0"),
        (64 * GIB, vec![141 * GIB], Step::Wanted, 131_072, 4, "f16"),
        (64 * GIB, vec![24 * GIB], Step::FewerAtOnce, 131_072, 1, "f16"),
        (64 * GIB, vec![12 * GIB], Step::LessContext, 98_304, 1, "q8_0"),
        (64 * GIB, vec![4 * GIB], Step::LayersOnCpu, 32_768, 1, "q8_0"),
    ] {
        let plan = planned(&machine(host, &devices), eight_b(devices.len()), &Given::default());
        let found = (plan.step, plan.choice.n_ctx, plan.choice.parallel, kv(&plan));
        assert_eq!(found, (step, n_ctx, parallel, kind), "{} GiB, {devices:?}: {plan:?}", host / GIB);
    }
}

#[test]
fn layers_and_experts_move_to_the_cpu_only_as_far_as_they_must() {
    let plan = planned(&machine(64 * GIB, &[4 * GIB]), eight_b(1), &Given::default());
    let layers = plan.choice.gpu_layers.unwrap();
    assert!((8..32).contains(&layers), "{plan:?}");
    // 30B with 27 GB of experts: they go to the CPU before the context gets smaller, and not all of them.
    let facts = ModelFacts { trained: Some(131_072), layers: 48, experts: 128 };
    let mixture = Figures { weights: 18 * GIB, experts: 16 * GIB, per_token: 96 << 10, facts, devices: 1 };
    let plan = planned(&machine(64 * GIB, &[24 * GIB]), mixture, &Given::default());
    assert_eq!((plan.step, plan.choice.n_ctx), (Step::ExpertsOnCpu, 131_072), "{plan:?}");
    assert!(plan.choice.gpu_layers.is_none() && (1..48).contains(&plan.choice.n_cpu_moe), "{plan:?}");
}

#[test]
fn a_short_trained_context_is_not_a_shortage() {
    let plan = planned(&machine(64 * GIB, &[]), Figures::dense(GIB, 1 << 10, 2048, 0), &Given::default());
    assert_eq!((plan.step, plan.choice.n_ctx), (Step::Wanted, 2048));
    let unknown = Figures { facts: ModelFacts::default(), ..eight_b(0) };
    assert_eq!(planned(&machine(512 * GIB, &[]), unknown, &Given::default()).choice.n_ctx, GOOD_CONTEXT);
}

#[test]
fn what_fits_nowhere_is_returned_as_such() {
    let given = Given { held_weights: true, ..Given::default() };
    let plan = planned(&machine(4 * GIB, &[]), eight_b(0), &given);
    assert_eq!((plan.step, plan.choice.n_ctx), (Step::DoesNotFit, 512));
    let given = Given { n_ctx: Some(131_072), ..Given::default() };
    let plan = planned(&machine(4 * GIB, &[]), eight_b(0), &given);
    assert_eq!((plan.step, plan.choice.n_ctx), (Step::DoesNotFit, 131_072), "a given value is kept even then");
}

#[test]
fn values_without_flash_attention_are_not_quantised() {
    let given = Given { no_quantised_kv: true, ..Given::default() };
    let plan = planned(&machine(16 * GIB, &[]), eight_b(0), &given);
    assert_eq!((plan.choice.type_k, plan.choice.type_v), (KvType::F16, KvType::F16));
}

#[test]
fn an_error_of_the_measurement_is_passed_on() {
    struct Broken;
    impl Measure for Broken {
        fn needs(&mut self, _: &Choice) -> Result<Needs, String> {
            Err("no".to_owned())
        }
    }
    let found = plan(&machine(GIB, &[]), &ModelFacts::default(), &Given::default(), &mut Broken);
    assert_eq!(found, Err("no".to_owned()));
}

#[test]
fn the_arithmetic_of_a_file_counts_what_the_footprint_counts() {
    let config = ModelConfig::new("m", model_path(ModelKind::Attention));
    let mut arithmetic = Arithmetic::of(&config, &machine(GIB, &[]));
    let plan = plan(&machine(GIB, &[]), &arithmetic.facts(), &Given::default(), &mut arithmetic).unwrap();
    assert_eq!((plan.step, plan.choice.parallel), (Step::Wanted, WANTED_PARALLEL), "{plan:?}");
    assert_eq!(Some(plan.choice.n_ctx), arithmetic.facts().trained);
    let mut chosen = config.clone();
    plan.choice.set(&mut chosen);
    let footprint = crate::footprint(&chosen);
    assert_eq!((plan.needs.host.weights, plan.needs.host.context), (footprint.weights, footprint.cells));
    let missing = ModelConfig::new("m", "no-such-file");
    assert_eq!(Arithmetic::of(&missing, &machine(GIB, &[])).facts(), ModelFacts::default());
}

prop_compose! {
    fn figures(devices: usize)(
        weights in 16 * MIB..80 * GIB,
        share in 0_u64..95,
        per_token in 4_u64..512,
        trained in prop::sample::select(vec![2048_u32, 8192, 32_768, 40_960, 131_072, 262_144]),
        layers in 1_u32..100,
        is_mixture in any::<bool>(),
    ) -> Figures {
        let experts = if is_mixture { weights / 100 * share } else { 0 };
        let facts = ModelFacts { trained: Some(trained), layers, experts: if is_mixture { 64 } else { 0 } };
        Figures { weights, experts, per_token: per_token * 1024, facts, devices }
    }
}

prop_compose! {
    fn given()(
        n_ctx in prop::option::of(64_u32..300_000),
        parallel in prop::option::of(1_u32..17),
        quantised in prop::option::of(any::<bool>()),
        n_cpu_moe in prop::option::of(0_u32..64),
        gpu_layers in prop::option::of(prop::option::of(0_u32..64)),
        no_quantised_kv in any::<bool>(),
        held_weights in any::<bool>(),
    ) -> Given {
        let kind = quantised.map(|is| if is { KvType::Q8_0 } else { KvType::F16 });
        Given { n_ctx, parallel, type_k: kind, type_v: kind, n_cpu_moe, gpu_layers, no_quantised_kv, held_weights }
    }
}

fn any_case() -> impl Strategy<Value = (Machine, Figures)> {
    (0_usize..3).prop_flat_map(|devices| {
        let memory = (512 * MIB..256 * GIB, prop::collection::vec(512 * MIB..160 * GIB, devices));
        (memory.prop_map(|(host, devices)| machine(host, &devices)), figures(devices))
    })
}

proptest! {
    #[test]
    fn a_plan_is_never_over_budget((machine, figures) in any_case(), given in given()) {
        let plan = planned(&machine, figures, &given);
        let Needs { host, devices } = &plan.needs;
        if plan.step < Step::WeightsFromDisk {
            prop_assert!(fits(&machine, &plan.needs), "{plan:?}");
            prop_assert!(host.total() < machine.host_free);
        }
        if plan.step <= Step::WeightsFromDisk {
            prop_assert!(host.allocated() < machine.host_free);
            for (need, device) in devices.iter().zip(&machine.devices) {
                prop_assert!(need.total() == 0 || need.total() < device.free, "{plan:?}");
            }
        }
    }

    #[test]
    fn given_values_are_kept((machine, figures) in any_case(), given in given()) {
        let Plan { choice, .. } = planned(&machine, figures, &given);
        prop_assert!(given.n_ctx.is_none_or(|n_ctx| n_ctx == choice.n_ctx));
        prop_assert!(given.parallel.is_none_or(|parallel| parallel == choice.parallel));
        prop_assert!(given.type_k.is_none_or(|kind| kind == choice.type_k));
        prop_assert!(given.type_v.is_none_or(|kind| kind == choice.type_v));
        prop_assert!(given.n_cpu_moe.is_none_or(|count| count == choice.n_cpu_moe));
        prop_assert!(given.gpu_layers.is_none_or(|layers| layers == choice.gpu_layers));
    }

    /// More memory never gives up more.
    #[test]
    fn more_memory_is_never_worse((machine, figures) in any_case(), given in given(), more in 0..64 * GIB) {
        let small = planned(&machine, figures, &given);
        let mut larger = machine;
        larger.host_free += more;
        for device in &mut larger.devices {
            device.free += more;
        }
        let large = planned(&larger, figures, &given);
        prop_assert!(large.step <= small.step, "{small:?} {large:?}");
        if large.step == small.step {
            prop_assert!(large.choice.n_ctx >= small.choice.n_ctx, "{small:?} {large:?}");
        }
    }

    /// What a machine can do without its GPUs, it can do with them.
    #[test]
    fn a_small_gpu_is_never_an_obstacle((with, figures) in any_case(), given in given()) {
        let given = Given { gpu_layers: None, ..given };
        let without = planned(&Machine { devices: Vec::new(), ..with.clone() }, Figures { devices: 0, ..figures }, &given);
        if without.step != Step::DoesNotFit {
            let plan = planned(&with, figures, &given);
            prop_assert!(plan.step != Step::DoesNotFit, "{without:?} {plan:?}");
        }
    }

    /// 32,768 tokens whenever some placement of the smallest choice has room for them.
    #[test]
    fn the_context_is_good_whenever_arithmetic_allows((machine, figures) in any_case()) {
        let plan = planned(&machine, figures, &Given::default());
        let good = figures.facts.trained.unwrap_or(GOOD_CONTEXT).min(GOOD_CONTEXT);
        if plan.choice.n_ctx >= good && plan.step < Step::WeightsFromDisk {
            return Ok(());
        }
        let layers = figures.facts.layers;
        let mixes = if figures.facts.experts > 0 { vec![0, layers] } else { vec![0] };
        for n_cpu_moe in mixes {
            let there = std::iter::once(None).chain((0..=layers).map(Some)).filter(|_| !machine.devices.is_empty());
            for gpu_layers in there.chain(machine.devices.is_empty().then_some(None)) {
                let (type_k, type_v) = (KvType::Q8_0, KvType::Q8_0);
                let choice = Choice { n_ctx: good, parallel: 1, type_k, type_v, n_cpu_moe, gpu_layers };
                let needs = { figures }.needs(&choice).unwrap();
                // Numbers of layers are tried in sixteenths, so a placement must have room for one sixteenth more.
                let spare = figures.weights / 16 + needs.host.context / 16 + MIB;
                let roomy = Machine { host_free: machine.host_free.saturating_sub(spare), ..machine.clone() };
                prop_assert!(!fits(&roomy, &needs), "{choice:?} has room: {plan:?}");
            }
        }
    }
}

fn keep(machine: &Machine, figures: Figures, given: &Given, plan: Plan) -> KeptPlan {
    let model = ModelKey { bytes: figures.weights, facts: figures.facts, context: figures.per_token };
    KeptPlan { model, given: *given, machine: machine.clone(), plan }
}

fn again(kept: &KeptPlan, machine: &Machine, figures: Figures) -> (Plan, Origin) {
    let given = kept.given;
    decide(Some(kept), machine, &given, |given| plan(machine, &figures.facts, given, &mut { figures })).unwrap()
}

/// A fresh plan would choose another KV type, and none of the rows would be found.
#[test]
fn a_start_with_a_little_less_memory_keeps_the_namespace() {
    let (first, figures) = (machine(24 * GIB, &[]), eight_b(0));
    let kept = keep(&first, figures, &Given::default(), planned(&first, figures, &Given::default()));
    assert_eq!(kept.plan.choice.type_k, KvType::F16);
    let less = machine(21 * GIB, &[]);
    assert_eq!(
        planned(&less, figures, &Given::default()).choice.type_k,
        KvType::Q8_0,
        "what the start would choose alone"
    );
    let (plan, _) = again(&kept, &less, figures);
    assert_eq!((plan.choice.type_k, plan.choice.parallel), (KvType::F16, 1));
    assert!(plan.choice.n_ctx >= GOOD_CONTEXT && fits(&less, &plan.needs), "{plan:?}");
}

#[test]
fn much_more_memory_gives_more_context_and_the_same_kv_type() {
    let (first, figures) = (machine(12 * GIB, &[]), eight_b(0));
    let kept = keep(&first, figures, &Given::default(), planned(&first, figures, &Given::default()));
    assert_eq!((kept.plan.choice.type_k, kept.plan.choice.n_ctx), (KvType::Q8_0, 81_920));
    let (plan, origin) = again(&kept, &machine(15 * GIB, &[]), figures);
    assert_eq!((plan, origin), (kept.plan.clone(), Origin::Kept), "a little more changes nothing");
    let (plan, origin) = again(&kept, &machine(256 * GIB, &[]), figures);
    assert_eq!((plan.choice.type_k, plan.choice.n_ctx, origin), (KvType::Q8_0, 131_072, Origin::New));
}

#[test]
fn a_kept_plan_is_found_by_model_devices_and_given_values() {
    let (machine, figures) = (machine(64 * GIB, &[24 * GIB]), eight_b(1));
    let kept = keep(&machine, figures, &Given::default(), planned(&machine, figures, &Given::default()));
    assert!(kept.is_for(&kept.model, &Given::default(), &machine));
    assert!(!kept.is_for(&kept.model, &Given { parallel: Some(1), ..Given::default() }, &machine));
    assert!(!kept.is_for(&ModelKey { bytes: 1, ..kept.model }, &Given::default(), &machine));
    let mut busy = machine.clone();
    busy.devices[0].free -= GIB;
    assert!(kept.is_for(&kept.model, &Given::default(), &busy), "free memory is not part of it");
    busy.devices[0].name = "other".to_owned();
    assert!(!kept.is_for(&kept.model, &Given::default(), &busy));
}

proptest! {
    /// Whatever changes: the plan fits, given values stay, and a change of less than the margin changes nothing.
    #[test]
    fn a_kept_plan_is_stable((first, figures) in any_case(), given in given(), host in 25_u64..400, device in 25_u64..400) {
        let plan = planned(&first, figures, &given);
        let kept = keep(&first, figures, &given, plan.clone());
        prop_assert_eq!(again(&kept, &first, figures).0, plan.clone(), "the same memory");
        let mut now = first;
        now.host_free = now.host_free / 100 * host;
        for memory in &mut now.devices {
            memory.free = memory.free / 100 * device;
        }
        let (later, _) = again(&kept, &now, figures);
        if later.step < Step::WeightsFromDisk {
            prop_assert!(fits(&now, &later.needs), "{later:?}");
        }
        if fits(&now, &plan.needs) && plan.step < Step::WeightsFromDisk {
            prop_assert_eq!((later.choice.type_k, later.choice.type_v), (plan.choice.type_k, plan.choice.type_v));
            prop_assert!(later.choice.n_ctx >= plan.choice.n_ctx);
        }
        prop_assert!(given.n_ctx.is_none_or(|n_ctx| n_ctx == later.choice.n_ctx));
        prop_assert!(given.parallel.is_none_or(|parallel| parallel == later.choice.parallel));
    }
}

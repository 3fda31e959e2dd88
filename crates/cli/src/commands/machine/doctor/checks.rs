//! The checks: from facts to findings with advice.
//!
//! Pure. A finding is broken if `poncho serve` could not start or serve, and a warning if it would be slower or lose
//! cached states.

use poncho_engine::backend::llama::{CPU_ADVICE, DeviceKind};
use poncho_terminal::{printable_line, show_bytes};

use super::facts::Facts;
use crate::serving::devices::Unused;
use crate::serving::disk::LITTLE_SPACE;
use crate::serving::memory::{Demand, Fit};
use crate::serving::port::PortState;

/// With less free space hardly a row fits.
const FULL: u64 = 64 << 20;
/// On slower disks, such as old USB sticks and throttled network disks, saving a long prompt takes minutes.
const SLOW: u64 = 30 << 20;
/// The default of containers, which is too small for a folder of the tier ram_file.
const SMALL_SHARED_MEMORY: u64 = 64 << 20;
/// A slower object store rarely beats computing.
const SLOW_STORE: f64 = 10e6;
/// Llama 3.1 8B with 16 bits.
const TYPICAL_BYTES_PER_TOKEN: u64 = 128 << 10;
/// A thousand connections, as many files, and a reserve.
const FEW_FILES: u64 = 4096;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Good,
    Warning,
    Broken,
}

impl Level {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Broken => "broken",
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The check's name.
    pub(super) check: &'static str,
    pub(super) level: Level,
    pub(super) fact: String,
    /// What to do; `None` if nothing is wrong.
    pub(super) advice: Option<String>,
}

impl Finding {
    fn good(check: &'static str, fact: impl Into<String>) -> Self {
        Self { check, level: Level::Good, fact: fact.into(), advice: None }
    }

    fn warning(check: &'static str, fact: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: Level::Warning, fact: fact.into(), advice: Some(advice.into()) }
    }

    fn broken(check: &'static str, fact: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: Level::Broken, fact: fact.into(), advice: Some(advice.into()) }
    }
}

/// All findings, in the order in which a server would run into them.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![cpu(facts), devices(facts)];
    findings.extend(unused_backends(facts));
    findings.extend(settings(facts));
    findings.push(model(facts));
    findings.extend(linked_models(facts));
    findings.push(port(facts));
    findings.push(folder(facts));
    findings.extend(rights(facts));
    findings.extend(lock(facts));
    findings.extend(space(facts));
    findings.extend(speed(facts));
    findings.push(shared_memory(facts));
    findings.push(open_files(facts));
    findings.extend(shared(facts));
    findings
}

/// The object store: what it does, and for which models that pays.
fn shared(facts: &Facts) -> Option<Finding> {
    let measured = match facts.shared.as_ref()? {
        Ok(measured) => measured,
        Err(why) => {
            let advice = "correct --shared or the variables of the store, or serve without it";
            return Some(Finding::broken("shared", why.clone(), advice));
        }
    };
    let model = facts.model.as_ref().and_then(|model| model.found.as_ref().ok());
    let (bytes, of) = match model.map(Demand::bytes_per_token) {
        Some(bytes @ 1..) => (bytes, "this model"),
        _ => (TYPICAL_BYTES_PER_TOKEN, "a model with 128 KiB per token"),
    };
    let restored = measured.get_bytes_per_second / as_f64(bytes);
    // At half the rate at which states come, which a model that gains from the store may have.
    let from = measured.break_even_tokens(as_f64(bytes), restored / 2.0).unwrap_or(1);
    let fact = format!(
        "{}: round trip {:.1} ms, reads {}/s, writes {}/s, conditional writes {}; restores {restored:.0} tokens/s of \
         {of}, which is faster than a prefill of {:.0} tokens/s from {from} tokens on",
        measured.location,
        measured.round_trip.as_secs_f64() * 1e3,
        rate(measured.get_bytes_per_second),
        rate(measured.put_bytes_per_second),
        if measured.conditional_put { "yes" } else { "no (not needed)" },
        restored / 2.0,
    );
    if measured.get_bytes_per_second < SLOW_STORE {
        let advice = "a slow store is used for large prompts of slow models only; move it closer, or serve without it";
        return Some(Finding::warning("shared", fact, advice));
    }
    Some(Finding::good("shared", fact))
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, which is not negative")]
fn rate(bytes_per_second: f64) -> String {
    show_bytes(bytes_per_second as u64)
}

fn cpu(facts: &Facts) -> Finding {
    match facts.cpu_missing.as_slice() {
        [] => unused_instructions(facts),
        missing => Finding::broken("cpu", format!("lacks {}", missing.join(", ")), CPU_ADVICE),
    }
}

/// A build below the CPU: an error if it computes several times slower, a warning if it matters at all.
fn unused_instructions(facts: &Facts) -> Finding {
    let unused = facts.cpu_unused.join(", ");
    let has_gpu = facts.looked.devices.iter().any(|device| device.kind == DeviceKind::Gpu);
    if facts.cpu_unused.contains(&"AVX2") {
        let fact = format!("this build does not use {unused}, and computes several times slower");
        let advice = "build it with `make build`, which compiles for x86-64-v3, or install a released binary";
        return Finding::broken("cpu", fact, advice);
    }
    if let Some(build) = facts.cpu_build {
        return Finding::good("cpu", format!("computes with the build for {build}"));
    }
    if !facts.cpu_builds_unusable.is_empty() {
        let fact = format!("a build for this CPU does not work here ({})", facts.cpu_builds_unusable.join("; "));
        let advice =
            "the build for older CPUs is used; let the virtual machine pass the host's CPU through, or remove the file";
        return Finding::warning("cpu", fact, advice);
    }
    if unused.is_empty() || has_gpu || facts.model.is_none() {
        return Finding::good("cpu", "supports all instructions that this build uses");
    }
    let fact = format!("this build does not use {unused}; prompts are read more slowly than this CPU can");
    let advice =
        "run `make cpu-builds` in the repository, or install a released package, which has a build for this CPU";
    Finding::warning("cpu", fact, advice)
}

fn devices(facts: &Facts) -> Finding {
    let shown = facts.looked.devices.iter().map(|device| {
        let name = match device.description.as_str() {
            "" => device.name.clone(),
            description if description == device.name => device.name.clone(),
            description => format!("{} ({})", device.name, printable_line(description)),
        };
        match device.kind {
            DeviceKind::Gpu => format!("{name}, {} of {} free", show_bytes(device.free), show_bytes(device.total)),
            DeviceKind::Cpu | DeviceKind::Accelerator => format!("{name}, {} free", show_bytes(device.free)),
        }
    });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() {
        return Finding::warning(
            "devices",
            "unknown: llama.cpp did not start in a process of its own",
            "`poncho serve --log-level debug` shows what llama.cpp reports",
        );
    }
    Finding::good("devices", shown.join("; "))
}

fn unused_backends(facts: &Facts) -> Vec<Finding> {
    let finding = |unused: &Unused| {
        let fact = format!("{} is not used: {}", unused.what, unused.why);
        Finding::warning("backend", fact, "repair or remove it; models run on the other devices meanwhile")
    };
    facts.looked.unused.iter().map(finding).collect()
}

fn settings(facts: &Facts) -> Vec<Finding> {
    let strange = facts.strange_variables.iter().map(|said| {
        Finding::warning(
            "settings",
            said.clone(),
            "unset it or correct its name; `poncho config` prints the effective settings",
        )
    });
    let keys = facts.readable_keys.iter().map(|path| {
        let fact = format!("other users may read {}, and keys are set", path.display());
        Finding::warning("settings", fact, format!("if it contains the keys: chmod 600 {}", path.display()))
    });
    strange.chain(keys).collect()
}

fn model(facts: &Facts) -> Finding {
    let Some(model) = &facts.model else {
        return Finding::good("model", "none is named; give one with --model to check its memory too");
    };
    let demand = match &model.found {
        Ok(demand) => demand,
        Err(wrong) => {
            return Finding::broken("model", wrong.clone(), "give the path of a complete GGUF file with --model");
        }
    };
    let sum = format!("{}: {}", model.path.display(), demand.sum());
    let Some(memory) = facts.memory else {
        return Finding::good("memory", format!("{sum}; the available memory is unknown on this system"));
    };
    let sum = format!("{sum}; {} available", show_bytes(memory));
    match demand.fit(memory) {
        Fit::TooLittle(shortage) => Finding::broken("memory", sum, shortage.advice()),
        Fit::Tight(shortage) => Finding::warning("memory", sum, shortage.advice()),
        Fit::Fits if demand.total() > memory / 10 * 9 => Finding::warning(
            "memory",
            sum,
            "memory is tight: a smaller --ctx-size or --parallel leaves room for other programs",
        ),
        Fit::Fits => Finding::good("memory", sum),
    }
}

fn linked_models(facts: &Facts) -> Option<Finding> {
    let first = facts.linked_models.first()?;
    let fact = format!(
        "models that share their file with another folder, where it can be changed: {}",
        facts.linked_models.join(", ")
    );
    let advice = format!("check the file and make a private copy: `poncho show {first} --verify`");
    Some(Finding::warning("models folder", fact, advice))
}

fn port(facts: &Facts) -> Finding {
    let address = &facts.address;
    match &facts.port {
        PortState::Free => Finding::good("port", format!("{address} is free")),
        PortState::Poncho => Finding::warning(
            "port",
            format!("a Poncho already answers on {address}"),
            "use it, stop it, or choose another port with --port",
        ),
        PortState::Taken => Finding::broken(
            "port",
            format!("another program listens on {address}"),
            "stop it (`ss -ltnp` shows its process), or choose another port with --port",
        ),
        PortState::Unusable(why) => Finding::broken(
            "port",
            format!("cannot listen on {address}: {why}"),
            "use --host 127.0.0.1 or another address of this machine, and a port above 1023",
        ),
    }
}

fn folder(facts: &Facts) -> Finding {
    let folder = &facts.folder;
    let path = folder.path.display();
    if let Some(why) = &folder.unwritable {
        let fact = format!("{path} is not writable: {why}");
        return Finding::broken(
            "cache folder",
            fact,
            "change its owner or permissions, or name another folder with --cache-dir",
        );
    }
    if folder.in_memory {
        return Finding::warning(
            "cache folder",
            format!("{path} is on a memory file system: cached states take memory and are lost at a reboot"),
            "name a folder on a disk with --cache-dir",
        );
    }
    Finding::good("cache folder", format!("{path} is writable"))
}

fn rights(facts: &Facts) -> Option<Finding> {
    let open = &facts.folder.open_to_others;
    let first = open.first()?.display();
    let fact = match open.len() {
        1 => format!("other users may read {first}, which may contain conversations"),
        count => {
            format!("other users may read {count} files and folders that may contain conversations, such as {first}")
        }
    };
    let advice = format!("poncho cache verify --repair --cache-dir {}", facts.folder.path.display());
    Some(Finding::warning("cache rights", fact, advice))
}

fn lock(facts: &Facts) -> Option<Finding> {
    let holder = facts.folder.holder.as_ref()?;
    let fact = format!("{} is in use by process {holder}", facts.folder.path.display());
    Some(match facts.port {
        PortState::Poncho => {
            Finding::warning("cache lock", fact, "probably the Poncho on the port above; nothing to do")
        }
        _ => Finding::broken("cache lock", fact, "stop that process, or name another folder with --cache-dir"),
    })
}

fn space(facts: &Facts) -> Option<Finding> {
    let free = facts.folder.free?;
    let fact = format!("{} free for the cache folder", show_bytes(free));
    let advice = "free some space, or name a folder on another disk with --cache-dir";
    Some(match free {
        free if free < FULL => Finding::broken("disk space", format!("{fact}: almost no state fits"), advice),
        free if free < LITTLE_SPACE => Finding::warning("disk space", fact, advice),
        _ => Finding::good("disk space", fact),
    })
}

fn speed(facts: &Facts) -> Option<Finding> {
    let speed = facts.folder.write_speed?;
    let fact = format!("the disk writes {} per second", show_bytes(speed));
    Some(match speed < SLOW {
        true => Finding::warning(
            "disk speed",
            fact,
            "states are saved and restored slowly; name a folder on a faster disk with --cache-dir",
        ),
        false => Finding::good("disk speed", fact),
    })
}

fn shared_memory(facts: &Facts) -> Finding {
    let advice = "only matters for a cache folder on it; start the container with --shm-size=2g";
    match facts.shared_memory {
        None => Finding::good("/dev/shm", "not present, and not needed"),
        Some(bytes) if bytes <= SMALL_SHARED_MEMORY => {
            Finding::warning("/dev/shm", format!("{} in total", show_bytes(bytes)), advice)
        }
        Some(bytes) => Finding::good("/dev/shm", format!("{} in total", show_bytes(bytes))),
    }
}

fn open_files(facts: &Facts) -> Finding {
    match facts.open_files {
        Some(most) if most < FEW_FILES => Finding::warning(
            "open files",
            format!("a process may open {most}, and each connection needs one"),
            "raise the hard limit: `ulimit -Hn`, LimitNOFILE= of a systemd unit, --ulimit nofile= of a container",
        ),
        Some(most) => Finding::good("open files", format!("a process may open {most}")),
        None => Finding::good("open files", "no limit"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use poncho_api::Footprint;
    use poncho_engine::backend::llama::Device;
    use poncho_engine::{ModelConfig, Sizing};

    use super::super::facts::{FolderFacts, ModelFacts};
    use super::*;
    use crate::serving::devices::Looked;

    /// A model of 1 GiB with 100 kB a token, for 4 requests of this many tokens.
    fn demand(ctx_size: u32) -> Demand {
        let mut config = ModelConfig::new("m", "m.gguf");
        (config.context.n_ctx, config.context.n_seq_max) = (ctx_size, 4);
        let footprint = Footprint { weights: 1 << 30, cells: 100_000 * 4 * u64::from(ctx_size) };
        let sizing = Sizing { footprint, bytes_per_token: 100_000, is_exact: true, trained_context: None };
        Demand::of_sized(&[(&config, sizing)])
    }

    /// A machine on which all is well.
    fn cpu_device() -> Device {
        Device {
            name: "CPU".into(),
            description: "A chip".into(),
            kind: DeviceKind::Cpu,
            free: 1 << 30,
            total: 2 << 30,
        }
    }

    fn healthy() -> Facts {
        Facts {
            cpu_missing: Vec::new(),
            cpu_unused: Vec::new(),
            cpu_build: None,
            cpu_builds_unusable: Vec::new(),
            looked: Looked { devices: vec![cpu_device()], ..Looked::default() },
            memory: Some(16 << 30),
            model: Some(ModelFacts { path: "m.gguf".into(), found: Ok(demand(8192)) }),
            folder: FolderFacts {
                path: "/kv".into(),
                unwritable: None,
                in_memory: false,
                free: Some(100 << 30),
                write_speed: Some(500 << 20),
                holder: None,
                open_to_others: Vec::new(),
            },
            shared_memory: Some(8 << 30),
            address: "127.0.0.1:8080".to_owned(),
            port: PortState::Free,
            open_files: Some(524_288),
            strange_variables: Vec::new(),
            linked_models: Vec::new(),
            shared: None,
            readable_keys: None,
        }
    }

    /// The findings that are not good, after a change to the healthy machine.
    fn bad(change: impl FnOnce(&mut Facts)) -> Vec<(&'static str, Level, String)> {
        let mut facts = healthy();
        change(&mut facts);
        let findings = check(&facts);
        for finding in &findings {
            assert_eq!(finding.level == Level::Good, finding.advice.is_none(), "{finding:?}");
        }
        let bad = findings.into_iter().filter(|finding| finding.level != Level::Good);
        bad.map(|finding| (finding.check, finding.level, format!("{} {}", finding.fact, finding.advice.unwrap())))
            .collect()
    }

    #[track_caller]
    fn only(found: &[(&'static str, Level, String)], check: &str, level: Level, said: &str) {
        let [(name, how, text)] = found else { panic!("one finding: {found:?}") };
        assert_eq!((*name, *how), (check, level), "{text}");
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn an_object_store_is_reported_with_what_it_restores() {
        let measured = |rate: f64| poncho_shared::Measurement {
            location: "s3://bucket/team".to_owned(),
            round_trip: std::time::Duration::from_millis(2),
            get_bytes_per_second: rate,
            put_bytes_per_second: rate / 2.0,
            conditional_put: true,
        };
        let mut facts = healthy();
        facts.shared = Some(Ok(measured(200e6)));
        let finding = shared(&facts).unwrap();
        assert_eq!(finding.level, Level::Good, "{finding:?}");
        assert!(finding.fact.contains("restores 2000 tokens/s of this model"), "{}", finding.fact);
        assert!(finding.fact.contains("a prefill of 1000 tokens/s from 8 tokens on"), "{}", finding.fact);
        only(&bad(|facts| facts.shared = Some(Ok(measured(1e6)))), "shared", Level::Warning, "slow store");
        only(&bad(|facts| facts.shared = Some(Err("403".to_owned()))), "shared", Level::Broken, "--shared");
    }

    #[test]
    fn a_healthy_machine_has_no_findings() {
        assert_eq!(bad(|_| {}), []);
        assert_eq!(bad(|facts| facts.model = None), []);
        assert_eq!(bad(|facts| facts.shared_memory = None), []);
        assert_eq!(bad(|facts| facts.open_files = None), []);
        assert_eq!(bad(|facts| facts.memory = None), []);
    }

    #[test]
    fn a_cpu_without_the_instructions_is_broken() {
        only(&bad(|facts| facts.cpu_missing = vec!["AVX2", "FMA"]), "cpu", Level::Broken, "lacks AVX2, FMA");
    }

    #[test]
    fn a_build_below_the_cpu_is_reported_where_it_matters() {
        only(&bad(|facts| facts.cpu_unused = vec!["AVX2"]), "cpu", Level::Broken, "several times slower");
        only(&bad(|facts| facts.cpu_unused = vec!["AVX-512"]), "cpu", Level::Warning, "make cpu-builds");
        let faster = |facts: &mut Facts| {
            facts.cpu_unused = vec!["AVX-512"];
            facts.cpu_build = Some("avx512");
        };
        assert_eq!(bad(faster), [], "another build computes");
        let unusable = |facts: &mut Facts| facts.cpu_builds_unusable = vec!["avx512: signal: 4 (SIGILL)".to_owned()];
        only(&bad(unusable), "cpu", Level::Warning, "SIGILL");
        let on_gpu = |facts: &mut Facts| {
            facts.cpu_unused = vec!["AVX-512"];
            facts.looked.devices[0].kind = DeviceKind::Gpu;
        };
        assert_eq!(bad(on_gpu), [], "the CPU does not compute");
    }

    #[test]
    fn devices_are_named_with_their_memory() {
        let mut facts = healthy();
        let gpu = Device { name: "CUDA0".into(), kind: DeviceKind::Gpu, free: 3 << 30, total: 8 << 30, ..cpu_device() };
        facts.looked.devices.push(gpu);
        let found = check(&facts).into_iter().find(|finding| finding.check == "devices").unwrap();
        assert!(found.fact.ends_with("; CUDA0 (A chip), 3.0 GiB of 8.0 GiB free"), "{}", found.fact);
    }

    #[test]
    fn devices_are_named_and_backends_that_fail_are_reported() {
        let named = check(&healthy()).into_iter().find(|finding| finding.check == "devices").unwrap();
        assert_eq!(named.fact, "CPU (A chip), 1.0 GiB free");
        only(&bad(|facts| facts.looked.devices.clear()), "devices", Level::Warning, "unknown");
        let broken = Unused { what: "libggml-cuda.so".into(), why: "it crashed in a trial".into() };
        let found = bad(|facts| facts.looked.unused = vec![broken]);
        only(&found, "backend", Level::Warning, "libggml-cuda.so is not used: it crashed in a trial");
    }

    #[test]
    fn memory_counts_model_and_context() {
        // 1 GiB and 100 kB for each of 32,768 tokens and the program's own: 4.3 GiB.
        only(&bad(|facts| facts.memory = Some(3 << 30)), "memory", Level::Broken, "--ctx-size");
        only(&bad(|facts| facts.memory = Some(4 << 30)), "memory", Level::Warning, "--ctx-size");
        only(&bad(|facts| facts.memory = Some((9 << 30) / 2)), "memory", Level::Warning, "tight");
        let large = |facts: &mut Facts| facts.model.as_mut().unwrap().found = Ok(demand(131_072));
        only(&bad(large), "memory", Level::Broken, "1.0 GiB weights + 4 x 12.2 GiB KV");
        let wrong = Err("x is not a GGUF model".to_owned());
        only(&bad(|facts| facts.model.as_mut().unwrap().found = wrong), "model", Level::Broken, "not a GGUF");
    }

    #[test]
    fn the_port_may_be_taken_by_us_or_by_others() {
        only(&bad(|facts| facts.port = PortState::Taken), "port", Level::Broken, "ss -ltnp");
        only(&bad(|facts| facts.port = PortState::Poncho), "port", Level::Warning, "a Poncho already");
        only(&bad(|facts| facts.port = PortState::Unusable("no".into())), "port", Level::Broken, "--host");
    }

    #[test]
    fn the_cache_folder_may_be_wrong_in_many_ways() {
        let wrong = |change: fn(&mut FolderFacts)| bad(|facts| change(&mut facts.folder));
        only(
            &wrong(|folder| folder.unwritable = Some("permission denied".into())),
            "cache folder",
            Level::Broken,
            "--cache-dir",
        );
        only(&wrong(|folder| folder.in_memory = true), "cache folder", Level::Warning, "memory file system");
        only(&wrong(|folder| folder.holder = Some("17".into())), "cache lock", Level::Broken, "process 17");
        only(&wrong(|folder| folder.free = Some(1 << 20)), "disk space", Level::Broken, "1.0 MiB");
        only(&wrong(|folder| folder.free = Some(500 << 20)), "disk space", Level::Warning, "500.0 MiB");
        only(&wrong(|folder| folder.write_speed = Some(2 << 20)), "disk speed", Level::Warning, "2.0 MiB per second");
        let ours = bad(|facts| {
            facts.folder.holder = Some("17".into());
            facts.port = PortState::Poncho;
        });
        assert!(ours.iter().all(|(_, level, _)| *level == Level::Warning), "a running server is not a fault: {ours:?}");
    }

    /// Hardening 5: files of older releases that everyone may read are reported.
    #[test]
    fn files_that_others_may_read_are_reported() {
        let one = vec![PathBuf::from("/kv/ab")];
        only(&bad(|facts| facts.folder.open_to_others = one), "cache rights", Level::Warning, "may read /kv/ab,");
        let two = vec![PathBuf::from("/kv"), PathBuf::from("/kv.replay")];
        let found = bad(|facts| facts.folder.open_to_others = two);
        only(&found, "cache rights", Level::Warning, "2 files and folders");
        assert!(found[0].2.ends_with("poncho cache verify --repair --cache-dir /kv"), "{found:?}");
    }

    #[test]
    fn small_limits_are_reported() {
        only(&bad(|facts| facts.open_files = Some(256)), "open files", Level::Warning, "LimitNOFILE");
        only(&bad(|facts| facts.shared_memory = Some(64 << 20)), "/dev/shm", Level::Warning, "--shm-size");
    }

    /// Hardening 4: files that earlier releases brought in by a second name.
    #[test]
    fn models_that_share_their_file_with_the_user_are_reported() {
        let linked = vec!["tiny:1".to_owned(), "other".to_owned()];
        let found = bad(|facts| facts.linked_models = linked);
        only(&found, "models folder", Level::Warning, "tiny:1, other");
        only(&found, "models folder", Level::Warning, "poncho show tiny:1 --verify");
    }

    #[test]
    fn settings_that_look_wrong_are_reported() {
        let strange = vec!["PONCHO_PROT is not a setting".to_owned()];
        only(&bad(|facts| facts.strange_variables = strange), "settings", Level::Warning, "PONCHO_PROT");
        let path = Some(PathBuf::from("/etc/poncho.toml"));
        only(&bad(|facts| facts.readable_keys = path), "settings", Level::Warning, "chmod 600 /etc/poncho.toml");
    }
}

//! The CPU is asked before the first instruction that it may not know.
//!
//! llama.cpp is compiled for a level of CPU that .cargo/config.toml names, and its C++ objects are made before `main`,
//! with the instructions of that level: a check in `main` comes too late, the process is gone with SIGILL and no word.
//! So the check is an initialiser of its own, with a number that puts it before those of C++. It runs before Rust's own
//! start-up: it must never allocate much, start a thread or panic.

mod trial;

use std::io::Write;

pub use trial::try_cpu;

/// The architecture flags that the C++ code is compiled with.
const BUILD_FLAGS: Option<&str> = option_env!("CFLAGS_x86_64_unknown_linux_gnu");

/// For tests: an instruction set that this CPU is said not to have. It can only make a process refuse to start.
const PRETEND_VARIABLE: &str = "PONCHO_PRETEND_CPU_WITHOUT";

/// Instruction sets that this build of llama.cpp uses and this CPU does not have.
#[must_use]
pub fn missing_cpu_features() -> Vec<&'static str> {
    let pretended = std::env::var_os(PRETEND_VARIABLE);
    let is_missing =
        |name: &str, there: bool| !there || pretended.as_deref().is_some_and(|pretended| pretended == name);
    let plain = features().into_iter().filter(|_| needs_v3(BUILD_FLAGS));
    let wide = wide_features().into_iter().filter(|(name, _)| needs_wide(BUILD_FLAGS, name));
    plain.chain(wide).filter(|(name, there)| is_missing(name, *there)).map(|(name, _)| name).collect()
}

/// Whether this CPU has all instruction sets of a build with these flags.
#[must_use]
pub fn cpu_has_all(flags: &str) -> bool {
    let plain = features().into_iter().filter(|_| needs_v3(Some(flags)));
    let wide = wide_features().into_iter().filter(|(name, _)| needs_wide(Some(flags), name));
    cfg!(target_arch = "x86_64") && plain.chain(wide).all(|(_, there)| there)
}

/// Instruction sets that this CPU has, that llama.cpp would use, and that this build was compiled without.
#[must_use]
pub fn unused_cpu_features() -> Vec<&'static str> {
    unused(BUILD_FLAGS, &|name| features().contains(&(name, true)) || wide_features().contains(&(name, true)))
}

fn unused(flags: Option<&str>, has: &dyn Fn(&str) -> bool) -> Vec<&'static str> {
    let names: &[&'static str] = match flags {
        _ if !cfg!(target_arch = "x86_64") => &[],
        Some(flags) if flags.contains("native") || flags.contains("x86-64-v4") => &[],
        Some(flags) if flags.contains("-mavxvnni") => &["AVX-512", "AVX-512 VNNI"],
        Some(flags) if needs_v3(Some(flags)) => &["AVX-512", "AVX-512 VNNI", "AVX-VNNI"],
        _ => &["AVX2", "FMA", "F16C"],
    };
    names.iter().copied().filter(|name| has(name)).collect()
}

/// Instruction sets above x86-64-v3 that llama.cpp has kernels for.
#[cfg(target_arch = "x86_64")]
fn wide_features() -> [(&'static str, bool); 5] {
    use std::arch::is_x86_feature_detected;
    let v4 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let vbmi = is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx512vbmi2");
    [
        ("AVX-512", v4),
        ("AVX-512 VNNI", is_x86_feature_detected!("avx512vnni")),
        ("AVX-512 VBMI", vbmi),
        ("AVX-512 BF16", is_x86_feature_detected!("avx512bf16")),
        ("AVX-VNNI", is_x86_feature_detected!("avxvnni")),
    ]
}

/// Whether a build with these flags uses an instruction set above x86-64-v3.
fn needs_wide(flags: Option<&str>, name: &str) -> bool {
    let flag = match name {
        "AVX-512" => "x86-64-v4",
        "AVX-512 VNNI" => "-mavx512vnni",
        "AVX-512 VBMI" => "-mavx512vbmi",
        "AVX-512 BF16" => "-mavx512bf16",
        _ => "-mavxvnni",
    };
    cfg!(target_arch = "x86_64") && flags.is_some_and(|flags| flags.contains(flag))
}

#[cfg(not(target_arch = "x86_64"))]
fn wide_features() -> [(&'static str, bool); 0] {
    []
}

/// What to do about missing instruction sets.
pub const CPU_ADVICE: &str = "use a machine from 2013 or later, let the virtual machine pass the host's CPU through (for \
     QEMU `-cpu host`), or build Poncho without -march=x86-64-v3 in .cargo/config.toml, which is slower";

fn needs_v3(flags: Option<&str>) -> bool {
    let above = |flags: &str| flags.contains("x86-64-v3") || flags.contains("x86-64-v4");
    cfg!(target_arch = "x86_64") && flags.is_some_and(above)
}

#[cfg(target_arch = "x86_64")]
fn features() -> [(&'static str, bool); 7] {
    use std::arch::is_x86_feature_detected;
    [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("F16C", is_x86_feature_detected!("f16c")),
        ("BMI1", is_x86_feature_detected!("bmi1")),
        ("BMI2", is_x86_feature_detected!("bmi2")),
        ("LZCNT", is_x86_feature_detected!("lzcnt")),
        ("MOVBE", is_x86_feature_detected!("movbe")),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> [(&'static str, bool); 0] {
    []
}

fn refusal(missing: &[&str]) -> String {
    format!("error: this CPU has no {}, which this build of Poncho needs; {CPU_ADVICE}\n", missing.join(", no "))
}

extern "C" fn refuse_unknown_cpu() {
    let missing = missing_cpu_features();
    if !missing.is_empty() {
        // Nobody is left to tell if standard error is closed.
        let _ = std::io::stderr().write_all(refusal(&missing).as_bytes());
        std::process::exit(1);
    }
}

/// Numbers below 101 belong to the compiler; C++ objects without a number come after all numbers.
// SAFETY: the section holds pointers to functions that are called without arguments that matter, and this is one.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[used]
#[unsafe(link_section = ".init_array.00101")]
static BEFORE_CPP: extern "C" fn() = refuse_unknown_cpu;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_instructions_are_named_with_what_to_do() {
        let said = refusal(&["AVX2", "F16C"]);
        assert!(said.contains("no AVX2, no F16C") && said.contains("-cpu host"), "{said}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_build_below_the_cpu_is_found() {
        let all: &dyn Fn(&str) -> bool = &|_| true;
        let none: &dyn Fn(&str) -> bool = &|_| false;
        assert_eq!(unused(None, all), ["AVX2", "FMA", "F16C"], "a build without flags is one for SSE");
        assert_eq!(unused(Some("-O2"), all), ["AVX2", "FMA", "F16C"]);
        assert_eq!(unused(Some("-march=x86-64-v3"), all), ["AVX-512", "AVX-512 VNNI", "AVX-VNNI"]);
        assert!(unused(Some("-march=native"), all).is_empty() && unused(Some("-march=x86-64-v3"), none).is_empty());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_build_for_a_newer_cpu_needs_what_its_flags_name() {
        let flags = Some("-march=x86-64-v4 -mavx512vnni");
        assert!(needs_v3(flags) && needs_wide(flags, "AVX-512") && needs_wide(flags, "AVX-512 VNNI"));
        assert!(!needs_wide(flags, "AVX-512 BF16") && !needs_wide(flags, "AVX-VNNI"));
        assert!(!needs_wide(Some("-march=x86-64-v3"), "AVX-512") && cpu_has_all("-march=x86-64-v3"));
    }

    #[test]
    fn only_a_build_for_v3_needs_v3() {
        assert_eq!(needs_v3(Some("-O2 -march=x86-64-v3")), cfg!(target_arch = "x86_64"));
        assert!(!needs_v3(Some("-O2")) && !needs_v3(None));
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn the_flags_of_the_build_reach_the_check() {
        let settings = include_str!("../../../../../.cargo/config.toml");
        assert_eq!(needs_v3(BUILD_FLAGS), settings.contains("CFLAGS_x86_64_unknown_linux_gnu = \"-march=x86-64-v3\""));
        // These tests run llama.cpp on this machine.
        assert_eq!(missing_cpu_features(), Vec::<&str>::new());
    }
}

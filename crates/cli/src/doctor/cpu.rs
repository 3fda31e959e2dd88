//! What the CPU must have for the llama.cpp in this binary.
//!
//! Asked by `doctor`, and by `serve` before anything is loaded: a missing instruction ends a process with SIGILL and no
//! word. What is needed follows from the flags that the C++ code was compiled with; a build without such flags needs
//! nothing beyond what every x86-64 machine of the last 15 years has.

use anyhow::bail;

/// The architecture flags of the C++ code, as .cargo/config.toml gives them to its compiler.
const BUILD_FLAGS: Option<&str> = option_env!("CFLAGS_x86_64_unknown_linux_gnu");

/// Whether the C++ code uses the instructions of x86-64-v3.
fn needs_v3(flags: Option<&str>) -> bool {
    cfg!(target_arch = "x86_64") && flags.is_some_and(|flags| flags.contains("x86-64-v3"))
}

/// Instructions that the build uses and this CPU does not have.
pub(crate) fn missing() -> Vec<&'static str> {
    if !needs_v3(BUILD_FLAGS) {
        return Vec::new();
    }
    features().into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect()
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

/// What to do about missing instructions.
pub(crate) const ADVICE: &str = "use a machine from 2013 or later, let the virtual machine pass the host's CPU through (for \
     QEMU `-cpu host`), or build Poncho without -march=x86-64-v3 in .cargo/config.toml, which is slower";

/// Refuses to go on with instructions missing.
///
/// # Errors
/// Some are missing; the process would end with SIGILL at the first of them.
pub(crate) fn refuse(missing: &[&str]) -> anyhow::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    bail!("this CPU has no {}, which this build of Poncho needs (x86-64-v3); {ADVICE}", missing.join(", no "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_instructions_are_named_with_what_to_do() {
        assert!(refuse(&[]).is_ok());
        let said = refuse(&["AVX2", "F16C"]).unwrap_err().to_string();
        assert!(said.contains("no AVX2, no F16C") && said.contains("-cpu host"), "{said}");
    }

    #[test]
    fn only_a_build_for_v3_needs_v3() {
        assert_eq!(needs_v3(Some("-O2 -march=x86-64-v3")), cfg!(target_arch = "x86_64"));
        assert!(!needs_v3(Some("-O2")) && !needs_v3(None));
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn the_flags_of_the_build_reach_the_check() {
        let settings = include_str!("../../../../.cargo/config.toml");
        assert_eq!(needs_v3(BUILD_FLAGS), settings.contains("CFLAGS_x86_64_unknown_linux_gnu = \"-march=x86-64-v3\""));
        // These tests run llama.cpp on this machine.
        assert_eq!(missing(), Vec::<&str>::new());
    }
}

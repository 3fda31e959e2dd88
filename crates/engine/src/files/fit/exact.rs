//! The needs of a choice as llama.cpp itself measures them.
//!
//! Called in a child process of the command line: a crafted file may end it.

use crate::backend::KvLayout;
use crate::backend::llama::{LlamaMeasure, MemoryUse};
use crate::config::ModelConfig;
use crate::files::fit::{Choice, Machine, Measure, Needs, Use};

/// Measures choices for one model.
pub struct Exact {
    config: ModelConfig,
    /// Names of the machine's devices: the order of the needs.
    devices: Vec<String>,
    /// The layout of the cells; `None` for the usual one.
    layout: Option<KvLayout>,
    measure: LlamaMeasure,
}

impl Exact {
    /// Checks the file, so that most crafted ones are an error.
    ///
    /// # Errors
    /// Why the file is refused, as text.
    pub fn new(config: &ModelConfig, machine: &Machine, layout: Option<KvLayout>) -> Result<Self, String> {
        let devices = machine.devices.iter().map(|device| device.name.clone()).collect();
        Ok(Self { config: config.clone(), devices, layout, measure: LlamaMeasure::new(&config.model)? })
    }
}

impl Measure for Exact {
    fn needs(&mut self, choice: &Choice) -> Result<Needs, String> {
        let mut config = self.config.clone();
        config.context.kv = self.layout.unwrap_or_else(|| KvLayout::usual(choice.parallel));
        choice.set(&mut config);
        let measured = self.measure.measure(&config.model, &config.context)?;
        let mut devices = vec![Use::default(); self.devices.len()];
        for (name, row) in measured.devices {
            match self.devices.iter().position(|known| *known == name).and_then(|at| devices.get_mut(at)) {
                Some(place) => *place = use_of(row),
                None if row == MemoryUse::default() => {}
                None => return Err(format!("the device {name} appeared while it was measured")),
            }
        }
        Ok(Needs { host: use_of(measured.host), devices })
    }
}

const fn use_of(row: MemoryUse) -> Use {
    Use { weights: row.weights, context: row.context, compute: row.compute }
}

#[cfg(test)]
mod tests {
    use poncho_testkit::{ModelKind, model_path};

    use super::*;
    use crate::backend::KvType;
    use crate::files::fit::Arithmetic;

    fn choice(n_ctx: u32, parallel: u32, kind: KvType) -> Choice {
        Choice { n_ctx, parallel, type_k: kind, type_v: kind, n_cpu_moe: 0, gpu_layers: None }
    }

    fn machine() -> Machine {
        Machine { host_free: 1 << 40, devices: Vec::new() }
    }

    /// What llama.cpp would allocate, and nothing is: a context of a million tokens is measured in a moment.
    #[test]
    fn llama_measures_what_it_would_allocate() {
        let config = ModelConfig::new("m", model_path(ModelKind::Attention));
        let mut measure = Exact::new(&config, &machine(), Some(KvLayout::Split)).unwrap();
        let small = measure.needs(&choice(1024, 1, KvType::F16)).unwrap().host;
        let large = measure.needs(&choice(1 << 20, 4, KvType::F16)).unwrap().host;
        assert!(small.weights > 0 && small.compute > 0, "{small:?}");
        assert_eq!(large.context, small.context * 4096);
        let half = measure.needs(&choice(1024, 1, KvType::Q8_0)).unwrap().host;
        assert!(half.context < small.context && half.context * 2 > small.context, "{half:?}");
    }

    /// The estimate from the head of the file is never less than llama.cpp takes.
    #[test]
    fn the_arithmetic_is_not_below_the_measurement() {
        for kind in ModelKind::ALL {
            let config = ModelConfig::new("m", model_path(kind));
            let mut measure = Exact::new(&config, &machine(), Some(KvLayout::Split)).unwrap();
            let mut arithmetic = Arithmetic::of(&config, &machine());
            for choice in [choice(2048, 1, KvType::F16), choice(8192, 4, KvType::F16)] {
                let measured = measure.needs(&choice).unwrap().host;
                let estimated = arithmetic.needs(&choice).unwrap().host;
                assert!(estimated.weights >= measured.weights, "{kind:?} {estimated:?} {measured:?}");
                assert!(estimated.total() * 11 / 10 >= measured.total(), "{kind:?} {estimated:?} {measured:?}");
            }
        }
    }

    #[test]
    fn a_file_that_is_not_a_model_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, b"GGUF\x03\0\0\0junk").unwrap();
        assert!(Exact::new(&ModelConfig::new("m", &path), &machine(), Some(KvLayout::Split)).is_err());
    }
}

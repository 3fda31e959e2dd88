//! Tiny GGUF models with seeded random weights, one of each memory kind, and a LoRA adapter; a NATS server and free ports.
//!
//! The tests of the other crates call it to run real llama.cpp without downloading a model: each file is well under
//! one megabyte and its vocabulary holds a token for every byte. The same spec gives the same bytes on every machine,
//! so no model here may use the clock, the platform's math library or the native byte order.

mod adapter;
mod altered;
mod fixture;
mod gguf;
mod models;
mod nats;
mod port;
mod random;
mod sparse;
mod spec;
pub mod vocabulary;
mod weights;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use altered::AlteredModel;
pub use fixture::{adapter_path, default_model_path, model_path, path_of};
pub use gguf::{TensorType, Value};
pub use nats::NatsServer;
pub use port::unused_address;
pub use sparse::{LargeModel, write_sparse_model};
pub use spec::{AdapterSpec, ChatSpec, Mark, ModelKind, ModelSpec, WeightType};

/// Writes the model that `spec` describes as one GGUF file.
pub fn write_model(spec: &ModelSpec, path: &Path) -> io::Result<()> {
    fs::write(path, models::build(spec)?.to_bytes())
}

/// Writes the model as `parts` files called `name-00001-of-0000N.gguf` and returns their paths in order.
///
/// llama.cpp is given the first one and finds the others beside it.
pub fn write_split_model(spec: &ModelSpec, dir: &Path, name: &str, parts: u16) -> io::Result<Vec<PathBuf>> {
    let files = models::build(spec)?.split(parts)?;
    let mut paths = Vec::with_capacity(files.len());
    for (index, file) in files.iter().enumerate() {
        let path = dir.join(format!("{name}-{:05}-of-{parts:05}.gguf", index + 1));
        fs::write(&path, file.to_bytes())?;
        paths.push(path);
    }
    Ok(paths)
}

/// Writes a LoRA adapter that fits the attention model of `model`.
pub fn write_adapter(model: &ModelSpec, adapter: &AdapterSpec, path: &Path) -> io::Result<()> {
    fs::write(path, adapter::build(model, adapter)?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::fingerprint;

    /// FNV-1a of each tiny file. A change here means that every test which stores an output of these models changes too.
    const STORED: [(ModelKind, u64); 4] = [
        (ModelKind::Attention, 0x4587_ae09_f292_cd06),
        (ModelKind::Window, 0xb9cc_46ec_58a4_07c0),
        (ModelKind::Recurrent, 0x73c5_24cb_f284_d3e1),
        (ModelKind::Hybrid, 0x8bfd_8610_88c1_5324),
    ];
    const STORED_ADAPTER: u64 = 0x1666_7d58_e4b1_1937;

    #[test]
    fn tiny_models_have_the_same_bytes_on_every_machine() {
        let now =
            STORED.map(|(kind, _)| (kind, fingerprint(&models::build(&ModelSpec::tiny(kind)).unwrap().to_bytes())));
        assert_eq!(now, STORED, "got {now:#x?}");
        let spec = ModelSpec::tiny(ModelKind::Attention);
        let adapter = adapter::build(&spec, &AdapterSpec::tiny()).unwrap().to_bytes();
        assert_eq!(fingerprint(&adapter), STORED_ADAPTER, "got {:#x}", fingerprint(&adapter));
    }

    #[test]
    fn a_tiny_model_stays_below_one_megabyte_in_both_weight_types() {
        for kind in ModelKind::ALL {
            for weight_type in [WeightType::F16, WeightType::F32] {
                let size = models::build(&ModelSpec { weight_type, ..ModelSpec::tiny(kind) }).unwrap().to_bytes().len();
                assert!(size < 1_000_000, "{kind:?} {weight_type:?}: {size} bytes");
            }
        }
    }

    #[test]
    fn another_seed_gives_other_weights_of_the_same_size() {
        for kind in ModelKind::ALL {
            let one = models::build(&ModelSpec::tiny(kind)).unwrap().to_bytes();
            let two = models::build(&ModelSpec { seed: 99, ..ModelSpec::tiny(kind) }).unwrap().to_bytes();
            assert_eq!(one.len(), two.len());
            assert_ne!(one, two);
        }
    }

    #[test]
    fn write_functions_put_the_built_bytes_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let spec = ModelSpec::tiny(ModelKind::Hybrid);
        let path = dir.path().join("whole.gguf");
        write_model(&spec, &path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), models::build(&spec).unwrap().to_bytes());

        let parts = write_split_model(&spec, dir.path(), "cut", 3).unwrap();
        let names: Vec<_> = parts.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(names, ["cut-00001-of-00003.gguf", "cut-00002-of-00003.gguf", "cut-00003-of-00003.gguf"]);
        assert!(parts.iter().all(|path| path.is_file()));
    }
}

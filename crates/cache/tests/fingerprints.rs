//! Fingerprints of known files, as constants: they are part of every stored key, so a reader of model files that is
//! written differently must arrive at the same bytes.

use std::path::{Path, PathBuf};

use poncho_cache::{Fingerprint, to_hex};
use poncho_testkit::{ModelKind, ModelSpec, Value, WeightType};

/// A model's files, and the two fingerprints that read them: of all bytes, and of metadata with the first tensor.
type Known = (&'static str, Vec<PathBuf>, &'static str, &'static str);

fn write(folder: &Path, name: &str, spec: &ModelSpec) -> Vec<PathBuf> {
    let path = folder.join(format!("{name}.gguf"));
    poncho_testkit::write_model(spec, &path).unwrap();
    vec![path]
}

/// Keys of all the kinds that identity steps over or reads, tensors at another alignment.
fn altered(folder: &Path) -> Vec<PathBuf> {
    let path = folder.join("altered.gguf");
    let mut model = poncho_testkit::AlteredModel::of(&ModelSpec::tiny(ModelKind::Attention)).unwrap();
    model.set("general.alignment", Value::U32(64));
    model.set("general.file_type", Value::U32(1024 + 15));
    model.set("x.nested", Value::Raw(9, [9_u32.to_le_bytes().to_vec(), vec![0; 8]].concat()));
    model.write(&path).unwrap();
    vec![path]
}

#[test]
fn fingerprints_of_generated_models_never_change() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let tiny = ModelSpec::tiny;
    let split = poncho_testkit::write_split_model(&tiny(ModelKind::Hybrid), folder, "split", 3).unwrap();
    let wide = ModelSpec { weight_type: WeightType::F32, seed: 99, ..tiny(ModelKind::Window) };
    let known: [Known; 7] = [
        (
            "attention",
            write(folder, "attention", &tiny(ModelKind::Attention)),
            "9d23f192d00d922513a48c5f30915acb1c919fb633e000d9091fdafb7d4952d7",
            "67b995ed4c2df2a0c5b5ab67e2359a3bde21bc80fc0a147d2d395caa01951358",
        ),
        (
            "window",
            write(folder, "window", &tiny(ModelKind::Window)),
            "a7b436447cec9923b291b386a14a0575b945d8a386bba03974bd050bb5a6b602",
            "24fd02f370d9e85556eefde562bca1a5d93cf4dc9752420c39b2e1f738fd5607",
        ),
        (
            "recurrent",
            write(folder, "recurrent", &tiny(ModelKind::Recurrent)),
            "3f8c55bc9f25274da0b6b5fff2fce889173ed60f93d9766f042b1c5b85fc6457",
            "76bf7129e388ecac7808a4ff7f6e41f6daeee8e59c0df72ffa95211e224e6ea6",
        ),
        (
            "hybrid",
            write(folder, "hybrid", &tiny(ModelKind::Hybrid)),
            "422fcb93661054f43be34dcd8fe66fc620cf3e0a73bba500eb90839358987782",
            "c076e30ad0fa704318efc035f2ee3855632eb07c290e3f6c41246d09b10ece39",
        ),
        (
            "split hybrid",
            split,
            "d1263fb812b1a0e9678733264f7d032319d612f7e6fd6fac1b82be70441ca479",
            "218000f8341127f702562d39f46cc53afef5167fc4ad090f53a7ae3bb60bf970",
        ),
        (
            "window in F32",
            write(folder, "wide", &wide),
            "719e2cb0d4e04c106cf7fea18293df29c23658a86d2a8b751fd3a35b4f1e007f",
            "01e9d91f7e77e3506c4b7d31d29672e827d9d628702b9e4b52cbac1896d5e6a1",
        ),
        (
            "altered attention",
            altered(folder),
            "edc2628235f98b1df28e6aedfc144953696662e0ddf10c21212c7a5e98448c30",
            "4aeb66466784f75e34fd2b2135c749a165ba4c94742164ef36210bd079d2cd1e",
        ),
    ];
    for (name, paths, safe, chunked) in known {
        let of_all = Fingerprint::safe(&paths, None, &mut |_, _| {}).unwrap();
        let of_some = Fingerprint::gguf_chunked(&paths).unwrap();
        assert_eq!(to_hex(&of_all.bytes), safe, "{name}: all bytes");
        assert_eq!(to_hex(&of_some.bytes), chunked, "{name}: metadata and the first tensor");
    }
}

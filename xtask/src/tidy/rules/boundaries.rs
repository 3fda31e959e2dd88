//! Rule: crates depend downwards only; the server reaches an engine through the api alone, the api names no crate that
//! computes or stores, the registry of models is known to server and cli alone, and llama.cpp to the engine alone.
//!
//! Reads the manifests as text: section headers and the names in them are all it needs. A path
//! over a crate outside the layers counts too.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{Finding, Tree};

/// Lowest first. A crate may use those before it.
const LAYERS: [&str; 12] = [
    "poncho-kinds",
    "poncho-cluster",
    "poncho-gguf",
    "poncho-models",
    "poncho-cache",
    "poncho-shared",
    "poncho-api",
    "poncho-engine",
    "poncho-node",
    "poncho-server",
    "poncho-bench",
    "poncho",
];

/// Crates that may use only these of ours, but for tests: the line between what speaks to clients and what computes.
const NARROW: [(&str, &[&str]); 3] = [
    ("poncho-api", &["poncho-kinds"]),
    ("poncho-server", &["poncho-api", "poncho-console", "poncho-kinds", "poncho-models"]),
    ("poncho-shared", &["poncho-cache"]),
];

/// The registry of models stands beside cache and engine: of ours it uses the reader of model files, and only these use it.
const MODELS: &str = "poncho-models";
const USERS_OF_MODELS: [&str; 3] = ["poncho-server", "poncho", "poncho-e2e"];

/// Only this crate may name llama.cpp's bindings.
const LLAMA_OWNER: &str = "poncho-engine";

struct Dependency {
    name: String,
    line: usize,
    is_for_tests: bool,
}

struct Manifest<'a> {
    path: &'a str,
    name: String,
    /// Every dependency, of whatever kind.
    dependencies: Vec<Dependency>,
}

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests: Vec<Manifest<'_>> = tree
        .with_extension(&["toml"])
        .filter(|(path, _)| {
            (path.starts_with("crates/") || path.starts_with("tests/")) && path.ends_with("/Cargo.toml")
        })
        .map(|(path, text)| read(path, text))
        .collect();
    let by_name: BTreeMap<&str, &Manifest<'_>> =
        manifests.iter().map(|manifest| (manifest.name.as_str(), manifest)).collect();

    let mut findings = Vec::new();
    for manifest in &manifests {
        for Dependency { name: dependency, line, is_for_tests } in &manifest.dependencies {
            let narrow = NARROW.iter().find(|(name, _)| *name == manifest.name).filter(|_| !is_for_tests);
            if let Some((_, allowed)) = narrow
                && dependency.starts_with("poncho")
                && !allowed.contains(&dependency.as_str())
            {
                findings.push(Finding::new(
                    manifest.path,
                    *line,
                    format!("`{}` depends on `{dependency}`", manifest.name),
                    format!("of ours it may use {} alone; go through the api", allowed.join(", ")),
                ));
                continue;
            }
            if dependency.starts_with("llama-cpp") && manifest.name != LLAMA_OWNER {
                findings.push(Finding::new(
                    manifest.path,
                    *line,
                    format!("`{}` depends on `{dependency}`", manifest.name),
                    format!("only {LLAMA_OWNER} may; go through its backend trait"),
                ));
            }
            if dependency == MODELS && !USERS_OF_MODELS.contains(&manifest.name.as_str()) {
                findings.push(Finding::new(
                    manifest.path,
                    *line,
                    format!("`{}` depends on `{dependency}`", manifest.name),
                    "only the server and the command line may; give the other crates paths and settings",
                ));
            }
            if let Some(above) = first_above(&manifest.name, dependency, &by_name) {
                findings.push(Finding::new(
                    manifest.path,
                    *line,
                    format!("`{}` reaches up to `{above}`", manifest.name),
                    "crates depend downwards only, cli -> server -> api <- engine -> cache: move the code down",
                ));
            }
        }
    }
    findings
}

/// The first crate above `name` that the dependency is or leads to.
fn first_above(name: &str, dependency: &str, by_name: &BTreeMap<&str, &Manifest<'_>>) -> Option<String> {
    let own_layer = layer(name)?;
    let mut seen = BTreeSet::new();
    let mut open = vec![dependency.to_owned()];
    while let Some(next) = open.pop() {
        if layer(&next).is_some_and(|layer| layer > own_layer) {
            return Some(next);
        }
        if let Some(manifest) = by_name.get(next.as_str())
            && seen.insert(next)
        {
            // What only its own tests use does not come along.
            let linked = manifest.dependencies.iter().filter(|dependency| !dependency.is_for_tests);
            open.extend(linked.map(|dependency| dependency.name.clone()));
        }
    }
    None
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == name)
}

fn read<'a>(path: &'a str, text: &str) -> Manifest<'a> {
    let mut manifest = Manifest { path, name: String::new(), dependencies: Vec::new() };
    let mut section = String::new();
    let dependency = |name: String, index: usize, section: &str| Dependency {
        name,
        line: index + 1,
        is_for_tests: section.contains("dev-dependencies"),
    };
    for (index, line) in text.lines().enumerate() {
        let line = line.split(" #").next().unwrap_or(line).trim();
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_matches(['[', ']']).to_owned();
            // `[dependencies.name]` names one; `package` inside it may rename it.
            if let Some((kind, name)) = section.rsplit_once('.')
                && kind.ends_with("dependencies")
            {
                manifest.dependencies.push(dependency(unquoted(name), index, &section));
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if line.starts_with('#') {
            continue;
        } else if section == "package" && key == "name" {
            manifest.name = unquoted(value);
        } else if section.ends_with("dependencies") {
            let key = key.split('.').next().unwrap_or(key);
            let name = renamed(value).unwrap_or_else(|| unquoted(key));
            manifest.dependencies.push(dependency(name, index, &section));
        } else if section.contains("dependencies.") && key == "package" {
            manifest.dependencies.push(dependency(unquoted(value), index, &section));
        }
    }
    manifest
}

/// The real name in `alias = { package = "real", .. }`.
fn renamed(value: &str) -> Option<String> {
    let (_, rest) = value.split_once("package")?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start().strip_prefix('"')?;
    rest.split('"').next().map(str::to_owned)
}

fn unquoted(text: &str) -> String {
    text.trim().trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::rules::found;

    fn manifest(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n\n{rest}\n")
    }

    #[test]
    fn every_way_up_is_found() {
        for rest in [
            "[dependencies]\nponcho-engine.workspace = true",
            "[dependencies]\nponcho-server = { path = \"../server\" }",
            "[dev-dependencies]\nponcho = { path = \"../cli\" }",
            "[dependencies.poncho-engine]\npath = \"../engine\"",
            "[target.'cfg(unix)'.dependencies]\n\"poncho-engine\" = \"1\"",
            "[dependencies]\nengine = { package = \"poncho-engine\", path = \"../engine\" }",
            "[build-dependencies.engine]\npackage = \"poncho-engine\"",
            "[dependencies]\nponcho-testkit.workspace = true",
            "[dependencies]\nllama-cpp-4.workspace = true",
        ] {
            let files = [
                ("crates/cache/Cargo.toml", manifest("poncho-cache", rest)),
                (
                    "tests/testkit/Cargo.toml",
                    manifest("poncho-testkit", "[dependencies]\nponcho-engine.workspace = true"),
                ),
            ];
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
            let findings = found(check, &files);
            assert_eq!(findings.len(), 1, "{rest}: {findings:?}");
            assert!(findings[0].starts_with("crates/cache/Cargo.toml:"), "{}", findings[0]);
        }
    }

    #[test]
    fn the_registry_is_for_server_and_command_line_alone() {
        for name in ["poncho-cache", "poncho-engine", "poncho-testkit"] {
            let text = manifest(name, "[dependencies]\nponcho-models.workspace = true");
            assert_eq!(found(check, &[("crates/x/Cargo.toml", text.as_str())]).len(), 1, "{name}");
        }
        for dependency in ["poncho-cache", "poncho-engine", "poncho-server"] {
            let text = manifest("poncho-gguf", &format!("[dependencies]\n{dependency}.workspace = true"));
            assert_eq!(found(check, &[("crates/gguf/Cargo.toml", text.as_str())]).len(), 1, "{dependency}");
            let text = manifest("poncho-models", &format!("[dependencies]\n{dependency}.workspace = true"));
            assert_eq!(found(check, &[("crates/models/Cargo.toml", text.as_str())]).len(), 1, "{dependency}");
        }
    }

    #[test]
    fn the_server_reaches_an_engine_through_the_api_alone() {
        for (name, dependency) in [
            ("poncho-server", "poncho-engine"),
            ("poncho-server", "poncho-cache"),
            ("poncho-api", "poncho-cache"),
            ("poncho-api", "poncho-engine"),
        ] {
            let text = manifest(name, &format!("[dependencies]\n{dependency}.workspace = true"));
            assert_eq!(found(check, &[("crates/x/Cargo.toml", text.as_str())]).len(), 1, "{name} on {dependency}");
        }
        let tests = "[dependencies]\nponcho-api.workspace = true\n[dev-dependencies]\nponcho-engine.workspace = true";
        let text = manifest("poncho-server", tests);
        assert_eq!(found(check, &[("crates/x/Cargo.toml", text.as_str())]), Vec::<String>::new());
    }

    #[test]
    fn the_allowed_ways_pass() {
        let down = "[dependencies]\nponcho-models.workspace = true\nponcho-cache.workspace = true\nponcho-engine.workspace = true\nponcho-server.workspace = true";
        let own = "[features]\nponcho = []\n[dependencies]\nbytes = \"1\" # not poncho-engine\n[dev-dependencies]\nponcho-cache = { path = \".\", features = [\"testing\"] }";
        let files = [
            ("crates/cli/Cargo.toml", manifest("poncho", down)),
            (
                "crates/engine/Cargo.toml",
                manifest(
                    "poncho-engine",
                    "[dependencies]\nllama-cpp-4.workspace = true\nponcho-cache.workspace = true",
                ),
            ),
            ("crates/cache/Cargo.toml", manifest("poncho-cache", own)),
            ("crates/models/Cargo.toml", manifest("poncho-models", "[dependencies]\nponcho-gguf.workspace = true")),
            ("Cargo.toml", "[workspace.dependencies]\nponcho-server = { path = \"crates/server\" }\n".to_owned()),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        assert_eq!(found(check, &files), Vec::<String>::new());
    }
}

//! The files for deploying: checked by the programs that read them where those are installed, and else by hand.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{poncho, run};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join("packaging").join(name)).unwrap()
}

/// The values of a key of the unit, in order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let unit = read("poncho.service");
    let mut section = "";
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => section = name,
            None => assert!(!section.is_empty() && line.contains('='), "{line}"),
        }
    }
    assert_eq!(section, "Install");
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("poncho.service");
    // It asks for the program to be there; the one of this build is.
    std::fs::write(&copy, unit.replace("/usr/local/bin/poncho", env!("CARGO_BIN_EXE_poncho"))).unwrap();
    let Ok(checked) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output() else { return };
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    let about_ours: Vec<&str> = said.lines().filter(|line| line.contains("poncho.service")).collect();
    assert!(about_ours.is_empty(), "{said}");
}

#[test]
fn the_unit_starts_a_server_that_takes_its_settings() {
    let unit = read("poncho.service");
    let [start] = values(&unit, "ExecStart")[..] else { panic!("one command") };
    let words: Vec<&str> = start.split_whitespace().collect();
    assert_eq!(words[..2], ["/usr/local/bin/poncho", "serve"]);
    let words = words[2..].iter().map(|word| word.replace("/etc/poncho/poncho.toml", "packaging/poncho.toml"));
    let mut command = poncho();
    command.arg("config").arg("--json").args(words).current_dir(root());
    for variable in values(&unit, "Environment") {
        let (name, value) = variable.split_once('=').unwrap();
        // systemd puts its folders for caches and for state in their place.
        command.env(name, value.replace("%C", "/var/cache").replace("%S", "/var/lib"));
    }
    let report = run(&mut command).json();
    assert_eq!(report["notes"].as_array().unwrap().len(), 0, "every variable is a setting: {report:#}");
    let settings = &report["settings"];
    assert_eq!(settings["cache_dir"]["value"], "/var/cache/poncho/kv");
    assert_eq!(settings["cache_dir"]["layer"], "environment");
    // The service has no home, and a server without a folder for models does not start.
    assert_eq!(settings["models_dir"]["value"], "/var/lib/poncho/registry");
    let in_file = read("poncho.toml").lines().filter(|line| line.contains(" = ")).count();
    let from_file = settings.as_object().unwrap().values().filter(|setting| setting["layer"] == "file").count();
    assert_eq!(from_file, in_file);
    for folder in ["CacheDirectory", "StateDirectory"] {
        assert!(values(&unit, folder) == ["poncho"], "{folder}: the folders that it may write");
    }
}

#[test]
fn the_container_file_names_what_is_there() {
    let text = read("Containerfile").replace("\\\n", " ");
    let lines: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][0], "FROM");
    let known = ["FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"];
    for line in &lines {
        assert!(known.contains(&line[0]), "{line:?}");
        if let ["COPY", sources @ .., _] = line.as_slice()
            && !sources[0].starts_with("--from")
        {
            for source in sources {
                assert!(root().join(source).exists(), "{source} is copied and not there");
            }
        }
    }
    // What include_str! and the manifests of the workspace need must be copied too.
    let copied = |name: &str| lines.iter().any(|line| line[0] == "COPY" && line.contains(&name));
    for needed in ["Cargo.toml", "Cargo.lock", "crates", "xtask", ".cargo"] {
        assert!(copied(needed), "{needed} is not copied");
    }
    let mut command = poncho();
    command.args(["config", "--json"]);
    for line in lines.iter().filter(|line| line[0] == "ENV") {
        for variable in &line[1..] {
            let (name, value) = variable.split_once('=').unwrap();
            command.env(name, value);
        }
    }
    let report = run(&mut command).json();
    assert_eq!(report["notes"].as_array().unwrap().len(), 0, "{report:#}");
    assert_eq!(
        (&report["settings"]["host"]["value"], &report["settings"]["port"]["value"]),
        (&"0.0.0.0".into(), &8080.into())
    );
    for folder in ["cache_dir", "models_dir"] {
        let path = report["settings"][folder]["value"].as_str().unwrap();
        assert!(path.starts_with("/cache/"), "{folder} is {path}, and only the volume can be written");
    }
    assert!(lines.iter().any(|line| line[..] == ["EXPOSE", "8080"]));
}

#[test]
fn the_proxies_stream_and_reach_the_default_port() {
    let nginx = read("nginx.conf");
    for part in [
        "proxy_pass http://127.0.0.1:8080;",
        "proxy_buffering off;",
        "proxy_http_version 1.1;",
        "client_max_body_size 32m;",
    ] {
        assert!(nginx.contains(part), "{part}");
    }
    for line in nginx.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        assert!(line.ends_with([';', '{', '}']), "{line}");
    }
    let caddy = read("Caddyfile");
    for part in ["reverse_proxy 127.0.0.1:8080 {", "flush_interval -1", "max_size 32MiB"] {
        assert!(caddy.contains(part), "{part}");
    }
    for text in [&nginx, &caddy] {
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        assert_eq!(code.matches('{').count(), code.matches('}').count(), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    if let Ok(checked) =
        Command::new("caddy").args(["adapt", "--config"]).arg(root().join("packaging/Caddyfile")).output()
    {
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
    // Certificates are not there, so the site is checked without TLS.
    let plain: String = nginx
        .replace("listen 443 ssl;", "listen 8443;")
        .lines()
        .filter(|line| !line.contains("ssl_"))
        .map(|line| format!("{line}\n"))
        .collect();
    let whole = folder.path().join("nginx.conf");
    let state = folder.path().display();
    std::fs::write(
        &whole,
        format!("pid {state}/pid;\nerror_log {state}/log;\nevents {{}}\nhttp {{\naccess_log off;\n{plain}}}\n"),
    )
    .unwrap();
    if let Ok(checked) = Command::new("nginx").arg("-t").arg("-c").arg(&whole).output() {
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}

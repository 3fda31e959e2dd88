//! The files for deploying: checked by rules of our own on every machine, and by the programs that read them as well where
//! those are installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packaging::packaged_files::{caddy_problems, nginx_problems, unit_problems};
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

/// What a program that may be missing says about a file: whether it liked it, and its words. Our own rules have been asked
/// before. That a program is missing is shown at the end of a run of all tests (.config/nextest.toml).
fn ask(command: &mut Command) -> Option<(bool, String)> {
    match command.output() {
        Ok(output) => Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let program = command.get_program().display();
            eprintln!("{program} is not installed: the file was checked by our own rules only");
            None
        }
        Err(error) => panic!("{command:?} did not start: {error}"),
    }
}

/// Hardening 22: without `systemd-analyze` next to nothing was checked, and the test passed.
#[test]
fn the_units_are_ones_that_systemd_takes() {
    for name in ["poncho.service", "poncho-node.service", "poncho-front.service"] {
        let unit = read(name);
        assert_eq!(unit_problems(&unit), Vec::<String>::new(), "{name}");
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join(name);
        // It asks for the program to be there; the one of this build is.
        std::fs::write(&copy, unit.replace("/usr/local/bin/poncho", env!("CARGO_BIN_EXE_poncho"))).unwrap();
        if let Some((_, said)) = ask(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy)) {
            let about_ours: Vec<&str> = said.lines().filter(|line| line.contains(name)).collect();
            assert!(about_ours.is_empty(), "{said}");
        }
    }
}

/// Each variable and flag of the units and containers for nodes is one that the program takes.
#[test]
fn the_files_for_nodes_name_settings_that_exist() {
    let (mut names, mut commands) = (Vec::new(), Vec::new());
    for name in ["poncho-node.service", "poncho-front.service"] {
        let unit = read(name);
        names.extend(values(&unit, "Environment").iter().map(|pair| pair.split_once('=').unwrap().0.to_owned()));
        commands.extend(values(&unit, "ExecStart").iter().map(|line| line.to_string()));
    }
    let services = [
        ("nodes.compose.yaml", "node"),
        ("nodes.compose.yaml", "front"),
        ("cluster.compose.yaml", "node-1"),
        ("cluster.compose.yaml", "node-2"),
        ("cluster.compose.yaml", "router"),
    ];
    for (file, service) in services {
        let compose = yaml_rust2::YamlLoader::load_from_str(&read(file)).unwrap().remove(0);
        let service = &compose["services"][service];
        names.extend(service["environment"].as_hash().unwrap().keys().map(|name| name.as_str().unwrap().to_owned()));
        let words = service["command"].as_vec().unwrap().iter().map(|word| word.as_str().unwrap());
        commands.push(format!("poncho {}", words.collect::<Vec<_>>().join(" ")));
    }
    let reference = std::fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    for name in names {
        assert!(reference.contains(&format!("`{name}`")), "{name} is a setting");
    }
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        let help = run(poncho().args([words[0], "--help"])).good().to_owned();
        for flag in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(flag), "{command}: {flag}");
        }
    }
}

/// Hardening 22: the rules find what they are for, whatever is installed.
#[test]
fn mistakes_in_the_packaged_files_are_found_without_their_programs() {
    let unit = read("poncho.service");
    for (from, to, expected) in [
        ("ProtectSystem=strict", "ProtectSytem=strict", "no directive \"ProtectSytem\""),
        ("ProtectSystem=strict", "ProtectSystem=strct", "does not take"),
        ("PrivateTmp=yes\n", "", "\"PrivateTmp=yes\" is missing"),
        ("PrivateUsers=yes", "PrivateUsers=no", "\"PrivateUsers=yes\" is missing"),
        ("UMask=0077", "UMask=77", "UMask"),
        ("RestartSec=2", "RestartSec=soon", "RestartSec"),
        ("RestartSec=2", "RestartSec=2\nRestartSec=3", "stands twice"),
        ("Type=notify", "Type notify", "neither a section nor a directive"),
        ("[Service]", "[Servce]", "[Servce] has no directive"),
        ("ExecStart=/usr", "ExecStart=usr", "ExecStart"),
        ("AF_UNIX", "AF_UNX", "RestrictAddressFamilies"),
        ("=~@privileged", "=~@priviledged", "SystemCallFilter"),
        ("Environment=PONCHO_CACHE_DIR=", "Environment=PONCHO CACHE DIR=", "Environment"),
        ("WantedBy=multi-user.target", "", "[Install] needs WantedBy"),
    ] {
        assert!(unit.contains(from), "{from}");
        let problems = unit_problems(&unit.replacen(from, to, 1)).join("\n");
        assert!(problems.contains(expected), "{to}: {problems}");
    }
    let nginx = read("nginx.conf");
    for (from, to) in [
        ("proxy_buffering off;", "proxy_bufering off;"),
        ("proxy_buffering off;", "proxy_buffering off"),
        ("proxy_buffering off;", "proxy_buffering;"),
        ("location / {", "location /{"),
        ("return 404;\n    }", "return 404;"),
        ("listen 443 ssl;", "return 404;"),
    ] {
        assert!(nginx.contains(from) && !nginx_problems(&nginx.replacen(from, to, 1)).is_empty(), "{to}");
    }
    let caddy = read("Caddyfile");
    for (from, to) in [
        ("flush_interval -1", "flush_intervall -1"),
        ("flush_interval -1", "flush_interval"),
        ("max_size 32MiB\n\t}", "max_size 32MiB"),
        ("reverse_proxy 127.0.0.1:8080 {", "reverse_proxy 127.0.0.1:8080{"),
    ] {
        assert!(caddy.contains(from) && !caddy_problems(&caddy.replacen(from, to, 1)).is_empty(), "{to}");
    }
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
    assert_eq!(nginx_problems(&nginx), Vec::<String>::new());
    let caddy = read("Caddyfile");
    for part in ["reverse_proxy 127.0.0.1:8080 {", "flush_interval -1", "max_size 32MiB"] {
        assert!(caddy.contains(part), "{part}");
    }
    assert_eq!(caddy_problems(&caddy), Vec::<String>::new());
    let folder = tempfile::tempdir().unwrap();
    if let Some((good, said)) =
        ask(Command::new("caddy").args(["adapt", "--config"]).arg(root().join("packaging/Caddyfile")))
    {
        assert!(good, "{said}");
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
    if let Some((good, said)) = ask(Command::new("nginx").arg("-t").arg("-c").arg(&whole)) {
        assert!(good, "{said}");
    }
}

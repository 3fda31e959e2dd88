//! Own rules for the files in `packaging/`: known directives in known places, with values that their programs take.
//!
//! Used by `packaging.rs`, so that a machine without systemd, nginx or Caddy checks something real too. The tables hold
//! what our files use; a directive that is new to them is added here on purpose, from the program's manual.

/// What a directive of a unit takes.
#[derive(Debug, Clone, Copy)]
enum Value {
    /// Anything but nothing.
    Text,
    /// Words of this list, at least one; a `~` before the first turns the list round.
    Words(&'static [&'static str]),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// `yes` or `no`.
    Switch,
    /// Nothing, which clears a list.
    Nothing,
    /// Octal permissions.
    Mode,
    /// A whole number; for times, of seconds.
    Number,
    /// `NAME=value`.
    Assignment,
    /// An absolute path with its arguments.
    Command,
    /// An absolute path, with a `-` before it if it may be missing.
    File,
}

const FAMILIES: &[&str] = &["AF_INET", "AF_INET6", "AF_UNIX"];
const CALLS: &[&str] = &["@system-service", "@privileged", "@resources"];

/// Section, directive, value. From systemd.unit(5), systemd.service(5), systemd.exec(5) and systemd.kill(5).
const UNIT: &[(&str, &str, Value)] = &[
    ("Unit", "Description", Value::Text),
    ("Unit", "Documentation", Value::Text),
    ("Unit", "After", Value::Text),
    ("Service", "Type", Value::OneOf(&["simple", "exec", "notify", "forking", "oneshot"])),
    ("Service", "ExecStart", Value::Command),
    ("Service", "EnvironmentFile", Value::File),
    ("Service", "Environment", Value::Assignment),
    ("Service", "DynamicUser", Value::Switch),
    ("Service", "CacheDirectory", Value::Text),
    ("Service", "CacheDirectoryMode", Value::Mode),
    ("Service", "StateDirectory", Value::Text),
    ("Service", "StateDirectoryMode", Value::Mode),
    ("Service", "UMask", Value::Mode),
    ("Service", "Restart", Value::OneOf(&["no", "always", "on-failure", "on-abnormal"])),
    ("Service", "RestartSec", Value::Number),
    ("Service", "RestartPreventExitStatus", Value::Number),
    ("Service", "TimeoutStartSec", Value::Number),
    ("Service", "TimeoutStopSec", Value::Number),
    ("Service", "WatchdogSec", Value::Number),
    ("Service", "LoadCredential", Value::Text),
    ("Service", "LimitNOFILE", Value::Number),
    ("Service", "NoNewPrivileges", Value::Switch),
    ("Service", "CapabilityBoundingSet", Value::Nothing),
    ("Service", "ProtectSystem", Value::OneOf(&["yes", "no", "full", "strict"])),
    ("Service", "ProtectHome", Value::OneOf(&["yes", "no", "read-only", "tmpfs"])),
    ("Service", "ProtectProc", Value::OneOf(&["noaccess", "invisible", "ptraceable", "default"])),
    ("Service", "PrivateTmp", Value::Switch),
    ("Service", "PrivateDevices", Value::Switch),
    ("Service", "PrivateUsers", Value::Switch),
    ("Service", "ProtectClock", Value::Switch),
    ("Service", "ProtectHostname", Value::Switch),
    ("Service", "ProtectKernelTunables", Value::Switch),
    ("Service", "ProtectKernelModules", Value::Switch),
    ("Service", "ProtectKernelLogs", Value::Switch),
    ("Service", "ProtectControlGroups", Value::Switch),
    ("Service", "RestrictAddressFamilies", Value::Words(FAMILIES)),
    ("Service", "RestrictNamespaces", Value::Switch),
    ("Service", "RestrictRealtime", Value::Switch),
    ("Service", "RestrictSUIDSGID", Value::Switch),
    ("Service", "LockPersonality", Value::Switch),
    ("Service", "MemoryDenyWriteExecute", Value::Switch),
    ("Service", "SystemCallArchitectures", Value::OneOf(&["native"])),
    ("Service", "SystemCallFilter", Value::Words(CALLS)),
    ("Install", "WantedBy", Value::OneOf(&["multi-user.target", "default.target"])),
];

/// Lines without which the service would be less locked up than docs/deploying.md says.
const HARDENED: &[&str] = &[
    "DynamicUser=yes",
    "CacheDirectoryMode=0700",
    "StateDirectoryMode=0700",
    "UMask=0077",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "ProtectProc=invisible",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "PrivateUsers=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "MemoryDenyWriteExecute=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged",
];

/// Directives that may come several times.
const REPEATED: &[&str] =
    &["Environment", "EnvironmentFile", "LoadCredential", "SystemCallFilter", "Documentation", "After"];

fn fits(kind: Value, value: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match kind {
        Value::Text => !value.is_empty(),
        Value::Words(known) => {
            let mut words = value.strip_prefix('~').unwrap_or(value).split_whitespace().peekable();
            words.peek().is_some() && words.all(|word| known.contains(&word))
        }
        Value::OneOf(known) => known.contains(&value),
        Value::Switch => ["yes", "no"].contains(&value),
        Value::Nothing => value.is_empty(),
        Value::Mode => value.len() == 4 && value.starts_with('0') && u32::from_str_radix(value, 8).is_ok(),
        Value::Number => is_number(value),
        Value::Assignment => value.split_once('=').is_some_and(|(name, value)| {
            !value.is_empty() && !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
        }),
        Value::Command => value.starts_with('/') && !value.contains("  "),
        Value::File => value.strip_prefix('-').unwrap_or(value).starts_with('/'),
    }
}

/// What is wrong with a unit; nothing for a good one.
pub(crate) fn unit_problems(unit: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut section = "";
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            problems.push(format!("{line:?} is neither a section nor a directive"));
            continue;
        };
        match UNIT.iter().find(|(place, known, _)| *known == name && *place == section) {
            None => problems.push(format!("[{section}] has no directive {name:?}")),
            Some((_, _, kind)) if !fits(*kind, value) => {
                problems.push(format!("{line:?} has a value that {name} does not take ({kind:?})"));
            }
            Some(_) => {}
        }
        if seen.contains(&(section, name)) && !REPEATED.contains(&name) {
            problems.push(format!("{name} stands twice, and the last one counts"));
        }
        seen.push((section, name));
    }
    let missing = HARDENED.iter().filter(|hardened| !unit.lines().any(|line| line == **hardened));
    problems.extend(missing.map(|line| format!("the line {line:?} is missing")));
    for (section, name) in [("Unit", "Description"), ("Service", "ExecStart"), ("Install", "WantedBy")] {
        if !seen.contains(&(section, name)) {
            problems.push(format!("[{section}] needs {name}"));
        }
    }
    problems
}

/// Blocks and directives that our sites use: the words that begin a line, and the block that they stand in (empty outside
/// of all).
type Site = &'static [(&'static str, &'static str)];

/// From the reference of nginx: core, SSL, proxy and rewrite modules.
const NGINX: Site = &[
    ("", "server"),
    ("server", "listen"),
    ("server", "server_name"),
    ("server", "ssl_certificate"),
    ("server", "ssl_certificate_key"),
    ("server", "client_max_body_size"),
    ("server", "location"),
    ("location", "proxy_pass"),
    ("location", "proxy_http_version"),
    ("location", "proxy_set_header"),
    ("location", "proxy_buffering"),
    ("location", "proxy_read_timeout"),
    ("location", "return"),
];

/// From the reference of the Caddyfile. A site's block begins with its name.
const CADDY: Site = &[
    ("", "llm.example.com"),
    ("llm.example.com", "request_body"),
    ("llm.example.com", "respond"),
    ("llm.example.com", "reverse_proxy"),
    ("request_body", "max_size"),
    ("reverse_proxy", "flush_interval"),
    ("reverse_proxy", "header_up"),
];

/// What is wrong with a site for nginx.
pub(crate) fn nginx_problems(site: &str) -> Vec<String> {
    site_problems(site, NGINX, Some(';'))
}

/// What is wrong with a site for Caddy.
pub(crate) fn caddy_problems(site: &str) -> Vec<String> {
    site_problems(site, CADDY, None)
}

fn site_problems(site: &str, known: Site, end: Option<char>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    for line in site.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line == "}" {
            if open.pop().is_none() {
                problems.push("a block is closed that was never opened".to_owned());
            }
            continue;
        }
        let word = line.split([' ', '\t', ';']).next().unwrap();
        let place = open.last().copied().unwrap_or_default();
        if !known.contains(&(place, word)) {
            problems.push(format!("{word:?} is not known in {place:?}: {line:?}"));
        }
        match line.strip_suffix('{') {
            Some(head) if head.ends_with(' ') => open.push(word),
            Some(_) => problems.push(format!("no space before the brace: {line:?}")),
            None => {
                let has_value = line.trim_end_matches(';').split_whitespace().count() > 1;
                if !has_value || end.is_some_and(|end| !line.ends_with(end)) {
                    problems.push(format!("{line:?} is not complete"));
                }
            }
        }
    }
    problems.extend(open.iter().map(|block| format!("the block {block:?} is not closed")));
    problems
}

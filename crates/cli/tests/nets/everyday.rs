//! Scripted sessions in a terminal of 80 columns: what a person types and sees, compared with `snapshots/*.txt`.
//!
//! `SNAPSHOTS=overwrite` in the environment of the test rewrites them. Numbers that vary are masked: `N` stands for a
//! size, a time or a speed, `PORT` for a port, `~` for the home folder.

use std::path::Path;

use poncho_models::{ModelName, Registry, ignore_progress};
use poncho_testkit::{ModelKind, ModelSpec, model_path, path_of};
use snapbox::{assert_data_eq, file};

use crate::fake_server::{End, FakeServer, Script};
use crate::served::{Served, serve_without_model};
use crate::support::{damage, prepare, row_path};
use crate::terminal::Terminal;

/// Enough rows that nothing scrolls away.
const SIZE: (u16, u16) = (100, 80);

/// A person at a terminal: every command in a terminal of its own, one page of all of them.
struct Session<'a> {
    home: &'a Path,
    variables: Vec<(&'a str, String)>,
    page: String,
}

impl<'a> Session<'a> {
    fn new(home: &'a Path) -> Self {
        Self { home, variables: Vec::new(), page: String::new() }
    }

    /// A heading of the page.
    fn about(&mut self, text: &str) {
        let gap = if self.page.is_empty() { "" } else { "\n" };
        self.page.push_str(&format!("{gap}# {text}\n"));
    }

    /// Runs a command; `typed` is what is waited for and what is typed then.
    fn run(&mut self, words: &[&str], typed: &[(&str, &str)]) {
        let variables: Vec<(&str, &str)> = self.variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut terminal = Terminal::open_sized(SIZE, words, self.home, &variables);
        for (awaited, keys) in typed {
            match *awaited {
                ">>>" => terminal.wait_for_prompt(),
                text => terminal.wait_for(text),
            };
            terminal.keys(keys);
        }
        let (code, screen) = terminal.end();
        // The terminal itself wraps errors, questions and what is typed.
        let fits = |line: &str| {
            line.chars().count() <= 80
                || ["error: ", ">>> "].iter().any(|start| line.starts_with(start))
                || line.ends_with("[y/N]")
        };
        assert!(screen.lines().all(|line| fits(line.trim_end().trim_end_matches(" y"))), "{screen}");
        let quoted = words.iter().map(|word| if word.contains(' ') { format!("'{word}'") } else { (*word).to_owned() });
        self.page.push_str(&format!("$ poncho {}\n", quoted.collect::<Vec<_>>().join(" ")));
        self.page.extend(screen.trim_end().lines().map(|line| format!("{}\n", line.trim_end())));
        if code != 0 {
            self.page.push_str(&format!("[exit code {code}]\n"));
        }
    }

    /// The page with everything masked that varies.
    fn masked(&self) -> String {
        let text = self.page.replace(self.home.to_str().unwrap(), "~");
        text.lines().map(|line| masked_line(line) + "\n").collect()
    }
}

/// Units of numbers that vary.
const UNITS: [&str; 7] = ["ms", "s", "B", "KiB", "MiB", "tokens/s", "ago"];

fn masked_line(line: &str) -> String {
    let line = match line.split_once("127.0.0.1:") {
        Some((before, rest)) => {
            format!("{before}127.0.0.1:PORT{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => line.to_owned(),
    };
    let line = line.replace("just now", "0 seconds ago");
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    // No bytes are a fact, no milliseconds are luck.
    let is_time = |unit: &str| ["ms", "s"].contains(&unit);
    let varies = |word: &str, unit: &str| word.parse::<f64>().is_ok_and(|number| number > 0.0 || is_time(unit));
    // The columns of a table depend on its numbers.
    let mut is_masked = line.contains("  ") && line == line.to_uppercase();
    for at in 1..words.len() {
        let unit = words[at].trim_end_matches([')', ';', ',', '?']).trim_start_matches('(').to_owned();
        if !UNITS.contains(&unit.as_str()) {
            continue;
        }
        if unit == "ago" && at > 1 {
            (words[at - 2], words[at - 1]) = ("N".to_owned(), "UNITS".to_owned());
            // How much fits after it depends on its length.
            words.truncate(at + 1);
            is_masked = true;
            break;
        } else if varies(words[at - 1].trim_start_matches('('), &unit) {
            let bracket = if words[at - 1].starts_with('(') { "(" } else { "" };
            words[at - 1] = format!("{bracket}N");
            if is_time(&unit) {
                words[at] = "ms".to_owned();
            }
            is_masked = true;
        }
    }
    if is_masked {
        // How much of a name fits depends on the numbers beside it.
        for word in words.iter_mut().filter(|word| word.contains('\u{2026}')) {
            *word = word.chars().take(8).chain(['\u{2026}']).collect();
        }
    }
    let mut line = words.join(" ");
    while is_masked && line.contains("   ") {
        line = line.replace("   ", "  ");
    }
    line
}

fn install(home: &Path, name: &str) {
    let registry = Registry::open(home.join(".local/share/poncho/models")).unwrap();
    registry.import(&model_path(ModelKind::Attention), &ModelName::parse(name).unwrap(), &mut ignore_progress).unwrap();
}

/// A server with the models of the home folder.
fn serve(home: &Path, words: &[&str]) -> Served {
    let mut command = serve_without_model(&home.join("kv"));
    command.args(["--port", "0", "--parallel", "1", "--models-dir"]).arg(home.join(".local/share/poncho/models"));
    command.args(words);
    Served::start_command(&mut command, home)
}

/// Everyday use 8.
#[test]
fn the_cache_is_cleaned_evicted_and_cleared() {
    let home = tempfile::tempdir_in("/tmp").unwrap();
    let folder = home.path().join(".cache/poncho/kv");
    let prepared = prepare(&folder);
    let mut session = Session::new(home.path());
    session.about("Nothing is garbage");
    session.run(&["cache", "gc"], &[]);
    session.about("A damaged row is");
    damage(&row_path(&folder, &prepared.branch), 100);
    session.run(&["cache", "gc", "--dry-run"], &[]);
    session.run(&["--log-level", "error", "cache", "gc"], &[]);
    session.about("Freeing space says what goes");
    session.run(&["cache", "evict", "1", "--dry-run"], &[]);
    session.run(&["cache", "evict", "1"], &[]);
    session.about("Emptying it asks first");
    session.run(&["cache", "clear"], &[("[y/N] ", "\r")]);
    session.run(&["cache", "clear"], &[("[y/N] ", "y\r")]);
    session.run(&["cache", "clear"], &[]);
    assert_data_eq!(session.masked(), file!["snapshots/everyday_cache.txt"].raw());
}

/// Everyday use 12.
#[test]
fn a_model_is_chosen_and_refusals_are_explained() {
    let home = tempfile::tempdir_in("/tmp").unwrap();
    install(home.path(), "alpha:1");
    install(home.path(), "zeta:1");
    let mut session = Session::new(home.path());
    session.about("The loaded model is used, not the first of the list");
    let served = serve(home.path(), &["--model", "zeta:1"]);
    session.variables = vec![("PONCHO_PORT", served.address.port().to_string())];
    session.run(&["run"], &[(">>>", "/model\r"), ("* zeta", ""), (">>>", "/quit\r")]);
    session.about("A model of the command line has no expiry, also after it was stopped");
    session.run(&["ps"], &[]);
    session.run(&["stop", "zeta:1"], &[]);
    session.run(&["ps"], &[]);
    session.run(&["run"], &[(">>>", "/show\r"), ("architecture", ""), (">>>", "/quit\r")]);
    session.run(&["tokenize", "Hi"], &[]);
    session.run(&["ps"], &[]);
    drop(served);
    session.about("A server with a key says so");
    let served = serve(home.path(), &["--model", "zeta:1", "--api-key", "secret"]);
    session.variables = vec![("PONCHO_PORT", served.address.port().to_string())];
    session.run(&["run"], &[]);
    session.run(&["ps"], &[]);
    session.run(&["ps", "--api-key", "wrong"], &[]);
    drop(served);
    session.about("A prompt that is too long");
    session.variables = vec![("PONCHO_PORT", "1".to_owned())];
    let long = "Read this carefully. ".repeat(20);
    let own = ["run", "alpha:1", "--local", "--threads", "1", "--ctx-size", "64", "--cache-dir", "kv"];
    let message = format!("{long}\r");
    session.run(&own, &[(">>>", &message), ("error: ", ""), (">>>", "/quit\r")]);
    assert_data_eq!(session.masked(), file!["snapshots/everyday_models.txt"].raw());
}

/// `poncho fit` on machines of several sizes; `--memory` stands for them.
#[test]
fn a_model_is_fitted_to_memory() {
    let home = tempfile::tempdir_in("/tmp").unwrap();
    let spec = ModelSpec { n_ctx_train: 131_072, ..ModelSpec::tiny(ModelKind::Attention) };
    std::fs::copy(path_of(&spec).unwrap(), home.path().join("long.gguf")).unwrap();
    let mut session = Session::new(home.path());
    let path = home.path().join("long.gguf").to_str().unwrap().to_owned();
    let fit = |session: &mut Session<'_>, words: &[&str]| {
        session.run(&[&["fit", path.as_str(), "--cache-size", "1GiB"][..], words].concat(), &[]);
    };
    session.about("Enough for everything");
    fit(&mut session, &["--memory", "4GiB"]);
    session.about("Less: fewer at once, then a smaller KV cache, then less context");
    fit(&mut session, &["--memory", "800MiB"]);
    fit(&mut session, &["--memory", "500MiB"]);
    fit(&mut session, &["--memory", "400MiB"]);
    session.about("Given values are not repeated");
    fit(&mut session, &["-c", "4096", "-np", "2", "-ctk", "q8_0", "-ctv", "q8_0", "--memory", "4GiB"]);
    session.about("Too little");
    fit(&mut session, &["-c", "131072", "--no-mmap", "--memory", "280MiB"]);
    assert_data_eq!(session.masked(), file!["snapshots/everyday_fit.txt"].raw());
}

/// Everyday use 16.
#[test]
fn a_chat_shows_times_and_takes_parameters() {
    let home = tempfile::tempdir_in("/tmp").unwrap();
    let pieces = [
        "The quick brown fox ju",
        "mps over the lazy dog, again and ag",
        "ain and again, unti",
        "l the line is full and goes on.",
    ];
    let server = FakeServer::start(Script { pieces: pieces.to_vec(), end: End::Whole });
    let mut session = Session::new(home.path());
    session.about("Replies wrap at words; a parameter, another reply, the model");
    let typed = [
        (">>>", "Tell me a story\r"),
        ("partial hit: ", ""),
        (">>>", "/set temperature 0.5\r"),
        ("temperature is", ""),
        (">>>", "/set colour red\r"),
        ("unknown parameter", ""),
        (">>>", "/set verbose\r"),
        ("are shown", ""),
        (">>>", "/retry\r"),
        ("total  ", ""),
        (">>>", "/show\r"),
        ("set   ", ""),
        (">>>", "/set\r"),
        ("/set NAME default", ""),
        (">>>", "/nope\r"),
        ("unknown command", ""),
        (">>>", "/help\r"),
        ("Ctrl-C stops a reply", ""),
        (">>>", "/quit\r"),
    ];
    session.run(&["run", "--url", &server.url], &typed);
    let posted: Vec<_> = server.posted.try_iter().filter(|(path, _)| path == "/v1/chat/completions").collect();
    assert_eq!(posted[0].1["messages"], posted[1].1["messages"], "the first reply is not part of the second request");
    assert_eq!(posted[1].1["temperature"], 0.5);
    session.about("One prompt with its times, and in JSON");
    session.run(&["run", "--url", &server.url, "--verbose", "fake", "Hello"], &[]);
    server.now(Script { pieces: vec!["{\"colours\": 3}"], end: End::Whole });
    session.run(&["run", "--url", &server.url, "--format", "json", "fake", "Three colours"], &[]);
    let asked = server.posted.try_iter().last().unwrap().1;
    assert_eq!(asked["response_format"], serde_json::json!({"type": "json_object"}));
    session.run(&["run", "--url", &server.url, "--format", "no-such-file.json", "fake", "Three colours"], &[]);
    session.about("Tables fit, and a repository gets a hint");
    install(home.path(), "somebody/a-model-with-a-rather-long-name-for-a-table-instruct:q4_k_m");
    install(home.path(), "small:1");
    session.run(&["ls"], &[]);
    session.run(&["ls", "--catalogue"], &[]);
    session.run(&["pull", "Somebody/Some-Model-GGUF"], &[]);
    session.run(&["pull", "smolm2:135m"], &[]);
    let page = session.masked().replace(&server.url.replace("http://127.0.0.1:", "127.0.0.1:"), "127.0.0.1:PORT");
    assert_data_eq!(page, file!["snapshots/everyday_chat.txt"].raw());
}

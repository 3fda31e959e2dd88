//! `poncho run` in a terminal: a conversation with a tiny model, and with a server that answers what the test wants.

use std::path::Path;

use poncho_testkit::{ModelKind, model_path};
use rustix::process::Signal;

use crate::fake_server::{BOUND, End, FakeServer, Script};
use crate::terminal::Terminal;

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";

/// A chat with a model in the program's own process.
fn chat(home: &Path, more: &[&str]) -> Terminal {
    let (model, cache) = (model_path(ModelKind::Attention), home.join("kv"));
    let mut words = vec!["run", model.to_str().unwrap(), "--local", "--threads", "1", "--seed", "3"];
    words.extend(["--max-tokens", "12", "--cache-dir", cache.to_str().unwrap()]);
    words.extend(more);
    Terminal::open(&words, home)
}

/// A chat with a server of the test.
fn scripted(home: &Path, pieces: &[&'static str], end: End) -> (FakeServer, Terminal) {
    let server = FakeServer::start(Script { pieces: pieces.to_vec(), end });
    let terminal = Terminal::open(&["run", "--url", &server.url], home);
    terminal.wait_for_prompt();
    (server, terminal)
}

/// The last line after a reply: kind of hit and cached tokens.
fn last_summary(screen: &str) -> (String, u64) {
    let line = screen.lines().rfind(|line| line.contains(" cached + ")).unwrap();
    let (kind, rest) = line.split_once(": ").unwrap();
    (kind.to_owned(), rest.split(' ').next().unwrap().parse().unwrap())
}

fn count(screen: &str, text: &str) -> usize {
    screen.matches(text).count()
}

#[test]
fn a_conversation_is_kept_and_its_second_turn_is_a_hit() {
    let home = tempfile::tempdir().unwrap();
    let mut terminal = chat(home.path(), &["--system", "Answer in one line."]);
    terminal.wait_for_prompt();
    terminal.keys("Hello there\r");
    let screen = terminal.wait("the first reply", |screen| count(screen, " cached + ") == 1);
    assert_eq!(last_summary(&screen), ("cold".to_owned(), 0));
    terminal.wait_for_prompt();
    terminal.keys("And again\r");
    let screen = terminal.wait("the second reply", |screen| count(screen, " cached + ") == 2);
    let (kind, cached) = last_summary(&screen);
    assert!(kind.ends_with(" hit") && cached > 30, "{screen}");
    assert!(terminal.raw().contains("\x1b[2mcold: 0 cached"), "the line is dim");
    terminal.wait_for_prompt();
    terminal.keys("/stats\r");
    let screen = terminal.wait_for("2 replies, ");
    assert!(screen.contains(&format!("{cached} of ")), "{screen}");
    terminal.wait_for_prompt();
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end().0, 0);
    assert!(home.path().join("kv").is_dir(), "the model's states are kept in the folder");
}

#[test]
fn ctrl_c_stops_the_reply_and_not_the_program() {
    let home = tempfile::tempdir().unwrap();
    let (server, mut terminal) = scripted(home.path(), &["one ", "two"], End::Never);
    terminal.keys("Count\r");
    terminal.wait_for("one two");
    terminal.keys(CTRL_C);
    terminal.wait_for("stopped");
    server.left.recv_timeout(BOUND).expect("the request is cancelled at the server");
    terminal.wait_for_prompt();
    server.now(Script { pieces: vec!["three"], end: End::Whole });
    terminal.keys("Go on\r");
    terminal.wait_for("partial hit: 6 cached + 3 new tokens, 4 generated");
    let posted: Vec<_> = server.posted.try_iter().map(|(_, body)| body["messages"].clone()).collect();
    let said: Vec<&str> = posted[1].as_array().unwrap().iter().map(|turn| turn["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["Count", "one two", "Go on"], "what was said until then is part of the conversation");
    terminal.wait_for_prompt();
    terminal.keys("half a line");
    terminal.wait_for("half a line");
    terminal.keys(CTRL_C);
    terminal.wait_for_prompt();
    terminal.keys(CTRL_C);
    terminal.wait_for("press Ctrl-C again or Ctrl-D to quit");
    terminal.wait_for_prompt();
    terminal.keys(CTRL_C);
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn ctrl_c_before_the_first_token_takes_the_turn_back() {
    let home = tempfile::tempdir().unwrap();
    let (server, mut terminal) = scripted(home.path(), &[], End::Never);
    terminal.keys("Lost\r");
    terminal.wait_for("processing the prompt");
    terminal.keys(CTRL_C);
    terminal.wait_for("stopped");
    let screen = terminal.wait_for_prompt();
    assert!(!screen.contains("processing the prompt"), "{screen}");
    server.now(Script { pieces: vec!["fine"], end: End::Whole });
    terminal.keys("Kept\r");
    terminal.wait_for("partial hit");
    let messages = server.posted.try_iter().last().unwrap().1["messages"].clone();
    assert_eq!(messages.as_array().unwrap().len(), 1, "{messages}");
    terminal.wait_for_prompt();
    terminal.keys("/quit\r");
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn nothing_of_a_reply_is_obeyed_by_the_terminal() {
    let home = tempfile::tempdir().unwrap();
    let evil = ["a\x1b[2J\x1b]0;owned\x07", "\u{9b}31m", "\u{1b}", "c\rd\u{202e}"];
    let (_server, mut terminal) = scripted(home.path(), &evil, End::Whole);
    terminal.keys("Hello\r");
    terminal.wait_for("partial hit");
    let raw = terminal.raw();
    assert!(raw.contains("a\u{241b}[2J\u{241b}]0;owned\u{2407}\u{fffd}31m\u{241b}cd\u{fffd}"), "{raw:?}");
    assert!(!raw.contains("\x1b]0;") && !raw.contains("\x1bc") && !raw.contains('\u{9b}') && !raw.contains('\u{202e}'));
    terminal.wait_for_prompt();
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn commands_are_obeyed_and_wrong_ones_explained() {
    let home = tempfile::tempdir().unwrap();
    let (server, mut terminal) = scripted(home.path(), &["yes"], End::Whole);
    let command = |terminal: &mut Terminal, keys: &str, expected: &str| {
        terminal.keys(keys);
        terminal.wait_for(expected);
        terminal.wait_for_prompt();
    };
    command(&mut terminal, "/help\r", "clear the conversation, keep the system prompt");
    command(&mut terminal, "/nope\r", "unknown command /nope");
    command(&mut terminal, "/system Be brief.\r", "applies from the next reply on");
    command(&mut terminal, "\"\"\"first\r  second\r\"\"\"\r", "partial hit");
    command(&mut terminal, "/save talk.json\r", "saved 2 messages to talk.json");
    command(&mut terminal, "/clear\r", "the conversation is cleared");
    command(&mut terminal, "/load talk.json\r", "loaded 2 messages from talk.json");
    command(&mut terminal, "/load nothing.json\r", "error: cannot read nothing.json");
    command(&mut terminal, "/save ~/again.json\r", "again.json");
    assert!(home.path().join("again.json").is_file(), "the home folder is meant");
    command(&mut terminal, "/set format {\"type\": \"object\"}\r", "replies are JSON from the next one on");
    command(&mut terminal, "/set noformat\r", "replies are plain text");
    command(&mut terminal, "/model\r", "* fake");
    command(&mut terminal, "/model other\r", "the server has no model other");
    terminal.keys("one\\\rtwo\r");
    terminal.wait("the second reply", |screen| count(screen, "partial hit") == 2);
    let last = server.posted.try_iter().last().unwrap().1;
    let expected = serde_json::json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "first\n  second"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "one\ntwo"},
    ]);
    assert_eq!(last["messages"], expected);
    terminal.wait_for_prompt();
    terminal.keys("/quit\r");
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn history_outlives_the_program_and_is_the_users_own() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = tempfile::tempdir().unwrap();
    let (_first, mut terminal) = scripted(home.path(), &["yes"], End::Whole);
    terminal.keys("remember me\r");
    terminal.wait_for("partial hit");
    terminal.wait_for_prompt();
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end().0, 0);
    let file = home.path().join(".local/state/poncho/history");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0, "others cannot read it");
    let (_second, mut terminal) = scripted(home.path(), &["yes"], End::Whole);
    terminal.keys(UP);
    terminal.wait_for(">>> remember me");
    terminal.keys("\r");
    terminal.wait_for("partial hit");
    terminal.wait_for_prompt();
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn a_reply_that_breaks_off_is_said_and_the_chat_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let (server, mut terminal) = scripted(home.path(), &["half"], End::Broken);
    terminal.keys("Hello\r");
    terminal.wait_for("error: the reply broke off");
    terminal.wait_for_prompt();
    server.now(Script { pieces: vec!["whole"], end: End::Whole });
    terminal.keys("Again\r");
    terminal.wait_for("partial hit");
    terminal.wait_for_prompt();
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn retry_after_load_answers_the_last_message_of_the_loaded_conversation() {
    let home = tempfile::tempdir().unwrap();
    let (server, mut terminal) = scripted(home.path(), &["yes"], End::Whole);
    terminal.keys("Kept\r");
    terminal.wait_for("partial hit");
    terminal.wait_for_prompt();
    terminal.keys("/save talk.json\r");
    terminal.wait_for("saved 2 messages");
    terminal.wait_for_prompt();
    server.now(Script { pieces: vec!["half"], end: End::Broken });
    terminal.keys("Lost\r");
    terminal.wait_for("error: the reply broke off");
    terminal.wait_for_prompt();
    terminal.keys("/load talk.json\r");
    terminal.wait_for("loaded 2 messages");
    terminal.wait_for_prompt();
    server.now(Script { pieces: vec!["again"], end: End::Whole });
    terminal.keys("/retry\r");
    terminal.wait("the second reply", |screen| count(screen, "partial hit") == 2);
    let last = server.posted.try_iter().last().unwrap().1;
    assert_eq!(last["messages"], serde_json::json!([{"role": "user", "content": "Kept"}]));
    terminal.wait_for_prompt();
    terminal.keys("/clear\r");
    terminal.wait_for("the conversation is cleared");
    terminal.wait_for_prompt();
    terminal.keys("/retry\r");
    terminal.wait_for("there is no message to answer again");
    terminal.wait_for_prompt();
    terminal.keys("/quit\r");
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn being_told_to_end_restores_the_terminal_and_saves() {
    let home = tempfile::tempdir().unwrap();
    let system = "You are a careful assistant who answers in one line. ".repeat(12);
    let mut terminal = chat(home.path(), &["--system", &system]);
    terminal.wait_for_prompt();
    terminal.keys("Hello\r");
    terminal.wait_for("cold: 0 cached");
    terminal.wait_for_prompt();
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.end().0, 128 + 15);
    let mut again = chat(home.path(), &["--system", &system]);
    again.wait_for_prompt();
    again.keys("Hello\r");
    let screen = again.wait_for(" cached + ");
    let (kind, cached) = last_summary(&screen);
    assert!(kind.ends_with(" hit") && cached > 500, "{screen}");
    again.wait_for_prompt();
    again.keys(CTRL_D);
    assert_eq!(again.end().0, 0);
}

#[test]
fn being_told_to_end_does_not_wait_for_a_reply() {
    let home = tempfile::tempdir().unwrap();
    let (server, mut terminal) = scripted(home.path(), &["one"], End::Never);
    terminal.keys("Count\r");
    terminal.wait_for("one");
    terminal.signal(Signal::HUP);
    server.left.recv_timeout(BOUND).unwrap();
    assert_eq!(terminal.end().0, 128 + 1);
}

#[test]
fn keys_pressed_during_a_reply_wait_for_the_prompt() {
    let home = tempfile::tempdir().unwrap();
    let (server, mut terminal) = scripted(home.path(), &["one"], End::Released);
    terminal.keys("Count\r");
    terminal.wait_for("one");
    terminal.keys("/help");
    server.release.send(()).unwrap();
    terminal.wait_for(">>> /help");
    let reply = terminal.raw().split("one").nth(1).unwrap().split(">>> ").next().unwrap().to_owned();
    assert!(!reply.contains("/help"), "nothing shows within the reply: {reply:?}");
    terminal.keys("\r");
    terminal.wait_for("clear the conversation");
    server.now(Script { pieces: vec!["two"], end: End::Never });
    terminal.wait_for_prompt();
    terminal.keys("Again\r");
    terminal.wait_for("two");
    terminal.keys(CTRL_C);
    terminal.wait_for("stopped");
    assert!(!terminal.raw().contains("^C"), "{:?}", terminal.raw());
    terminal.wait_for_prompt();
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn one_prompt_on_a_terminal_is_answered_and_ctrl_c_stops_it() {
    let home = tempfile::tempdir().unwrap();
    let server = FakeServer::start(Script { pieces: vec!["yes \x1b[2J"], end: End::Whole });
    let words = ["run", "--url", &server.url, "fake", "Hello"];
    let (code, screen) = Terminal::open(&words, home.path()).end();
    assert_eq!(code, 0);
    assert!(screen.contains("yes \u{241b}[2J") && screen.contains("partial hit: 6 cached"), "{screen}");
    server.now(Script { pieces: vec!["one"], end: End::Never });
    let mut terminal = Terminal::open(&words, home.path());
    terminal.wait_for("one");
    terminal.keys(CTRL_C);
    let (code, screen) = terminal.end();
    assert!(code == 1 && screen.contains("stopped"), "{screen}");
}

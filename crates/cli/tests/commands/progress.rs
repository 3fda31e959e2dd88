//! Progress of long commands: a bar on a terminal that leaves nothing behind, and no escape sequences elsewhere.

use crate::commands::models::place;
use crate::support::{cache, prepare};
use crate::terminal::Terminal;

#[test]
fn a_check_of_the_cache_shows_a_bar_on_a_terminal_and_clears_it() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("kv");
    prepare(&folder);
    let terminal = Terminal::open(&["cache", "verify", "--cache-dir", folder.to_str().unwrap()], home.path());
    terminal.wait_for("5 rows checked, 0 damaged");
    let raw = terminal.raw();
    let (code, screen) = terminal.end();
    assert_eq!((code, screen.trim()), (0, "5 rows checked, 0 damaged"));
    assert!(raw.contains("checking 5 rows [") && raw.contains("KiB"), "{raw:?}");
}

#[test]
fn an_installation_shows_a_bar_on_a_terminal_and_clears_it() {
    let place = place();
    let terminal = Terminal::open(&["pull", "./tiny.gguf", "--name", "tiny:1", "--models-dir", "m"], place.path());
    terminal.wait_for("installed tiny:1 (");
    let raw = terminal.raw();
    let (code, screen) = terminal.end();
    assert!(code == 0 && screen.trim().starts_with("installed tiny:1 ("), "{screen}");
    assert!(raw.contains("checking ./tiny.gguf ["), "{raw:?}");
}

#[test]
fn a_short_check_prints_no_progress_without_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    assert_eq!(cache(folder.path(), &["verify"]).stderr, "");
}

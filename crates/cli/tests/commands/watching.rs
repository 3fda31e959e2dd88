//! `poncho top` in a terminal and as text, before a server that runs, goes away and comes back.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use poncho_testkit::{ModelKind, model_path};
use rustix::process::Signal;

use crate::served::Served;
use crate::support::{poncho, run};
use crate::terminal::Terminal;

#[test]
fn it_draws_a_server_and_q_quits() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start_model(&model_path(ModelKind::Attention), home.path());
    let mut chat = poncho();
    chat.args(["run", "--url", &served.url(), "--max-tokens", "4", "attention", "Hello"]).env("HOME", home.path());
    assert_eq!(run(&mut chat).code, Some(0));
    let mut terminal = Terminal::open(&["top", "--url", &served.url(), "--interval", "0.1"], home.path());
    let is_drawn = |screen: &str| {
        ["attention", "idle", "disk", "% of 20.0 GiB", "cold 1"].iter().all(|text| screen.contains(text))
    };
    terminal.wait("the dashboard", is_drawn);
    assert!(terminal.raw().contains("\x1b[?1049h"), "it has a screen of its own");
    terminal.keys("q");
    let (code, screen) = terminal.end();
    assert_eq!((code, screen.trim()), (0, ""), "nothing is left on the screen");
}

/// Forwards connections to a server while it is up, and drops them while it is not.
struct Road {
    url: String,
    is_up: Arc<AtomicBool>,
}

impl Road {
    fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = format!("http://{}", listener.local_addr().unwrap());
        let target = url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
        let is_up = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&is_up);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                if !seen.load(Ordering::SeqCst) {
                    continue;
                }
                let far = TcpStream::connect(&target).unwrap();
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || carry(near, far));
                std::thread::spawn(move || carry(far_too, near_too));
            }
        });
        Self { url: own, is_up }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    // Either side may go away at any time.
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn a_lost_server_is_shown_and_found_again() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start_model(&model_path(ModelKind::Attention), home.path());
    let road = Road::to(&served.url());
    let mut terminal = Terminal::open(&["top", "--url", &road.url, "--interval", "0.1"], home.path());
    terminal.wait_for("idle");
    road.is_up.store(false, Ordering::SeqCst);
    let screen = terminal.wait_for("disconnected, retrying");
    assert!(screen.contains("idle"), "what was seen last stays:\n{screen}");
    road.is_up.store(true, Ordering::SeqCst);
    terminal.wait("the server", |screen| screen.contains("in flight") && !screen.contains("lost"));
    terminal.keys("\x03");
    assert_eq!(terminal.end().0, 0, "Ctrl-C quits too");
}

#[test]
fn being_told_to_end_restores_the_terminal() {
    let home = tempfile::tempdir().unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let terminal = Terminal::open(&["top", "--url", "http://127.0.0.1:1"], home.path());
        terminal.wait_for("disconnected, retrying");
        terminal.signal(signal);
        assert_eq!(terminal.end().0, 0, "{signal:?}");
    }
}

#[test]
fn one_frame_is_plain_text() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start_model(&model_path(ModelKind::Attention), home.path());
    let mut once = poncho();
    let once = run(once.args(["top", "--once", "--url", &served.url()]));
    let text = once.good();
    for expected in ["in flight", "MODEL", "attention", "TIER", "ram", "disk", "none yet", "SESSION"] {
        assert!(text.contains(expected), "{expected} is missing in\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    let mut gone = poncho();
    assert!(run(gone.args(["top", "--once", "--url", "http://127.0.0.1:1"])).failed().contains("127.0.0.1:1"));
    let mut no_terminal = poncho();
    assert!(run(no_terminal.args(["top", "--url", &served.url()])).failed().contains("--once"));
}

//! `poncho top`: a dashboard of a running server in the terminal.
//!
//! A poller reads the server (`snapshot.rs`), the view keeps what the rates need (`view.rs`), and one widget draws it
//! (`dashboard.rs`), on the terminal or as plain text. A lost server is shown as such and polled again. The terminal is
//! restored on every way out: the end, an error, a signal, a panic.

pub(crate) mod args;
mod dashboard;
mod snapshot;
mod view;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt;
use poncho_client::{Client, single_thread_runtime};
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use poncho_terminal::Outcome;

use crate::client::administered;
use crate::commands::running::top::args::TopArgs;
use crate::commands::running::top::dashboard::Dashboard;
use crate::commands::running::top::snapshot::Snapshot;
use crate::commands::running::top::view::View;

/// Columns of a frame that is printed.
const PRINTED_WIDTH: u16 = 100;
/// Limit for an answer of the server.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &TopArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let client = administered(&args.server)?;
    // One thread: the terminal is drawn and restored on the thread that holds standard output.
    let runtime = single_thread_runtime()?;
    if args.once {
        let snapshot = runtime.block_on(look(&client))?;
        return print(&client, snapshot, out);
    }
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        bail!("standard input or output is not a terminal; `poncho top --once` prints one frame as text");
    }
    on_terminal(|terminal| runtime.block_on(watch(args, &client, terminal)))?;
    Ok(Outcome::Good)
}

/// Sets up the terminal while `draw` runs, and restores it however that ends.
fn on_terminal(draw: impl FnOnce(DefaultTerminal) -> anyhow::Result<()>) -> anyhow::Result<()> {
    // Also installs a hook that restores the terminal before a panic is reported.
    let terminal = ratatui::try_init().context("cannot set up the terminal")?;
    let _restore = Restore;
    draw(terminal)
}

/// Restores the terminal when it is dropped.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // After a panic the hook has done it; a second time would move the cursor over the message.
        if !std::thread::panicking() {
            ratatui::restore();
        }
    }
}

async fn look(client: &Client) -> anyhow::Result<Snapshot> {
    let late = || format!("the server at {} did not answer in time", client.authority());
    tokio::time::timeout(PATIENCE, Snapshot::take(client)).await.with_context(late)?
}

fn print(client: &Client, snapshot: Snapshot, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let mut view = View::new(client.authority());
    view.update(Ok(snapshot));
    let dashboard = Dashboard { view: &view };
    let area = Rect::new(0, 0, PRINTED_WIDTH, dashboard.height());
    let mut buffer = Buffer::empty(area);
    dashboard.render(area, &mut buffer);
    for row in buffer.content().chunks(usize::from(area.width)) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(Outcome::Good)
}

async fn watch(args: &TopArgs, client: &Client, mut terminal: DefaultTerminal) -> anyhow::Result<()> {
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (send, mut looks) = mpsc::channel(1);
    let poller = tokio::spawn(poll(client.clone(), args.interval, send));
    let mut events = EventStream::new();
    let mut view = View::new(client.authority());
    loop {
        terminal.draw(|frame| frame.render_widget(Dashboard { view: &view }, frame.area()))?;
        tokio::select! {
            _ = end.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => break,
            Some(look) = looks.recv() => view.update(look),
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) if ends(&key) => break,
                // A new size and anything else draws again.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("cannot read from the terminal"),
                None => break,
            },
        }
    }
    poller.abort();
    Ok(())
}

fn ends(key: &KeyEvent) -> bool {
    let is_control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release && (matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc) || is_control_c)
}

async fn poll(client: Client, pause: Duration, send: mpsc::Sender<Result<Snapshot, String>>) {
    loop {
        let seen = look(&client).await.map_err(|error| format!("{error:#}"));
        if send.send(seen).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use portable_pty::{CommandBuilder, PtySize, native_pty_system};

    use super::*;

    /// Makes the process that the test starts panic.
    const PANIC: &str = "PONCHO_TEST_PANIC_ON_TERMINAL";

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_reported() {
        if std::env::var_os(PANIC).is_some() {
            on_terminal(|_| panic!("something broke")).unwrap();
        }
        let pair = native_pty_system().openpty(PtySize::default()).unwrap();
        let modes = || format!("{:?}", pair.master.get_termios().unwrap());
        let before = modes();
        let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
        let name = "commands::running::top::tests::a_panic_gives_the_terminal_back_before_it_is_reported";
        command.args(["--exact", name, "--nocapture"]);
        command.env(PANIC, "1");
        // A long report would push the message off the screen.
        command.env("RUST_BACKTRACE", "0");
        command.env("TERM", "xterm-256color");
        let mut child = pair.slave.spawn_command(command).unwrap();
        let mut output = pair.master.try_clone_reader().unwrap();
        // Read on another thread until the end: a full terminal would block the child.
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // The end of a terminal is an error on Linux.
            let _ = output.read_to_end(&mut bytes);
            bytes
        });
        assert!(!child.wait().unwrap().success());
        assert_eq!(modes(), before);
        drop(pair.slave);
        let mut parser = vt100::Parser::new(24, 80, 1000);
        parser.process(&reading.join().unwrap());
        let screen = parser.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor());
        assert!(screen.contents().contains("something broke"), "{}", screen.contents());
    }
}

//! A program in a terminal of its own, as a user would see it: keys go in, a screen comes out.
//!
//! The screen is what a terminal would show after all bytes so far. Waiting is for a condition, never for a time.

use std::io::{Read as _, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use crate::fake_server::BOUND;

/// Rows and columns, unless a test wants others.
const SIZE: (u16, u16) = (50, 120);

/// What the program wrote.
struct Seen {
    parser: vt100::Parser,
    raw: Vec<u8>,
    is_over: bool,
}

pub(crate) struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    seen: Arc<(Mutex<Seen>, Condvar)>,
    modes_before: String,
}

impl Terminal {
    /// Starts `poncho WORDS` with an empty environment but for a terminal and a home folder.
    pub(crate) fn open(words: &[&str], home: &Path) -> Self {
        Self::open_sized(SIZE, words, home, &[])
    }

    /// The same in a terminal of this size, with more variables.
    pub(crate) fn open_sized(
        (rows, columns): (u16, u16),
        words: &[&str],
        home: &Path,
        variables: &[(&str, &str)],
    ) -> Self {
        let size = PtySize { rows, cols: columns, ..PtySize::default() };
        let pair = native_pty_system().openpty(size).unwrap();
        let modes_before = modes(&*pair.master);
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_poncho"));
        command.args(words);
        command.env_clear();
        let always = [
            ("TERM", "xterm-256color"),
            ("PATH", "/usr/bin:/bin"),
            ("HOME", home.to_str().unwrap()),
            ("PONCHO_CPU_BUILD", "base"),
        ];
        for (name, value) in always.iter().chain(variables) {
            command.env(name, value);
        }
        command.cwd(home);
        let child = pair.slave.spawn_command(command).unwrap();
        // Its end must show: only the program may hold the other side.
        drop(pair.slave);
        let parser = vt100::Parser::new(rows, columns, 1000);
        let seen = Arc::new((Mutex::new(Seen { parser, raw: Vec::new(), is_over: false }), Condvar::new()));
        let (mut output, writing) = (pair.master.try_clone_reader().unwrap(), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                let count = output.read(&mut bytes).unwrap_or(0);
                let mut seen = writing.0.lock().unwrap();
                seen.parser.process(&bytes[..count]);
                seen.raw.extend_from_slice(&bytes[..count]);
                seen.is_over = count == 0;
                writing.1.notify_all();
                if seen.is_over {
                    return;
                }
            }
        });
        let keys = pair.master.take_writer().unwrap();
        Self { child, master: pair.master, keys, seen, modes_before }
    }

    /// Presses keys.
    pub(crate) fn keys(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until the screen is as it should be, and returns it.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        let mut seen = self.seen.0.lock().unwrap();
        loop {
            let screen = seen.parser.screen().contents();
            if is_so(&screen) {
                return screen;
            }
            let left = BOUND.saturating_sub(start.elapsed());
            assert!(!left.is_zero() && !seen.is_over, "{what} was not seen; the screen:\n{screen}");
            seen = self.seen.1.wait_timeout(seen, left).unwrap().0;
        }
    }

    /// Waits until a text is on the screen.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.wait(text, |screen| screen.contains(text))
    }

    /// Waits until the last line is an empty prompt.
    #[track_caller]
    pub(crate) fn wait_for_prompt(&self) -> String {
        self.wait("a prompt", |screen| screen.trim_end().ends_with("\n>>>") || screen.trim_end() == ">>>")
    }

    /// Every byte so far.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.seen.0.lock().unwrap().raw).into_owned()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.child.process_id().unwrap()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// Waits until the program ended. Returns its exit code and asserts that the terminal is as it was.
    #[track_caller]
    pub(crate) fn end(mut self) -> (u32, String) {
        let start = Instant::now();
        let mut seen = self.seen.0.lock().unwrap();
        while !seen.is_over {
            let left = BOUND.saturating_sub(start.elapsed());
            assert!(!left.is_zero(), "it did not end; the screen:\n{}", seen.parser.screen().contents());
            seen = self.seen.1.wait_timeout(seen, left).unwrap().0;
        }
        assert!(!seen.parser.screen().alternate_screen() && !seen.parser.screen().hide_cursor());
        assert!(!seen.parser.screen().bracketed_paste());
        let screen = seen.parser.screen().contents();
        drop(seen);
        assert_eq!(modes(&*self.master), self.modes_before, "the terminal is not as it was");
        (self.child.wait().unwrap().exit_code(), screen)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Gone already unless a test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The settings of the terminal: echo, lines, signals.
fn modes(master: &dyn MasterPty) -> String {
    format!("{:?}", master.get_termios().unwrap())
}

//! Memory pressure of NVIDIA GPUs, asked of the program that comes with their driver.
//!
//! The program may be missing, fail, print nonsense or hang: each is an error value, in bounded time. At most one
//! run of it exists at a time.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};

use super::{PressureError, PressureSample, PressureSource, PressureSourceKind, unparsable};

/// Memory of all NVIDIA GPUs, added up, as `nvidia-smi` tells it.
#[derive(Debug)]
pub struct NvidiaSmiSource {
    program: PathBuf,
    timeout: Duration,
    /// A run that did not even end when killed, as happens when the driver hangs. No second one is started beside it.
    stuck: Option<Child>,
}

impl NvidiaSmiSource {
    /// A source that runs another program and gives it so much time.
    #[must_use]
    pub fn with_program(program: &Path, timeout: Duration) -> Self {
        Self { program: program.to_path_buf(), timeout, stuck: None }
    }

    fn program_error(&self, source: io::Error) -> PressureError {
        PressureError::Program { program: self.program.clone(), source }
    }

    fn timed_out(&self) -> PressureError {
        PressureError::TimedOut { program: self.program.clone(), timeout: self.timeout }
    }

    /// Runs the program to its end and returns what it printed. The pipe is read without blocking, because a child of
    /// the program may hold it open after the program itself has ended.
    fn run(&mut self) -> Result<String, PressureError> {
        /// Short against the seconds between two samples, long against a system call.
        const POLL: Duration = Duration::from_millis(5);
        let mut child = Command::new(&self.program)
            .args(["--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| self.program_error(source))?;
        let mut printed = Printed { pipe: child.stdout.take(), text: Vec::new() };
        let started = Instant::now();
        let ended = printed.set_nonblocking().and_then(|()| {
            loop {
                printed.drain()?;
                if let Some(status) = child.try_wait()? {
                    printed.drain()?;
                    return Ok(Some(status));
                }
                if started.elapsed() >= self.timeout {
                    return Ok(None);
                }
                std::thread::sleep(POLL);
            }
        });
        match ended {
            Ok(Some(status)) if status.success() => Ok(String::from_utf8_lossy(&printed.text).into_owned()),
            Ok(Some(status)) => Err(PressureError::ProgramFailed { program: self.program.clone(), status }),
            ended => {
                // Never waited for: a process inside a hanging driver does not even end when killed.
                let _ = child.kill();
                self.stuck = Some(child);
                Err(ended.map_or_else(|source| self.program_error(source), |_| self.timed_out()))
            }
        }
    }
}

impl Default for NvidiaSmiSource {
    fn default() -> Self {
        // It answers in well under a second, but takes longer while the driver wakes up.
        Self::with_program(Path::new("nvidia-smi"), Duration::from_secs(4))
    }
}

impl PressureSource for NvidiaSmiSource {
    fn name(&self) -> &str {
        PressureSourceKind::NvidiaSmi.as_str()
    }

    fn sample(&mut self) -> Result<PressureSample, PressureError> {
        if let Some(mut child) = self.stuck.take()
            && matches!(child.try_wait(), Ok(None))
        {
            self.stuck = Some(child);
            return Err(self.timed_out());
        }
        let text = self.run()?;
        parse_nvidia_smi(&text).map_err(|wanted| unparsable(&self.program.display().to_string(), wanted, &text))
    }
}

/// What a program has printed so far.
struct Printed {
    pipe: Option<ChildStdout>,
    text: Vec<u8>,
}

impl Printed {
    fn set_nonblocking(&self) -> io::Result<()> {
        self.pipe.as_ref().map_or(Ok(()), |pipe| Ok(fcntl_setfl(pipe, OFlags::NONBLOCK)?))
    }

    fn drain(&mut self) -> io::Result<()> {
        /// A line per GPU is a few dozen bytes.
        const MAX_BYTES: usize = 64 * 1024;
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut block = [0; 4096];
        loop {
            match pipe.read(&mut block) {
                Ok(0) => return Ok(()),
                Ok(_) if self.text.len() > MAX_BYTES => return Err(io::ErrorKind::FileTooLarge.into()),
                Ok(count) => self.text.extend_from_slice(block.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Parses a line of `used, total` in MiB for each GPU and adds them up.
fn parse_nvidia_smi(text: &str) -> Result<PressureSample, &'static str> {
    const WANTED: &str = "used and total MiB of each GPU";
    let mebibytes = |number: &str| number.trim().parse::<u64>().ok()?.checked_mul(1 << 20);
    let mut sum = PressureSample::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (used, total) = line.split_once(',').ok_or(WANTED)?;
        let (used, total) = mebibytes(used).zip(mebibytes(total)).ok_or(WANTED)?;
        sum.used = sum.used.checked_add(used).ok_or(WANTED)?;
        sum.total = sum.total.checked_add(total).ok_or(WANTED)?;
    }
    if sum.total == 0 { Err(WANTED) } else { Ok(sum) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(used: u64, total: u64) -> PressureSample {
        PressureSample { used, total }
    }

    #[test]
    fn gpus_are_added_up_and_unknown_numbers_refused() {
        assert_eq!(parse_nvidia_smi("100, 1000\n 20 , 500 \n\n"), Ok(sample(120 << 20, 1500 << 20)));
        for text in ["", "[N/A], [N/A]", "5", "1, 2\nx, 3", "1, 99999999999999999999"] {
            assert!(parse_nvidia_smi(text).is_err(), "{text:?}");
        }
    }

    /// Written by a shell: a file that this process had open for writing could still be held by a child that another
    /// test is starting, and would then refuse to run.
    fn script(folder: &tempfile::TempDir, body: &str) -> PathBuf {
        let path = folder.path().join("nvidia-smi");
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod 755 "$2""#, "sh", body]).arg(&path);
        assert!(shell.status().unwrap().success());
        path
    }

    #[test]
    fn program_is_run_and_its_failures_are_values() {
        let folder = tempfile::tempdir().unwrap();
        let run = |body: &str| {
            let mut source = NvidiaSmiSource::with_program(&script(&folder, body), Duration::from_secs(60));
            source.sample()
        };
        assert_eq!(
            run(r#"[ "$2" = --format=csv,noheader,nounits ] && echo "1, 4""#).unwrap(),
            sample(1 << 20, 4 << 20)
        );
        // The background child keeps the pipe open; the reading must not wait for it.
        let started = Instant::now();
        assert_eq!(run("sleep 30 2>/dev/null & echo '2, 4'").unwrap(), sample(2 << 20, 4 << 20));
        assert!(started.elapsed() < Duration::from_secs(20));
        assert!(matches!(run("exit 9"), Err(PressureError::ProgramFailed { status, .. }) if status.code() == Some(9)));
        assert!(matches!(run("echo none"), Err(PressureError::Unparsable { .. })));
        let missing = NvidiaSmiSource::with_program(Path::new("/nonexistent/x"), Duration::ZERO).sample();
        assert!(matches!(missing, Err(PressureError::Program { .. })));
    }

    #[test]
    fn hanging_program_is_given_up_in_bounded_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut source = NvidiaSmiSource::with_program(&script(&folder, "exec sleep 600"), Duration::from_millis(20));
        for _ in 0..2 {
            assert!(matches!(source.sample(), Err(PressureError::TimedOut { .. })));
        }
        let mut child = source.stuck.take().unwrap();
        assert!(!child.wait().unwrap().success(), "it was killed");
    }
}

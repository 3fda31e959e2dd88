//! The benchmark of the cache: ratios against the plain operation on the same bytes, measured in one run.
//!
//! `make bench` runs it. Contenders take turns inside every round, so that whatever the machine does meanwhile hits
//! both; a ratio is the median over the rounds. Files go to `PONCHO_BENCH_DIR` or to the target folder.
//! `-- --json FILE` writes the table as JSON too, `-- --only load` runs one part. `docs/benchmarks-cache.md` keeps one run and says what it does not
//! show.

mod lookup;
mod machine;
mod measure;
mod opening;
mod report;
mod sample_rows;
mod transfer;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use report::Report;

/// Whatever goes wrong ends the run with a message.
type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("a target is missed; see the table");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the benchmark failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs everything; false if a target is missed.
fn run() -> Outcome<bool> {
    let options = Options::read()?;
    let base =
        std::env::var_os("PONCHO_BENCH_DIR").map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    std::fs::create_dir_all(&base)?;
    let folder = tempfile::Builder::new().prefix("poncho-bench-").tempdir_in(&base)?;
    let mut report = Report::new(machine::facts(folder.path()));

    if options.wants("checksum") {
        transfer::checksums(&mut report)?;
    }
    if options.wants("memory") {
        transfer::memory(&mut report)?;
    }
    if options.wants("load") {
        transfer::load(&mut report, folder.path())?;
    }
    if options.wants("save") {
        transfer::save(&mut report, folder.path())?;
    }
    if options.wants("lookup") {
        lookup::lookups(&mut report, folder.path())?;
    }
    if options.wants("open") {
        opening::open_many(&mut report, folder.path())?;
    }

    print!("{}", report.text());
    if let Some(path) = options.json {
        std::fs::write(&path, report.json())?;
    }
    Ok(report.all_met())
}

/// What the command line asks for.
#[derive(Default)]
struct Options {
    /// Where the table goes as JSON.
    json: Option<PathBuf>,
    /// The one part to run; all without it.
    only: Option<String>,
}

impl Options {
    fn read() -> Outcome<Self> {
        let mut options = Self::default();
        let mut words = std::env::args_os().skip(1);
        while let Some(word) = words.next() {
            match word.to_str() {
                // Cargo's own.
                Some("--bench") => {}
                Some("--json") => options.json = Some(words.next().ok_or("--json wants a file")?.into()),
                Some("--only") => {
                    let part = words.next().and_then(|word| word.into_string().ok());
                    options.only = Some(part.ok_or("--only wants checksum, memory, load, save, lookup or open")?);
                }
                _ => return Err(format!("unknown argument {word:?}; there are --json FILE and --only PART").into()),
            }
        }
        Ok(options)
    }

    fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}

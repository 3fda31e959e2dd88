//! `poncho completions` and `poncho man`: the command line as a shell and `man` know it.
//!
//! Both are generated from the flags and their settings, so that nothing is kept in step by hand.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use poncho_terminal::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write one page for each command into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    // Into memory first: the generator panics if its writer fails, as a closed pipe does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "poncho", &mut script);
    out.write_all(&script)?;
    Ok(Outcome::Good)
}

pub(crate) fn man(args: &ManArgs, mut command: Command, out: &mut impl Write) -> anyhow::Result<Outcome> {
    command.build();
    match &args.out {
        None => out.write_all(&page(command)?)?,
        Some(folder) => {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}; check the path and its permissions", folder.display()))?;
            let count = write_pages(&command, "poncho", folder)?;
            writeln!(out, "{count} pages in {}", folder.display())?;
        }
    }
    Ok(Outcome::Good)
}

fn page(command: Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}

/// Writes `NAME.1` and the pages of all commands below it. Returns how many.
fn write_pages(command: &Command, name: &str, folder: &Path) -> anyhow::Result<usize> {
    let path = folder.join(format!("{name}.1"));
    // The leaked name lives as long as the process, which ends when the pages are written.
    let titled = command.clone().name(&*name.to_owned().leak());
    std::fs::write(&path, page(titled)?)
        .with_context(|| format!("cannot write {}; check the folder and its free space", path.display()))?;
    let mut count = 1;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        count += write_pages(sub, &format!("{name}-{}", sub.get_name()), folder)?;
    }
    Ok(count)
}

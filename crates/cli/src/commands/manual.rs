//! `poncho completions` and `poncho man`: what a shell and `man` know about the command line.
//!
//! Both are made from the flags themselves, with the settings in them, so that nothing has to be kept in step by hand.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;

use crate::Outcome;
use crate::args::{CompletionsArgs, ManArgs};
use crate::settings;

pub(crate) fn completions(args: &CompletionsArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    // Into memory first: the generator panics when its writer fails, as a closed pipe does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut settings::command(), "poncho", &mut script);
    out.write_all(&script)?;
    Ok(Outcome::Good)
}

pub(crate) fn man(args: &ManArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let mut command = settings::command();
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
    // Leaked names live as long as the process, which ends when the pages are written.
    let titled = command.clone().name(&*name.to_owned().leak());
    std::fs::write(&path, page(titled)?)
        .with_context(|| format!("cannot write {}; check the folder and its free space", path.display()))?;
    let mut count = 1;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        count += write_pages(sub, &format!("{name}-{}", sub.get_name()), folder)?;
    }
    Ok(count)
}

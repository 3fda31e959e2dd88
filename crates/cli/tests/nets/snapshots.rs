//! The help of every command, compared with `snapshots/help.txt`.
//!
//! A change of the command line shows in the difference of that file. `SNAPSHOTS=overwrite` in the environment of the test
//! rewrites it. Other surfaces have a document that a test compares: the reference of the settings (`config --reference`) is
//! docs/configuration.md, the metrics with type, labels and help are docs/metrics.md, and the server's tests keep
//! `/openapi.json`.

use snapbox::{assert_data_eq, file};

use crate::support::{poncho, run};

/// Prints the help of a command and then of its subcommands, as a user would ask for it.
fn print_help(words: &[&str], page: &mut String) {
    let help = run(poncho().args(words).arg("--help"));
    let line = [&["$ poncho"], words, &["--help"]].concat().join(" ");
    page.push_str(&format!("{line}\n"));
    for line in help.good().lines() {
        // Some lines of clap end with spaces.
        page.push_str(&format!("{}\n", line.trim_end()));
    }
    let listed = help.stdout.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in listed.take_while(|line| !line.is_empty()) {
        let name =
            line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')).and_then(|rest| rest.split(' ').next());
        if let Some(name) = name.filter(|name| *name != "help") {
            page.push('\n');
            print_help(&[words, &[name]].concat(), page);
        }
    }
}

#[test]
fn the_help_of_every_command_equals_its_snapshot() {
    let mut page = String::new();
    print_help(&[], &mut page);
    for command in ["$ poncho serve --help\n", "$ poncho cache explain --help\n"] {
        assert!(page.contains(command), "no {command}");
    }
    assert_data_eq!(page, file!["snapshots/help.txt"].raw());
}

#[test]
fn the_printed_reference_is_the_document() {
    let printed = run(poncho().args(["config", "--reference"]));
    assert_data_eq!(printed.good(), file!["../../../../docs/configuration.md": Text].raw());
}

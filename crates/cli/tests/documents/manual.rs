//! Completions and manual pages: every shell's own check where it is installed, and every command has its page.

use std::process::Command;

use crate::support::{poncho, run};

#[test]
fn completions_know_the_commands_and_flags_of_every_shell() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(poncho().args(["completions", shell]));
        let script = script.good();
        for word in ["serve", "bench", "doctor", "completions", "cache-dir", "ctx-size", "config"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
        let path = folder.path().join(shell);
        std::fs::write(&path, script).unwrap();
        if !["bash", "zsh", "fish"].contains(&shell) {
            continue;
        }
        // Reads the script without running it.
        match Command::new(shell).arg("-n").arg(&path).output() {
            Ok(checked) => assert!(checked.status.success(), "{shell}: {}", String::from_utf8_lossy(&checked.stderr)),
            Err(error) => {
                assert_ne!(shell, "bash", "the tests need it: {error}");
                println!("not read by {shell}, which is not installed");
            }
        }
    }
}

#[test]
fn bash_completes_a_flag_of_serve() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("poncho.bash");
    std::fs::write(&path, run(poncho().args(["completions", "bash"])).good()).unwrap();
    let try_it = "source \"$1\"; COMP_WORDS=(poncho serve --ctx); COMP_CWORD=2; _poncho poncho --ctx serve; echo \"${COMPREPLY[@]}\"";
    let ran = Command::new("bash").args(["-c", try_it, "bash"]).arg(&path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), "--ctx-size", "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn every_command_has_a_page_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man1");
    let told = run(poncho().args(["man", "--out"]).arg(&out));
    let pages: Vec<String> =
        std::fs::read_dir(&out).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    assert!(told.good().starts_with(&format!("{} pages", pages.len())), "{}", told.stdout);
    for name in
        ["poncho.1", "poncho-serve.1", "poncho-cache.1", "poncho-cache-ls.1", "poncho-doctor.1", "poncho-bench.1"]
    {
        assert!(pages.iter().any(|page| page == name), "no {name} in {pages:?}");
    }
    let serve = std::fs::read_to_string(out.join("poncho-serve.1")).unwrap();
    assert!(serve.contains(".TH poncho-serve 1"), "{serve}");
    assert!(serve.contains("\\-\\-ctx\\-size") && serve.contains("PONCHO_CTX_SIZE"), "{serve}");
    assert!(run(poncho().arg("man")).good().contains(".SH SUBCOMMANDS"));
    let refused = run(poncho().args(["man", "--out", "/proc/poncho-man"]));
    assert!(refused.failed().contains("/proc/poncho-man"), "{}", refused.stderr);
}

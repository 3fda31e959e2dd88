//! Rule: `unsafe` lives in one folder, and there every block says why it is sound.
//!
//! The compiler denies `unsafe_code` by the lint table; this rule also sees files that lift the
//! lint, and that the comment is there.

use crate::tidy::rust_source::{code_only, lines_with_word};
use crate::tidy::{Finding, Tree};

/// The border with llama.cpp, the only place where `unsafe` may stand.
const UNSAFE_FOLDER: &str = "crates/engine/src/backend/llama/";

/// The file that names the modules of that folder.
const FOLDER_ROOT: &str = "crates/engine/src/backend/llama.rs";

/// How far above a block its `SAFETY:` may begin.
const LINES_ABOVE: usize = 3;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension(&["rs"]) {
        let code = code_only(text);
        for line in lines_with_word(&code, "unsafe") {
            if !path.starts_with(UNSAFE_FOLDER) && path != FOLDER_ROOT {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("`unsafe` outside {UNSAFE_FOLDER}"),
                    "use a safe interface, or move the code behind the backend trait",
                ));
            } else if opens_block(&code, line) && !explained(text, line) {
                findings.push(Finding::new(
                    path,
                    line,
                    "the unsafe block has no SAFETY comment",
                    format!("say in the {LINES_ABOVE} lines above it why it is sound: `// SAFETY: ..`"),
                ));
            }
        }
    }
    findings
}

/// Whether the `unsafe` of this line opens a block or an `impl`; functions and traits explain
/// themselves in their documentation.
fn opens_block(code: &str, line: usize) -> bool {
    let mut words = code.lines().skip(line - 1);
    let first = words.next().unwrap_or_default();
    first.match_indices("unsafe").any(|(at, word)| {
        let rest = first.get(at + word.len()..).unwrap_or_default().trim_start();
        let rest = if rest.is_empty() { words.clone().next().unwrap_or_default().trim_start() } else { rest };
        rest.starts_with('{') || rest.starts_with("impl")
    })
}

fn explained(text: &str, line: usize) -> bool {
    let first = line.saturating_sub(LINES_ABOVE + 1);
    text.lines().skip(first).take(line - first).any(|line| line.contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::rules::found;

    const LLAMA: &str = "crates/engine/src/backend/llama/context.rs";

    #[test]
    fn unsafe_elsewhere_is_found() {
        let findings =
            found(check, &[("crates/cache/src/lib.rs", "//! x\n// SAFETY: no.\nfn a() { unsafe { b() } }\n")]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("crates/cache/src/lib.rs:3: `unsafe` outside"), "{}", findings[0]);
    }

    #[test]
    fn a_block_without_safety_is_found() {
        let far = "//! x\n// SAFETY: too far away.\n\n\n\nfn a() { unsafe { b() } }\nunsafe impl Send for X {}\nfn c() { unsafe\n{ d() } }\n";
        let findings = found(check, &[(LLAMA, far)]);
        let lines: Vec<&str> = findings.iter().filter_map(|line| line.split(':').nth(1)).collect();
        assert_eq!(lines, ["6", "7", "8"]);
    }

    #[test]
    fn explained_blocks_and_mere_mentions_pass() {
        let text = "//! x\n// SAFETY: the pointer\n// outlives the call,\n// see above.\nlet a = unsafe { b() };\nlet c = unsafe { d() }; // SAFETY: the same.\n/// Documented.\npub unsafe fn e() {}\n";
        let talk = "//! No unsafe here.\n#![deny(unsafe_code)]\nconst A: &str = \"unsafe { }\";\n";
        assert_eq!(found(check, &[(LLAMA, text), ("crates/cache/src/lib.rs", talk)]), Vec::<String>::new());
    }
}

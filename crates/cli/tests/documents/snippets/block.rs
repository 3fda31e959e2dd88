//! The fenced blocks of the project's documents, read by the tests that run them.
//!
//! A document is any Markdown file of the repository: at its top, in `docs`, and beside the tests. Nothing is run here.

use std::path::{Path, PathBuf};

/// The folders with documents to read, besides the top of the repository; `true` means with what is below.
const FOLDERS: [(&str, bool); 6] =
    [("", false), ("docs", true), ("tests", true), ("packaging", true), ("fuzz", false), ("crates", true)];

/// One fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// The path of its document from the root of the repository.
    pub(crate) document: String,
    /// The line of the opening fence, counted from 1.
    pub(crate) line: usize,
    /// What stands behind the opening fence.
    pub(crate) kind: String,
    pub(crate) body: String,
}

impl Block {
    /// The first line that says something; entries of the table name a block by it.
    pub(crate) fn opens(&self) -> &str {
        self.body.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("")
    }

    /// For messages.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.document, self.line)
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The blocks of every document.
pub(crate) fn all_blocks() -> Vec<Block> {
    let root = root();
    let mut documents = Vec::new();
    for (folder, below) in FOLDERS {
        find_documents(&root.join(folder), below, &mut documents);
    }
    documents.sort();
    let named = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    documents.iter().flat_map(|path| blocks(&named(path), &std::fs::read_to_string(path).unwrap())).collect()
}

fn find_documents(folder: &Path, below: bool, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Packages of npm are not ours.
        if path.ends_with("node_modules") {
            continue;
        }
        if path.is_dir() && below {
            find_documents(&path, below, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The blocks of one document. A fence may stand below an item of a list; its indentation is taken off the lines.
fn blocks(document: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut indentation = None;
    for (number, line) in text.lines().enumerate() {
        let depth = line.len() - line.trim_start().len();
        match (line.trim_start().strip_prefix("```"), indentation) {
            (Some(kind), None) => {
                indentation = Some(depth);
                let kind = kind.trim().to_owned();
                blocks.push(Block { document: document.to_owned(), line: number + 1, kind, body: String::new() });
            }
            (Some(rest), Some(_)) => {
                assert_eq!(rest.trim(), "", "{document}:{}: a block opens inside a block", number + 1);
                indentation = None;
            }
            (None, Some(indentation)) => {
                let block = blocks.last_mut().unwrap();
                block.body += &line[indentation.min(depth)..];
                block.body.push('\n');
            }
            (None, None) => {}
        }
    }
    assert_eq!(indentation, None, "{document}: the last block is not closed");
    blocks
}

#[test]
fn blocks_are_found_also_in_lists() {
    let text = "a\n```sh\none\n\n  two\n```\n- b\n\n  ```text\n  three\n   four\n  ```\n";
    let found = blocks("x.md", text);
    let bodies: Vec<_> = found.iter().map(|block| (block.line, block.kind.as_str(), block.body.as_str())).collect();
    assert_eq!(bodies, [(2, "sh", "one\n\n  two\n"), (9, "text", "three\n four\n")]);
    assert_eq!((found[0].opens(), found[1].opens()), ("one", "three"));
}

#[test]
fn every_folder_of_documents_is_read() {
    let blocks = all_blocks();
    for document in ["README.md", "ARCHITECTURE.md", "docs/quick-start.md", "docs/agents.md"] {
        assert!(blocks.iter().any(|block| block.document == document), "{document}");
    }
}

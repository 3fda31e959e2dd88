//! Every fenced block of every document is run by a named test, or stands in `not_run.toml` with its reason.
//!
//! `Way` lists the tests; each takes its blocks from `blocks_of`, so a block that has a way is run by construction. The
//! test below fails for a block that has neither, for an entry of the table that fits no block, and for a way
//! without a test.

mod block;
mod comparison;
mod inline;
mod place;
mod settings;
mod shell;

pub(crate) use block::{Block, all_blocks, root};

/// The address and the model that documents name; tests put their own in their place.
pub(crate) const ADDRESS_IN_DOCUMENTS: &str = "127.0.0.1:8080";

/// Which test runs a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Line by line in a shell.
    Shell,
    /// In a shell, beside a stand-in for the other server.
    Comparison,
    /// A recorded conversation, replayed by the lines of its document.
    Trace,
    /// Settings of Poncho.
    PonchoSettings,
    /// Settings of clients.
    ClientSettings,
    /// Programs in the languages of the SDKs.
    SdkProgram,
    CacheCommands,
    ChatCommands,
    Conversation,
    ModelCommands,
    RustExample,
}

impl Way {
    const ALL: [Self; 11] = [
        Self::Shell,
        Self::Comparison,
        Self::Trace,
        Self::PonchoSettings,
        Self::ClientSettings,
        Self::SdkProgram,
        Self::CacheCommands,
        Self::ChatCommands,
        Self::Conversation,
        Self::ModelCommands,
        Self::RustExample,
    ];

    /// The file and the function of the test.
    fn test(self) -> (&'static str, &'static str) {
        match self {
            Self::Shell => ("crates/cli/tests/documents/snippets/shell.rs", "every_line_for_the_shell_works"),
            Self::Comparison => {
                ("crates/cli/tests/documents/snippets/comparison.rs", "the_comparison_runs_as_it_is_written")
            }
            Self::Trace => {
                ("crates/cli/tests/documents/snippets/shell.rs", "the_traces_that_are_shown_can_be_replayed")
            }
            Self::PonchoSettings => {
                ("crates/cli/tests/documents/snippets/settings.rs", "settings_of_poncho_are_accepted")
            }
            Self::ClientSettings => {
                ("crates/cli/tests/documents/snippets/settings.rs", "settings_of_clients_can_be_read")
            }
            Self::SdkProgram => ("tests/clients/documents.py", "run_programs"),
            Self::CacheCommands => {
                ("crates/cli/tests/documents/cache_guide.rs", "every_example_of_the_guide_prints_what_it_shows")
            }
            Self::ChatCommands => {
                ("crates/cli/tests/documents/chat_guide.rs", "every_command_of_the_guide_prints_what_it_shows")
            }
            Self::Conversation => {
                ("crates/cli/tests/documents/chat_guide.rs", "the_conversation_of_the_guide_goes_as_it_is_shown")
            }
            Self::ModelCommands => (
                "crates/cli/tests/documents/models_document.rs",
                "every_example_of_the_guide_to_models_prints_what_it_shows",
            ),
            Self::RustExample => {
                ("crates/cli/tests/documents/guides.rs", "code_in_the_guides_is_the_code_of_the_examples")
            }
        }
    }

    fn of(block: &Block) -> Option<Self> {
        Some(match (block.document.as_str(), block.kind.as_str()) {
            ("docs/benchmarks.md", "sh") => Self::Comparison,
            (_, "sh") => Self::Shell,
            ("docs/replay.md", "json") => Self::Trace,
            ("docs/agents.md", "json" | "toml" | "yaml") => Self::ClientSettings,
            (_, "toml") => Self::PonchoSettings,
            (_, "python" | "js") => Self::SdkProgram,
            ("docs/cache-commands.md", "console") => Self::CacheCommands,
            ("docs/chat.md", "console") => Self::ChatCommands,
            ("docs/chat.md", "chat") => Self::Conversation,
            ("docs/models.md", "console" | "modelfile") => Self::ModelCommands,
            ("docs/embedding.md", "rust") => Self::RustExample,
            _ => return None,
        })
    }
}

/// A block that no test runs, and why.
#[derive(Debug)]
struct NotRun {
    document: String,
    opens: String,
    reason: String,
}

impl NotRun {
    fn fits(&self, block: &Block) -> bool {
        (self.document.as_str(), self.opens.as_str()) == (block.document.as_str(), block.opens())
    }
}

fn not_run() -> Vec<NotRun> {
    let table = toml::de::DeTable::parse(include_str!("snippets/not_run.toml")).unwrap();
    let entries = table.get_ref()["block"].get_ref().as_array().unwrap();
    let entry = |entry: &toml::de::DeTable<'_>| {
        assert_eq!(entry.len(), 3, "an entry has a document, what it opens with, and a reason: {entry:?}");
        let text = |key: &str| entry[key].get_ref().as_str().unwrap().to_owned();
        NotRun { document: text("document"), opens: text("opens"), reason: text("reason") }
    };
    entries.iter().map(|value| entry(value.get_ref().as_table().unwrap())).collect()
}

/// The blocks that a test has to run, in the order of the documents. There is always one.
pub(crate) fn blocks_of(way: Way) -> Vec<Block> {
    let left_out = not_run();
    let mut blocks = all_blocks();
    blocks.retain(|block| Way::of(block) == Some(way) && !left_out.iter().any(|entry| entry.fits(block)));
    assert!(!blocks.is_empty(), "no document has a block for {way:?}");
    blocks
}

/// What is wrong with the table for these blocks.
fn complaints(blocks: &[Block], table: &[NotRun]) -> Vec<String> {
    let mut complaints = Vec::new();
    for block in blocks {
        if Way::of(block).is_none() && !table.iter().any(|entry| entry.fits(block)) {
            let (place, kind, opens) = (block.place(), &block.kind, block.opens());
            complaints.push(format!("{place}: no test runs this block of kind `{kind}`, which begins `{opens}`"));
        }
    }
    for NotRun { document, opens, reason } in table {
        let fitting = blocks.iter().filter(|block| block.document == *document && block.opens() == opens).count();
        if fitting != 1 {
            complaints.push(format!("not_run.toml: {fitting} blocks of {document} begin `{opens}`; it must be one"));
        }
        if reason.split_whitespace().count() < 2 {
            complaints.push(format!("not_run.toml: `{reason}` is not a reason for {document}, `{opens}`"));
        }
    }
    complaints
}

#[test]
fn every_block_of_every_document_is_run_or_has_its_reason() {
    let complaints = complaints(&all_blocks(), &not_run());
    assert!(complaints.is_empty(), "run them, or say in not_run.toml why not:\n{}", complaints.join("\n"));
    for way in Way::ALL {
        let (path, test) = way.test();
        let source = std::fs::read_to_string(root().join(path)).unwrap();
        let defined = [format!("fn {test}("), format!("def {test}(")];
        assert!(defined.iter().any(|start| source.contains(start)), "{way:?}: there is no {test} in {path}");
        if path.ends_with(".rs") {
            assert!(source.contains(&format!("blocks_of(Way::{way:?})")), "{way:?}: {path} does not take its blocks");
        }
    }
}

#[test]
fn a_block_without_a_way_and_a_stale_entry_are_found() {
    let block = |kind: &str, body: &str| Block {
        document: "docs/x.md".to_owned(),
        line: 1,
        kind: kind.to_owned(),
        body: body.to_owned(),
    };
    let entry = |opens: &str, reason: &str| NotRun {
        document: "docs/x.md".to_owned(),
        opens: opens.to_owned(),
        reason: reason.to_owned(),
    };
    let blocks = [block("sh", "ls\n"), block("text", "a -> b\n")];
    assert_eq!(complaints(&blocks, &[entry("a -> b", "a drawing")]), Vec::<String>::new());
    let found = complaints(&blocks, &[entry("a -> c", "")]);
    assert!(found[0].starts_with("docs/x.md:1: no test runs this block of kind `text`"), "{found:?}");
    assert!(found[1].contains("0 blocks of docs/x.md begin `a -> c`"), "{found:?}");
    assert!(found.len() == 3 && found[2].contains("is not a reason"), "{found:?}");
}

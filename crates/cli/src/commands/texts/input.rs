//! A file of a command line that may also be standard input.
//!
//! Used by commands with a flag that takes `-`.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;

/// The text, and its name for messages. `what` names the content and `form` the file that holds it.
pub(crate) fn read(path: &Path, what: &str, form: &str) -> anyhow::Result<(String, String)> {
    let from_input = path == Path::new("-");
    let name = if from_input { "standard input".to_owned() } else { path.display().to_string() };
    let text = if from_input {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let text =
        text.with_context(|| format!("cannot read {what} from {name}; give {form}, or `-` for standard input"))?;
    Ok((text, name))
}

//! Did-you-mean suggestions for the errors about unknown names.
//!
//! Called where a name of a model, a parameter or an instruction is looked up. Pure. It must stay cheap for long
//! hostile texts: callers pass at most 300 bytes.

use strsim::osa_distance;

/// The edit distance up to which a name counts as a typing error of another.
const MOST_EDITS: usize = 3;
/// Names that a message suggests.
const MOST_NAMES: usize = 3;

/// Known names that `wanted` may have meant, nearest first.
#[must_use]
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<(usize, &str)> = known
        .into_iter()
        .filter_map(|name| {
            // A name without its tag, or with another one, is near however long the tag is.
            let same_base = wanted.split(':').next() == name.split(':').next();
            let edits = if same_base { 1 } else { osa_distance(wanted, name) };
            (edits <= MOST_EDITS.min(wanted.len() / 2 + 1)).then_some((edits, name))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().take(MOST_NAMES).map(|(_, name)| name.to_owned()).collect()
}

/// The middle of a message about an unknown name; advice follows after a space.
pub(crate) fn did_you_mean_or(near: &[String]) -> String {
    match near {
        [] => ";".to_owned(),
        near => did_you_mean(near),
    }
}

/// The end of a message about an unknown name.
pub(crate) fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => {
            format!("; did you mean {}?", near.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_find_their_name_and_strangers_do_not() {
        let known = ["smollm2:135m", "smollm2:360m", "qwen2.5:0.5b", "owner/name:latest"];
        assert_eq!(nearest("smolm2:135m", known), ["smollm2:135m"]);
        assert_eq!(nearest("smollm2:latest", known), ["smollm2:135m", "smollm2:360m"]);
        assert_eq!(nearest("owner/nam:latest", known), ["owner/name:latest"]);
        assert_eq!(nearest("mistral:7b", known), Vec::<String>::new());
        assert_eq!(nearest("x", ["y", "abc"]), ["y"]);
        // Neighbours that changed places are one edit, not two; three edits are the limit.
        assert_eq!(nearest("smolml2", ["smollm2", "smolxx2"]), ["smollm2", "smolxx2"]);
        assert_eq!(nearest("kitten", ["sitting", "sittings"]), ["sitting"]);
    }
}

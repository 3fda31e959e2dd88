//! The known names nearest to one that is unknown, for the messages about typing errors.
//!
//! Pure. It must stay cheap for long hostile texts: names are at most 200 bytes when they come here.

/// The edit distance up to which a name counts as a typing error of another.
const MOST_EDITS: usize = 3;
/// Names that a message suggests.
const MOST_NAMES: usize = 3;

/// Known names that `wanted` may have meant, nearest first.
pub(crate) fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<(usize, &str)> = known
        .into_iter()
        .filter_map(|name| {
            // A name without its tag, or with another one, is near however long the tag is.
            let same_base = wanted.split(':').next() == name.split(':').next();
            let edits = if same_base { 1 } else { distance(wanted, name) };
            (edits <= MOST_EDITS.min(wanted.len() / 2 + 1)).then_some((edits, name))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().take(MOST_NAMES).map(|(_, name)| name.to_owned()).collect()
}

/// Insertions, removals, replacements and swaps of neighbours between two texts.
fn distance(one: &str, two: &str) -> usize {
    let (one, two): (Vec<char>, Vec<char>) = (one.chars().collect(), two.chars().collect());
    let at = |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX / 2);
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=two.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in two.iter().enumerate() {
            let mut edits = (at(&last, j + 1) + 1).min(at(&row, j) + 1).min(at(&last, j) + usize::from(a != b));
            let swapped = j > 0 && i > 0 && one.get(i - 1) == Some(b) && two.get(j - 1) == Some(a);
            if swapped {
                edits = edits.min(at(&before_last, j - 1) + 1);
            }
            row.push(edits);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    at(&last, two.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_definition() {
        for (one, two, expected) in
            [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("smollm2", "smolml2", 1), ("a", "b", 1)]
        {
            assert_eq!((distance(one, two), distance(two, one)), (expected, expected), "{one} {two}");
        }
    }

    #[test]
    fn typing_errors_find_their_name_and_strangers_do_not() {
        let known = ["smollm2:135m", "smollm2:360m", "qwen2.5:0.5b", "owner/name:latest"];
        assert_eq!(nearest("smolm2:135m", known), ["smollm2:135m"]);
        assert_eq!(nearest("smollm2:latest", known), ["smollm2:135m", "smollm2:360m"]);
        assert_eq!(nearest("owner/nam:latest", known), ["owner/name:latest"]);
        assert_eq!(nearest("mistral:7b", known), Vec::<String>::new());
        assert_eq!(nearest("x", ["y", "abc"]), ["y"]);
    }
}

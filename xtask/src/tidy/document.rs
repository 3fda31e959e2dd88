//! What the rules need to know of Markdown: prose lines, code spans, links, table cells.
//!
//! Used by the rules about documents. Fenced blocks are left out: they hold commands and
//! pictures of trees, not claims about this repository.

/// The lines outside fenced blocks, with their numbers (from 1).
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(opening)) => {
                fence = Some(opening);
                None
            }
            (Some(opening), Some(closing)) if opening == closing => {
                fence = None;
                None
            }
            (Some(_), _) => None,
            (None, None) => Some((index + 1, line)),
        }
    })
}

/// The texts between backticks.
pub(crate) fn code_spans(line: &str) -> Vec<&str> {
    let pieces: Vec<&str> = line.split('`').collect();
    // A span lies between two ticks: with n pieces, every second one but for the last.
    let last = pieces.len().saturating_sub(1);
    pieces.into_iter().take(last).skip(1).step_by(2).filter(|span| !span.is_empty()).collect()
}

/// The targets of links: `[text](target)`, `![text](target)` and `[label]: target`.
pub(crate) fn link_targets(line: &str) -> Vec<&str> {
    let mut targets: Vec<&str> = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()).collect();
    if let Some((label, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "))
        && !label.contains(']')
    {
        targets.extend(target.split_whitespace().next());
    }
    targets.into_iter().filter(|target| !target.is_empty()).collect()
}

/// The cells of a table row, trimmed; `None` for any other line.
pub(crate) fn table_cells(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?;
    let row = row.strip_suffix('|').unwrap_or(row);
    Some(row.split('|').map(str::trim).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_blocks_are_not_prose() {
        let text = "a\n```sh\nb\n~~~\n```\nc\n  ~~~\nd\n";
        assert_eq!(prose(text).collect::<Vec<_>>(), [(1, "a"), (6, "c")]);
    }

    #[test]
    fn code_spans_are_what_stands_between_ticks() {
        assert_eq!(code_spans("a `b` c `d e`."), ["b", "d e"]);
        assert_eq!(code_spans("one ` alone"), Vec::<&str>::new());
        assert_eq!(code_spans("`a` and ` alone"), ["a"]);
        assert_eq!(code_spans(""), Vec::<&str>::new());
    }

    #[test]
    fn links_of_every_form_are_seen() {
        assert_eq!(link_targets("[a](b.md) ![c](d.svg \"title\")"), ["b.md", "d.svg"]);
        assert_eq!(link_targets("[label]: docs/x.md"), ["docs/x.md"]);
        assert_eq!(link_targets("a [b] c: d"), Vec::<&str>::new());
    }

    #[test]
    fn rows_are_split_into_cells() {
        assert_eq!(table_cells("| a | `b` |"), Some(vec!["a", "`b`"]));
        assert_eq!(table_cells("no table"), None);
    }
}

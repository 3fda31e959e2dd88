//! A parser for `/metrics` pages: names, labels and numbers.
//!
//! Used by `poncho top` and by the progress of a prompt. The server may be of another version: lines that cannot be
//! parsed are skipped, and nothing here fails.

/// One line of the page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

impl Sample {
    /// The value of a label.
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// A parsed page.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Page(Vec<Sample>);

impl Page {
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    /// All lines of that name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }

    /// The number of that name and label.
    pub(crate) fn value(&self, name: &str, label: &str, value: &str) -> Option<f64> {
        self.all(name).find(|sample| sample.label(label) == Some(value)).map(|sample| sample.value)
    }

    /// The number of that name without labels.
    pub(crate) fn plain(&self, name: &str) -> Option<f64> {
        self.all(name).find(|sample| sample.labels.is_empty()).map(|sample| sample.value)
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at_checked(name_end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = after.char_indices();
        loop {
            match letters.next()? {
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    letter => value.push(letter),
                },
                (at, '"') => {
                    rest = after.get(at + 1..)?;
                    break;
                }
                (_, letter) => value.push(letter),
            }
        }
        labels.push((name.to_owned(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_name_and_label() {
        let page = Page::parse(
            "# HELP a x\n# TYPE a counter\na 3\na{model=\"x\"} 4.5\na{model=\"q\\\"{},\\\\\\n\",hit=\"cold\"} 6 1700000000\nb{le=\"+Inf\"} +Inf\n",
        );
        assert_eq!(page.plain("a"), Some(3.0));
        assert_eq!(page.value("a", "model", "x"), Some(4.5));
        assert_eq!(page.value("a", "model", "q\"{},\\\n"), Some(6.0));
        assert_eq!(page.value("a", "hit", "cold"), Some(6.0));
        assert_eq!(page.plain("b"), None);
        assert_eq!(page.value("b", "le", "+Inf"), Some(f64::INFINITY));
    }

    #[test]
    fn lines_that_cannot_be_parsed_are_skipped() {
        let page = Page::parse("a\na{\na{x\na{x=\"\na{x=\"y\"\na{x=\"y\"}\na{x=\"y\"} z\n\n{} 1\nb 1\n\u{e9} \u{e9}\n");
        assert_eq!(page.plain("b"), Some(1.0));
        assert_eq!(page.all("a").count(), 0);
    }
}

//! Rust code as a list of tokens with their lines, and the same without test code.
//!
//! Used by `file.rs`. A token is a name, a number, `::` or a single sign; that is all that finding paths needs.

use crate::tidy::rust_source::code_only;

/// A piece of code and the line it stands on, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

impl Token {
    pub(super) fn is_name(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// The tokens of a source, without comments, literals and items that only tests compile.
pub(super) fn product_tokens(text: &str) -> Vec<Token> {
    without_tests(&tokens(&code_only(text))).tokens
}

/// Names of the modules that are declared with `#[cfg(test)]`.
pub(super) fn test_modules(text: &str) -> Vec<String> {
    without_tests(&tokens(&code_only(text))).test_modules
}

fn tokens(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let length = if is_part(first) {
                rest.find(|c| !is_part(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (token, after) = rest.split_at(length);
            tokens.push(Token { text: token.to_owned(), line: index + 1 });
            rest = after.trim_start();
        }
    }
    tokens
}

struct Product {
    tokens: Vec<Token>,
    test_modules: Vec<String>,
}

fn without_tests(all: &[Token]) -> Product {
    let mut product = Product { tokens: Vec::new(), test_modules: Vec::new() };
    let mut rest = all;
    while let Some((token, after)) = rest.split_first() {
        let Some(attribute) = attribute_length(rest) else {
            product.tokens.push(token.clone());
            rest = after;
            continue;
        };
        let is_test = rest.get(..attribute).is_some_and(compiles_for_tests_alone);
        rest = rest.get(attribute..).unwrap_or_default();
        if is_test {
            while let Some(more) = attribute_length(rest) {
                rest = rest.get(more..).unwrap_or_default();
            }
            let length = item_length(rest);
            let item = rest.get(..length).unwrap_or_default();
            let name = item.iter().skip_while(|token| token.text != "mod").nth(1);
            product.test_modules.extend(name.map(|name| name.text.clone()));
            rest = rest.get(length..).unwrap_or_default();
        }
    }
    product
}

/// The length of the attribute that the tokens begin with.
fn attribute_length(tokens: &[Token]) -> Option<usize> {
    let [hash, bracket, ..] = tokens else { return None };
    if hash.text != "#" || bracket.text != "[" {
        return None;
    }
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "[" => depth += 1,
            "]" if depth == 1 => return Some(index + 1),
            "]" => depth -= 1,
            _ => {}
        }
    }
    None
}

/// `#[cfg(test)]` and `#[cfg(all(test, ..))]`.
fn compiles_for_tests_alone(attribute: &[Token]) -> bool {
    let texts: Vec<&str> = attribute.iter().map(|token| token.text.as_str()).collect();
    matches!(
        texts.as_slice(),
        ["#", "[", "cfg", "(", "test", ")", ..] | ["#", "[", "cfg", "(", "all", "(", "test", ",", ..]
    )
}

/// The length of the item, statement, field or arm that the tokens begin with.
fn item_length(tokens: &[Token]) -> usize {
    let first = tokens
        .iter()
        .map(|token| token.text.as_str())
        .find(|text| !["pub", "(", ")", "crate", "super", "in", "::"].contains(text));
    let is_use = first == Some("use");
    let ends_at_comma = !first.is_some_and(is_item_keyword);
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            // The end of the struct or block around a last field.
            ")" | "]" | "}" if depth == 0 => return index,
            "}" if depth == 1 && !is_use => return index + 1,
            ")" | "]" | "}" => depth -= 1,
            ";" if depth == 0 => return index + 1,
            "," if depth == 0 && ends_at_comma => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

fn is_item_keyword(word: &str) -> bool {
    [
        "async",
        "const",
        "enum",
        "extern",
        "fn",
        "impl",
        "let",
        "macro_rules",
        "mod",
        "static",
        "struct",
        "trait",
        "type",
        "union",
        "unsafe",
        "use",
    ]
    .contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(text: &str) -> String {
        let texts: Vec<String> = product_tokens(text).into_iter().map(|token| token.text).collect();
        texts.join(" ")
    }

    #[test]
    fn tokens_know_their_lines() {
        let found = tokens("a::b\n {c1}");
        let found: Vec<(&str, usize)> = found.iter().map(|token| (token.text.as_str(), token.line)).collect();
        assert_eq!(found, [("a", 1), ("::", 1), ("b", 1), ("{", 2), ("c1", 2), ("}", 2)]);
    }

    #[test]
    fn items_for_tests_are_left_out_whole() {
        for (text, expected) in [
            ("#[cfg(test)] mod tests { fn f() { {} } } fn g", "fn g"),
            ("#[cfg(test)] mod tests; fn g", "fn g"),
            ("#[cfg(test)] use a::{b, c}; fn g", "fn g"),
            ("#[cfg(test)] #[path = \"x\"] pub(crate) mod tests; fn g", "fn g"),
            ("#[cfg(test)] fn f(a: A, b: B) -> C { d } fn g", "fn g"),
            ("struct S { #[cfg(test)] pub(crate) x: X, y: Y }", "struct S { y : Y }"),
            ("struct S { y: Y, #[cfg(test)] x: X }", "struct S { y : Y , }"),
            ("#[derive(Debug)] #[cfg(not(test))] fn g", "fn g"),
            ("#[cfg(any(test, feature = \"testing\"))] mod stub;", "mod stub ;"),
        ] {
            assert_eq!(product(text), expected, "{text}");
        }
        assert_eq!(test_modules("#[cfg(test)]\nmod support;\nmod other;\n"), ["support"]);
    }
}

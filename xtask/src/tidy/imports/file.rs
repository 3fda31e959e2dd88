//! What one Rust file declares and refers to: its modules, its items, its `use` lines and the paths in its code.
//!
//! Made by `imports.rs` for each file, resolved by `resolve.rs`.

use std::collections::BTreeSet;

use super::tokens::{Token, product_tokens, test_modules};

/// A name that a `use` at the top of a file brings in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImportedName {
    /// `None` for `path::*`.
    pub(super) name: Option<String>,
    pub(super) path: Vec<String>,
}

/// A path in the code of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) line: usize,
    /// Segments as written, `super` and `crate` among them.
    pub(super) path: Vec<String>,
    /// Whether it stands in a `use` with a visibility.
    pub(super) is_public: bool,
}

/// The parts of a source file that matter for imports.
#[derive(Debug, Default)]
pub(super) struct SourceFile {
    /// Modules that live in files of their own.
    pub(super) modules: BTreeSet<String>,
    /// Modules that only tests compile.
    pub(super) test_modules: BTreeSet<String>,
    /// Items that the file defines.
    pub(super) items: BTreeSet<String>,
    pub(super) names: Vec<ImportedName>,
    pub(super) references: Vec<Reference>,
}

impl SourceFile {
    pub(super) fn read(text: &str) -> Self {
        let tokens = product_tokens(text);
        let file = Self { test_modules: test_modules(text).into_iter().collect(), ..Self::default() };
        let mut reader = Reader { tokens: &tokens, at: 0, braces: 0, inline: Vec::new(), file };
        reader.run();
        reader.file
    }
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    braces: usize,
    /// Brace depth inside each module that is written out in this file.
    inline: Vec<usize>,
    file: SourceFile,
}

impl<'a> Reader<'a> {
    fn run(&mut self) {
        while let Some(token) = self.peek(0) {
            match token.text.as_str() {
                "{" => self.braces += 1,
                "}" => {
                    self.braces = self.braces.saturating_sub(1);
                    self.inline.retain(|depth| *depth <= self.braces);
                }
                "mod" => self.read_module(),
                // `use<..>` is a bound.
                "use" if self.text(1) != "<" => {
                    self.read_use();
                    continue;
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" => self.read_item(1),
                "macro_rules" => self.read_item(2),
                _ if token.is_name() && self.text(1) == "::" && !self.is_inside_path() => {
                    self.read_path();
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn peek(&self, ahead: usize) -> Option<&'a Token> {
        self.tokens.get(self.at + ahead)
    }

    fn text(&self, ahead: usize) -> &'a str {
        self.peek(ahead).map_or("", |token| token.text.as_str())
    }

    fn before(&self, back: usize) -> &'a str {
        self.at.checked_sub(back).and_then(|at| self.tokens.get(at)).map_or("", |token| token.text.as_str())
    }

    /// After `::`, or the place named in `pub(in path)`.
    fn is_inside_path(&self) -> bool {
        self.before(1) == "::" || (self.before(1) == "in" && self.before(2) == "(" && self.before(3) == "pub")
    }

    fn read_module(&mut self) {
        let name = self.text(1).to_owned();
        match self.text(2) {
            ";" if self.inline.is_empty() => {
                self.file.modules.insert(name);
            }
            "{" => self.inline.push(self.braces + 1),
            _ => {}
        }
    }

    fn read_item(&mut self, ahead: usize) {
        if self.braces == 0
            && let Some(name) = self.peek(ahead).filter(|token| token.is_name())
        {
            self.file.items.insert(name.text.clone());
        }
    }

    fn read_path(&mut self) {
        let line = self.peek(0).map_or(0, |token| token.line);
        let mut path = Vec::new();
        while let Some(token) = self.peek(0).filter(|token| token.is_name()) {
            path.push(token.text.clone());
            self.at += 1;
            if self.text(0) != "::" {
                break;
            }
            self.at += 1;
        }
        // A path that does not begin at a module of this crate is one of a type, or of another crate.
        let begins_here = path.first().is_some_and(|first| {
            ["crate", "self", "super"].contains(&first.as_str()) || self.file.modules.contains(first)
        });
        if begins_here {
            self.refer(line, path, false);
        }
    }

    fn read_use(&mut self) {
        let is_public = self.before(1) == "pub" || self.before(1) == ")";
        self.at += 1;
        if self.text(0) == "::" {
            // `use ::name` is another crate, always.
            self.at += 1;
        }
        let mut prefix = Vec::new();
        self.read_tree(&mut prefix, is_public);
    }

    /// Reads one tree of a `use`: a path that ends with a name, a star or a group of trees.
    fn read_tree(&mut self, prefix: &mut Vec<String>, is_public: bool) {
        let outer = prefix.len();
        while let Some(token) = self.peek(0) {
            self.at += 1;
            match token.text.as_str() {
                "{" => {
                    while !["}", ""].contains(&self.text(0)) {
                        self.read_tree(prefix, is_public);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                "*" => {
                    self.import(token.line, prefix.clone(), None, is_public);
                    break;
                }
                _ if token.is_name() => {
                    // `a::{self}` names `a`.
                    if token.text != "self" || prefix.is_empty() {
                        prefix.push(token.text.clone());
                    }
                    if self.text(0) == "::" {
                        self.at += 1;
                        continue;
                    }
                    let mut name = prefix.last().cloned();
                    if self.text(0) == "as" {
                        name = self.peek(1).map(|alias| alias.text.clone());
                        self.at += 2;
                    }
                    self.import(token.line, prefix.clone(), name, is_public);
                    break;
                }
                _ => break,
            }
        }
        prefix.truncate(outer);
    }

    fn import(&mut self, line: usize, path: Vec<String>, name: Option<String>, is_public: bool) {
        if self.braces == 0 {
            self.file.names.push(ImportedName { name, path: path.clone() });
        }
        self.refer(line, path, is_public);
    }

    /// Notes a path, as seen from the top of the file: a module written out in it is part of it.
    fn refer(&mut self, line: usize, mut path: Vec<String>, is_public: bool) {
        if !self.inline.is_empty() && path.first().is_none_or(|first| first != "crate") {
            let up = path.iter().take_while(|segment| *segment == "super").count();
            if up <= self.inline.len() {
                return;
            }
            path.drain(..self.inline.len());
        }
        self.file.references.push(Reference { line, path, is_public });
    }
}

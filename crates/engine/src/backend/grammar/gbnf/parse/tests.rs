//! Texts that are refused, and those that would grow without bound.

use super::*;

fn parse(text: &str) -> Result<Gbnf, String> {
    Gbnf::parse(text, "root", &|_| None).map_err(|error| error.to_string())
}

#[test]
fn wrong_texts_are_refused_with_the_place() {
    let cases = [
        ("", "no rule"),
        ("root ::= x", "\"x\" is not defined"),
        ("a ::= \"b\"", "\"root\" to start from"),
        ("root ::= \"a", "does not end"),
        ("root ::= (\"a\"", "does not end"),
        ("root ::= \"a\")", "in line 1"),
        ("x ::= \"a\"\nroot ::= [\\q]", "in line 2"),
        ("root ::= *", "nothing to repeat"),
        ("root ::= \"a\"{2001}", "2000"),
        ("root ::= root \"a\" | \"b\"", "left recursion"),
        ("root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= root", "left recursion"),
        ("root ::= <nothing>", "no such token"),
    ];
    for (text, said) in cases {
        let refused = parse(text).err().unwrap_or_default();
        assert!(refused.contains(said), "{text}: {refused}");
    }
}

/// Hardening 14.2: `x{1,100000}` of a long literal, groups in groups, and rules that double at every step.
#[test]
fn grammars_that_would_grow_without_bound_are_refused_early() {
    let long = "a".repeat(100_000);
    for text in [format!("root ::= \"{long}\"{{0,2000}}"), format!("root ::= \"{long}\"{{2000}}")] {
        assert!(parse(&text).err().unwrap_or_default().contains("500000 steps"));
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(parse(&deep).err().unwrap_or_default().contains("256 deep"));
    let many: String = (0..100_001).map(|rule| format!("r{rule} ::= \"a\"\n")).collect();
    assert!(parse(&format!("root ::= \"b\"\n{many}")).err().unwrap_or_default().contains("100000 rules"));
    // llama.cpp looks for left recursion once for each path: here 2 to the power of 60.
    let doubling: String = (0..60).map(|rule| format!("r{rule} ::= r{0} | r{0}\n", rule + 1)).collect();
    assert!(parse(&format!("root ::= r0\n{doubling}r60 ::= \"a\"\n")).is_ok());
    assert!(parse(&"x".repeat((4 << 20) + 1)).err().unwrap_or_default().contains("4194304"));
}

#[test]
fn equal_repetitions_share_their_rules() {
    let one = parse("root ::= \"a\" [b-c]{0,2000}").unwrap().rules.len();
    let many: String = (0..40).map(|rule| format!("r{rule} ::= \"{rule}\" [b-c]{{0,2000}}\n")).collect();
    let names: Vec<String> = (0..40).map(|rule| format!("r{rule}")).collect();
    let many = parse(&format!("root ::= {}\n{many}", names.join(" | "))).unwrap().rules.len();
    assert_eq!(many, one + 40);
}

//! `poncho tokenize`: a text as the tokens of a model with their pieces of text, and back.
//!
//! It uses a server like `poncho run` does; a model that is loaded for it computes nothing. The text of special tokens is
//! plain text unless `--special` is given, as in prompts.

use std::io::Write;

use anyhow::{Context, ensure};
use poncho_client::runtime;
use poncho_terminal::{Align, Outcome, Table, excerpt, printable};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::args::ModelArgs;
use crate::client::{Connection, Purpose};

/// Longer than any token.
const LONGEST_PIECE: usize = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct TokenizeArgs {
    /// Text, or token ids with --detokenize
    #[arg(value_name = "TEXT", required = true)]
    text: Vec<String>,

    /// Print the text of token ids instead
    #[arg(long)]
    detokenize: bool,

    /// Recognize special tokens in the text
    #[arg(long, conflicts_with = "detokenize")]
    special: bool,

    /// Print JSON on standard output and nothing else
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<Token>,
}

/// A token and its text; a part of a character has bytes instead.
#[derive(Deserialize, Serialize)]
struct Token {
    id: u32,
    piece: Value,
}

#[derive(Deserialize, Serialize)]
struct Text {
    content: String,
}

pub(crate) fn run(args: &TokenizeArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let asked = if args.detokenize {
        json!({"tokens": parse_ids(&args.text)?})
    } else {
        json!({"content": args.text.join(" "), "with_pieces": true, "parse_special": args.special})
    };
    let answer = runtime()?.block_on(ask(args, asked))?;
    let other_shape = "the server sent tokens that cannot be read";
    if args.detokenize {
        let text: Text = serde_json::from_value(answer).context(other_shape)?;
        if args.json {
            serde_json::to_writer(&mut *out, &text)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{}", printable(&text.content))?;
        }
        return Ok(Outcome::Good);
    }
    let Tokens { tokens } = serde_json::from_value(answer).context(other_shape)?;
    if args.json {
        serde_json::to_writer(&mut *out, &json!({"count": tokens.len(), "tokens": tokens}))?;
        writeln!(out)?;
        return Ok(Outcome::Good);
    }
    let mut table = Table::new([("ID", Align::Right), ("PIECE", Align::Left)]);
    for token in &tokens {
        table.row([token.id.to_string(), piece(&token.piece)]);
    }
    table.print(out)?;
    Ok(Outcome::Good)
}

async fn ask(args: &TokenizeArgs, mut asked: Value) -> anyhow::Result<Value> {
    let connection = Connection::to_model(&args.model, Purpose::Vocabulary).await?;
    if let Some(fields) = asked.as_object_mut() {
        fields.insert("model".to_owned(), connection.model.clone().into());
    }
    let path = if args.detokenize { "/detokenize" } else { "/tokenize" };
    let answer = connection.client.post(path, &asked).await;
    connection.close().await?;
    answer
}

/// In quotes, so that spaces show; bytes that are not text as a list.
fn piece(piece: &Value) -> String {
    match piece.as_str() {
        Some(text) => format!("'{}'", excerpt(text, LONGEST_PIECE)),
        None => piece.to_string(),
    }
}

/// Ids separated by white space, commas or brackets, so that a JSON list works too.
fn parse_ids(words: &[String]) -> anyhow::Result<Vec<u32>> {
    let separators = |letter: char| letter.is_whitespace() || ",[]".contains(letter);
    let words = words.iter().flat_map(|word| word.split(separators)).filter(|word| !word.is_empty());
    let ids =
        words.map(|word| word.parse().with_context(|| format!("`{word}` is not a token id; write whole numbers")));
    let ids: Vec<u32> = ids.collect::<anyhow::Result<_>>()?;
    ensure!(!ids.is_empty(), "there are no token ids; write whole numbers such as 72 105");
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_in_every_spelling() {
        for text in [&["1", "2", "3"][..], &["1 2 3"], &["[1, 2,3]"], &["1,2", "3"]] {
            let words: Vec<String> = text.iter().map(ToString::to_string).collect();
            assert_eq!(parse_ids(&words).unwrap(), [1, 2, 3], "{text:?}");
        }
        for wrong in ["", "[]", "x", "-1", "1.5", "4294967296"] {
            assert!(parse_ids(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pieces_show_their_spaces_and_hide_nothing() {
        assert_eq!(piece(&json!(" a")), "' a'");
        assert_eq!(piece(&json!("\n\u{1b}")), "'\\n\\u{1b}'");
        assert_eq!(piece(&json!([195])), "[195]");
    }
}

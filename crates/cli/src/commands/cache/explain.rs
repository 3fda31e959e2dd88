//! `poncho cache explain`: the longest stored prefix of some tokens, where it diverges, and the most similar row.
//!
//! It uses an index of the listed rows, so it works beside a running server. The object store that several machines share
//! is asked too, if one is configured or named. Token ids come from a file or from standard input; the error for a bad id
//! names its position.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use poncho_cache::{Cut, ExplainedRow, Explanation, FolderIndex, Namespace, Parting, Similar, Verdict};
use poncho_shared::StoredPrefix;
use poncho_terminal::{Outcome, Output, excerpt, printable_line, show_bytes};
use serde::{Deserialize, Serialize};

use crate::commands::cache::args::ExplainArgs;
use crate::commands::cache::folder::Folders;
use crate::commands::cache::listing::{Listing, short};
use crate::commands::cache::row::NamespaceJson;
use crate::commands::cache::shared;
use crate::commands::texts::input;

#[derive(Debug, Serialize)]
struct ExplainJson {
    tokens: usize,
    /// Leading tokens that agree with the best row.
    common: usize,
    /// Leading tokens that a plain attention model resumes from.
    usable: usize,
    /// Leading tokens that a model with a window or a recurrent state resumes from.
    usable_at_saved_row: usize,
    verdict: &'static str,
    row: Option<RowJson>,
    parting: Option<PartingJson>,
    /// The row that shares the most tokens, wherever they stand.
    similar: Option<SimilarJson>,
    namespace: Option<NamespaceJson>,
    /// The object store that several machines share; absent if none is configured or named.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<SharedJson>,
}

#[derive(Debug, Serialize)]
struct SharedJson {
    location: String,
    /// The longest row that begins the prompt, of the model and context above if there is one.
    row: Option<SharedRowJson>,
}

#[derive(Debug, Serialize)]
struct SharedRowJson {
    key: String,
    tokens: u32,
    /// Rows of its chain.
    rows: u32,
    bytes: u64,
    namespace: NamespaceJson,
}

#[derive(Debug, Serialize)]
struct RowJson {
    key: String,
    tokens: usize,
    tier: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct PartingJson {
    position: usize,
    window_start: usize,
    stored: Vec<u32>,
    asked: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct SimilarJson {
    row: RowJson,
    /// Leading tokens that agree.
    common: usize,
    /// Tokens that both have.
    shared: usize,
    /// Where both go on with the same tokens after the first difference: positions in the row and in the prompt.
    resumes: Option<ResumesJson>,
}

#[derive(Debug, Serialize)]
struct ResumesJson {
    stored: usize,
    asked: usize,
}

/// A list of ids, or the output of `poncho tokenize --json`.
#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<TokenJson>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenJson {
    Id(u32),
    Piece { id: u32 },
}

/// The same question for both kinds of models.
struct Answer {
    namespace: Namespace,
    any_token: Explanation,
    saved_row: Explanation,
}

pub(crate) fn run(folders: &Folders, args: &ExplainArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let tokens = read_tokens(&args.tokens)?;
    let listing = Listing::read(folders)?;
    let index = listing.index();
    let namespace = match &args.row {
        Some(digits) => Some(listing.find(digits)?.prefix.meta.namespace),
        None => best_namespace(&index, &tokens),
    };
    let shared = match shared::prefixes(args.shared.as_deref(), &tokens) {
        Ok(found) => found.map(|(location, rows)| (location, longest(rows, namespace))),
        Err(error) if args.shared.is_some() => return Err(error),
        Err(error) => {
            eprintln!("note: the shared tier was not looked at: {}", printable_line(&format!("{error:#}")));
            None
        }
    };
    let answer = namespace.map(|namespace| Answer {
        namespace,
        any_token: index.explain(&namespace, &tokens, Cut::AnyToken),
        saved_row: index.explain(&namespace, &tokens, Cut::SavedBoundary),
    });
    if output.json {
        output.print_json(&json(tokens.len(), answer, shared))?;
    } else {
        match answer {
            Some(answer) => print(&answer, output)?,
            None => writeln!(output.out, "no rows in {}", listing.place())?,
        }
        if let Some((location, row)) = shared {
            print_shared(&location, row.as_ref(), tokens.len(), output)?;
        }
    }
    Ok(Outcome::Good)
}

/// The longest row of the namespace, or of any if the folder has none.
fn longest(rows: Vec<StoredPrefix>, namespace: Option<Namespace>) -> Option<StoredPrefix> {
    rows.into_iter().find(|row| namespace.is_none_or(|namespace| row.namespace == namespace))
}

fn print_shared(
    location: &str,
    row: Option<&StoredPrefix>,
    tokens: usize,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let location = printable_line(location);
    match row {
        Some(row) => {
            let size = show_bytes(row.bytes);
            writeln!(output.out, "shared tier    {} of {tokens} tokens, {size}, in {location}", row.tokens)?;
        }
        None => writeln!(output.out, "shared tier    no row begins these tokens in {location}")?,
    }
    Ok(())
}

fn best_namespace(index: &FolderIndex, tokens: &[u32]) -> Option<Namespace> {
    let shared = |namespace: &Namespace| {
        let found = index.explain(namespace, tokens, Cut::AnyToken);
        (found.common.max(found.similar.map_or(0, |similar| similar.alignment.shared())), found.common)
    };
    index.namespaces().into_iter().max_by_key(shared)
}

fn json(tokens: usize, answer: Option<Answer>, shared: Option<(String, Option<StoredPrefix>)>) -> ExplainJson {
    let shared_row = |row: StoredPrefix| SharedRowJson {
        key: row.key.to_hex(),
        tokens: row.tokens,
        rows: row.rows,
        bytes: row.bytes,
        namespace: (&row.namespace).into(),
    };
    let shared = shared.map(|(location, row)| SharedJson { location, row: row.map(shared_row) });
    let Some(Answer { namespace, any_token, saved_row }) = answer else {
        return ExplainJson {
            tokens,
            common: 0,
            usable: 0,
            usable_at_saved_row: 0,
            verdict: word(Verdict::NothingStored),
            row: None,
            parting: None,
            similar: None,
            namespace: None,
            shared,
        };
    };
    ExplainJson {
        tokens,
        common: any_token.common,
        usable: any_token.usable,
        usable_at_saved_row: saved_row.usable,
        verdict: word(any_token.verdict),
        row: any_token.row.as_ref().map(row_json),
        parting: any_token.parting.map(|Parting { position, window_start, stored, asked }| PartingJson {
            position,
            window_start,
            stored,
            asked,
        }),
        similar: any_token.similar.map(similar_json),
        namespace: Some((&namespace).into()),
        shared,
    }
}

fn row_json(row: &ExplainedRow) -> RowJson {
    RowJson { key: row.key.to_hex(), tokens: row.tokens, tier: row.tier.map(|tier| tier.as_str()) }
}

fn similar_json(similar: Similar) -> SimilarJson {
    let Similar { row, alignment } = similar;
    SimilarJson {
        row: row_json(&row),
        common: alignment.prefix,
        shared: alignment.shared(),
        resumes: alignment.notable_runs().next().map(|run| ResumesJson { stored: run.stored, asked: run.asked }),
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Stored => "stored",
        Verdict::Parts => "parts",
        Verdict::Ends => "ends",
        Verdict::NothingStored => "nothing_stored",
        Verdict::OtherNamespace { .. } => "other_namespace",
    }
}

fn print(answer: &Answer, output: &mut Output<'_>) -> anyhow::Result<()> {
    let Answer { namespace, any_token: found, saved_row } = answer;
    let out = &mut *output.out;
    writeln!(
        out,
        "model          {} {}, context {}",
        short(&namespace.fingerprint),
        namespace.quant.as_str(),
        short(&namespace.context_hash)
    )?;
    writeln!(out, "agree          {} of {} tokens", found.common, found.tokens)?;
    writeln!(out, "usable         {} (attention), {} (window, recurrent, hybrid)", found.usable, saved_row.usable)?;
    if let Some(row) = &found.row {
        let tier = row.tier.map_or("-", |tier| tier.as_str());
        writeln!(out, "best row       {} ({} tokens, {tier})", row.key, row.tokens)?;
    }
    let sentence = match found.verdict {
        Verdict::Stored => "every token is stored".to_owned(),
        Verdict::Ends => "the stored row ends there; no token differs".to_owned(),
        Verdict::Parts => "the stored row continues differently".to_owned(),
        Verdict::NothingStored => "no stored row starts with these tokens".to_owned(),
        Verdict::OtherNamespace { fingerprint, quant, context } => {
            let named =
                [(fingerprint, "model files or adapters"), (quant, "quantisation"), (context, "context settings")];
            let named: Vec<&str> = named.into_iter().filter(|(differs, _)| *differs).map(|(_, name)| name).collect();
            format!(
                "not stored for this model and context; the same tokens are stored with other {}",
                named.join(", other ")
            )
        }
    };
    writeln!(out, "verdict        {sentence}")?;
    if let Some(similar) = found.similar.as_ref().filter(|similar| similar.alignment.first_gap().is_some()) {
        print_similar(similar, out)?;
    }
    if let Some(parting) = &found.parting {
        print_window(parting, output)?;
    }
    Ok(())
}

/// What the most similar row has behind the first difference.
fn print_similar(similar: &Similar, out: &mut dyn Write) -> anyhow::Result<()> {
    let Similar { row, alignment } = similar;
    let shared = alignment.shared();
    writeln!(out, "most similar   {} ({} tokens, {shared} of them in this prompt)", row.key, row.tokens)?;
    if let Some(gap) = alignment.first_gap() {
        let (stored, asked) = (gap.stored.len(), gap.asked.len());
        let count = |tokens: usize| if tokens == 1 { "1 token".to_owned() } else { format!("{tokens} tokens") };
        let change = match (stored, asked) {
            (0, asked) => format!("{} inserted", count(asked)),
            (stored, 0) => format!("{} left out", count(stored)),
            (stored, asked) => format!("{} replaced by {asked}", count(stored)),
        };
        writeln!(out, "first change   {change} at {}; the same tokens follow", alignment.prefix)?;
    }
    Ok(())
}

/// Both windows, one above the other, with a mark at the first different token.
fn print_window(parting: &Parting, output: &mut Output<'_>) -> anyhow::Result<()> {
    let out = &mut *output.out;
    writeln!(out)?;
    writeln!(out, "tokens from {}; the first difference is at {}", parting.window_start, parting.position)?;
    let agree = parting.position.saturating_sub(parting.window_start);
    let cell = |window: &[u32], at: usize| window.get(at).map(u32::to_string).unwrap_or_default();
    let length = parting.stored.len().max(parting.asked.len());
    let (mut stored, mut asked) = (String::from("stored "), String::from("asked  "));
    for at in 0..length {
        let (one, two) = (cell(&parting.stored, at), cell(&parting.asked, at));
        let width = one.len().max(two.len());
        let mark = if at == agree { ">" } else { " " };
        stored.push_str(&format!("{mark}{one:>width$} "));
        asked.push_str(&format!("{mark}{two:>width$} "));
    }
    writeln!(out, "{}", stored.trim_end())?;
    writeln!(out, "{}", asked.trim_end())?;
    Ok(())
}

fn read_tokens(path: &Path) -> anyhow::Result<Vec<u32>> {
    let (text, name) = input::read(path, "token ids", "a text file")?;
    parse_tokens(&text).with_context(|| format!("{name} does not contain token ids"))
}

fn parse_tokens(text: &str) -> anyhow::Result<Vec<u32>> {
    let tokens: Vec<u32> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).context("expected a JSON list of whole numbers from 0 to 4294967295")?
    } else if text.trim_start().starts_with('{') {
        let Tokenized { tokens } = serde_json::from_str(text)
            .context("expected the output of `poncho tokenize --json`, an object with a list `tokens`")?;
        let id = |token: &TokenJson| match token {
            TokenJson::Id(id) | TokenJson::Piece { id } => *id,
        };
        tokens.iter().map(id).collect()
    } else {
        let parse = |(at, word): (usize, &str)| {
            let id = word.parse().ok().with_context(|| {
                let word = excerpt(word, 40);
                format!("word {} is `{word}`; write whole numbers from 0 to 4294967295", at + 1)
            });
            id as anyhow::Result<u32>
        };
        text.split_ascii_whitespace().enumerate().map(parse).collect::<anyhow::Result<_>>()?
    };
    if tokens.is_empty() {
        bail!("the list is empty; give at least one");
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_are_read_as_a_list_or_as_words() {
        assert_eq!(parse_tokens(" [1, 2,\n 4294967295]\n").unwrap(), [1, 2, u32::MAX]);
        assert_eq!(parse_tokens("1 2\n3\t4\r\n").unwrap(), [1, 2, 3, 4]);
    }

    /// Everyday use 7: the output of `tokenize --json` was refused.
    #[test]
    fn the_output_of_tokenize_is_read() {
        let printed = r#"{"count":2,"tokens":[{"id":72,"piece":"H"},{"id":195,"piece":[195]}]}"#;
        assert_eq!(parse_tokens(printed).unwrap(), [72, 195]);
        assert_eq!(parse_tokens(r#" {"tokens": [1, 2]}"#).unwrap(), [1, 2]);
        for text in [r#"{"count": 2}"#, r#"{"tokens": ["a"]}"#, r#"{"tokens": []}"#, "{"] {
            assert!(parse_tokens(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bad_token_id_is_refused_with_its_position() {
        let cases = [("1 x 3", "word 2"), ("-1", "word 1"), ("4294967296", "word 1"), ("1,2", "word 1"), ("", "empty")];
        for (text, expected) in cases {
            let error = format!("{:#}", parse_tokens(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
        for text in ["[1, -2]", "[1, 2", "[[1]]", "[1.5]", "[]"] {
            assert!(parse_tokens(text).is_err(), "{text}");
        }
    }
}

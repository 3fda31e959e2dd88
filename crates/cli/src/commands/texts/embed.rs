//! `poncho embed`: the embeddings of texts.
//!
//! Prints one line of numbers for each text, in order. It uses a server like `poncho run` does.

use std::io::{Read, Write};

use anyhow::{Context, ensure};
use poncho_client::runtime;
use poncho_terminal::Outcome;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::client::args::ModelArgs;
use crate::client::{Connection, Purpose};

#[derive(Debug, clap::Args)]
pub(crate) struct EmbedArgs {
    /// Texts to embed [default: one from standard input]
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// Print JSON on standard output and nothing else
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,
}

/// The answer of the server, in the order of the texts.
#[derive(Deserialize)]
struct Answer {
    data: Vec<Vector>,
    usage: Usage,
}

#[derive(Deserialize)]
struct Vector {
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Printed<'a> {
    model: &'a str,
    embeddings: Vec<&'a [f32]>,
    tokens: u64,
}

pub(crate) fn run(args: &EmbedArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let texts = if args.texts.is_empty() { vec![standard_input()?] } else { args.texts.clone() };
    runtime()?.block_on(async {
        let connection = Connection::to_model(&args.model, Purpose::Compute).await?;
        let asked = json!({"model": connection.model, "input": texts, "encoding_format": "float"});
        let answer = connection.client.post("/v1/embeddings", &asked).await;
        connection.close().await?;
        let answer: Answer =
            serde_json::from_value(answer?).context("the server sent embeddings that cannot be read")?;
        ensure!(
            answer.data.len() == texts.len(),
            "the server answered only {} of {} texts",
            answer.data.len(),
            texts.len()
        );
        let vectors = answer.data.iter().map(|vector| vector.embedding.as_slice());
        if args.json {
            let embeddings = vectors.collect();
            let printed = Printed { model: &connection.model, embeddings, tokens: answer.usage.prompt_tokens };
            serde_json::to_writer(&mut *out, &printed)?;
            writeln!(out)?;
        } else {
            for vector in vectors {
                let numbers: Vec<String> = vector.iter().map(ToString::to_string).collect();
                writeln!(out, "{}", numbers.join(" "))?;
            }
        }
        Ok(Outcome::Good)
    })
}

fn standard_input() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text).context("cannot read the text from standard input")?;
    let text = text.trim_end_matches(['\n', '\r']);
    ensure!(!text.is_empty(), "standard input is empty; give a text as an argument or through a pipe");
    Ok(text.to_owned())
}

//! `poncho embed`: texts to vectors.
//!
//! One line of numbers for each text, in the order of the texts. Talks to a server like `poncho run` does.

use std::io::{Read, Write};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Outcome;
use crate::client::args::{OwnArgs, ServerArgs};
use crate::client::{Connection, Purpose};

#[derive(Debug, clap::Args)]
pub(crate) struct EmbedArgs {
    /// The texts; one from standard input if none is given
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// The model: a GGUF file, or a name at the server [default: the server's first one, or the default model]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,

    /// Print JSON on standard output, and nothing else there
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    own: OwnArgs,
}

/// What the server answers, in the order of the texts.
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

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    model: &'a str,
    embeddings: Vec<&'a [f32]>,
    tokens: u64,
}

pub(crate) fn run(args: &EmbedArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let texts = if args.texts.is_empty() { vec![standard_input()?] } else { args.texts.clone() };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let connection = Connection::open(&args.server, &args.own, args.model.as_deref(), Purpose::Compute).await?;
        let asked = json!({"model": connection.model, "input": texts, "encoding_format": "float"});
        let answer = connection.client.demand("/v1/embeddings", &asked).await;
        connection.close().await?;
        let answer: Answer = serde_json::from_value(answer?).context("the server's vectors have another shape")?;
        ensure!(answer.data.len() == texts.len(), "the server answered {} of {} texts", answer.data.len(), texts.len());
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
    ensure!(!text.is_empty(), "there is no text on standard input; give one as an argument or through a pipe");
    Ok(text.to_owned())
}

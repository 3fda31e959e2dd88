//! What changes a bit on this device, and whether exact replies are exact on it.
//!
//! Run by the benchmark `device`. A model that is refused prints the reason.

use std::path::Path;
use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{Backend, ContextOptions, FlashAttention, ModelOptions};
use poncho_engine::{Exactness, Model, ModelConfig, StreamEvent};

use crate::table::table;
use crate::{prompt, request};

/// Tokens of a reply that is compared.
const REPLY: u32 = 24;
/// Tokens of the longest prompt.
const PROMPT: usize = 700;

pub(crate) fn print(path: &Path) {
    let model = LlamaBackend.load_model(&ModelOptions::new(path)).unwrap();
    for flash in [FlashAttention::On, FlashAttention::Off] {
        println!("what changes a bit, flash attention {flash:?}");
        for line in table(&model, flash, 150) {
            let verdict = if line.same { "same" } else { "differs" };
            println!("  {:60} {verdict}{}", line.what, if line.promised { " (exact replies need it)" } else { "" });
        }
    }
    drop(model);
    for flash in [FlashAttention::Off, FlashAttention::On] {
        exact_replies(path, flash);
    }
}

fn load(path: &Path, flash_attention: FlashAttention, cache: &Arc<Cache>) -> Result<Model, String> {
    let context = ContextOptions { n_ctx: 1024, n_seq_max: 4, flash_attention, ..ContextOptions::default() };
    let mut config = ModelConfig { context, exactness: Exactness::Always, ..ModelConfig::new("exact", path) };
    (config.gates.min_tokens, config.gates.cold_min_tokens) = (1, 1);
    Model::load(config, Arc::new(LlamaBackend), Arc::clone(cache)).map_err(|error| error.to_string())
}

fn in_memory() -> Arc<Cache> {
    Arc::new(Cache::open(CacheConfig::in_memory(4 << 30)).unwrap())
}

/// A reply: tokens, and the bits of their log probabilities.
type Reply = Vec<(u32, u32)>;

fn replies(model: &Model, prompts: &[Vec<u32>]) -> Vec<Reply> {
    let asked = prompts.iter().map(|tokens| {
        let mut request = request(tokens, REPLY);
        request.logprobs = Some(1);
        model.submit(request).unwrap()
    });
    let streams: Vec<_> = asked.collect();
    let read = |mut stream: poncho_engine::Stream| {
        let mut reply = Reply::new();
        loop {
            match stream.next_blocking().unwrap() {
                StreamEvent::Token { id, logprob, .. } => {
                    reply.push((id, logprob.map_or(0, |found| found.token.logprob.to_bits())));
                }
                StreamEvent::Done(_) => return reply,
                StreamEvent::Error(error) => panic!("{error}"),
                _ => {}
            }
        }
    };
    streams.into_iter().map(read).collect()
}

/// Replies of a fresh, idle model beside those after hits of all kinds and beside each other.
fn exact_replies(path: &Path, flash: FlashAttention) {
    let prompts: Vec<Vec<u32>> =
        [90, 128, 300, PROMPT].into_iter().zip(60..).map(|(length, number)| prompt(number, length)).collect();
    let cache = in_memory();
    let model = match load(path, flash, &cache) {
        Ok(model) => model,
        Err(reason) => return println!("exact replies, flash attention {flash:?}: refused: {reason}"),
    };
    // Each by a model that has seen nothing else.
    let fresh = |tokens| replies(&load(path, flash, &in_memory()).unwrap(), std::slice::from_ref(tokens));
    let cold: Vec<Reply> = prompts.iter().flat_map(fresh).collect();
    let (mut same, mut all) = (0, 0);
    let mut compare = |found: &[Reply]| {
        all += found.len();
        same += found.iter().zip(&cold).filter(|(one, two)| one == two).count();
    };
    // Together and cold, together and cached, then one by one.
    compare(&replies(&model, &prompts));
    compare(&replies(&model, &prompts));
    for (place, tokens) in prompts.iter().enumerate() {
        let found = replies(&model, std::slice::from_ref(tokens));
        all += 1;
        same += usize::from(found.first() == cold.get(place));
    }
    println!("exact replies, flash attention {flash:?}: {same} of {all} are those of a fresh, idle model");
}

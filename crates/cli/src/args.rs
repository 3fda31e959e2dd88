//! The command line: all commands, with their help and their settings.
//!
//! Filled by clap and read by `main`; each command keeps its own flags. No input or output here.

use std::sync::OnceLock;

use clap::{CommandFactory, Parser, Subcommand};
use poncho_engine::backend::llama::{LLAMA_VERSION, backends};

use crate::commands::agents::launch::args::LaunchArgs;
use crate::commands::agents::mcp::McpArgs;
use crate::commands::cache::args::CacheArgs;
use crate::commands::cluster::args::ClusterCommand;
use crate::commands::machine::bench::BenchArgs;
use crate::commands::machine::config::ConfigArgs;
use crate::commands::machine::doctor::DoctorArgs;
use crate::commands::machine::manual::{CompletionsArgs, ManArgs};
use crate::commands::models::args::{CpArgs, CreateArgs, ListArgs, PullArgs, RmArgs, ShowModelArgs};
use crate::commands::rpc_worker::RpcWorkerArgs;
use crate::commands::run::args::RunArgs;
use crate::commands::running::ps::PsArgs;
use crate::commands::running::stop::StopArgs;
use crate::commands::running::top::args::TopArgs;
use crate::commands::serve::node::NodeCommand;
use crate::commands::texts::embed::EmbedArgs;
use crate::commands::texts::explain::ExplainArgs;
use crate::commands::texts::tokenize::TokenizeArgs;
use crate::fit::command::FitArgs;
use crate::settings;
use crate::settings::args::{LogArgs, ServeArgs};

/// Serves llama.cpp models with a persistent prompt cache: a prefix that was computed once is never computed again.
#[derive(Debug, Parser)]
#[command(name = "poncho", version, arg_required_else_help = true)]
#[command(after_help = "Examples:\n  poncho run smollm2:135m 'Why is the sky blue?'\n  poncho serve model.gguf\n\n\
        Exit codes: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve models over HTTP with the APIs of OpenAI, Anthropic and Ollama
    #[command(
        after_help = "Examples:\n  poncho serve model.gguf\n  poncho serve model.gguf --ctx-size 32768 --port 9000\n\n\
        Context, concurrent requests, KV type and cache sizes that are not given are chosen to fit into memory.\n\
        Settings may also come from environment variables and a file; `poncho config` prints the effective ones."
    )]
    Serve(ServeArgs),
    /// Compute for servers on other machines: an engine with its cache, without HTTP
    #[command(args_conflicts_with_subcommands = true)]
    #[command(after_help = "Examples:\n  poncho node cert gpu-1.example front\n  \
        poncho node --listen gpu-1.example:7070 --model model.gguf \\\n    \
        --node-cert gpu-1.example.pem --node-key gpu-1.example-key.pem --node-ca ca.pem\n  \
        poncho serve --node gpu-1.example:7070 --node-cert front.pem --node-key front-key.pem --node-ca ca.pem\n\n\
        Settings are those of `poncho serve`; those of HTTP have no effect.")]
    Node(NodeCommand),
    /// Serve the nodes of a cluster over HTTP: each request goes to the node that has its prefix
    #[command(after_help = "Examples:\n  \
        poncho node --cluster nats://10.0.0.1:4222 --cluster-key-file cluster.key --model model.gguf\n  \
        poncho route --cluster nats://10.0.0.1:4222 --cluster-key-file cluster.key --api-key secret\n\n\
        Nodes on other machines need certificates, as for `poncho serve --node`.")]
    Route(ServeArgs),
    /// Inspect a cluster, show where a prompt would be routed, and drain nodes
    #[command(
        arg_required_else_help = true,
        after_help = "Examples:\n  poncho cluster status\n  poncho cluster explain 'Why is the sky blue?'"
    )]
    Cluster(ClusterCommand),
    /// Lend the devices of this machine to a Poncho server on another machine
    #[command(
        after_help = "Examples:\n  poncho rpc-worker\n  poncho serve --model model.gguf --rpc 127.0.0.1:50052\n\n\
        The protocol is llama.cpp's and has no authentication: use it through a tunnel (docs/devices.md)."
    )]
    RpcWorker(RpcWorkerArgs),
    /// Inspect a cache folder, check it, and free space in it
    #[command(arg_required_else_help = true)]
    Cache(CacheArgs),
    /// Run benchmarks: replay, compare, matrix (requires the program poncho-bench)
    #[command(after_help = "Examples:\n  poncho bench --help\n  poncho bench replay --model model.gguf trace.json")]
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
    /// Print the effective settings and their sources
    #[command(
        after_help = "Examples:\n  poncho config\n  poncho config --port 9000 --json\n  poncho config --reference"
    )]
    Config(ConfigArgs),
    /// Check whether this machine can serve: CPU, memory, cache folder, disk, port, limits; exits with 1 if it cannot
    #[command(after_help = "Examples:\n  poncho doctor\n  poncho doctor --model model.gguf --ctx-size 32768 --json")]
    Doctor(DoctorArgs),
    /// Print the settings that fit a model on this machine, without loading it
    #[command(after_help = "Examples:\n  poncho fit model.gguf\n  poncho fit model.gguf --ctx-size 65536 --json\n\n\
        `poncho serve` chooses the same. A value that is given by a flag, a variable or the file stays as it is.")]
    Fit(FitArgs),
    /// Print shell completions
    #[command(after_help = "Example:\n  poncho completions bash > ~/.local/share/bash-completion/completions/poncho")]
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages for all commands
    #[command(after_help = "Example:\n  poncho man --out ~/.local/share/man/man1")]
    Man(ManArgs),
    /// Chat with a model in the terminal, or answer one prompt
    #[command(after_help = "Examples:\n  poncho run model.gguf\n  poncho run model.gguf 'Why is the sky blue?'\n  \
        git diff | poncho run model.gguf 'Describe this change:' -\n  \
        poncho run --format json model.gguf 'Name three colours as JSON'\n  poncho run --url http://127.0.0.1:8080")]
    Run(Box<RunArgs>),
    /// Run a coding agent with a model of this machine: its address, model and context are set, and no file is changed
    #[command(after_help = "Examples:\n  poncho launch\n  poncho launch claude\n  \
        poncho launch codex --model qwen3:8b -- exec 'explain this project'\n  poncho launch aider --print\n\n\
        A running server is used; otherwise one is started, and stopped when the agent exits.")]
    Launch(Box<LaunchArgs>),
    /// Serve tools to agents over MCP: explain cache misses, inspect the cache and the models, send a prompt to a model
    #[command(
        after_help = "Examples:\n  claude mcp add poncho -- poncho mcp\n  poncho mcp --listen 127.0.0.1:8090\n\n\
        The tools ask a running server; without one they answer with an error (docs/agents.md)."
    )]
    Mcp(McpArgs),
    /// List the models that a running server has loaded
    #[command(after_help = "Examples:\n  poncho ps\n  poncho ps --json | jq '.[].name'")]
    Ps(PsArgs),
    /// Unload a model from a running server
    #[command(after_help = "Example:\n  poncho stop smollm2:135m")]
    Stop(StopArgs),
    /// Compute the embeddings of texts
    #[command(after_help = "Examples:\n  poncho embed --model model.gguf 'first text' 'second text'\n  \
        poncho embed --json 'a text' | jq '.embeddings[0] | length'")]
    Embed(Box<EmbedArgs>),
    /// Split a text into tokens, or turn tokens into text
    #[command(after_help = "Examples:\n  poncho tokenize --model model.gguf 'Hello there'\n  \
        poncho tokenize --detokenize 72 105")]
    Tokenize(Box<TokenizeArgs>),
    /// Explain why the prompt of a request is not cached, and what to change
    #[command(after_help = "Examples:\n  poncho explain --request body.json\n  \
        poncho explain --request - --dialect anthropic < body.json\n\n\
        The file contains the body of a request to /v1/chat/completions, /v1/completions, /v1/messages,\n\
        /v1/responses, /api/chat or /api/generate. Nothing is computed.")]
    Explain(Box<ExplainArgs>),
    /// Watch a running server: models, requests, cache, speed
    #[command(after_help = "Examples:\n  poncho top\n  poncho top --url http://127.0.0.1:9000\n  poncho top --once")]
    Top(TopArgs),
    /// Install a model from the catalogue, a hub repository, a URL or a file
    #[command(after_help = "Examples:\n  poncho pull smollm2:135m\n  poncho pull hf:Qwen/Qwen3-0.6B-GGUF:Q8_0\n  \
        poncho pull ./model.gguf --name mine:1\n\nHF_TOKEN and HF_ENDPOINT are respected. An interrupted download \
        resumes where it stopped.")]
    Pull(PullArgs),
    /// List the installed models
    #[command(visible_alias = "ls")]
    #[command(after_help = "Examples:\n  poncho list\n  poncho ls --catalogue\n  poncho list --json | jq '.[].name'")]
    List(ListArgs),
    /// Show all details of a model
    #[command(after_help = "Examples:\n  poncho show smollm2:135m\n  poncho show smollm2:135m --verify\n  \
        poncho show smollm2:135m --modelfile > Modelfile")]
    Show(ShowModelArgs),
    /// Remove models, and the files that no other name uses
    #[command(after_help = "Example:\n  poncho rm smollm2:135m")]
    Rm(RmArgs),
    /// Give a model a second name; no bytes are copied
    #[command(after_help = "Example:\n  poncho cp smollm2:135m gpt-4o")]
    Cp(CpArgs),
    /// Create a model from a Modelfile: FROM, PARAMETER, SYSTEM, TEMPLATE, ADAPTER, LICENSE, MESSAGE
    #[command(after_help = "Example:\n  poncho create pirate -f Modelfile")]
    Create(CreateArgs),
}

/// The whole command line, with the settings in it.
pub(crate) fn command() -> clap::Command {
    settings::with_settings(Args::command())
}

/// The same with the text of `--version`, which asks llama.cpp; `-V` stays one line.
pub(crate) fn command_with_versions() -> clap::Command {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        format!("{}\nllama.cpp {LLAMA_VERSION}\nbackends: {}", env!("CARGO_PKG_VERSION"), backends().join(", "))
    });
    command().long_version(text.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_command_line_does_not_contradict_itself() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        let mut open = vec![Args::command()];
        while let Some(command) = open.pop() {
            if command.get_name() != "cache" {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("poncho "), "{} has no example", command.get_name());
            }
            open.extend(command.get_subcommands().cloned());
        }
    }
}

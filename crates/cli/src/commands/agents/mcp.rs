//! `poncho mcp`: tools for agents, over standard input and output or HTTP, in front of a running server.
//!
//! Finds the server as `poncho ps` does. Standard output belongs to the protocol: nothing else is written to it without
//! `--listen`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use anyhow::Context;
use poncho_client::runtime;
use poncho_terminal::Outcome;
use tokio::signal::unix::{SignalKind, signal};

use crate::client::args::ServerArgs;
use crate::client::named_or_default;

#[derive(Debug, clap::Args)]
pub(crate) struct McpArgs {
    /// Serve over HTTP on this loopback address, such as 127.0.0.1:8090 [default: standard input and output]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &McpArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let client = named_or_default(&args.server)?;
    let runtime = runtime()?;
    let Some(address) = args.listen else {
        // The caller holds the lock of standard output, so the protocol gets a descriptor of its own.
        let output = io::stdout().as_fd().try_clone_to_owned().context("cannot use standard output")?;
        let output = tokio::fs::File::from_std(output.into());
        let served = runtime.block_on(poncho_mcp::serve_streams(client, tokio::io::stdin(), output));
        // A read of standard input cannot be interrupted; the client may keep it open.
        runtime.shutdown_background();
        served?;
        return Ok(Outcome::Good);
    };
    runtime.block_on(async {
        let listener = poncho_mcp::listen(address).await?;
        let url = format!("http://{}{}", listener.local_addr()?, poncho_mcp::PATH);
        writeln!(out, "MCP for the server at {} on {url}", client.authority())?;
        out.flush()?;
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let told = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        poncho_mcp::serve_http(listener, client, told).await?;
        anyhow::Ok(())
    })?;
    Ok(Outcome::Good)
}

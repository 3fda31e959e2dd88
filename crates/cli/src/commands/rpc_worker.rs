//! `poncho rpc-worker`: lends the devices of this machine to a Poncho on another one, by llama.cpp's RPC protocol.
//!
//! The protocol has no keys: everyone who reaches the port may compute, and a damaged message may end the worker. So it
//! listens on loopback unless `--open` is given, and docs/devices.md shows how to put a tunnel before it.

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context, bail};
use poncho_engine::backend::llama::serve_devices;
use poncho_terminal::{Outcome, printable_line, show_bytes};

use crate::serving::devices;
use crate::settings::args::devices::DeviceArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct RpcWorkerArgs {
    /// Address and port to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50052")]
    listen: String,

    /// Number of threads that compute [default: all cores]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Folder with backend libraries for GPUs; may be repeated [default: backends and ../lib/poncho/backends beside the program]
    #[arg(long, value_name = "DIR")]
    backends: Vec<std::path::PathBuf>,

    /// Allow an address that other machines can reach, although the protocol has no authentication
    #[arg(long)]
    open: bool,
}

pub(crate) fn run(args: &RpcWorkerArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let address = address(&args.listen)?;
    if !address.ip().is_loopback() && !args.open {
        bail!(
            "other machines can reach {address}, and the RPC protocol has no keys; listen on 127.0.0.1 behind a tunnel, \
             or allow it with --open"
        );
    }
    let looked = devices::look(&DeviceArgs { backends: args.backends.clone(), rpc: Vec::new() });
    devices::load(looked.sources)?;
    for unused in &looked.unused {
        writeln!(out, "not used: {}: {}", printable_line(&unused.what), printable_line(&unused.why))?;
    }
    for device in &looked.devices {
        let description = printable_line(&device.description);
        writeln!(out, "device:   {} ({description}), {} free", device.name, show_bytes(device.free))?;
    }
    writeln!(out, "lending these devices at {address}; add --rpc {address} to `poncho serve`")?;
    out.flush()?;
    let threads = args
        .threads
        .map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from);
    // It returns only if it cannot serve.
    bail!("cannot lend devices at {address}: {}", serve_devices(&address.to_string(), threads))
}

fn address(listen: &str) -> anyhow::Result<SocketAddr> {
    let mut found = listen
        .to_socket_addrs()
        .with_context(|| format!("{listen} is not an address of this machine; write it as 127.0.0.1:50052"))?;
    found.next().with_context(|| format!("{listen} has no address"))
}

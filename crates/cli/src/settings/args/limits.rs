//! The flags for the bounds of a server: bodies, connections, waiting times, the queue.
//!
//! Filled by clap with the server's defaults, put into its settings by `serve`. docs/limits.md lists what a client gets
//! beyond each bound.

use std::time::Duration;

use poncho_server::ServerConfig;
use poncho_terminal::parse_bytes;

use crate::settings::args::parse_wait;

/// What clients may take.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LimitArgs {
    /// Maximum size of a request body
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = parse_bytes)]
    pub(crate) max_body: u64,

    /// How long a client may take to send the headers of a request; also closes idle connections
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_wait)]
    pub(crate) header_timeout: Duration,

    /// How long a client may take to send the body of a request
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_wait)]
    pub(crate) body_timeout: Duration,

    /// How long a request may take in total [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = parse_wait)]
    pub(crate) request_timeout: Option<Duration>,

    /// Maximum number of concurrent connections; further ones wait
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,

    /// Maximum number of waiting requests per model; further ones are refused with status 429
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) queue_limit: u32,

    /// How many of the last requests the console and /api/requests show; 0 keeps none
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub(crate) console_requests: u32,

    /// How long running requests may continue after a signal to stop
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_wait)]
    pub(crate) shutdown_grace: Duration,
}

impl LimitArgs {
    /// Puts the bounds into the settings of a server.
    pub(crate) fn set(&self, config: &mut ServerConfig) {
        config.max_body = usize::try_from(self.max_body).unwrap_or(usize::MAX);
        config.header_timeout = self.header_timeout;
        config.body_timeout = self.body_timeout;
        config.request_timeout = self.request_timeout;
        config.max_connections = usize::try_from(self.max_connections).unwrap_or(usize::MAX);
        config.shutdown_grace = self.shutdown_grace;
        config.requests_kept = usize::try_from(self.console_requests).unwrap_or(usize::MAX);
    }

    /// Requests of a model that may wait.
    pub(crate) fn queue(&self) -> usize {
        usize::try_from(self.queue_limit).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        limits: LimitArgs,
    }

    #[test]
    fn the_defaults_are_the_servers() {
        let line = Line::try_parse_from(["serve"]).unwrap();
        let mut config = ServerConfig::default();
        line.limits.set(&mut config);
        assert_eq!(format!("{config:?}"), format!("{:?}", ServerConfig::default()));
        assert_eq!(line.limits.queue(), poncho_engine::ModelConfig::new("m", "m").queue_limit);
    }
}

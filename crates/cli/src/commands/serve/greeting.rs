//! The greeting of `poncho serve`: its address, how to try it, the settings of each kind of client, how to stop it.
//!
//! Text only, so that a test can try every line. It must never show a key: terminals are shared and logged.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use poncho_terminal::printable_line;

/// The facts of the greeting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Greeting<'a> {
    /// Where the server listens.
    pub(crate) address: SocketAddr,
    /// The name of the model for clients.
    pub(crate) model: &'a str,
    /// Context, memory, device and cache.
    pub(crate) report: &'a str,
    /// Whether clients must send a key.
    pub(crate) needs_key: bool,
}

impl Greeting<'_> {
    pub(crate) fn text(&self) -> String {
        let Self { address, model, report, needs_key } = *self;
        let here = reachable(address);
        let name = serde_json::Value::from(model).to_string();
        let body = format!("{{\"model\":{name},\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}");
        // In a shell the first quote ends a quoted text.
        let body = body.replace('\'', "'\\''");
        let (header, key) = match needs_key {
            true => (" -H \"authorization: Bearer $PONCHO_API_KEY\"", "\"your key\""),
            false => ("", "\"any\""),
        };
        let mut text = String::new();
        let shown = printable_line(model);
        let _ = writeln!(text, "serving {shown} on http://{address}/v1");
        text.push_str(report);
        let _ = writeln!(text);
        let _ =
            writeln!(text, "  curl http://{here}/v1/chat/completions -H 'content-type: application/json'{header} \\");
        let _ = writeln!(text, "    -d '{body}'");
        let _ = writeln!(text);
        let _ = writeln!(text, "  OpenAI SDK:     base_url=\"http://{here}/v1\", api_key={key}, model={name}");
        let _ = writeln!(text, "  Anthropic SDK:  base_url=\"http://{here}\", api_key={key}, model={name}");
        let _ = writeln!(text, "  Ollama clients: OLLAMA_HOST=http://{here}, model {name}");
        let _ = writeln!(text);
        let _ = writeln!(
            text,
            "Press Ctrl-C to stop: running replies finish and states are saved. Press it twice to stop at once."
        );
        text
    }
}

/// The address for a client on this machine: "all interfaces" cannot be connected to.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(address: &str, model: &str, needs_key: bool) -> String {
        let address = address.parse().unwrap();
        Greeting { address, model, report: "context: 8192 tokens\n", needs_key }.text()
    }

    #[test]
    fn each_kind_of_client_has_its_line() {
        let text = greeting("127.0.0.1:8080", "small", false);
        for part in [
            "on http://127.0.0.1:8080/v1\ncontext: 8192 tokens\n",
            "curl http://127.0.0.1:8080/v1/chat/completions ",
            "OpenAI SDK:     base_url=\"http://127.0.0.1:8080/v1\", api_key=\"any\", model=\"small\"",
            "Anthropic SDK:  base_url=\"http://127.0.0.1:8080\", api_key=\"any\", model=\"small\"",
            "Ollama clients: OLLAMA_HOST=http://127.0.0.1:8080, model \"small\"",
            "Press Ctrl-C to stop",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn all_interfaces_are_shown_as_the_loopback() {
        let text = greeting("0.0.0.0:80", "m", true);
        assert!(text.contains("on http://0.0.0.0:80/v1") && text.contains("curl http://127.0.0.1:80/"), "{text}");
        assert!(text.contains("Bearer $PONCHO_API_KEY") && text.contains("api_key=\"your key\""), "{text}");
        assert!(greeting("[::]:80", "m", true).contains("curl http://[::1]:80/"));
    }

    #[test]
    fn names_with_quotes_stay_one_argument() {
        let text = greeting("127.0.0.1:1", "it's \"x\"", false);
        assert!(text.contains(r#"{"model":"it'\''s \"x\"","messages""#), "{text}");
    }
}

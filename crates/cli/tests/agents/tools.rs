//! `poncho mcp`: what goes over its streams, which server it uses, and where it does not listen.
//!
//! Its tools are tested in crates/cli/mcp, and the binary with the official SDK in tests/clients.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{poncho, run};

#[test]
fn the_protocol_and_nothing_else_goes_to_standard_output() {
    let mut command = poncho();
    // The settings of `poncho serve` name the server, as for `poncho ps`.
    command.arg("mcp").env("PONCHO_PORT", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let (mut input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
    let mut lines = BufReader::new(output).lines();
    let mut ask = |messages: &[Value]| -> Value {
        for message in messages {
            writeln!(input, "{message}").unwrap();
        }
        serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
    };
    let greeting =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let greeted = ask(&[json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting})]);
    assert_eq!(greeted["result"]["serverInfo"]["name"], "poncho", "{greeted}");
    assert_eq!(greeted["result"]["protocolVersion"], "2025-06-18", "{greeted}");
    let call = json!({"name": "models", "arguments": {}});
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let called = ask(&[ready, json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})]);
    assert_eq!(called["result"]["isError"], true, "{called}");
    let said = called["result"]["content"][0]["text"].as_str().unwrap();
    assert!(said.starts_with("cannot reach the server at 127.0.0.1:1;") && said.contains("poncho serve"), "{said}");
    drop(input);
    assert!(process.wait().unwrap().success(), "it ends when its client closes the stream");
    assert!(lines.next().is_none(), "nothing else was written");
}

#[test]
fn an_address_that_other_machines_reach_is_refused() {
    for address in ["0.0.0.0:8090", "[::]:0"] {
        let refused = run(poncho().args(["mcp", "--listen", address]));
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains("loopback") && refused.stdout.is_empty(), "{}", refused.stderr);
    }
    assert_eq!(run(poncho().args(["mcp", "--listen", "8090"])).code, Some(2), "it is an address");
}

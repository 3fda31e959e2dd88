//! The line that a server logs for each reply, and how to turn it off.

use serde_json::json;

use crate::served::{Served, serve_command};
use crate::serving::stopping::until;

/// Everyday use 14: the default level had no line for a reply.
#[test]
fn each_reply_is_one_line_at_the_default_level_and_none_with_quiet() {
    for flags in [&[][..], &["--quiet"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = serve_command(&folder.path().join("kv"));
        let served = Served::start_command(command.args(["--port", "0"]).args(flags), folder.path());
        served.post("/v1/completions", &json!({"model": "attention", "prompt": "confidential words", "max_tokens": 3}));
        if flags.is_empty() {
            until("the reply is logged", || served.messages().contains("new tokens"));
        }
        assert_eq!(served.stop().0, Some(0));
        let messages = std::fs::read_to_string(folder.path().join("stderr")).unwrap();
        let lines: Vec<&str> = messages.lines().filter(|line| line.contains(" tokens, ")).collect();
        assert_eq!(lines.len(), usize::from(flags.is_empty()), "{messages}");
        assert!(!messages.contains("confidential"), "{messages}");
        for line in lines {
            let is_whole =
                line.contains("INFO ") && line.contains("0 cached + ") && line.contains("first token after ");
            assert!(is_whole && line.contains(" generated"), "{line}");
        }
    }
}

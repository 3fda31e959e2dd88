//! A model that follows a script: the conversation itself contains the text of the reply.
//!
//! Used by the stub's context when the backend was made with `with_echo`. A reply is what the newest message since the
//! model's last one has between `[say:` and `:say]`, or [`PLAIN_REPLY`]. So a client that nobody can script, an agent
//! for one, gets a known text or a tool call from its prompt, and the text of a file through its tool. A [`StubLine`]
//! answers what a client asks on its own, such as for a summary. It must never look at anything but the tokens.

use crate::backend::{SpecialText, Token};

use super::vocab::{self, IM_END, IM_START};

/// What is said where no message has a script.
pub const PLAIN_REPLY: &str = "Nothing to say.";
const OPEN: &str = "[say:";
const CLOSE: &str = ":say]";
/// What the template writes for a reply without thinking.
const NO_THOUGHTS: &str = "<think>\n\n</think>\n\n";

/// A reply to each message that has a text in it.
#[derive(Clone, Debug)]
pub struct StubLine {
    /// What the message must have in it.
    pub heard: String,
    /// The reply.
    pub said: String,
}

/// The token that follows, in a reply that has begun; `None` outside of replies.
///
/// The newest message that has a reply decides. In a message, the first line that matches wins, then its script.
pub(super) fn next(tokens: &[Token], lines: &[StubLine]) -> Option<Token> {
    let mut messages = tokens.rsplit(|&token| token == IM_START);
    let reply = messages.next()?;
    let reply = reply.strip_prefix(vocab::tokens("assistant\n").as_slice())?;
    let reply = reply.strip_prefix(vocab::tokens(NO_THOUGHTS).as_slice()).unwrap_or(reply);
    let script = messages
        .map(text)
        .take_while(|message| !message.starts_with("assistant\n"))
        .filter(|message| !message.starts_with("system\n"))
        .find_map(|message| match lines.iter().find(|line| message.contains(&line.heard)) {
            Some(line) => Some(line.said.clone()),
            None => Some(message.rsplit_once(OPEN)?.1.split_once(CLOSE)?.0.to_owned()),
        });
    let script = vocab::tokens(script.as_deref().unwrap_or(PLAIN_REPLY));
    script.strip_prefix(reply).map(|rest| rest.first().copied().unwrap_or(IM_END))
}

fn text(tokens: &[Token]) -> String {
    let mut bytes = Vec::with_capacity(tokens.len());
    tokens.iter().for_each(|&token| vocab::token_bytes(token, SpecialText::Render, &mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that is said after a conversation.
    fn reply(conversation: &str) -> String {
        reply_with(conversation, &[])
    }

    fn reply_with(conversation: &str, lines: &[StubLine]) -> String {
        let mut tokens = vocab::tokens(conversation);
        let start = tokens.len();
        while let Some(token) = next(&tokens, lines).filter(|&token| token != IM_END) {
            tokens.push(token);
        }
        text(&tokens[start..])
    }

    #[test]
    fn the_newest_script_since_the_last_reply_is_said() {
        let first = "<|im_start|>user\nPlease [say:one:say], no: [say:two:say]!<|im_end|>\n";
        let open = "<|im_start|>assistant\n";
        assert_eq!(reply(&format!("{first}{open}")), "two");
        assert_eq!(reply(&format!("{first}{open}<think>\n\n</think>\n\n")), "two");
        assert_eq!(reply(&format!("{first}<|im_start|>user\nQuick.<|im_end|>\n{open}")), "two");
        assert_eq!(
            reply(&format!("{first}{open}two<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n{open}")),
            PLAIN_REPLY
        );
        assert_eq!(reply(&format!("<|im_start|>system\n[say:no:say]<|im_end|>\n{open}")), PLAIN_REPLY);
    }

    #[test]
    fn the_first_line_that_matches_the_newest_message_is_said() {
        let lines = [("summary", "all of it: step"), ("step", "go")]
            .map(|(heard, said)| StubLine { heard: heard.to_owned(), said: said.to_owned() });
        let result = "<|im_start|>user\nstep [say:other:say]<|im_end|>\n";
        let open = "<|im_start|>assistant\n";
        assert_eq!(reply_with(&format!("{result}{open}"), &lines), "go");
        let request = "<|im_start|>user\nA summary of this step, please.<|im_end|>\n";
        assert_eq!(reply_with(&format!("{result}{request}{open}"), &lines), "all of it: step");
        assert_eq!(reply_with(&format!("<|im_start|>user\n[say:x:say]<|im_end|>\n{open}"), &lines), "x");
    }

    #[test]
    fn a_reply_ends_and_nothing_else_is_scripted() {
        let asked = "<|im_start|>user\n[say:ü:say]<|im_end|>\n";
        assert_eq!(next(&vocab::tokens(&format!("{asked}<|im_start|>assistant\nü")), &[]), Some(IM_END));
        assert_eq!(next(&vocab::tokens(&format!("{asked}<|im_start|>assistant\nother")), &[]), None);
        assert_eq!(next(&vocab::tokens(asked), &[]), None);
        assert_eq!(next(&[], &[]), None);
    }

    #[test]
    fn a_script_may_hold_a_tool_call() {
        let asked = r#"[say:<tool_call>{"name":"f","arguments":{"a":[1]}}</tool_call>:say]"#;
        let mut tokens = vocab::tokens("<|im_start|>user\n");
        // A client sends plain text: its marks become special tokens only when the model writes them.
        tokens.extend(asked.bytes().map(Token::from));
        tokens.extend(vocab::tokens("<|im_end|>\n<|im_start|>assistant\n"));
        assert_eq!(next(&tokens, &[]), Some(vocab::TOOL_OPEN));
    }
}

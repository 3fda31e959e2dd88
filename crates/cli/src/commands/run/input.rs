//! The input of a chat: a message, a command, or an incomplete entry.
//!
//! Pure. Used by the editor, which asks whether more lines follow, and by the chat. A text in `"""` is sent unchanged; a
//! backslash at the end of a line continues it on the next one.

use std::path::PathBuf;

const QUOTES: &str = "\"\"\"";

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// Only white space.
    Nothing,
    /// For the model.
    Say(String),
    /// For the program.
    Command(Command),
    /// An unknown or incomplete command, with a message.
    Wrong(String),
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    /// Shows the system prompt, or sets it; an empty text removes it.
    System(Option<String>),
    Clear,
    Save(PathBuf),
    Load(PathBuf),
    Stats,
    /// Asks for another reply to the last message.
    Retry,
    /// Shows the parameters of replies, or changes one.
    Set(Vec<String>),
    /// Shows the model and the parameters.
    Show,
    /// Lists the models, or switches to another.
    Model(Option<String>),
    Quit,
}

/// What `/help` prints.
pub(crate) const HELP: &str = "\
/system [TEXT]     show the system prompt or set it; /system \"\" removes it
/set [NAME VALUE]  show the parameters or set one: /set temperature 0.7
/retry             answer the last message again
/clear             clear the conversation, keep the system prompt
/save FILE         save the conversation to a file
/load FILE         continue the conversation of a file
/show              show the model and the parameters
/stats             show the tokens of this conversation and the cache
/model [NAME]      list the models or switch to another
/quit              quit (also Ctrl-D, or Ctrl-C twice)

\"\"\" starts and ends a message of several lines. A line that ends with \\
continues on the next one. A line that starts with a space is never a command.
Ctrl-C stops a reply.
";

/// Whether the entry is complete.
pub(crate) fn is_complete(text: &str) -> bool {
    match opened_block(text) {
        Some(rest) => rest.trim_end().ends_with(QUOTES),
        None => !goes_on(text),
    }
}

/// What the entry means.
pub(crate) fn parse(text: &str) -> Input {
    if text.trim().is_empty() {
        return Input::Nothing;
    }
    match text.strip_prefix('/') {
        Some(command) => parse_command(command),
        None => Some(unquoted(text)).filter(|said| !said.trim().is_empty()).map_or(Input::Nothing, Input::Say),
    }
}

/// What follows the quotes that open a block, at the start or after a command's name.
fn opened_block(text: &str) -> Option<&str> {
    let body = match text.strip_prefix('/') {
        Some(command) => command.split_once(char::is_whitespace)?.1,
        None => text,
    };
    body.trim_start().strip_prefix(QUOTES)
}

/// Whether the last line ends with a backslash that is not itself escaped.
fn goes_on(text: &str) -> bool {
    text.chars().rev().take_while(|letter| *letter == '\\').count() % 2 == 1
}

/// The inside of a block as it is, or a text with its continued lines joined by line ends.
fn unquoted(text: &str) -> String {
    let block = text.trim().strip_prefix(QUOTES).map(|rest| rest.strip_suffix(QUOTES).unwrap_or(rest));
    match block {
        Some(inside) => {
            let inside = inside.strip_prefix('\n').unwrap_or(inside);
            inside.strip_suffix('\n').unwrap_or(inside).to_owned()
        }
        None => {
            let lines: Vec<&str> = text.trim().split('\n').collect();
            let lines =
                lines.iter().map(|line| if goes_on(line) { line.strip_suffix('\\').unwrap_or(line) } else { line });
            lines.collect::<Vec<_>>().join("\n")
        }
    }
}

fn parse_command(text: &str) -> Input {
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let given = Some(rest).filter(|rest| !rest.is_empty());
    let file = |made: fn(PathBuf) -> Command| match given {
        Some(path) => Input::Command(made(path.into())),
        None => Input::Wrong(format!("/{name} needs a file name")),
    };
    let command = match name {
        "help" | "?" => Command::Help,
        "system" => Command::System(given.map(|rest| if rest == "\"\"" { String::new() } else { unquoted(rest) })),
        "clear" => Command::Clear,
        "save" => return file(Command::Save),
        "load" => return file(Command::Load),
        "stats" => Command::Stats,
        "retry" => Command::Retry,
        "set" => Command::Set(rest.split_whitespace().map(str::to_owned).collect()),
        "show" => Command::Show,
        "model" => Command::Model(given.map(str::to_owned)),
        "quit" | "exit" | "bye" => Command::Quit,
        _ => {
            return Input::Wrong(format!(
                "unknown command /{name}; /help lists the commands, and a leading space sends the line as a message"
            ));
        }
    };
    let takes_nothing = matches!(
        command,
        Command::Help | Command::Clear | Command::Stats | Command::Retry | Command::Show | Command::Quit
    );
    if takes_nothing && given.is_some() {
        return Input::Wrong(format!("/{name} takes no argument; a leading space sends the line as a message"));
    }
    Input::Command(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(text: &str) -> Input {
        Input::Say(text.to_owned())
    }

    #[test]
    fn plain_lines_are_said() {
        assert_eq!(parse("Hello"), say("Hello"));
        assert_eq!(parse("  Hello \n"), say("Hello"));
        assert_eq!(parse(" /help me"), say("/help me"), "a space before it makes it no command");
        assert_eq!(parse("what is \"\"\" in a language?"), say("what is \"\"\" in a language?"));
        for nothing in ["", "  ", "\n", "\"\"\"\n\n\"\"\""] {
            assert_eq!(parse(nothing), Input::Nothing, "{nothing:?}");
        }
    }

    #[test]
    fn a_block_is_said_exactly() {
        let block = "\"\"\"\n  a \\\n\n/help\nb\n\"\"\"";
        assert!(is_complete(block));
        assert_eq!(parse(block), say("  a \\\n\n/help\nb"));
        assert_eq!(parse("\"\"\"one line\"\"\" "), say("one line"));
        for open in ["\"\"\"", "\"\"\"a", "\"\"\"a\nb\\", "\"\"\"a\n\"\"", " \"\"\"a"] {
            assert!(!is_complete(open), "{open:?}");
        }
        assert!(is_complete("say \"\"\" to me"), "only at the start is it a block");
    }

    #[test]
    fn a_backslash_at_the_end_goes_on() {
        assert!(!is_complete("a\\"));
        assert!(!is_complete("a\\\nb\\"));
        assert!(is_complete("a\\\nb"));
        assert!(is_complete("a\\\\"), "an escaped one is a letter");
        assert_eq!(parse("a\\\nb\\\nc"), say("a\nb\nc"));
        assert_eq!(parse("a\\\\\nb"), say("a\\\\\nb"));
    }

    #[test]
    fn commands_take_what_they_need() {
        let command = |command| Input::Command(command);
        assert_eq!(parse("/help"), command(Command::Help));
        assert_eq!(parse("/quit "), command(Command::Quit));
        assert_eq!(parse("/system"), command(Command::System(None)));
        assert_eq!(parse("/system Be  brief."), command(Command::System(Some("Be  brief.".to_owned()))));
        assert_eq!(parse("/system \"\""), command(Command::System(Some(String::new()))));
        assert!(!is_complete("/system \"\"\"a"));
        assert_eq!(parse("/system \"\"\"a\nb\"\"\""), command(Command::System(Some("a\nb".to_owned()))));
        assert_eq!(parse("/save my chat.json"), command(Command::Save("my chat.json".into())));
        assert_eq!(parse("/load x"), command(Command::Load("x".into())));
        assert_eq!(parse("/model"), command(Command::Model(None)));
        assert_eq!(parse("/model a"), command(Command::Model(Some("a".to_owned()))));
        assert_eq!(parse("/retry"), command(Command::Retry));
        assert_eq!(parse("/set  seed 3"), command(Command::Set(vec!["seed".to_owned(), "3".to_owned()])));
        assert_eq!(parse("/set"), command(Command::Set(Vec::new())));
        assert_eq!(parse("/show"), command(Command::Show));
        for wrong in ["/", "/nope", "/save", "/load ", "/etc/passwd", "/clear all", "/retry 2", "/Help"] {
            assert!(matches!(parse(wrong), Input::Wrong(_)), "{wrong}");
        }
    }

    #[test]
    fn the_help_names_every_command() {
        for name in ["system", "set", "retry", "clear", "save", "load", "show", "stats", "model", "quit"] {
            assert!(HELP.contains(&format!("/{name}")), "{name}");
        }
        assert!(HELP.lines().all(|line| line.len() < 80), "no line wraps");
    }
}

//! Planted changes in a conversation of twelve messages with tools: the cause, the message and the tokens lost.

use super::super::message::number_at;
use super::*;

/// One token for each byte; marks are tokens of their own.
struct Bytes;

const OPEN: u32 = 256;
const CLOSE: u32 = 257;
const OTHER_OPEN: u32 = 258;
const OTHER_CLOSE: u32 = 259;

impl Vocabulary for Bytes {
    fn text(&self, tokens: &[u32]) -> String {
        let text = |token: &u32| match *token {
            OPEN => "<|im_start|>".to_owned(),
            CLOSE => "<|im_end|>".to_owned(),
            OTHER_OPEN => "<turn>".to_owned(),
            OTHER_CLOSE => "</turn>".to_owned(),
            byte => char::from(u8::try_from(byte).unwrap()).to_string(),
        };
        tokens.iter().map(text).collect()
    }

    fn is_special(&self, token: u32) -> bool {
        token >= OPEN
    }
}

#[derive(Clone)]
struct Chat {
    tools: Vec<&'static str>,
    messages: Vec<(&'static str, String)>,
    marks: [u32; 2],
}

impl Chat {
    /// The tokens, and the end of each message.
    fn tokens(&self) -> (Vec<u32>, Vec<usize>) {
        let mut tokens = Vec::new();
        let mut ends = Vec::new();
        let push = |tokens: &mut Vec<u32>, text: &str| tokens.extend(text.bytes().map(u32::from));
        if !self.tools.is_empty() {
            tokens.push(self.marks[0]);
            push(&mut tokens, "system\nTools:\n");
            for name in &self.tools {
                let about = format!("Does what the word {name} means, and reports how it went in one line.");
                push(&mut tokens, &format!("{{\"name\": \"{name}\", \"description\": \"{about}\"}}\n"));
            }
            tokens.push(self.marks[1]);
        }
        for (role, text) in &self.messages {
            tokens.push(self.marks[0]);
            push(&mut tokens, &format!("{role}\n{text}"));
            tokens.push(self.marks[1]);
            push(&mut tokens, "\n");
            ends.push(tokens.len());
        }
        (tokens, ends)
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }

    fn edit(&self, number: usize, from: &str, to: &str) -> Self {
        self.with(|chat| {
            let text = &mut chat.messages[number - 1].1;
            assert!(text.contains(from), "{text}");
            *text = text.replace(from, to);
        })
    }
}

/// Eleven messages after a system prompt, with a tool call in between.
fn conversation() -> Chat {
    let system = "x-client: 7\nYou are a friendly assistant.\nSession 8f3a2b1c4d\nToday is 2025-11-15.\nNow it is 2025-11-15 06:42:55.\n\
        Answer in plain words and name the file that you mean.";
    let mut messages = vec![("system", system.to_owned())];
    for number in 0..5 {
        let word = ["cats", "dogs", "frogs", "birds", "goats"][number];
        messages
            .push(("user", format!("Question {number} of this conversation is about {word} and where they sleep.")));
        let call = format!("{{\"name\": \"read\", \"arguments\": {{\"file\": \"{word}.txt\"}}}}");
        messages.push(("assistant", format!("Let me look.{call} They sleep where it is warm, the {word} among them.")));
    }
    messages.push(("user", "And what about all of them together?".to_owned()));
    Chat { tools: vec!["list", "read", "write"], messages, marks: [OPEN, CLOSE] }
}

/// The cause, the number of the message and the tokens lost.
fn explained(stored: &Chat, asked: &Chat) -> (Cause, Option<usize>, usize) {
    let ((stored, _), (tokens, ends)) = (stored.tokens(), asked.tokens());
    let alignment = Alignment::of(&stored, &tokens);
    let number = number_at(ends.len(), alignment.prefix, |count| ends.get(count - 1).copied());
    let place = number.map(|number| MessagePlace { number, role: asked.messages[number - 1].0.to_owned() });
    let tools: Vec<String> = asked.tools.iter().map(|name| (*name).to_owned()).collect();
    let compared = Compared { stored: &stored, asked: &tokens, alignment: &alignment, tools: &tools };
    (diagnose(&compared, &Bytes, place.as_ref()), number, alignment.shared_from(alignment.prefix))
}

#[test]
fn every_planted_change_is_named_with_its_message_and_its_cost() {
    let chat = conversation();
    let (all, ends) = chat.tokens();
    let whole = all.len();
    // Everything behind the first message, and nearly all of the first.
    let behind = |number: usize| whole - ends[number - 1];
    let cases: Vec<(&str, Chat, Cause, Option<usize>, usize)> = vec![
        ("one word at the top", chat.edit(1, "friendly", "grumpy"), Cause::EditedBeginning, Some(1), behind(1)),
        (
            "an id in front",
            chat.edit(1, "x-client: 7\n", "Request 77aa01\nx-client: 7\n"),
            Cause::ChangingId,
            Some(1),
            behind(1),
        ),
        ("another id", chat.edit(1, "8f3a2b1c4d", "19bc00d1e2"), Cause::ChangingId, Some(1), behind(1)),
        ("another date", chat.edit(1, "Today is 2025-11-15", "Today is 2025-11-16"), Cause::Date, Some(1), behind(1)),
        ("another time", chat.edit(1, ":55", ":58"), Cause::Clock, Some(1), behind(1)),
        (
            "a billing header",
            chat.edit(1, "x-client: 7", "x-billing-header: 12\nx-client: 7"),
            Cause::BillingHeader,
            Some(1),
            behind(1),
        ),
        (
            "text in front",
            chat.edit(1, "x-client", "Always be brief and never use long words.\nx-client"),
            Cause::EditedBeginning,
            Some(1),
            behind(1),
        ),
        (
            "the first exchange dropped",
            chat.with(|chat| drop(chat.messages.drain(1..3))),
            Cause::TruncatedHistory,
            Some(2),
            behind(3) * 9 / 10,
        ),
        (
            "the system prompt dropped",
            chat.with(|chat| drop(chat.messages.remove(0))),
            Cause::TruncatedHistory,
            Some(1),
            behind(1),
        ),
        (
            "old messages in one summary",
            chat.with(|chat| {
                chat.messages.drain(1..7);
                chat.messages.insert(1, ("user", "Before this we spoke of small animals.".to_owned()));
            }),
            Cause::TruncatedHistory,
            Some(2),
            behind(7),
        ),
        ("tools in another order", chat.with(|chat| chat.tools.swap(0, 1)), Cause::ToolOrder, Some(1), behind(1)),
        (
            "a tool less",
            chat.with(|chat| {
                chat.tools.remove(1);
            }),
            Cause::ToolsChanged,
            Some(1),
            behind(1),
        ),
        ("a tool more", chat.with(|chat| chat.tools.insert(1, "move")), Cause::ToolsChanged, Some(1), behind(1)),
        ("no tools", chat.with(|chat| chat.tools.clear()), Cause::ToolsChanged, Some(1), behind(1)),
        ("an earlier question edited", chat.edit(4, "dogs", "cows"), Cause::EditedHistory, Some(4), behind(4)),
        ("an earlier answer edited", chat.edit(5, "Let me look.", ""), Cause::EditedHistory, Some(5), behind(5)),
        (
            "a message more in between",
            chat.with(|chat| chat.messages.insert(4, ("user", "Wait, one more remark on that.".to_owned()))),
            Cause::EditedHistory,
            Some(5),
            behind(5),
        ),
        (
            "another template",
            chat.with(|chat| chat.marks = [OTHER_OPEN, OTHER_CLOSE]),
            Cause::TemplateChanged,
            Some(1),
            behind(1) * 8 / 10,
        ),
        (
            "another question at the end",
            chat.edit(12, "what about all of them", "tell me a long story"),
            Cause::Branched,
            Some(12),
            0,
        ),
    ];
    for (name, asked, cause, message, at_least) in cases {
        let (found, number, lost) = explained(&chat, &asked);
        assert_eq!((found, number), (cause, message), "{name}");
        // Alignment works on pieces of a few tokens, so their edges may be missing.
        assert!(lost * 20 >= at_least * 19 && lost <= whole, "{name}: {lost} of {whole}, at least {at_least}");
        assert!(cause != Cause::Branched || lost == 0, "{name}: {lost}");
    }
}

#[test]
fn without_messages_the_place_says_what_was_edited() {
    let text = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    let stored: String = (0..40).map(|number| format!("Line {number} of a long prompt without messages.\n")).collect();
    let cause = |asked: &str| {
        let (stored, asked) = (text(&stored), text(asked));
        let alignment = Alignment::of(&stored, &asked);
        diagnose(&Compared { stored: &stored, asked: &asked, alignment: &alignment, tools: &[] }, &Bytes, None)
    };
    assert_eq!(cause(&stored.replacen("Line", "Row", 1)), Cause::EditedBeginning);
    let (head, tail) = stored.split_at(stored.len() * 3 / 4);
    assert_eq!(cause(&format!("{head}{}", tail.replacen("without", "lacking", 1))), Cause::EditedHistory);
    assert_eq!(cause(&stored[100..]), Cause::TruncatedHistory);
    assert_eq!(cause(&format!("run 90210\n{stored}")), Cause::ChangingId);
}

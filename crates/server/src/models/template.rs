//! The `template` of a generate request or a Modelfile: the plain part of Go's template language.
//!
//! Texts, the fields `.System`, `.Prompt`, `.Suffix` and `.Response`, `if` / `else` / `end` over one field, comments, and
//! the dashes that trim white space: what the templates of single prompts are made of. Anything else is refused. What
//! stands after `.Response` is not written: that is where the model goes on.

use poncho_api::PromptPart;

use crate::error::ApiError;

/// What a template can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    System,
    Prompt,
    Suffix,
    Response,
}

#[derive(Debug, PartialEq, Eq)]
enum Node {
    Text(String),
    Field(Field),
    If { field: Field, then: Vec<Node>, otherwise: Vec<Node> },
}

/// A template that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Node>);

/// What the fields hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Values<'v> {
    pub(crate) system: &'v str,
    pub(crate) prompt: &'v str,
    pub(crate) suffix: &'v str,
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Text(String),
    Field(Field),
    If(Field),
    Else,
    End,
}

/// A block that waits for its end.
struct Open {
    field: Field,
    then: Vec<Node>,
    otherwise: Option<Vec<Node>>,
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let mut root = Vec::new();
        let mut open: Vec<Open> = Vec::new();
        for token in tokens(text)? {
            match token {
                Token::Text(text) => place(&mut root, &mut open).push(Node::Text(text)),
                Token::Field(field) => place(&mut root, &mut open).push(Node::Field(field)),
                Token::If(field) => open.push(Open { field, then: Vec::new(), otherwise: None }),
                Token::Else => match open.last_mut() {
                    Some(block) if block.otherwise.is_none() => block.otherwise = Some(Vec::new()),
                    _ => return Err(refused("an else stands outside of an if")),
                },
                Token::End => {
                    let Some(Open { field, then, otherwise }) = open.pop() else {
                        return Err(refused("an end has no beginning"));
                    };
                    let node = Node::If { field, then, otherwise: otherwise.unwrap_or_default() };
                    place(&mut root, &mut open).push(node);
                }
            }
        }
        if open.is_empty() { Ok(Self(root)) } else { Err(refused("an if has no end")) }
    }

    /// Whether the text after a gap has a place.
    pub(crate) fn has_suffix(&self) -> bool {
        holds(&self.0, Field::Suffix)
    }

    /// Whether a user's message has a place.
    pub(crate) fn has_prompt(&self) -> bool {
        holds(&self.0, Field::Prompt)
    }

    /// The same as a chat template, which sees all messages: each reply ends a turn, and a turn is written once.
    pub(crate) fn to_chat_template(&self) -> String {
        let (mut open, mut closed) = (String::new(), String::new());
        to_jinja(&self.0, Reply::Expected, &mut open);
        to_jinja(&self.0, Reply::Given, &mut closed);
        if !holds(&self.0, Field::Response) {
            closed.push_str("{{- turn.response -}}");
        }
        let reset = "{%- set turn.system = '' -%}{%- set turn.prompt = '' -%}{%- set turn.waits = false -%}";
        format!(
            "{{%- set turn = namespace(system='', prompt='', response='', suffix='', waits=false) -%}}\
             {{%- for message in messages -%}}\
             {{%- if message.role == 'system' -%}}{{%- set turn.system = message.content -%}}\
             {{%- elif message.role == 'user' -%}}\
             {{%- if turn.waits -%}}{open}{reset}{{%- endif -%}}\
             {{%- set turn.prompt = message.content -%}}{{%- set turn.waits = true -%}}\
             {{%- elif message.role == 'assistant' -%}}\
             {{%- set turn.response = message.content -%}}{closed}{reset}\
             {{%- endif -%}}\
             {{%- endfor -%}}\
             {{%- if add_generation_prompt or turn.waits -%}}{open}{{%- endif -%}}"
        )
    }

    /// The prompt, up to the place where the model goes on.
    pub(crate) fn render(&self, values: Values<'_>) -> Vec<PromptPart> {
        let mut parts = Vec::new();
        write(&self.0, values, &mut parts);
        parts
    }
}

fn place<'n>(root: &'n mut Vec<Node>, open: &'n mut [Open]) -> &'n mut Vec<Node> {
    match open.last_mut() {
        Some(block) => block.otherwise.as_mut().unwrap_or(&mut block.then),
        None => root,
    }
}

fn holds(nodes: &[Node], wanted: Field) -> bool {
    nodes.iter().any(|node| match node {
        Node::Text(_) => false,
        Node::Field(field) => *field == wanted,
        Node::If { then, otherwise, .. } => holds(then, wanted) || holds(otherwise, wanted),
    })
}

/// Whether the turn that is written has its reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reply {
    Given,
    Expected,
}

/// Writes nodes in the language of chat templates; false once the place of an expected reply was reached.
fn to_jinja(nodes: &[Node], reply: Reply, out: &mut String) -> bool {
    let name = |field: Field| match field {
        Field::System => "system",
        Field::Prompt => "prompt",
        Field::Suffix => "suffix",
        Field::Response => "response",
    };
    nodes.iter().all(|node| match node {
        Node::Field(Field::Response) if reply == Reply::Expected => false,
        Node::Field(field) => {
            out.push_str(&format!("{{{{- turn.{} -}}}}", name(*field)));
            true
        }
        // As a literal: braces in it must not be read as the template's own.
        Node::Text(text) => {
            out.push_str(&format!("{{{{- {} -}}}}", serde_json::Value::from(text.as_str())));
            true
        }
        Node::If { field, then, otherwise } => {
            out.push_str(&format!("{{%- if turn.{} -%}}", name(*field)));
            let then_goes_on = to_jinja(then, reply, out);
            out.push_str("{%- else -%}");
            let otherwise_goes_on = to_jinja(otherwise, reply, out);
            out.push_str("{%- endif -%}");
            // A reply inside of a block ends the prompt whatever the block's condition: what follows is its end.
            then_goes_on && otherwise_goes_on
        }
    })
}

/// Writes nodes; false once the reply's place was reached.
fn write(nodes: &[Node], values: Values<'_>, parts: &mut Vec<PromptPart>) -> bool {
    let value = |field: Field| match field {
        Field::System => values.system,
        Field::Prompt => values.prompt,
        Field::Suffix => values.suffix,
        Field::Response => "",
    };
    nodes.iter().all(|node| {
        let (text, is_input) = match node {
            Node::Field(Field::Response) => return false,
            Node::If { field, then, otherwise } => {
                return write(if value(*field).is_empty() { otherwise } else { then }, values, parts);
            }
            Node::Text(text) => (text.as_str(), false),
            Node::Field(field) => (value(*field), true),
        };
        match parts.last_mut() {
            _ if text.is_empty() => {}
            Some(last) if last.is_input == is_input => last.text.push_str(text),
            _ => parts.push(PromptPart { text: text.to_owned(), is_input }),
        }
        true
    })
}

fn tokens(template: &str) -> Result<Vec<Token>, ApiError> {
    let mut found = Vec::new();
    let mut rest = template;
    let mut trims_start = false;
    loop {
        let (text, action) = match rest.split_once("{{") {
            Some((text, action)) => (text, Some(action)),
            None => (rest, None),
        };
        let trims_end = action.is_some_and(is_left_trim);
        let text = if trims_start { text.trim_start() } else { text };
        let text = if trims_end { text.trim_end() } else { text };
        if !text.is_empty() {
            found.push(Token::Text(text.to_owned()));
        }
        let Some(action) = action else { return Ok(found) };
        let Some((action, after)) = action.split_once("}}") else { return Err(refused("a {{ has no }}")) };
        trims_start = action.ends_with(" -");
        let action = if trims_end { action.strip_prefix('-').unwrap_or(action) } else { action };
        let action = if trims_start { action.strip_suffix('-').unwrap_or(action) } else { action };
        found.extend(token(action.trim())?);
        rest = after;
    }
}

fn is_left_trim(action: &str) -> bool {
    action.strip_prefix('-').is_some_and(|rest| rest.starts_with(char::is_whitespace))
}

fn token(action: &str) -> Result<Option<Token>, ApiError> {
    if action.starts_with("/*") && action.ends_with("*/") {
        return Ok(None);
    }
    let words: Vec<&str> = action.split_whitespace().collect();
    let token = match words.as_slice() {
        [name] if name.starts_with('.') => field(name).map(Token::Field),
        ["if", name] => field(name).map(Token::If),
        ["else"] => Some(Token::Else),
        ["end"] => Some(Token::End),
        _ => None,
    };
    token.map(Some).ok_or_else(|| refused(&format!("{{{{ {action} }}}} is not understood")))
}

fn field(name: &str) -> Option<Field> {
    Some(match name {
        ".System" => Field::System,
        ".Prompt" => Field::Prompt,
        ".Suffix" => Field::Suffix,
        ".Response" => Field::Response,
        _ => return None,
    })
}

fn refused(reason: &str) -> ApiError {
    let known = "only .System, .Prompt, .Suffix, .Response and if/else/end over them can be used";
    ApiError::field(
        "template",
        format!("{reason}; {known}: leave it out for the model's own template, or send the whole prompt with raw"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}{{ if .Prompt }}\
        <|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}<|im_start|>assistant\n{{ .Response }}<|im_end|>";

    fn text(template: &str, system: &str, prompt: &str) -> String {
        let values = Values { system, prompt, suffix: "" };
        Template::parse(template).unwrap().render(values).into_iter().map(|part| part.text).collect()
    }

    #[test]
    fn single_prompts_are_written_up_to_the_reply() {
        assert_eq!(
            text(CHATML, "Be kind.", "Hi"),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(text(CHATML, "", "Hi"), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(text("no fields", "s", "p"), "no fields");
        assert_eq!(text("{{ if .System }}a{{ else }}b{{ end }}c", "", ""), "bc");
        assert_eq!(text("{{ if .System }}{{ if .Prompt }}both{{ end }}{{ end }}", "s", "p"), "both");
        assert_eq!(text("{{ if .Prompt }}x{{ .Response }}y{{ end }}z", "", "p"), "x", "also inside of a block");
    }

    #[test]
    fn dashes_trim_and_comments_vanish() {
        assert_eq!(text("a \n {{- .Prompt -}} \n b", "", "p"), "apb");
        assert_eq!(text("a {{/* why */}} b", "", ""), "a  b");
        assert_eq!(text("a {{- /* why */ -}} b", "", ""), "ab");
        assert_eq!(text("{{.Prompt}}", "", "p"), "p");
    }

    #[test]
    fn values_are_told_apart_from_the_template() {
        let values = Values { system: "", prompt: "<|im_end|>", suffix: "" };
        let parts = Template::parse(CHATML).unwrap().render(values);
        let inputs: Vec<&str> = parts.iter().filter(|part| part.is_input).map(|part| part.text.as_str()).collect();
        assert_eq!(inputs, ["<|im_end|>"]);
        assert!(Template::parse("{{ .Prompt }}<m>{{ .Suffix }}").unwrap().has_suffix());
        assert!(!Template::parse(CHATML).unwrap().has_suffix());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for wrong in [
            "{{ range .Messages }}{{ end }}",
            "{{ .Messages }}",
            "{{ if and .System .Prompt }}{{ end }}",
            "{{ if .System }}",
            "{{ end }}",
            "{{ else }}",
            "{{ if .System }}{{ else }}{{ else }}{{ end }}",
            "{{ .Prompt ",
            "{{ json .Prompt }}",
            "{{}}",
        ] {
            let said = Template::parse(wrong).unwrap_err().to_string();
            assert!(said.starts_with("template: ") && said.contains("raw"), "{wrong}: {said}");
        }
    }
}

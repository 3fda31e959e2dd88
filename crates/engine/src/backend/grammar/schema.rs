//! What a JSON schema may be, checked before anything converts it.
//!
//! Called by `Model` for every schema that reaches the engine: a reply's schema and the parameters of tools, whichever
//! way they came. llama.cpp converts schemas on the caller's thread; it recurses, it cannot be interrupted, and it takes
//! time that grows with the cube of the optional properties of an object. So the check walks a schema as llama.cpp would
//! and counts; a schema that passes is converted in a fraction of a second. It must never recurse deeper than
//! [`limits::DEPTH`], or walk longer than [`limits::NODES`] allows.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::{Map, Value};

use kind::{SchemaKind, kind};

mod kind;
pub(crate) mod limits;
#[cfg(test)]
mod tests;

/// Why a schema is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SchemaError {
    /// It is not JSON, or it is nested deeper than the parsers allow.
    #[error("it is not JSON: {reason}; correct it")]
    NotJson {
        /// What the parser said.
        reason: String,
    },
    /// There is too much of something.
    #[error("at {path} it has {count} {what} and {limit} are allowed; {advice}")]
    TooMuch {
        /// The place in the schema, as a pointer.
        path: String,
        /// What was counted.
        what: Counted,
        /// How much there is; one more than the limit where counting stopped there.
        count: u64,
        /// How much there may be.
        limit: u64,
        /// What to do.
        advice: &'static str,
    },
    /// A type is listed twice.
    #[error("at {path} a type is listed twice; list it once")]
    TypeTwice {
        /// The place in the schema, as a pointer.
        path: String,
    },
    /// A pattern would reach logs as it is.
    #[error("at {path} the pattern has a control character; write it as an escape")]
    ControlCharacter {
        /// The place in the schema, as a pointer.
        path: String,
    },
}

/// What is counted in a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    Bytes,
    Levels,
    Nodes,
    Keys,
    Properties,
    Optional,
    Name,
    Values,
    Alternatives,
    Ways,
    Pattern,
    Repetitions,
    Work,
}

impl fmt::Display for Counted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bytes => "bytes",
            Self::Levels => "levels of nesting",
            Self::Nodes => "schemas inside of it",
            Self::Keys => "keys in one object",
            Self::Properties => "properties",
            Self::Optional => "optional properties",
            Self::Name => "bytes in a property's name",
            Self::Values => "enum values",
            Self::Alternatives => "alternatives",
            Self::Ways => "alternatives when references are followed",
            Self::Pattern => "bytes in a pattern",
            Self::Repetitions => "required repetitions",
            Self::Work => "units of work to convert",
        })
    }
}

impl Counted {
    const fn advice(self) -> &'static str {
        match self {
            Self::Bytes | Self::Nodes | Self::Work => "split the schema, or leave parts of it out",
            Self::Levels => "flatten the schema",
            Self::Keys | Self::Properties => "group them in objects of their own",
            Self::Optional => "list them as required, or group them in objects of their own",
            Self::Name => "shorten it",
            Self::Values => "use a string instead of an enum",
            Self::Alternatives | Self::Ways => "use fewer",
            Self::Pattern => "shorten it",
            Self::Repetitions => "ask for fewer",
        }
    }
}

/// What the schemas of one request used so far.
#[derive(Debug, Default)]
pub(crate) struct Used {
    bytes: usize,
    nodes: u64,
    values: u64,
    work: u64,
}

/// Checks one schema; `used` adds up what belongs to one request.
pub(crate) fn check_text(text: &str, used: &mut Used) -> Result<(), SchemaError> {
    let bytes = text.len();
    let whole = || "#".to_owned();
    if bytes > limits::BYTES {
        return Err(too_much(whole(), Counted::Bytes, bytes as u64, limits::BYTES as u64));
    }
    used.bytes += bytes;
    if used.bytes > limits::BYTES_TOGETHER {
        return Err(too_much(whole(), Counted::Bytes, used.bytes as u64, limits::BYTES_TOGETHER as u64));
    }
    let schema: Value =
        serde_json::from_str(text).map_err(|error| SchemaError::NotJson { reason: error.to_string() })?;
    check(&schema, used)
}

/// The same for a schema that was read already.
pub(crate) fn check(schema: &Value, used: &mut Used) -> Result<(), SchemaError> {
    let mut walk = Walk {
        root: schema,
        path: "#".to_owned(),
        used,
        converting: false,
        references: HashSet::new(),
        ways: HashMap::new(),
        names: HashMap::new(),
        rules: 0,
    };
    walk.keys(schema)?;
    walk.node(schema, None, "", 1)?;
    walk.references.clear();
    walk.converting = true;
    walk.node(schema, None, "", 1).map(|_| ())
}

/// Checks the parameters of tools in OpenAI's shape. The error comes with the name of the tool.
pub(crate) fn check_tools(tools: &str, used: &mut Used) -> Result<(), (String, SchemaError)> {
    used.bytes += tools.len();
    if used.bytes > limits::BYTES_TOGETHER {
        let error = too_much("#".to_owned(), Counted::Bytes, used.bytes as u64, limits::BYTES_TOGETHER as u64);
        return Err(("all".to_owned(), error));
    }
    // The template refuses anything but a list of tools, with a message of its own.
    let Ok(Value::Array(tools)) = serde_json::from_str(tools) else { return Ok(()) };
    for tool in &tools {
        let function = tool.get("function").unwrap_or(tool);
        if let Some(schema) = function.get("parameters") {
            check(schema, used).map_err(|error| {
                let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
                (name.chars().take(100).collect(), error)
            })?;
        }
    }
    Ok(())
}

fn too_much(path: String, what: Counted, count: u64, limit: u64) -> SchemaError {
    SchemaError::TooMuch { path, what, count, limit, advice: what.advice() }
}

/// One walk through a schema: first as llama.cpp builds its tree, then as it writes the rules.
struct Walk<'s, 'u> {
    root: &'s Value,
    path: String,
    used: &'u mut Used,
    converting: bool,
    references: HashSet<&'s str>,
    /// The ways through each reference, known once it was walked.
    ways: HashMap<&'s str, u64>,
    /// How many rules have each name.
    names: HashMap<String, u64>,
    rules: u64,
}

impl<'s> Walk<'s, '_> {
    fn at_most(&self, what: Counted, count: usize, limit: u64) -> Result<u64, SchemaError> {
        let count = count as u64;
        if count > limit { Err(too_much(self.shown_path(), what, count, limit)) } else { Ok(count) }
    }

    /// The path, cut where it would fill an error message.
    fn shown_path(&self) -> String {
        match self.path.char_indices().nth(limits::SHOWN_PATH) {
            Some((end, _)) => format!("{}...", self.path.get(..end).unwrap_or_default()),
            None => self.path.clone(),
        }
    }

    fn work(&mut self, units: u64) -> Result<(), SchemaError> {
        if !self.converting {
            return Ok(());
        }
        self.used.work = self.used.work.saturating_add(units);
        if self.used.work > limits::WORK {
            return Err(too_much(self.shown_path(), Counted::Work, self.used.work, limits::WORK));
        }
        Ok(())
    }

    /// Walks a part under its own path.
    fn below<T>(
        &mut self,
        part: fmt::Arguments<'_>,
        walk: impl FnOnce(&mut Self) -> Result<T, SchemaError>,
    ) -> Result<T, SchemaError> {
        let len = self.path.len();
        // A text grows without errors.
        let _ = fmt::Write::write_fmt(&mut self.path, part);
        let walked = walk(self)?;
        self.path.truncate(len);
        Ok(walked)
    }

    /// Objects of llama.cpp's JSON look their keys up one after the other.
    fn keys(&mut self, value: &'s Value) -> Result<(), SchemaError> {
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            match value {
                Value::Object(fields) => {
                    self.at_most(Counted::Keys, fields.len(), limits::KEYS)?;
                    open.extend(fields.values());
                }
                Value::Array(values) => open.extend(values),
                _ => {}
            }
        }
        Ok(())
    }

    /// Counts the rule of a name. llama.cpp tries one name after the other until it finds a free one.
    fn rule(&mut self, name: &str) -> Result<u64, SchemaError> {
        if !self.converting {
            return Ok(1);
        }
        self.rules += 1;
        self.work(limits::WORK_PER_RULE + name.len() as u64)?;
        let alike = self.names.entry(rule_name(name)).or_default();
        *alike += 1;
        let alike = *alike;
        self.work(alike.saturating_mul(limits::WORK_PER_TRY))?;
        Ok(alike)
    }

    /// Returns in how many ways references and alternatives can be followed from here.
    fn node(
        &mut self,
        schema: &'s Value,
        as_type: Option<&'s str>,
        name: &str,
        depth: u64,
    ) -> Result<u64, SchemaError> {
        if depth > limits::DEPTH {
            return Err(too_much(self.shown_path(), Counted::Levels, depth, limits::DEPTH));
        }
        self.used.nodes += 1;
        if self.used.nodes > limits::NODES {
            return Err(too_much(self.shown_path(), Counted::Nodes, self.used.nodes, limits::NODES));
        }
        self.rule(name)?;
        let ways = match kind(schema, as_type) {
            SchemaKind::Reference(reference) => self.reference(reference, depth)?,
            SchemaKind::Any(key, alternatives) => self.alternatives(key, alternatives, name, depth)?,
            SchemaKind::All(parts) if self.converting => self.merged(parts, name, depth)?,
            SchemaKind::All(parts) => self.alternatives("allOf", parts, name, depth)?,
            SchemaKind::Types(types) => self.types(schema, types, name, depth)?,
            SchemaKind::Constant(value) => {
                self.value(value)?;
                1
            }
            SchemaKind::Enum(values) => {
                self.enumeration(values)?;
                1
            }
            SchemaKind::Object(fields) => {
                self.object(fields, name, depth)?;
                1
            }
            SchemaKind::Tuple(key, items) => {
                self.at_most(Counted::Alternatives, items.len(), limits::ALTERNATIVES)?;
                for (at, item) in items.iter().enumerate() {
                    let name = format!("{name}-tuple-{at}");
                    self.below(format_args!("/{key}/{at}"), |walk| walk.node(item, None, &name, depth + 1))?;
                }
                1
            }
            SchemaKind::Array(fields, items) => {
                self.repetitions(fields, "minItems")?;
                if let Some((key, items)) = items {
                    let name = format!("{name}-item");
                    self.below(format_args!("/{key}"), |walk| walk.node(items, None, &name, depth + 1))?;
                }
                1
            }
            SchemaKind::Text(fields) => {
                self.text(fields)?;
                1
            }
            SchemaKind::Plain => 1,
        };
        if ways > limits::WAYS {
            return Err(too_much(self.shown_path(), Counted::Ways, ways, limits::WAYS));
        }
        Ok(ways)
    }

    fn reference(&mut self, reference: &'s str, depth: u64) -> Result<u64, SchemaError> {
        // What cannot be resolved is refused by the conversion, which says so better.
        let Some(target) = self.resolve(reference) else { return Ok(1) };
        if self.references.insert(reference) {
            let name = format!("ref{}", reference.trim_start_matches('#'));
            let before = std::mem::replace(&mut self.path, reference.to_owned());
            let ways = self.node(target, None, &name, depth + 1)?;
            self.path = before;
            self.ways.insert(reference, ways);
        }
        Ok(self.ways.get(reference).copied().unwrap_or(1))
    }

    fn resolve(&self, reference: &str) -> Option<&'s Value> {
        let mut target = self.root;
        for part in reference.strip_prefix("#/")?.split('/') {
            target = match target {
                Value::Object(fields) => fields.get(part)?,
                // As llama.cpp reads it: digits at the front.
                Value::Array(values) => {
                    let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
                    values.get(part.get(..digits)?.parse::<usize>().ok()?)?
                }
                _ => return None,
            };
        }
        Some(target)
    }

    fn alternatives(
        &mut self,
        key: &str,
        alternatives: &'s [Value],
        name: &str,
        depth: u64,
    ) -> Result<u64, SchemaError> {
        self.at_most(Counted::Alternatives, alternatives.len(), limits::ALTERNATIVES)?;
        let mut ways = 0u64;
        for (at, alternative) in alternatives.iter().enumerate() {
            let name = format!("{name}-{at}");
            let walked =
                self.below(format_args!("/{key}/{at}"), |walk| walk.node(alternative, None, &name, depth + 1))?;
            ways = ways.saturating_add(walked);
        }
        Ok(ways)
    }

    /// A list of types stands for a copy of the schema for each of them.
    fn types(&mut self, schema: &'s Value, types: &'s [Value], name: &str, depth: u64) -> Result<u64, SchemaError> {
        self.at_most(Counted::Alternatives, types.len(), limits::ALTERNATIVES)?;
        let mut seen = HashSet::new();
        let mut ways = 0u64;
        for (at, of) in types.iter().filter_map(Value::as_str).enumerate() {
            if !seen.insert(of) {
                return Err(SchemaError::TypeTwice { path: self.shown_path() });
            }
            self.work(size(schema).saturating_mul(limits::WORK_PER_COPY))?;
            let name = format!("{name}-{at}");
            ways = ways.saturating_add(self.node(schema, Some(of), &name, depth + 1)?);
        }
        Ok(ways)
    }

    fn value(&mut self, value: &Value) -> Result<(), SchemaError> {
        let bytes = value.to_string().len() as u64;
        self.work(bytes.saturating_mul(limits::WORK_PER_BYTE))
    }

    fn enumeration(&mut self, values: &[Value]) -> Result<(), SchemaError> {
        let count = self.at_most(Counted::Values, values.len(), limits::VALUES)?;
        if self.converting {
            self.used.values += count;
            if self.used.values > limits::VALUES_TOGETHER {
                let (count, limit) = (self.used.values, limits::VALUES_TOGETHER);
                return Err(too_much(self.shown_path(), Counted::Values, count, limit));
            }
            values.iter().try_for_each(|value| self.value(value))?;
        }
        Ok(())
    }

    fn text(&mut self, fields: &Map<String, Value>) -> Result<(), SchemaError> {
        if let Some(pattern) = fields.get("pattern").and_then(Value::as_str) {
            self.at_most(Counted::Pattern, pattern.len(), limits::PATTERN)?;
            if pattern.chars().any(char::is_control) {
                return Err(SchemaError::ControlCharacter { path: self.shown_path() });
            }
            // All rules so far are copied, for the case that the pattern is not understood.
            let pattern = (pattern.len() as u64).saturating_mul(limits::WORK_PER_RULE);
            self.work(self.rules.saturating_mul(limits::WORK_PER_COPY).saturating_add(pattern))?;
        }
        self.repetitions(fields, "minLength")
    }

    fn repetitions(&mut self, fields: &Map<String, Value>, key: &str) -> Result<(), SchemaError> {
        match fields.get(key).and_then(Value::as_u64) {
            Some(count) if count > limits::REPETITIONS => {
                let path = format!("{}/{key}", self.shown_path());
                Err(too_much(path, Counted::Repetitions, count, limits::REPETITIONS))
            }
            _ => Ok(()),
        }
    }

    fn object(&mut self, fields: &'s Map<String, Value>, name: &str, depth: u64) -> Result<(), SchemaError> {
        let required: HashSet<&str> =
            fields.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = fields.get("properties").and_then(Value::as_object);
        let count = properties.map_or(0, Map::len);
        self.at_most(Counted::Properties, count, limits::PROPERTIES)?;
        let mut optional = 0;
        let mut alike = 1;
        let mut longest = 0;
        let mut names = 0;
        for (property, schema) in properties.into_iter().flatten() {
            self.at_most(Counted::Name, property.len(), limits::NAME)?;
            optional += usize::from(!required.contains(property.as_str()));
            let name = format!("{name}-{property}");
            alike = alike.max(self.rule(&format!("{name}-kv"))?);
            longest = longest.max(name.len());
            names += property.len();
            self.below(format_args!("/properties/{property}"), |walk| walk.node(schema, None, &name, depth + 1))?;
        }
        let additional = fields.get("additionalProperties").filter(|additional| **additional != Value::Bool(false));
        if let Some(additional) = additional {
            optional += 1;
            // Every name is spelled out, so that the others can be told from them.
            self.work((names as u64).saturating_mul(limits::WORK_PER_RULE))?;
            if additional.is_object() {
                let name = format!("{name}-additional-value");
                self.below(format_args!("/additionalProperties"), |walk| {
                    walk.node(additional, None, &name, depth + 1)
                })?;
            }
        }
        self.optional(optional, alike, longest)
    }

    /// For each optional property llama.cpp writes the rules of all that may follow, and copies the list each time.
    fn optional(&mut self, count: usize, alike: u64, longest: usize) -> Result<(), SchemaError> {
        let count = self.at_most(Counted::Optional, count, limits::OPTIONAL)?;
        let copies = count * count * count / 6;
        let rules = count * count / 2;
        let each = limits::WORK_PER_RULE + longest as u64 + alike.saturating_sub(1) * limits::WORK_PER_TRY;
        self.rules += count;
        self.work(copies.saturating_add(rules.saturating_mul(each)))
    }

    /// `allOf` puts the properties of its parts into one object, those of references too.
    fn merged(&mut self, parts: &'s [Value], name: &str, depth: u64) -> Result<u64, SchemaError> {
        let mut open: Vec<(&'s Value, Option<&'s str>, bool, u64)> = Vec::new();
        for part in parts {
            match kind(part, None) {
                SchemaKind::Any(_, alternatives) => open.extend(alternatives.iter().map(|each| (each, None, true, 0))),
                SchemaKind::Types(types) => {
                    open.extend(types.iter().filter_map(Value::as_str).map(|each| (part, Some(each), true, 0)));
                }
                _ => open.push((part, None, false, 0)),
            }
        }
        let (mut optional, mut alike, mut longest) = (0, 1, 0);
        while let Some((part, as_type, is_optional, hops)) = open.pop() {
            self.work(limits::WORK_PER_RULE)?;
            match kind(part, as_type) {
                SchemaKind::Reference(reference) if hops < limits::DEPTH => {
                    open.extend(self.resolve(reference).map(|target| (target, None, is_optional, hops + 1)));
                }
                SchemaKind::Enum(values) => self.enumeration(values)?,
                SchemaKind::Object(fields) => {
                    for (property, schema) in fields.get("properties").and_then(Value::as_object).into_iter().flatten()
                    {
                        optional += usize::from(is_optional);
                        let name = format!("{name}-{property}");
                        alike = alike.max(self.rule(&format!("{name}-kv"))?);
                        longest = longest.max(name.len());
                        let part = format_args!("/allOf/../properties/{property}");
                        self.below(part, |walk| walk.node(schema, None, &name, depth + 1))?;
                    }
                }
                _ => {}
            }
        }
        self.optional(optional, alike, longest)?;
        Ok(1)
    }
}

/// A name as the rules have it: letters, digits and dashes.
fn rule_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut replaced = false;
    for c in name.chars() {
        let kept = c.is_ascii_alphanumeric() || c == '-';
        if kept {
            out.push(c);
        } else if !replaced {
            out.push('-');
        }
        replaced = !kept;
    }
    out
}

/// How many values there are in a value.
fn size(value: &Value) -> u64 {
    let mut count = 0;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        count += 1;
        match value {
            Value::Object(fields) => open.extend(fields.values()),
            Value::Array(values) => open.extend(values),
            _ => {}
        }
    }
    count
}

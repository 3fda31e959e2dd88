//! One operation of the document: a method of a path, what it takes and what it answers.
//!
//! The tables beside this file list the operations of each family; `openapi.rs` writes them into the document. A body is
//! named by its type, errors by their status.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::errors;
use super::schemas::Schemas;

/// Makes the schema of a body.
type MakeSchema = fn(&mut Schemas) -> Value;

const JSON: &str = "application/json";

/// Errors of requests with a body that needs a model.
pub(super) const MODEL: &[u16] = &[400, 401, 404, 408, 413, 415, 500, 503];
/// The same, if the model's worker is asked.
pub(super) const COUNT: &[u16] = &[400, 401, 404, 408, 413, 415, 429, 500, 503];
/// The same, if it computes for a while.
pub(super) const COMPUTE: &[u16] = &[400, 401, 404, 408, 413, 415, 429, 500, 503, 504];
/// The same, if it replies or embeds.
pub(super) const REPLY: &[u16] = &[400, 401, 404, 408, 409, 413, 415, 429, 500, 503, 504];

/// See the module.
pub(super) struct Operation {
    path: &'static str,
    method: &'static str,
    id: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    stream_parameters: &'static [&'static str],
    body: Option<Body>,
    answers: Vec<Answer>,
    errors: &'static [u16],
}

struct Body {
    kind: &'static str,
    schema: Option<MakeSchema>,
    description: Option<&'static str>,
    examples: Map<String, Value>,
}

struct Answer {
    status: StatusCode,
    description: &'static str,
    contents: Vec<(&'static str, MakeSchema)>,
}

macro_rules! methods {
    ($($method:ident),+) => {$(
        pub(super) fn $method(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
            Operation::new(path, stringify!($method), id, summary)
        }
    )+};
}
methods!(get, head, post, put, patch, delete);

impl Operation {
    fn new(path: &'static str, method: &'static str, id: &'static str, summary: &'static str) -> Self {
        let (parameters, answers) = (Vec::new(), Vec::new());
        Self { path, method, id, summary, parameters, stream_parameters: &[], body: None, answers, errors: &[] }
    }

    /// Takes a JSON body.
    pub(super) fn takes<T: JsonSchema>(self) -> Self {
        let body = Body { kind: JSON, schema: Some(Schemas::request::<T>), description: None, examples: Map::new() };
        Self { body: Some(body), ..self }
    }

    /// Takes a file.
    pub(super) fn takes_file(self) -> Self {
        let kind = "application/octet-stream";
        Self { body: Some(Body { kind, schema: None, description: None, examples: Map::new() }), ..self }
    }

    /// What else there is to know of the body.
    pub(super) fn where_body(mut self, description: &'static str) -> Self {
        if let Some(body) = &mut self.body {
            body.description = Some(description);
        }
        self
    }

    #[expect(clippy::needless_pass_by_value, reason = "written in place by the tables")]
    pub(super) fn example(mut self, name: &str, value: Value) -> Self {
        if let Some(body) = &mut self.body {
            body.examples.insert(name.to_owned(), json!({"value": value}));
        }
        self
    }

    /// A place in the path that holds any text but none.
    pub(super) fn text_in_path(self, name: &str, description: &str) -> Self {
        let schema = json!({"type": "string", "minLength": 1});
        self.parameter(&json!({"name": name, "in": "path", "required": true}), description, &schema)
    }

    /// A place in the path that holds a number.
    pub(super) fn number_in_path(self, name: &str, description: &str) -> Self {
        let schema = json!({"type": "integer", "minimum": 0});
        self.parameter(&json!({"name": name, "in": "path", "required": true}), description, &schema)
    }

    #[expect(clippy::needless_pass_by_value, reason = "written in place by the tables")]
    pub(super) fn in_query(self, name: &str, description: &str, schema: Value) -> Self {
        self.parameter(&json!({"name": name, "in": "query"}), description, &schema)
    }

    fn parameter(mut self, place: &Value, description: &str, schema: &Value) -> Self {
        let mut parameter = place.clone();
        if let Some(fields) = parameter.as_object_mut() {
            fields.insert("description".to_owned(), description.into());
            fields.insert("schema".to_owned(), schema.clone());
        }
        self.parameters.push(parameter);
        self
    }

    /// Parameters that make the answer a stream: programs that try every parameter would wait for its end.
    pub(super) fn stream_parameters(self, stream_parameters: &'static [&'static str]) -> Self {
        Self { stream_parameters, ..self }
    }

    /// Answers with JSON.
    pub(super) fn answers<T: JsonSchema>(self) -> Self {
        self.answers_with::<T>("The answer.")
    }

    /// The same, and what else there is to know of it.
    pub(super) fn answers_with<T: JsonSchema>(self, description: &'static str) -> Self {
        self.answer(StatusCode::OK, description, vec![(JSON, Schemas::answer::<T>)])
    }

    /// Answers with texts of these types.
    pub(super) fn answers_text(self, description: &'static str, kinds: &[&'static str]) -> Self {
        let contents = kinds.iter().map(|kind| (*kind, Schemas::answer::<String> as MakeSchema));
        self.answer(StatusCode::OK, description, contents.collect())
    }

    /// Answers with nothing but a status.
    pub(super) fn answers_status(self, status: StatusCode, description: &'static str) -> Self {
        self.answer(status, description, Vec::new())
    }

    /// Answers with JSON and another status than 200.
    pub(super) fn or_answers<T: JsonSchema>(self, status: StatusCode, description: &'static str) -> Self {
        self.answer(status, description, vec![(JSON, Schemas::answer::<T>)])
    }

    /// Or with server-sent events.
    pub(super) fn or_events(self) -> Self {
        self.or_kind("text/event-stream", |_| {
            let text = json!({"type": "string"});
            json!({"type": "object", "properties": {"event": text, "data": text}, "required": ["data"]})
        })
    }

    /// Or with lines of JSON.
    pub(super) fn or_lines(self) -> Self {
        self.or_kind("application/x-ndjson", Schemas::answer::<String>)
    }

    fn or_kind(mut self, kind: &'static str, schema: MakeSchema) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.contents.push((kind, schema));
        }
        self
    }

    fn answer(
        mut self,
        status: StatusCode,
        description: &'static str,
        contents: Vec<(&'static str, MakeSchema)>,
    ) -> Self {
        self.answers.push(Answer { status, description, contents });
        self
    }

    /// The statuses of its errors.
    pub(super) fn fails(self, errors: &'static [u16]) -> Self {
        Self { errors, ..self }
    }

    /// Adds it to the paths of the document.
    pub(super) fn write(self, paths: &mut Map<String, Value>, schemas: &mut Schemas) {
        let (path, method) = (self.path, self.method);
        let written = self.written(schemas);
        let operations = paths.entry(path).or_insert_with(|| json!({}));
        if let Some(operations) = operations.as_object_mut() {
            operations.insert(method.to_owned(), written.into());
        }
    }

    fn written(self, schemas: &mut Schemas) -> Map<String, Value> {
        let mut fields =
            Map::from_iter([("operationId".to_owned(), self.id.into()), ("summary".to_owned(), self.summary.into())]);
        if !self.parameters.is_empty() {
            fields.insert("parameters".to_owned(), self.parameters.into());
        }
        if !self.stream_parameters.is_empty() {
            fields.insert("x-stream-parameters".to_owned(), json!(self.stream_parameters));
        }
        if let Some(body) = self.body {
            fields.insert("requestBody".to_owned(), body.written(schemas));
        }
        let mut responses = Map::new();
        for answer in self.answers {
            responses.insert(answer.status.as_str().to_owned(), answer.written(schemas));
        }
        responses.extend(errors::of(self.path, self.errors));
        fields.insert("responses".to_owned(), responses.into());
        // Who must send a key may also send none where the server has none.
        if self.errors.contains(&StatusCode::UNAUTHORIZED.as_u16()) {
            fields.insert("security".to_owned(), json!([{"bearer": []}, {"key": []}, {}]));
        }
        fields
    }
}

impl Body {
    fn written(self, schemas: &mut Schemas) -> Value {
        let mut media = Map::new();
        media.extend(self.schema.map(|schema| ("schema".to_owned(), schema(schemas))));
        if !self.examples.is_empty() {
            media.insert("examples".to_owned(), self.examples.into());
        }
        let mut written = Map::from_iter([
            ("required".to_owned(), true.into()),
            ("content".to_owned(), Map::from_iter([(self.kind.to_owned(), media.into())]).into()),
        ]);
        written.extend(self.description.map(|text| ("description".to_owned(), text.into())));
        written.into()
    }
}

impl Answer {
    fn written(self, schemas: &mut Schemas) -> Value {
        let content = |(kind, schema): (&str, MakeSchema)| (kind.to_owned(), json!({"schema": schema(schemas)}));
        let contents: Map<String, Value> = self.contents.into_iter().map(content).collect();
        if contents.is_empty() {
            return json!({"description": self.description});
        }
        json!({"description": self.description, "content": contents})
    }
}

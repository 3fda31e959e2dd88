//! The description of a tool for its clients: schemas of its types, and hints about what it does.

use std::any::Any;

use rmcp::handler::server::common::{schema_for_input, schema_for_output};
use rmcp::model::{Tool, ToolAnnotations};
use schemars::JsonSchema;

/// A tool that reads its arguments from one type and gives another one back.
#[expect(clippy::expect_used, reason = "a struct has the schema of an object")]
pub(super) fn typed<Arguments: JsonSchema + Any, Output: JsonSchema + Any>(
    name: &'static str,
    description: &'static str,
    annotations: ToolAnnotations,
) -> Tool {
    let input = schema_for_input::<Arguments>().expect("invariant: arguments are a struct");
    Tool::new(name, description, input)
        .with_raw_output_schema(schema_for_output::<Output>())
        .with_annotations(annotations)
}

/// A tool that changes nothing and reaches only the server.
pub(super) fn reads(title: &str) -> ToolAnnotations {
    ToolAnnotations::with_title(title).read_only(true).open_world(false)
}

//! The dialects: each turns its wire format into turns and back; none knows another.

pub(crate) mod anthropic;
pub(crate) mod diagnosis;
pub(crate) mod embedding;
pub(crate) mod llama_server;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod openapi;
pub(crate) mod poncho;
pub(crate) mod poncho_options;
pub(crate) mod query;
pub(crate) mod responses;
pub(crate) mod shared;
pub(crate) mod template_variables;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{anthropic, llama_server, ollama, openai, query, responses};
    use crate::http::warnings::Ignored;

    /// The document is what a test sends to a server (`tests/http/ignored_input.rs`), so nothing may be missing there.
    #[test]
    fn the_document_lists_every_field_of_the_tables() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ignored-input.md");
        let document = std::fs::read_to_string(file).unwrap();
        let tables: [&[Ignored]; 7] = [
            &openai::ignored::CHAT,
            &openai::ignored::PLAIN,
            &anthropic::ignored::MESSAGES,
            &ollama::ignored::REPLY,
            &ollama::ignored::LIBRARY,
            &responses::ignored::RESPONSES,
            &llama_server::infill::IGNORED,
        ];
        let of_queries = query::IGNORED.map(|(_, ignored)| ignored);
        for ignored in tables.into_iter().flatten().chain(&of_queries) {
            let ending = match ignored.path.strip_prefix('*') {
                Some(name) => format!("{name}` |"),
                None => format!("| `{}` |", ignored.path),
            };
            assert!(document.contains(&ending), "{}", ignored.path);
        }
    }
}

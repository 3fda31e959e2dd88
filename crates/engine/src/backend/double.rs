//! A model over another one that differs in a few calls, for tests and benchmarks.
//!
//! Used by those that hold a real or a stub model up, or say what it writes. What a double leaves out is the other model's.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{
    Adapter, AdapterError, ChatError, ChatPrompt, ChatRequest, Context, ContextError, ContextOptions, Grammar,
    GrammarError, GrammarOptions, Model, ModelInfo, SpecialText, Token, TokenizeError, TokenizeMode,
};

/// See the module.
pub trait ModelDouble: Send + Sync {
    /// The other model.
    fn inner(&self) -> &dyn Model;

    /// Comes before a text is tokenized or a template is rendered.
    fn before_text(&self) {}

    /// As [`Model::new_context`].
    ///
    /// # Errors
    /// As there.
    fn context(&self, options: &ContextOptions, abort: Arc<AtomicBool>) -> Result<Box<dyn Context>, ContextError> {
        self.inner().new_context(options, abort)
    }

    /// As [`Model::new_grammar`].
    ///
    /// # Errors
    /// As there.
    fn grammar(&self, options: &GrammarOptions) -> Result<Box<dyn Grammar>, GrammarError> {
        self.inner().new_grammar(options)
    }
}

impl<D: ModelDouble> Model for D {
    fn info(&self) -> &ModelInfo {
        self.inner().info()
    }

    fn metadata(&self, key: &str) -> Option<String> {
        self.inner().metadata(key)
    }

    fn chat_template(&self, variant: Option<&str>) -> Option<String> {
        self.inner().chat_template(variant)
    }

    fn tokenize(&self, text: &str, mode: TokenizeMode, out: &mut Vec<Token>) -> Result<(), TokenizeError> {
        self.before_text();
        self.inner().tokenize(text, mode, out)
    }

    fn token_bytes(&self, token: Token, special: SpecialText, out: &mut Vec<u8>) {
        self.inner().token_bytes(token, special, out);
    }

    fn is_eog(&self, token: Token) -> bool {
        self.inner().is_eog(token)
    }

    fn is_control(&self, token: Token) -> bool {
        self.inner().is_control(token)
    }

    fn new_context(&self, options: &ContextOptions, abort: Arc<AtomicBool>) -> Result<Box<dyn Context>, ContextError> {
        self.context(options, abort)
    }

    fn load_adapter(&self, path: &Path) -> Result<Arc<dyn Adapter>, AdapterError> {
        self.inner().load_adapter(path)
    }

    fn new_grammar(&self, options: &GrammarOptions) -> Result<Box<dyn Grammar>, GrammarError> {
        self.grammar(options)
    }

    fn json_schema_to_grammar(&self, schema: &str) -> Result<String, GrammarError> {
        self.inner().json_schema_to_grammar(schema)
    }

    fn apply_chat_template(&self, request: &ChatRequest) -> Result<ChatPrompt, ChatError> {
        self.before_text();
        self.inner().apply_chat_template(request)
    }
}

//! Which model a name means: loaded models and the aliases of the settings.
//!
//! Used by every endpoint that takes a `model`. A name is only ever compared; it must never become a path, and a name
//! that nobody knows must never silently mean another model.

use std::collections::BTreeMap;
use std::sync::Arc;

use poncho_engine::{Engine, EngineError, Model, Phase};

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::ids::unix_seconds;
use crate::served::{Conversations, ServedModel};

/// See the module.
pub(crate) struct Models {
    engine: Arc<Engine>,
    conversations: Arc<Conversations>,
    aliases: BTreeMap<String, String>,
    any_model: bool,
    /// What `created` says: the engine does not remember when a model was loaded.
    started: u64,
}

/// A name that clients can use.
pub(crate) struct ListedModel {
    /// The name.
    pub(crate) id: String,
    /// The model behind it.
    pub(crate) model: Model,
}

impl Models {
    pub(crate) fn new(engine: Arc<Engine>, conversations: Arc<Conversations>, config: &ServerConfig) -> Self {
        let (aliases, any_model) = (config.aliases.clone(), config.any_model);
        Self { engine, conversations, aliases, any_model, started: unix_seconds() }
    }

    fn served(&self, model: Model) -> ServedModel {
        ServedModel::new(model, Arc::clone(&self.conversations))
    }

    /// The engine behind the names.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// When the server started, in seconds since 1970.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// The model of that name.
    pub(crate) fn resolve(&self, name: &str) -> Result<ServedModel, ApiError> {
        // A loaded model keeps its own name, whatever an alias says.
        let aliased = || self.aliases.get(name).and_then(|target| self.engine.get(target).ok());
        if let Some(model) = self.engine.get(name).ok().or_else(aliased) {
            return Ok(self.served(model));
        }
        let mut loaded = self.engine.models();
        match (loaded.pop(), loaded.is_empty()) {
            (None, _) => Err(ApiError::NotReady),
            (Some(only), true) if self.any_model => Ok(self.served(only)),
            _ => Err(EngineError::UnknownModel { model: name.to_owned() }.into()),
        }
    }

    /// The model of that name; without a name the only one there is.
    pub(crate) fn resolve_or_only(&self, name: Option<&str>) -> Result<ServedModel, ApiError> {
        if let Some(name) = name {
            return self.resolve(name);
        }
        let mut loaded = self.engine.models();
        match (loaded.pop(), loaded.len()) {
            (None, _) => Err(ApiError::NotReady),
            (Some(only), 0) => Ok(self.served(only)),
            (Some(_), others) => {
                Err(ApiError::field("model", format!("{} models are loaded; name one of them", others + 1)))
            }
        }
    }

    /// Every name that can be asked for, aliases after the models they stand for.
    pub(crate) fn list(&self) -> Vec<ListedModel> {
        let loaded = self.engine.models().into_iter().map(|model| ListedModel { id: model.id().to_owned(), model });
        let aliased = self.aliases.iter().filter_map(|(alias, target)| {
            let model = self.engine.get(target).ok().filter(|_| self.engine.get(alias).is_err())?;
            Some(ListedModel { id: alias.clone(), model })
        });
        loaded.chain(aliased).collect()
    }

    /// Whether at least one model can take a request.
    pub(crate) fn any_serves(&self) -> bool {
        self.engine.models().iter().any(|model| !matches!(model.status().phase, Phase::Starting | Phase::Stopped))
    }
}

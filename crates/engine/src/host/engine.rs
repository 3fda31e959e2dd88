//! The registry: models by name, over one backend and one cache.
//!
//! Used by the server and by Rust programs that serve several models. Names are plain strings and never become paths.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use poncho_api::LoadModel;
use poncho_cache::Cache;

use crate::backend::Backend;
use crate::config::ModelConfig;
use crate::error::EngineError;
use crate::model::Model;

/// How long the end of all models waits for uploads to the shared tier.
const LAST_UPLOADS: Duration = Duration::from_secs(10);

/// Several models at once.
pub struct Engine {
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    models: RwLock<HashMap<String, Model>>,
}

impl Engine {
    /// An engine without models. Nothing of llama.cpp is touched until the first one is loaded.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, cache: Arc<Cache>) -> Self {
        Self { backend, cache, models: RwLock::default() }
    }

    /// The cache that all models share.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Loads a model under its name.
    ///
    /// # Errors
    /// A model of that name is loaded, or loading fails.
    pub fn load(&self, config: ModelConfig) -> Result<Model, EngineError> {
        self.load_with_progress(config, &mut |_, _| {})
    }

    /// The same; `progress` hears how many bytes of how many the fingerprint has read.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load_with_progress(
        &self,
        config: ModelConfig,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, EngineError> {
        let taken = |id: &str| EngineError::Config {
            setting: "id".to_owned(),
            reason: format!("a model {id} is loaded already; unload it or choose another name"),
        };
        if self.get(&config.id).is_ok() {
            return Err(taken(&config.id));
        }
        let (backend, cache) = (Arc::clone(&self.backend), Arc::clone(&self.cache));
        // Loading takes seconds: the registry is not locked meanwhile, so the name is checked again afterwards.
        let model = Model::load_with_progress(config, backend, cache, progress)?;
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        if models.contains_key(model.id()) {
            return Err(taken(model.id()));
        }
        models.insert(model.id().to_owned(), model.clone());
        Ok(model)
    }

    /// Loads a model with its adapters; `progress` gets the bytes that the fingerprint has read, and all of them.
    ///
    /// # Errors
    /// As [`Engine::load`]; an adapter that cannot be attached fails the load.
    pub fn load_model(&self, new: LoadModel, progress: &mut dyn FnMut(u64, u64)) -> Result<Model, EngineError> {
        let LoadModel { config, adapters } = new;
        let model = self.load_with_progress(config, progress)?;
        for adapter in &adapters {
            if let Err(error) = model.load_adapter(adapter) {
                self.unload(model.id())?;
                return Err(error);
            }
        }
        Ok(model)
    }

    /// The model of that name.
    ///
    /// # Errors
    /// None is loaded.
    pub fn get(&self, id: &str) -> Result<Model, EngineError> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        models.get(id).cloned().ok_or_else(|| EngineError::UnknownModel { model: id.to_owned() })
    }

    /// All models, by name.
    #[must_use]
    pub fn models(&self) -> Vec<Model> {
        let mut models: Vec<Model> =
            self.models.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        models.sort_by(|one, two| one.id().cmp(two.id()));
        models
    }

    /// Saves what a model holds, ends its requests and removes it.
    ///
    /// # Errors
    /// None of that name is loaded.
    pub fn unload(&self, id: &str) -> Result<(), EngineError> {
        let removed = self.models.write().unwrap_or_else(PoisonError::into_inner).remove(id);
        removed.ok_or_else(|| EngineError::UnknownModel { model: id.to_owned() })?.shut_down()
    }

    /// Unloads every model, as [`Engine::unload`] does, and waits a bounded time for what they share with other machines.
    ///
    /// # Errors
    /// The first that could not be unloaded in order; the others are unloaded all the same.
    pub fn unload_all(&self) -> Result<(), EngineError> {
        let unloaded: Vec<Result<(), EngineError>> =
            self.models().iter().map(|model| self.unload(model.id())).collect();
        if let Some(remote) = self.cache.remote()
            && !remote.flush(Instant::now() + LAST_UPLOADS)
        {
            let seconds = LAST_UPLOADS.as_secs();
            tracing::warn!(seconds, "the shared tier is slow; some rows are not uploaded");
        }
        unloaded.into_iter().collect()
    }
}

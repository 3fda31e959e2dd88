//! Which model a name means: loaded models, installed ones, and the aliases of the settings.
//!
//! Used by every endpoint that takes a `model`; the manager loads what is not loaded. A name is only ever compared or
//! handed to the library; it must never become a path, and a name that nobody knows must never silently mean another
//! model unless the settings say so.

use std::collections::BTreeMap;
use std::sync::Arc;

use poncho_api::{EngineError, Node, NodeModel, Phase};
use tokio::time::Instant;

use crate::blocking::{blocking, looking_up};
use crate::config::KeepAlive;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::library::LibraryModel;
use crate::models::manager::{Found, InMemory, Manager, ManagerSettings, Unloaded};
use crate::models::served::ServedModel;
use crate::models::tags::other_form;
use crate::request_id::unix_seconds;

/// See the module.
pub(crate) struct Models {
    node: Arc<dyn Node>,
    manager: Manager,
    aliases: BTreeMap<String, String>,
    any_model: bool,
    default_model: Option<String>,
    /// What `created` says: the engine does not remember when a model was loaded.
    started: u64,
}

/// A name that clients can use.
pub(crate) struct ListedModel {
    /// The name.
    pub(crate) id: String,
    /// The model behind it.
    pub(crate) source: Source,
}

/// Where the facts about a model come from.
#[derive(Clone)]
pub(crate) enum Source {
    Loaded(Arc<dyn NodeModel>),
    Installed(Arc<LibraryModel>),
}

impl Source {
    /// The full name of the model.
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Loaded(model) => &model.report().id,
            Self::Installed(model) => model.name(),
        }
    }
}

impl Models {
    pub(crate) async fn new(node: Arc<dyn Node>, config: &ServerConfig) -> Self {
        let settings = ManagerSettings {
            library: config.library.clone(),
            budget: config.memory.bytes(),
            keep_alive: config.keep_alive,
        };
        Self {
            manager: Manager::start(Arc::clone(&node), settings).await,
            node,
            aliases: config.aliases.clone(),
            any_model: config.any_model,
            default_model: config.default_model.clone(),
            started: unix_seconds(),
        }
    }

    /// What the models run on.
    pub(crate) fn node(&self) -> &dyn Node {
        &*self.node
    }

    /// Where models come from that are not loaded.
    pub(crate) fn manager(&self) -> &Manager {
        &self.manager
    }

    /// When the server started, in seconds since 1970.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// The model of that name, loaded if it is not.
    pub(crate) async fn resolve(&self, name: &str) -> Result<ServedModel, ApiError> {
        self.resolve_keeping(name, None).await
    }

    /// The same; the model stays loaded for so long afterwards.
    pub(crate) async fn resolve_keeping(
        &self,
        name: &str,
        keep_alive: Option<KeepAlive>,
    ) -> Result<ServedModel, ApiError> {
        if let Some(model) = self.resolved(name, keep_alive).await? {
            return Ok(model);
        }
        // The nodes of a cluster may have started a moment ago.
        if self.node.await_models().await
            && let Some(model) = self.resolved(name, keep_alive).await?
        {
            return Ok(model);
        }
        match self.node.models().is_empty() && self.manager.library().is_none() {
            true => Err(ApiError::NotReady),
            false => Err(EngineError::UnknownModel { model: name.to_owned() }.into()),
        }
    }

    /// The model that a name means at this moment.
    async fn resolved(&self, name: &str, keep_alive: Option<KeepAlive>) -> Result<Option<ServedModel>, ApiError> {
        // A model keeps its own name, whatever an alias says.
        if let Some(model) = self.by_own_name(name, keep_alive).await? {
            return Ok(Some(model));
        }
        let aliased = self.alias(name).or_else(|| other_form(name).and_then(|name| self.alias(&name)));
        if let Some(target) = aliased
            && let Some(model) = self.by_own_name(target, keep_alive).await?
        {
            return Ok(Some(model));
        }
        if self.any_model
            && let Some(model) = self.default_or_only(keep_alive).await?
        {
            return Ok(Some(model.standing_for(name)));
        }
        Ok(None)
    }

    /// The model of that name; without a name the default, or the only one there is.
    pub(crate) async fn resolve_or_only(&self, name: Option<&str>) -> Result<ServedModel, ApiError> {
        if let Some(name) = name {
            return self.resolve(name).await;
        }
        if let Some(model) = self.default_or_only(None).await? {
            return Ok(model);
        }
        if self.node.await_models().await
            && let Some(model) = self.default_or_only(None).await?
        {
            return Ok(model);
        }
        match self.node.models().len() {
            0 => Err(ApiError::NotReady),
            count => Err(ApiError::field("model", format!("{count} models are loaded; name one of them"))),
        }
    }

    /// The same, for endpoints that change or compare something: a name that nobody has is refused also where any name is
    /// accepted.
    pub(crate) async fn resolve_known_or_only(&self, name: Option<&str>) -> Result<ServedModel, ApiError> {
        let model = self.resolve_or_only(name).await?;
        match model.stands_for() {
            Some(name) => Err(EngineError::UnknownModel { model: name.to_owned() }.into()),
            None => Ok(model),
        }
    }

    /// The default model, or else the only one that is loaded.
    async fn default_or_only(&self, keep_alive: Option<KeepAlive>) -> Result<Option<ServedModel>, ApiError> {
        if let Some(name) = &self.default_model
            && let Some(model) = self.by_own_name(name, keep_alive).await?
        {
            return Ok(Some(model));
        }
        match self.node.models().as_slice() {
            [only] => self.loaded(&only.report().id, keep_alive).await,
            _ => Ok(None),
        }
    }

    /// A model by its name, with or without its tag.
    async fn by_own_name(&self, name: &str, keep_alive: Option<KeepAlive>) -> Result<Option<ServedModel>, ApiError> {
        if let Some(model) = self.loaded(name, keep_alive).await? {
            return Ok(Some(model));
        }
        if let Some(other) = other_form(name)
            && let Some(model) = self.loaded(&other, keep_alive).await?
        {
            return Ok(Some(model));
        }
        let Some(found) = self.installed(name).await? else { return Ok(None) };
        let found = Found::new(&*self.node, found).await?;
        let id = found.id().to_owned();
        let held = self.manager.acquire(&id, Some(found), keep_alive).await?;
        Ok(held.map(ServedModel::held))
    }

    async fn loaded(&self, id: &str, keep_alive: Option<KeepAlive>) -> Result<Option<ServedModel>, ApiError> {
        let held = self.manager.acquire(id, None, keep_alive).await?;
        Ok(held.map(ServedModel::held))
    }

    async fn installed(&self, name: &str) -> Result<Option<LibraryModel>, ApiError> {
        let Some(library) = self.manager.library().map(Arc::clone) else { return Ok(None) };
        let forms: Vec<String> = std::iter::once(name.to_owned()).chain(other_form(name)).collect();
        looking_up("looked for a model", move || {
            for name in &forms {
                if let Some(found) = library.find(name)? {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        })
        .await
    }

    /// What an alias stands for.
    fn alias(&self, name: &str) -> Option<&str> {
        if let Some(target) = self.aliases.get(name).filter(|_| !name.ends_with('*')) {
            return Some(target);
        }
        let patterns = self.aliases.iter().filter_map(|(alias, target)| Some((alias.strip_suffix('*')?, target)));
        let fitting = patterns.filter(|(start, _)| name.starts_with(start));
        fitting.max_by_key(|(start, _)| start.len()).map(|(_, target)| target.as_str())
    }

    /// What is known of a model, without loading it; where any name is accepted, also of the model that answers to it.
    pub(crate) async fn look_up(&self, name: &str) -> Result<Source, ApiError> {
        if let Some(source) = self.find(name).await? {
            return Ok(source);
        }
        match (self.any_model, self.node.models().as_slice()) {
            (true, [only]) => Ok(Source::Loaded(Arc::clone(only))),
            (_, []) if self.manager.library().is_none() => Err(ApiError::NotReady),
            _ => Err(EngineError::UnknownModel { model: name.to_owned() }.into()),
        }
    }

    /// What is known of the model of that name or alias.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<Source>, ApiError> {
        let other = other_form(name);
        let target = self.alias(name).or_else(|| other.as_deref().and_then(|name| self.alias(name)));
        for name in [Some(name), other.as_deref(), target].into_iter().flatten() {
            if let Some(model) = self.node.model(name) {
                return Ok(Some(Source::Loaded(model)));
            }
            if let Some(found) = self.installed(name).await? {
                return Ok(Some(match self.node.model(found.name()) {
                    Some(model) => Source::Loaded(model),
                    None => Source::Installed(Arc::new(found)),
                }));
            }
        }
        Ok(None)
    }

    /// A loaded model to look at; it may go any time.
    pub(crate) fn shown(&self, model: Arc<dyn NodeModel>) -> ServedModel {
        let known =
            self.in_memory().into_iter().find(|listed| listed.id == model.report().id).map(|listed| listed.known);
        ServedModel::shown(model, known.unwrap_or_default())
    }

    /// Unloads a model, as soon as nobody uses it.
    pub(crate) async fn unload(&self, name: &str) -> Result<(String, Unloaded), ApiError> {
        let id = self.look_up(name).await?.id().to_owned();
        let unloaded = self.manager.unload(&id).await;
        Ok((id, unloaded))
    }

    /// A model was changed on disk: what is loaded under that name goes as soon as nobody uses it.
    pub(crate) async fn changed(&self, name: &str) {
        // The library writes names in its own way: in lower case, and without the address of a hub.
        let own = self.installed(name).await.ok().flatten().map(|found| found.name().to_owned());
        for id in std::iter::once(name.to_owned()).chain(other_form(name)).chain(own) {
            self.manager.unload(&id).await;
        }
    }

    /// Every name that can be asked for: loaded models, installed ones, and aliases after the models they stand for.
    pub(crate) async fn list(&self) -> Result<Vec<ListedModel>, ApiError> {
        let installed = match self.manager.library().map(Arc::clone) {
            Some(library) => blocking("listed the models", move || Ok(library.list()?)).await?,
            None => Vec::new(),
        };
        let mut named: BTreeMap<String, Source> =
            self.node.models().into_iter().map(|model| (model.report().id.clone(), Source::Loaded(model))).collect();
        for model in installed {
            named.entry(model.name().to_owned()).or_insert_with(|| Source::Installed(Arc::new(model)));
        }
        let find =
            |name: &str| named.get(name).or_else(|| other_form(name).and_then(|other| named.get(&other))).cloned();
        let aliased = self.aliases.iter().filter(|(alias, _)| !alias.ends_with('*')).filter_map(|(alias, target)| {
            let source = find(target).filter(|_| find(alias).is_none())?;
            Some(ListedModel { id: alias.clone(), source })
        });
        let aliased: Vec<ListedModel> = aliased.collect();
        let own = named.into_iter().map(|(id, source)| ListedModel { id, source });
        Ok(own.chain(aliased).collect())
    }

    /// What is in memory.
    pub(crate) fn in_memory(&self) -> Vec<InMemory> {
        self.manager.in_memory()
    }

    /// Whether a request would be taken: a model serves, or one can be loaded.
    pub(crate) fn any_serves(&self) -> bool {
        let serves = |model: &Arc<dyn NodeModel>| !matches!(model.status().phase, Phase::Starting | Phase::Stopped);
        let loaded = self.node.models();
        // Without one, the first request loads it. Those that are there and do not serve are starting again or set aside.
        if loaded.is_empty() { self.manager.library().is_some() } else { loaded.iter().any(serves) }
    }

    /// Stops giving out models; loads and unloads that are under way may end until `end`.
    pub(crate) async fn close(&self, end: Instant) {
        self.manager.close(end).await;
    }
}

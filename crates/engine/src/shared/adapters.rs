//! LoRA adapters of a model: loaded, scaled, listed, and frozen for each request at its admission.
//!
//! A set never changes: loading, unloading and scaling make a new one, so that a request in flight keeps the set it was
//! admitted with. The worker decodes only requests of one set at a time. The set's effect on the rows' namespace is in
//! here too.

use std::sync::Arc;

pub use poncho_api::{AdapterId, AdapterInfo};
use poncho_cache::{AdapterIdentity, Namespace};

use crate::backend::{Adapter, AdapterUse, Context};
use crate::calls::request::Request;
use crate::calls::tenant::{Tenant, TenantNamespace as _};
use crate::error::EngineError;
use crate::state::identity::FileIdentity;

/// One adapter of a set.
#[derive(Clone)]
pub(crate) struct LoadedAdapter {
    pub(crate) info: AdapterInfo,
    pub(crate) adapter: Arc<dyn Adapter>,
}

/// The hashes of a context's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextHashes {
    pub(crate) plain: [u8; 32],
    /// For states of exact requests; the plain one if there are none.
    pub(crate) exact: [u8; 32],
}

/// The adapters of a worker: those of requests that are admitted now, and those that its context has attached.
pub(crate) struct Adapters {
    current: Arc<AdapterSet>,
    attached: Arc<AdapterSet>,
    none: Arc<AdapterSet>,
    hashes: ContextHashes,
}

impl Adapters {
    /// The adapters of a fresh context, which has none attached. `current` is what an earlier worker had.
    pub(crate) fn new(
        current: Option<Arc<AdapterSet>>,
        file: &FileIdentity,
        hashes: ContextHashes,
    ) -> Result<Self, EngineError> {
        let none = Arc::new(AdapterSet::new(Vec::new(), file, hashes)?);
        let current = current.unwrap_or_else(|| Arc::clone(&none));
        Ok(Self { current, attached: Arc::clone(&none), none, hashes })
    }

    /// The adapters of requests that are admitted now.
    pub(crate) fn current(&self) -> &Arc<AdapterSet> {
        &self.current
    }

    /// Replaces the adapters of requests to come.
    pub(crate) fn replace(&mut self, adapters: Vec<LoadedAdapter>, file: &FileIdentity) -> Result<(), EngineError> {
        self.current = Arc::new(AdapterSet::new(adapters, file, self.hashes)?);
        Ok(())
    }

    /// Attaches a set to the context, unless it is attached already.
    pub(crate) fn attach(&mut self, context: &mut dyn Context, set: &Arc<AdapterSet>) -> Result<(), EngineError> {
        if !Arc::ptr_eq(set, &self.attached) {
            context.set_adapters(&set.uses()).map_err(|error| EngineError::Backend {
                call: "attaching adapters".to_owned(),
                reason: error.to_string(),
            })?;
            self.attached = Arc::clone(set);
        }
        Ok(())
    }

    /// The context was replaced by a fresh one, which has none attached.
    pub(crate) fn detached(&mut self) {
        self.attached = Arc::clone(&self.none);
    }
}

/// All adapters of a model at one moment.
pub(crate) struct AdapterSet {
    pub(crate) adapters: Vec<LoadedAdapter>,
    pub(crate) namespace: Namespace,
    exact_namespace: Namespace,
}

impl AdapterSet {
    /// A set, and the namespace of the states that it makes.
    pub(crate) fn new(
        adapters: Vec<LoadedAdapter>,
        file: &FileIdentity,
        hashes: ContextHashes,
    ) -> Result<Self, EngineError> {
        let identities: Vec<AdapterIdentity> = adapters
            .iter()
            .map(|adapter| AdapterIdentity { sha256: adapter.info.sha256, scale: adapter.info.scale })
            .collect();
        let namespace = file.namespace(hashes.plain, &identities)?;
        let exact_namespace = file.namespace(hashes.exact, &identities)?;
        Ok(Self { adapters, namespace, exact_namespace })
    }

    /// The namespace of a request's states.
    pub(crate) fn namespace_of(&self, request: &Request) -> Namespace {
        self.namespace_for(request.exact, request.tenant)
    }

    /// The namespace of the states of such requests.
    pub(crate) fn namespace_for(&self, exact: bool, tenant: Option<Tenant>) -> Namespace {
        let shared = if exact { self.exact_namespace } else { self.namespace };
        tenant.map_or(shared, |tenant| tenant.namespace(shared))
    }

    /// Whether states of this namespace may be those of some request. What isolated tenants make has context hashes that
    /// nobody can list, so the model alone decides.
    pub(crate) fn may_have_namespace(&self, namespace: &Namespace) -> bool {
        (namespace.fingerprint, namespace.quant) == (self.namespace.fingerprint, self.namespace.quant)
    }

    /// The adapters as the context takes them.
    pub(crate) fn uses(&self) -> Vec<AdapterUse> {
        self.adapters
            .iter()
            .map(|loaded| AdapterUse { adapter: Arc::clone(&loaded.adapter), scale: loaded.info.scale })
            .collect()
    }

    pub(crate) fn infos(&self) -> Vec<AdapterInfo> {
        self.adapters.iter().map(|loaded| loaded.info.clone()).collect()
    }

    /// The adapters with one more.
    pub(crate) fn with(&self, adapter: LoadedAdapter) -> Vec<LoadedAdapter> {
        let mut adapters = self.adapters.clone();
        adapters.push(adapter);
        adapters
    }

    /// The adapters without one; the same if it is not among them.
    pub(crate) fn without(&self, id: AdapterId) -> Vec<LoadedAdapter> {
        self.adapters.iter().filter(|loaded| loaded.info.id != id).cloned().collect()
    }

    /// The adapters with one at another strength.
    pub(crate) fn with_scale(&self, id: AdapterId, scale: f32) -> Result<Vec<LoadedAdapter>, EngineError> {
        let mut adapters = self.adapters.clone();
        let found = adapters.iter_mut().find(|loaded| loaded.info.id == id);
        found.ok_or(EngineError::UnknownAdapter { adapter: id.0 })?.info.scale = scale;
        Ok(adapters)
    }
}

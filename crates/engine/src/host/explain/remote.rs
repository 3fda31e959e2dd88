//! What other machines have of a prompt: the shared tier and other nodes, asked as a request would ask them.
//!
//! Called by `explain.rs`. Nothing is fetched. A tier that fails or is left alone has nothing, and the answer comes without
//! it: this must never fail an explanation.

use std::time::{Duration, Instant};

use poncho_api::{RemotePrefix, Request};
use poncho_cache::{Cancellation, NO_TENANT, Namespace, Patience, RemoteQuery};

use crate::chat::model::ChatModel;
use crate::config::Checked as _;
use crate::sequence::remote::candidates;

/// How long the tier may take.
const LONGEST: Duration = Duration::from_secs(3);

/// The longest beginning of the prompt that another machine has, if it is longer than what this one can use.
pub(super) fn longest(
    model: &ChatModel,
    request: &Request,
    namespace: &Namespace,
    usable: usize,
) -> Option<RemotePrefix> {
    let remote = model.cache().remote()?;
    // A tier that is left alone would make the caller wait.
    remote.rates()?;
    let grid = model.config().grid().filter(|_| request.exact);
    let mut boundaries = candidates(&model.config().policy().ok()?, request, grid);
    boundaries.retain(|boundary| *boundary > usable);
    let mut keys = namespace.prefix_keys(&request.tokens, &boundaries);
    keys.reverse();
    let owner = model.tenant().map_or(NO_TENANT, |tenant| tenant.id);
    let patience = Patience { deadline: Instant::now() + LONGEST, cancelled: Cancellation::default() };
    let found = remote.find(RemoteQuery { owner, namespace, keys: &keys }, &patience).ok()??;
    Some(RemotePrefix { key: found.key, tokens: found.tokens as usize, bytes: found.bytes, tier: found.tier })
}

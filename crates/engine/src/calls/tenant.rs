//! The namespace of a tenant's states.
//!
//! Asked wherever a request's rows are named. The tenant itself is the api's data.

use poncho_cache::Namespace;
use sha2::{Digest, Sha256};

pub use poncho_api::{Privacy, Tenant};

/// Where the states of a tenant lie.
pub(crate) trait TenantNamespace {
    /// The namespace of the tenant's states, where the model's own is `shared`.
    fn namespace(&self, shared: Namespace) -> Namespace;
}

impl TenantNamespace for Tenant {
    fn namespace(&self, shared: Namespace) -> Namespace {
        if self.privacy != Privacy::Isolated {
            return shared;
        }
        let mut hash = Sha256::new_with_prefix("poncho namespace of one tenant\n");
        hash.update(shared.context_hash);
        hash.update(self.id.as_bytes());
        Namespace { context_hash: hash.finalize().into(), ..shared }
    }
}

#[cfg(test)]
mod tests {
    use poncho_cache::{OwnerId, QuantType};

    use super::*;

    #[test]
    fn only_isolated_tenants_have_a_namespace_of_their_own() {
        let shared = Namespace { fingerprint: [1; 32], quant: QuantType::F16, context_hash: [2; 32] };
        let tenant = |id: u8, privacy| Tenant { id: OwnerId::from_bytes([id; 16]), privacy };
        for privacy in [Privacy::Open, Privacy::Discreet] {
            assert_eq!(tenant(1, privacy).namespace(shared), shared);
        }
        let [one, two] = [1, 2].map(|id| tenant(id, Privacy::Isolated).namespace(shared));
        assert!(one != shared && two != shared && one != two);
        assert_eq!(one, tenant(1, Privacy::Isolated).namespace(shared), "the same after a restart");
        assert_eq!(one.fingerprint, shared.fingerprint, "it is the same model");
        let exact = Namespace { context_hash: [3; 32], ..shared };
        assert_ne!(one, tenant(1, Privacy::Isolated).namespace(exact));
    }
}

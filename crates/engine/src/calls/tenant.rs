//! Whose a request is, and what it may learn and share with the requests of others.
//!
//! A server with API keys gives every request its key's tenant; a program without tenants leaves it out. Plain data. The
//! name is a digest that the caller makes: it must never be the key itself.

use poncho_cache::{Namespace, OwnerId};
use sha2::{Digest, Sha256};

/// What a tenant has in common with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Privacy {
    /// There are no others: rows are noted as its own, and nothing is hidden from it.
    #[default]
    Open,
    /// States are shared, and a request is told of the tenant's own ones only.
    Discreet,
    /// Nothing is shared: the tenant's states have a namespace of their own.
    Isolated,
}

/// Whose a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenant {
    /// The name under which its rows are known.
    pub id: OwnerId,
    /// What it has in common with others.
    pub privacy: Privacy,
}

impl Tenant {
    /// Whether a request is told of the tenant's own states only.
    #[must_use]
    pub fn is_discreet(&self) -> bool {
        self.privacy == Privacy::Discreet
    }

    /// The namespace of the tenant's states, where the model's own is `shared`.
    #[must_use]
    pub fn namespace(&self, shared: Namespace) -> Namespace {
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
    use poncho_cache::QuantType;

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

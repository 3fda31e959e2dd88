//! The tenant of a request, and what the request may learn from and share with those of others.
//!
//! A server with API keys gives every request its key's tenant; a program without tenants leaves it out. Plain data. The
//! name is a digest that the caller makes: it must never be the key itself.

use poncho_kinds::OwnerId;
use serde::{Deserialize, Serialize};

/// What a tenant has in common with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Privacy {
    /// There are no others: rows are noted as its own, and nothing is hidden from it.
    #[default]
    Open,
    /// States are shared, but a request learns about the tenant's own ones only.
    Discreet,
    /// Nothing is shared: the tenant's states have a namespace of their own.
    Isolated,
}

/// The tenant of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tenant {
    /// The name under which its rows are known.
    pub id: OwnerId,
    /// What it has in common with others.
    pub privacy: Privacy,
}

impl Tenant {
    /// Whether a request learns about the tenant's own states only.
    #[must_use]
    pub fn is_discreet(&self) -> bool {
        self.privacy == Privacy::Discreet
    }
}

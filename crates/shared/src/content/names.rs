//! The layout of a store: `v1/<tenant>/seg/<sha256>` and `v1/<tenant>/row/<namespace>/<key>`, and the cluster's own objects.
//!
//! Used by everything that addresses an object. A name never contains anything that the prompt or the API key can be
//! guessed from without the cluster's secret.

use object_store::path::Path;
use poncho_cache::to_hex;

/// Everything of this version of the layout.
pub(crate) const ROOT: &str = "v1";

/// What an object is, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// A segment with the digest of its stored bytes.
    Segment { tenant: String, digest: [u8; 32] },
    /// A manifest.
    Row { tenant: String },
    /// The ledger, a lease, the object of the probe.
    Cluster,
}

pub(crate) fn root() -> Path {
    Path::from(ROOT)
}

/// The name of a segment.
pub(crate) fn segment(tenant: &str, digest: &[u8; 32]) -> Path {
    Path::from_iter([ROOT, tenant, "seg", &to_hex(digest)])
}

/// The name of a manifest.
pub(crate) fn row(tenant: &str, namespace: &str, key: &str) -> Path {
    Path::from_iter([ROOT, tenant, "row", namespace, key])
}

/// All manifests of a tenant.
pub(crate) fn rows_of(tenant: &str) -> Path {
    Path::from_iter([ROOT, tenant, "row"])
}

/// The name of an object that belongs to the cluster. Tenants have 32 hexadecimal digits: the names never meet.
pub(crate) fn cluster(name: &str) -> Path {
    Path::from_iter([ROOT, "cluster", name])
}

/// Takes a name apart. `None`: not ours, to be left alone.
pub(crate) fn classify(path: &Path) -> Option<Named> {
    let parts: Vec<_> = path.parts().collect();
    let text: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    match text.as_slice() {
        [ROOT, "cluster", _] => Some(Named::Cluster),
        [ROOT, tenant, "seg", digest] if is_tenant(tenant) => {
            Some(Named::Segment { tenant: (*tenant).to_owned(), digest: digest_of(digest)? })
        }
        [ROOT, tenant, "row", _, _] if is_tenant(tenant) => Some(Named::Row { tenant: (*tenant).to_owned() }),
        _ => None,
    }
}

fn is_tenant(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// 64 hexadecimal digits as bytes.
pub(crate) fn digest_of(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut digest = [0_u8; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_and_others_are_left_alone() {
        let tenant = "0123456789abcdef0123456789abcdef";
        let digest = [0xAB; 32];
        assert_eq!(classify(&segment(tenant, &digest)), Some(Named::Segment { tenant: tenant.to_owned(), digest }));
        assert_eq!(classify(&row(tenant, "ab", "cd")), Some(Named::Row { tenant: tenant.to_owned() }));
        assert_eq!(classify(&cluster("ledger")), Some(Named::Cluster));
        for other in
            ["v2/x/seg/y", "v1/short/row/a/b", "photos/1.jpg", "v1", "v1/0123456789abcdef0123456789abcdef/seg/zz"]
        {
            assert_eq!(classify(&Path::from(other)), None, "{other}");
        }
    }
}

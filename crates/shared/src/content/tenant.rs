//! A tenant: the names, the MAC and the encryption that belong to one owner of rows.
//!
//! Derived from the owner (a digest of an API key) and the cluster's secret. With a key file everything is keyed: without
//! the file nobody can name, forge or read a tenant's objects. Without one the names are plain hashes, the MAC only
//! detects damage, and contents are readable by everyone who can read the store. Used by uploads and fetches. Secrets
//! never appear in logs: `Debug` of these types prints none.

use std::fmt;
use std::fs;
use std::path::Path as FilePath;

use poncho_cache::{Key, Namespace, OwnerId, to_hex};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::names::{self, digest_of};
use crate::error::SharedError;

/// Used in place of a secret when there is none. Not secret.
const NO_SECRET: [u8; 32] = *b"poncho shared tier, no key file.";

/// The secret that all machines of a cluster share.
#[derive(Clone)]
pub(crate) struct ClusterSecret {
    secret: [u8; 32],
    encrypts: bool,
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClusterSecret(encrypts: {})", self.encrypts)
    }
}

impl ClusterSecret {
    /// Names that are plain hashes, contents that are not encrypted.
    pub(crate) fn none() -> Self {
        Self { secret: NO_SECRET, encrypts: false }
    }

    pub(crate) fn from_bytes(secret: [u8; 32]) -> Self {
        Self { secret, encrypts: true }
    }

    /// Names and MACs are keyed, contents are not encrypted: for bytes that are only sent, over a line that is.
    pub(crate) fn for_transport(secret: [u8; 32]) -> Self {
        Self { secret, encrypts: false }
    }

    /// The MAC of a request between machines that share the secret.
    pub(crate) fn sign(&self, request: &[&[u8]]) -> [u8; 32] {
        let key = keyed(&self.secret, &[b"requests"]);
        keyed(&key, request)
    }

    pub(crate) fn has_signed(&self, request: &[&[u8]], mac: &[u8]) -> bool {
        self.sign(request).as_slice().ct_eq(mac).into()
    }

    /// Reads a key file, or goes without one.
    pub(crate) fn open(path: Option<&FilePath>) -> Result<Self, SharedError> {
        let Some(path) = path else { return Ok(Self::none()) };
        let refuse = |detail: String| SharedError::KeyFile { path: path.to_owned(), detail };
        let text = fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        let secret =
            digest_of(text.trim()).ok_or_else(|| refuse("it does not hold 64 hexadecimal digits".to_owned()))?;
        warn_if_open(path);
        Ok(Self::from_bytes(secret))
    }

    pub(crate) fn tenant(&self, owner: OwnerId) -> Tenant {
        let name = keyed(&self.secret, &[b"tenant name", owner.as_bytes()]);
        let secret = keyed(&self.secret, &[b"tenant secret", owner.as_bytes()]);
        let (short, _) = name.split_at(16);
        Tenant {
            name: to_hex(short),
            names: keyed(&secret, &[b"names"]),
            mac: keyed(&secret, &[b"mac"]),
            seal: self.encrypts.then(|| keyed(&secret, &[b"seal"])),
        }
    }
}

#[cfg(unix)]
fn warn_if_open(path: &FilePath) {
    use std::os::unix::fs::PermissionsExt;
    if fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
        tracing::warn!(file = %path.display(), "others can read the key file of the shared tier; run chmod 600 on it");
    }
}

#[cfg(not(unix))]
fn warn_if_open(_: &FilePath) {}

/// See the module.
#[derive(Clone)]
pub(crate) struct Tenant {
    name: String,
    names: [u8; 32],
    mac: [u8; 32],
    seal: Option<[u8; 32]>,
}

impl fmt::Debug for Tenant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Tenant({})", self.name)
    }
}

/// Sealed bytes that do not open: another key, or damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotOurs;

impl Tenant {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name of a row's manifest.
    pub(crate) fn row_path(&self, namespace: &Namespace, key: &Key) -> object_store::path::Path {
        let folder = keyed(&self.names, &[b"namespace", &namespace_bytes(namespace)]);
        let file = keyed(&self.names, &[b"row", &folder, key.as_bytes()]);
        let (folder, _) = folder.split_at(16);
        names::row(&self.name, &to_hex(folder), &to_hex(&file))
    }

    /// The MAC of a manifest under its name: one that was copied to another name does not verify.
    pub(crate) fn mac(&self, path: &str, bytes: &[u8]) -> [u8; 32] {
        keyed(&self.mac, &[path.as_bytes(), bytes])
    }

    pub(crate) fn verify(&self, path: &str, bytes: &[u8], mac: &[u8]) -> bool {
        self.mac(path, bytes).as_slice().ct_eq(mac).into()
    }

    /// Whether contents are encrypted.
    pub(crate) fn encrypts(&self) -> bool {
        self.seal.is_some()
    }

    /// Encrypts a segment with a key of its own, derived from the digest of its plain bytes: equal segments of a tenant
    /// are stored once, and no nonce is ever used for two contents.
    pub(crate) fn seal_segment(&self, digest: &[u8; 32], plain: Vec<u8>) -> Result<Vec<u8>, NotOurs> {
        let Some(seal) = &self.seal else { return Ok(plain) };
        let key = keyed(seal, &[b"segment", digest]);
        encrypt(&key, plain)
    }

    /// Decrypts a segment in place.
    pub(crate) fn open_segment(&self, digest: &[u8; 32], stored: Vec<u8>) -> Result<Vec<u8>, NotOurs> {
        let Some(seal) = &self.seal else { return Ok(stored) };
        let key = keyed(seal, &[b"segment", digest]);
        decrypt(&key, stored)
    }

    /// Encrypts the inner part of a manifest with a key of its own. The salt that names the key is a keyed hash: the plain
    /// digest would confirm a guessed content.
    pub(crate) fn seal_body(&self, plain: Vec<u8>) -> Result<Vec<u8>, NotOurs> {
        let Some(seal) = &self.seal else { return Ok(plain) };
        let salt = keyed(seal, &[b"salt", &Sha256::digest(&plain)]);
        let key = keyed(seal, &[b"manifest", &salt]);
        let mut stored = salt.to_vec();
        stored.extend(encrypt(&key, plain)?);
        Ok(stored)
    }

    pub(crate) fn open_body(&self, stored: &[u8]) -> Result<Vec<u8>, NotOurs> {
        let Some(seal) = &self.seal else { return Ok(stored.to_vec()) };
        let (salt, sealed) = stored.split_first_chunk::<32>().ok_or(NotOurs)?;
        let key = keyed(seal, &[b"manifest", salt]);
        decrypt(&key, sealed.to_vec())
    }
}

/// Every key here encrypts one content, so one nonce serves.
fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn encrypt(key: &[u8; 32], mut bytes: Vec<u8>) -> Result<Vec<u8>, NotOurs> {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).map_err(|_| NotOurs)?);
    key.seal_in_place_append_tag(zero_nonce(), Aad::empty(), &mut bytes).map_err(|_| NotOurs)?;
    Ok(bytes)
}

fn decrypt(key: &[u8; 32], mut bytes: Vec<u8>) -> Result<Vec<u8>, NotOurs> {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).map_err(|_| NotOurs)?);
    let length = key.open_in_place(zero_nonce(), Aad::empty(), &mut bytes).map_err(|_| NotOurs)?.len();
    bytes.truncate(length);
    Ok(bytes)
}

/// HMAC-SHA256 over parts, each with its length before it, so that two lists of parts never meet.
fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    let mut digest = [0; 32];
    for (to, from) in digest.iter_mut().zip(mac.sign().as_ref()) {
        *to = *from;
    }
    digest
}

/// A namespace as bytes, for hashes.
fn namespace_bytes(namespace: &Namespace) -> Vec<u8> {
    [namespace.fingerprint.as_slice(), &[namespace.quant.byte()], &namespace.context_hash].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use poncho_cache::QuantType;

    const ANNA: OwnerId = OwnerId::from_bytes([1; 16]);
    const BERT: OwnerId = OwnerId::from_bytes([2; 16]);

    fn namespace() -> Namespace {
        Namespace { fingerprint: [7; 32], quant: QuantType::Q4_1, context_hash: [9; 32] }
    }

    fn keyed_secret(byte: u8) -> ClusterSecret {
        ClusterSecret::from_bytes([byte; 32])
    }

    #[test]
    fn names_differ_between_owners_and_between_secrets() {
        let key = Key::from_bytes([5; 32]);
        let secrets = [ClusterSecret::none(), keyed_secret(1), keyed_secret(2)];
        let mut seen = std::collections::HashSet::new();
        for secret in &secrets {
            for owner in [ANNA, BERT] {
                assert!(seen.insert(secret.tenant(owner).row_path(&namespace(), &key).to_string()));
                assert!(seen.insert(secret.tenant(owner).name().to_owned()));
            }
        }
        let name = keyed_secret(1).tenant(ANNA).row_path(&namespace(), &key).to_string();
        assert!(!name.contains(&key.to_string()) && !name.contains(&ANNA.to_string()), "{name}");
    }

    #[test]
    fn a_sealed_segment_opens_for_its_tenant_alone() {
        let tenant = keyed_secret(1).tenant(ANNA);
        let plain = b"tokens and states".repeat(100);
        let digest: [u8; 32] = Sha256::digest(&plain).into();
        let stored = tenant.seal_segment(&digest, plain.clone()).expect("sealed");
        assert!(!stored.windows(6).any(|window| window == b"tokens"));
        assert_eq!(tenant.open_segment(&digest, stored.clone()).as_deref(), Ok(plain.as_slice()));
        assert_eq!(keyed_secret(1).tenant(BERT).open_segment(&digest, stored.clone()), Err(NotOurs));
        assert_eq!(keyed_secret(2).tenant(ANNA).open_segment(&digest, stored.clone()), Err(NotOurs));
        let mut damaged = stored;
        damaged[3] ^= 1;
        assert_eq!(tenant.open_segment(&digest, damaged), Err(NotOurs));
    }

    #[test]
    fn a_mac_belongs_to_a_name() {
        let tenant = ClusterSecret::none().tenant(ANNA);
        let mac = tenant.mac("v1/a", b"bytes");
        assert!(tenant.verify("v1/a", b"bytes", &mac));
        assert!(!tenant.verify("v1/b", b"bytes", &mac));
        assert!(!tenant.verify("v1/a", b"bites", &mac));
        assert!(!tenant.verify("v1/a", b"bytes", &mac[..31]));
    }

    #[test]
    fn a_key_file_holds_64_digits_and_its_error_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        fs::write(&file, "abc").expect("written");
        let error = ClusterSecret::open(Some(&file)).expect_err("too short").to_string();
        assert!(error.contains("openssl rand -hex 32"), "{error}");
        fs::write(&file, format!("{}\n", "0f".repeat(32))).expect("written");
        let secret = ClusterSecret::open(Some(&file)).expect("a key");
        assert_eq!(secret.secret, [0x0F; 32]);
        assert!(!format!("{secret:?} {:?}", secret.tenant(ANNA)).contains("0f0f"));
    }
}

//! The cluster key: messages that only its holders can write and read.
//!
//! Every message between nodes and routers is sealed with AES-256-GCM under a key that HKDF derives from the cluster key
//! and a random salt of the sender; a counter is the nonce, so that none is used twice. What a message is for is
//! authenticated too: an announcement cannot be passed off as an answer or as another node's. The key must never appear
//! in a log, an error or a debug print.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

use crate::blocks::BlockHasher;

const VERSION: u8 = 1;
const SALT: usize = 16;
/// Version, salt, counter.
const HEADER: usize = 1 + SALT + 8;
/// Senders of which the derived keys are kept.
const MOST_SENDERS: usize = 4096;
/// Shorter keys can be guessed.
const LEAST_BYTES: usize = 32;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the cluster key {path}: {source}; create it with `head -c 32 /dev/urandom | base64`")]
    Read {
        /// The file.
        path: String,
        /// What the system reports.
        source: std::io::Error,
    },
    /// Too short.
    #[error("the cluster key has {found} bytes, 32 are needed; create it with `head -c 32 /dev/urandom | base64`")]
    Short {
        /// Its length.
        found: usize,
    },
    /// No random numbers.
    #[error("the system has no random numbers; try again later")]
    NoRandom,
}

/// Why a message was not accepted. It never says more: the sender may be an attacker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is of another version, or cut.
    #[error("not a message of this version of the cluster protocol; update all nodes to the same version")]
    Unknown,
    /// It was sealed with another key or for another purpose, or it was changed.
    #[error("the message was not sealed with this cluster's key; check --cluster-key-file on both sides")]
    Refused,
}

/// The secret that all nodes and routers of a cluster share.
#[derive(Clone)]
pub struct ClusterKey {
    derive: Prk,
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ClusterKey")
    }
}

impl ClusterKey {
    /// A key out of secret bytes.
    ///
    /// # Errors
    ///
    /// There are fewer than 32.
    pub fn new(secret: &[u8]) -> Result<Self, KeyError> {
        if secret.len() < LEAST_BYTES {
            return Err(KeyError::Short { found: secret.len() });
        }
        Ok(Self { derive: Salt::new(HKDF_SHA256, b"poncho cluster v1").extract(secret) })
    }

    /// Reads a key file. White space around the key does not count.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or its key is too short.
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let read = std::fs::read(path);
        let bytes = read.map_err(|source| KeyError::Read { path: path.display().to_string(), source })?;
        Self::new(bytes.trim_ascii())
    }

    /// The hashes of prompts in this cluster.
    #[must_use]
    pub fn hasher(&self) -> BlockHasher {
        let mut key = [0; 32];
        let filled = self.derive.expand(&[b"blocks"], HKDF_SHA256).and_then(|okm| okm.fill(&mut key));
        debug_assert!(filled.is_ok(), "32 bytes are the length of the algorithm");
        BlockHasher::new(&key)
    }

    /// The secret with which nodes sign requests for rows.
    #[must_use]
    pub fn pulls(&self) -> [u8; 32] {
        let mut key = [0; 32];
        let filled = self.derive.expand(&[b"pulls"], HKDF_SHA256).and_then(|okm| okm.fill(&mut key));
        debug_assert!(filled.is_ok(), "32 bytes are the length of the algorithm");
        key
    }

    /// A name that separates clusters on one bus. It reveals nothing of the key.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name = [0; 32];
        let filled = self.derive.expand(&[b"name"], HKDF_SHA256).and_then(|okm| okm.fill(&mut name));
        debug_assert!(filled.is_ok(), "32 bytes are the length of the algorithm");
        poncho_kinds::to_hex(name.get(..8).unwrap_or_default())
    }

    fn message_key(&self, salt: &[u8; SALT]) -> Option<LessSafeKey> {
        let okm_of = [b"messages".as_slice(), salt.as_slice()];
        let okm = self.derive.expand(&okm_of, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(okm)))
    }
}

/// Seals the messages of one sender.
#[derive(Debug)]
pub struct Sealer {
    salt: [u8; SALT],
    key: LessSafeKey,
    sealed: AtomicU64,
}

impl Sealer {
    /// A sender with a salt of its own.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub fn new(key: &ClusterKey) -> Result<Self, KeyError> {
        let mut salt = [0; SALT];
        getrandom::fill(&mut salt).map_err(|_| KeyError::NoRandom)?;
        let key = key.message_key(&salt).ok_or(KeyError::NoRandom)?;
        Ok(Self { salt, key, sealed: AtomicU64::new(0) })
    }

    /// Seals a message for a purpose.
    #[must_use]
    pub fn seal(&self, purpose: &str, plain: &[u8]) -> Vec<u8> {
        let counter = self.sealed.fetch_add(1, Ordering::Relaxed);
        let mut message = Vec::with_capacity(HEADER + plain.len() + AES_256_GCM.tag_len());
        message.push(VERSION);
        message.extend_from_slice(&self.salt);
        message.extend_from_slice(&counter.to_be_bytes());
        let mut body = plain.to_vec();
        let aad = Aad::from([message.as_slice(), purpose.as_bytes()].concat());
        match self.key.seal_in_place_append_tag(nonce(counter), aad, &mut body) {
            Ok(()) => message.extend_from_slice(&body),
            // Only a message of more than 64 GB fails. A message without a body is refused by every reader.
            Err(_) => debug_assert!(false, "a message is too long to be sealed"),
        }
        message
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    for (place, byte) in bytes.iter_mut().zip(counter.to_be_bytes()) {
        *place = byte;
    }
    Nonce::assume_unique_for_key(bytes)
}

/// Opens the messages of all senders that have the key.
#[derive(Debug)]
pub struct Opener {
    key: ClusterKey,
    senders: Mutex<HashMap<[u8; SALT], Arc<LessSafeKey>>>,
}

impl Opener {
    /// Opens what was sealed with this key.
    #[must_use]
    pub fn new(key: ClusterKey) -> Self {
        Self { key, senders: Mutex::new(HashMap::new()) }
    }

    /// The message, if it was sealed with the key and for this purpose.
    ///
    /// # Errors
    ///
    /// It was not.
    pub fn open(&self, purpose: &str, message: &[u8]) -> Result<Vec<u8>, OpenError> {
        let (header, body) = message.split_at_checked(HEADER).ok_or(OpenError::Unknown)?;
        let (version, rest) = header.split_first().ok_or(OpenError::Unknown)?;
        let (salt, counter) = rest.split_at_checked(SALT).ok_or(OpenError::Unknown)?;
        let salt: [u8; SALT] = salt.try_into().map_err(|_| OpenError::Unknown)?;
        let counter = u64::from_be_bytes(counter.try_into().map_err(|_| OpenError::Unknown)?);
        if *version != VERSION {
            return Err(OpenError::Unknown);
        }
        let known = self.lock().get(&salt).cloned();
        let is_new = known.is_none();
        let key = match known {
            Some(key) => key,
            None => Arc::new(self.key.message_key(&salt).ok_or(OpenError::Refused)?),
        };
        let mut plain = body.to_vec();
        let aad = Aad::from([header, purpose.as_bytes()].concat());
        let length = key
            .open_in_place(nonce(counter), aad, &mut plain)
            .map(|plain| plain.len())
            .map_err(|_| OpenError::Refused)?;
        plain.truncate(length);
        if is_new {
            // Only after the message proved right: strangers must not fill the table.
            let mut senders = self.lock();
            if senders.len() >= MOST_SENDERS {
                senders.clear();
            }
            senders.insert(salt, key);
        }
        Ok(plain)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; SALT], Arc<LessSafeKey>>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::new(&[byte; 32]).unwrap()
    }

    #[test]
    fn only_the_same_key_and_purpose_open_a_message() {
        let (sealer, opener) = (Sealer::new(&key(1)).unwrap(), Opener::new(key(1)));
        let sealed = sealer.seal("rows/a", b"which rows");
        assert_eq!(opener.open("rows/a", &sealed).unwrap(), b"which rows");
        assert_eq!(opener.open("rows/b", &sealed), Err(OpenError::Refused), "another node's");
        assert_eq!(Opener::new(key(2)).open("rows/a", &sealed), Err(OpenError::Refused));
        assert!(!sealed.windows(5).any(|part| part == b"which"));
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let (sealer, opener) = (Sealer::new(&key(1)).unwrap(), Opener::new(key(1)));
        let sealed = sealer.seal("p", b"text");
        for place in 0..sealed.len() {
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[place] ^= 1 << bit;
                assert!(opener.open("p", &changed).is_err(), "byte {place}");
            }
            assert!(opener.open("p", &sealed[..place]).is_err());
        }
    }

    #[test]
    fn the_same_text_is_never_sealed_the_same_way() {
        let sealer = Sealer::new(&key(1)).unwrap();
        assert_ne!(sealer.seal("p", b"text"), sealer.seal("p", b"text"));
    }

    #[test]
    fn a_short_key_is_refused_and_none_is_printed() {
        assert!(matches!(ClusterKey::new(b"secret"), Err(KeyError::Short { found: 6 })));
        assert_eq!(format!("{:?}", key(7)), "ClusterKey");
        assert!(!format!("{:?}", key(7).hasher()).contains('7'));
    }
}

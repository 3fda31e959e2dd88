//! Signatures of thinking blocks: HMAC-SHA-256 over a block's bytes.
//!
//! The worker signs when a block ends; the server checks a block that a client sends back, so that nobody can put
//! thoughts into the model's mouth. The key must never be printed, and signatures are compared in constant time.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// A key that signs thinking blocks. It travels to where blocks are signed, and is never shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct SigningKey {
    secret: Vec<u8>,
    mac: Hmac<Sha256>,
}

impl SigningKey {
    /// A key from secret bytes of any length; `None` if there are none.
    #[must_use]
    pub fn new(secret: &[u8]) -> Option<Self> {
        if secret.is_empty() {
            return None;
        }
        Hmac::new_from_slice(secret).ok().map(|mac| Self { secret: secret.to_vec(), mac })
    }

    /// The signature of a block.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> [u8; 32] {
        self.mac.clone().chain_update(bytes).finalize().into_bytes().into()
    }

    /// Whether the block was signed with this key and not changed since.
    #[must_use]
    pub fn is_signed(&self, bytes: &[u8], signature: &[u8; 32]) -> bool {
        self.mac.clone().chain_update(bytes).verify_slice(signature).is_ok()
    }
}

impl TryFrom<Vec<u8>> for SigningKey {
    type Error = &'static str;

    fn try_from(secret: Vec<u8>) -> Result<Self, Self::Error> {
        Self::new(&secret).ok_or("a signing key needs at least one byte")
    }
}

impl From<SigningKey> for Vec<u8> {
    fn from(key: SigningKey) -> Self {
        key.secret
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SigningKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use poncho_kinds::to_hex;

    use super::*;

    #[test]
    fn it_is_the_hmac_of_rfc_4231() {
        // Test case 2 of the RFC, and case 6 for a key longer than a block.
        let short = SigningKey::new(b"Jefe").unwrap().sign(b"what do ya want for nothing?");
        assert_eq!(to_hex(&short), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let long =
            SigningKey::new(&[0xaa; 131]).unwrap().sign(b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(to_hex(&long), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn another_key_or_another_byte_does_not_pass() {
        let key = SigningKey::new(b"one").unwrap();
        let signature = key.sign(b"a thought");
        assert!(key.is_signed(b"a thought", &signature));
        assert!(!key.is_signed(b"a thoughT", &signature));
        assert!(!SigningKey::new(b"two").unwrap().is_signed(b"a thought", &signature));
        assert!(SigningKey::new(b"").is_none());
        assert_eq!(format!("{key:?}"), "SigningKey(..)");
        let sent: SigningKey = serde_json::from_str(&serde_json::to_string(&key).unwrap()).unwrap();
        assert!(sent.is_signed(b"a thought", &signature));
    }
}

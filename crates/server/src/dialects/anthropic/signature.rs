//! The signatures of thinking blocks.
//!
//! Clients send a block back as they got it, so what is signed is the text that they got: the engine's own signature is
//! over the bytes that the model wrote, of which the template's parser may have cut white space. With a signing key a
//! block that comes back changed is refused. Without one the signature is a plain digest that nobody checks: clients
//! insist on a text there, and a local server has no secret to defend.

use poncho_api::SigningKey;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The signature of a block.
pub(crate) fn sign(key: Option<&SigningKey>, thinking: &str) -> String {
    let bytes: [u8; 32] = match key {
        Some(key) => key.sign(thinking.as_bytes()),
        None => Sha256::digest(thinking.as_bytes()).into(),
    };
    poncho_api::to_hex(&bytes)
}

/// Whether a block may be believed. One without text says nothing: its text was not shown.
pub(crate) fn is_genuine(key: Option<&SigningKey>, thinking: &str, signature: &str) -> bool {
    key.is_none() || thinking.is_empty() || sign(key, thinking).as_bytes().ct_eq(signature.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_key_makes_it_matter() {
        let key = SigningKey::new(b"secret");
        let signature = sign(key.as_ref(), "hm");
        assert_eq!(signature.len(), 64);
        assert_ne!(signature, sign(None, "hm"));
        assert_ne!(sign(None, "hm"), sign(None, "hn"));
        assert!(is_genuine(key.as_ref(), "hm", &signature));
        for (thinking, other) in [("hn", signature.as_str()), ("hm", ""), ("hm", &sign(None, "hm"))] {
            assert!(!is_genuine(key.as_ref(), thinking, other), "{thinking} {other}");
            assert!(is_genuine(None, thinking, other), "without a key nobody checks");
        }
        assert!(is_genuine(key.as_ref(), "", &signature), "a block with hidden text");
    }
}

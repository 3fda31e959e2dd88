//! A manifest: which segments hold a chain, and which rows the chain has.
//!
//! ```text
//! magic | u32 length | head, JSON | u32 length | body, JSON or sealed | 32 bytes of MAC over the name and all before
//! ```
//!
//! The head is readable without a key, because collection must know which segments are in use. The body names the rows.
//! Written by uploads, read by fetches and collection. Every byte may be hostile: lengths and counts are bounded before
//! they are used, and [`Manifest::open`] believes nothing that the MAC does not cover.

use poncho_cache::{Key, Namespace, QuantType, to_hex};
use serde::{Deserialize, Serialize};

use super::names::digest_of;
use super::tenant::Tenant;

const MAGIC: &[u8; 8] = b"PNCHROW1";
const MAC_LENGTH: usize = 32;
/// A manifest is never longer: some ten thousand rows.
pub(crate) const MOST_BYTES: u64 = 4 << 20;
/// A stored segment is never longer. Larger than any that we write.
const MOST_SEGMENT: u64 = 256 << 20;

/// Why a manifest or a segment is not used. Counted; the row is a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Damage {
    /// The manifest does not parse.
    Malformed,
    /// Its MAC is not of this tenant and name.
    Forged,
    /// It describes another row than its name promises.
    Misplaced,
    /// A segment has fewer or more bytes than the manifest promises.
    Length,
    /// A segment's bytes have another SHA-256.
    Content,
    /// A segment does not decrypt.
    Sealed,
    /// The manifest exists but one of its segments does not.
    MissingSegment,
}

impl Damage {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::Forged,
        Self::Misplaced,
        Self::Length,
        Self::Content,
        Self::Sealed,
        Self::MissingSegment,
    ];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Forged => "forged",
            Self::Misplaced => "misplaced",
            Self::Length => "length",
            Self::Content => "content",
            Self::Sealed => "sealed",
            Self::MissingSegment => "missing_segment",
        }
    }
}

/// The part of a manifest that is readable without a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Tokens of the row.
    pub(crate) tokens: u32,
    /// Rows of its chain.
    pub(crate) rows: u32,
    /// The segments, in order.
    pub(crate) segments: Vec<StoredSegment>,
}

/// A segment as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredSegment {
    #[serde(with = "hex")]
    pub(crate) digest: [u8; 32],
    pub(crate) length: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Body {
    namespace: NamespaceText,
    rows: Vec<RowRange>,
    /// Digests of the plain segments; empty if they are not encrypted.
    plain: Vec<PlainDigest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PlainDigest(#[serde(with = "hex")] [u8; 32]);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamespaceText {
    #[serde(with = "hex")]
    fingerprint: [u8; 32],
    quant: u8,
    #[serde(with = "hex")]
    context_hash: [u8; 32],
}

impl From<&Namespace> for NamespaceText {
    fn from(namespace: &Namespace) -> Self {
        let Namespace { fingerprint, quant, context_hash } = *namespace;
        Self { fingerprint, quant: quant.byte(), context_hash }
    }
}

impl From<&NamespaceText> for Namespace {
    fn from(text: &NamespaceText) -> Self {
        let NamespaceText { fingerprint, quant, context_hash } = *text;
        Self { fingerprint, quant: QuantType::from_byte(quant), context_hash }
    }
}

/// One row of the chain: its bytes follow those of the row before it in the concatenated segments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowRange {
    pub(crate) key: Key,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) length: u64,
}

/// A segment as a fetch needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentPlan {
    pub(crate) stored: StoredSegment,
    /// Digest of the plain bytes, the name of its key.
    pub(crate) plain: [u8; 32],
}

/// A checked manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) rows: Vec<RowRange>,
    pub(crate) segments: Vec<SegmentPlan>,
}

impl Manifest {
    /// Tokens of the row that the chain is for.
    pub(crate) fn tokens(&self) -> u32 {
        self.rows.last().map_or(0, |row| row.end)
    }

    /// Plain bytes of the chain.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows.iter().map(|row| row.length).fold(0, u64::saturating_add)
    }

    /// The bytes that are stored under `path`.
    pub(crate) fn encode(&self, tenant: &Tenant, namespace: &Namespace, path: &str) -> Option<Vec<u8>> {
        let stored = self.segments.iter().map(|segment| segment.stored.clone()).collect();
        let head = Head { tokens: self.tokens(), rows: u32::try_from(self.rows.len()).ok()?, segments: stored };
        let plain = |segment: &SegmentPlan| PlainDigest(segment.plain);
        let plain = if tenant.encrypts() { self.segments.iter().map(plain).collect() } else { Vec::new() };
        let body = Body { namespace: namespace.into(), rows: self.rows.clone(), plain };
        let body = tenant.seal_body(serde_json::to_vec(&body).ok()?).ok()?;
        let mut bytes = MAGIC.to_vec();
        for part in [serde_json::to_vec(&head).ok()?, body] {
            bytes.extend(u32::try_from(part.len()).ok()?.to_le_bytes());
            bytes.extend(part);
        }
        let mac = tenant.mac(path, &bytes);
        bytes.extend(mac);
        (bytes.len() as u64 <= MOST_BYTES).then_some(bytes)
    }

    /// Checks the MAC, then everything that the manifest says of itself.
    pub(crate) fn open(
        bytes: &[u8],
        tenant: &Tenant,
        namespace: &Namespace,
        key: &Key,
        path: &str,
    ) -> Result<Self, Damage> {
        let parts = take_apart(bytes).ok_or(Damage::Malformed)?;
        if !tenant.verify(path, parts.covered, parts.mac) {
            return Err(Damage::Forged);
        }
        let head: Head = serde_json::from_slice(parts.head).map_err(|_| Damage::Malformed)?;
        let body = tenant.open_body(parts.body).map_err(|_| Damage::Sealed)?;
        let body: Body = serde_json::from_slice(&body).map_err(|_| Damage::Malformed)?;
        if body.namespace != namespace.into() || body.rows.last().map(|row| row.key) != Some(*key) {
            return Err(Damage::Misplaced);
        }
        let manifest = Self { segments: segments(head, body.plain, tenant.encrypts())?, rows: body.rows };
        manifest.check(tenant).ok_or(Damage::Malformed)?;
        Ok(manifest)
    }

    /// Each row begins where the one before it ends, or inside it, and their bytes are those of the segments. A turn of a chat
    /// begins inside: the last tokens of the prompt before it, which ask for a reply, are not part of the conversation.
    fn check(&self, tenant: &Tenant) -> Option<()> {
        let mut reached = 0;
        for row in &self.rows {
            (row.start <= reached && row.end > row.start).then_some(())?;
            reached = row.end;
        }
        let overhead = if tenant.encrypts() { ring::aead::AES_256_GCM.tag_len() as u64 } else { 0 };
        let mut plain = 0_u64;
        for segment in &self.segments {
            let length = segment.stored.length;
            (length > overhead && length <= MOST_SEGMENT).then_some(())?;
            plain = plain.checked_add(length - overhead)?;
        }
        let rows = self.rows.iter().try_fold(0_u64, |sum, row| sum.checked_add(row.length))?;
        (rows == plain && !self.rows.is_empty()).then_some(())
    }
}

fn segments(head: Head, plain: Vec<PlainDigest>, encrypts: bool) -> Result<Vec<SegmentPlan>, Damage> {
    if encrypts && plain.len() != head.segments.len() {
        return Err(Damage::Malformed);
    }
    let mut plain = plain.into_iter();
    let plan = |stored: StoredSegment| {
        let plain = plain.next().map_or(stored.digest, |digest| digest.0);
        SegmentPlan { stored, plain }
    };
    Ok(head.segments.into_iter().map(plan).collect())
}

/// The head of a manifest, for collection and lists. Its MAC is not checked: it takes the tenant's key.
pub(crate) fn head(bytes: &[u8]) -> Option<Head> {
    serde_json::from_slice(take_apart(bytes)?.head).ok()
}

/// What a manifest says that its row is: the namespace and the number of tokens. Its MAC is not checked.
pub(crate) fn subject(bytes: &[u8], tenant: &Tenant) -> Option<(Namespace, u32)> {
    let parts = take_apart(bytes)?;
    let head: Head = serde_json::from_slice(parts.head).ok()?;
    let body: Body = serde_json::from_slice(&tenant.open_body(parts.body).ok()?).ok()?;
    Some(((&body.namespace).into(), head.tokens))
}

struct Parts<'a> {
    head: &'a [u8],
    body: &'a [u8],
    covered: &'a [u8],
    mac: &'a [u8],
}

fn take_apart(bytes: &[u8]) -> Option<Parts<'_>> {
    let (covered, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_LENGTH)?)?;
    let rest = covered.strip_prefix(MAGIC)?;
    let (head, rest) = take_part(rest)?;
    let (body, rest) = take_part(rest)?;
    rest.is_empty().then_some(Parts { head, body, covered, mac })
}

fn take_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

/// Digests as hexadecimal text.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::{digest_of, to_hex};

    pub(super) fn serialize<S: Serializer>(digest: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&to_hex(digest))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        digest_of(&text).ok_or_else(|| de::Error::custom("a digest has 64 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use poncho_cache::{OwnerId, QuantType};
    use proptest::prelude::*;

    use super::*;
    use crate::content::tenant::ClusterSecret;

    const PATH: &str = "v1/tenant/row/namespace/key";

    fn namespace() -> Namespace {
        Namespace { fingerprint: [7; 32], quant: QuantType::Q4_1, context_hash: [9; 32] }
    }

    fn tenant(encrypts: bool) -> Tenant {
        let secret = if encrypts { ClusterSecret::from_bytes([3; 32]) } else { ClusterSecret::none() };
        secret.tenant(OwnerId::from_bytes([1; 16]))
    }

    fn manifest(lengths: &[u64], overhead: u64) -> Manifest {
        let mut rows = Vec::new();
        for (number, length) in (0_u32..).zip(lengths) {
            let key = Key::from_bytes([u8::try_from(number % 256).unwrap_or(0); 32]);
            rows.push(RowRange { key, start: number * 10, end: number * 10 + 10, length: *length });
        }
        let stored = StoredSegment { digest: [4; 32], length: lengths.iter().sum::<u64>() + overhead };
        let plain = if overhead == 0 { [4; 32] } else { [5; 32] };
        Manifest { rows, segments: vec![SegmentPlan { stored, plain }] }
    }

    fn open(bytes: &[u8], tenant: &Tenant, manifest: &Manifest) -> Result<Manifest, Damage> {
        let key = manifest.rows.last().expect("a row").key;
        Manifest::open(bytes, tenant, &namespace(), &key, PATH)
    }

    #[test]
    fn a_manifest_under_another_name_or_of_another_row_is_refused() {
        let (tenant, manifest) = (tenant(false), manifest(&[100, 200], 0));
        let bytes = manifest.encode(&tenant, &namespace(), PATH).expect("encoded");
        let key = manifest.rows.last().expect("a row").key;
        assert_eq!(Manifest::open(&bytes, &tenant, &namespace(), &key, "v1/other"), Err(Damage::Forged));
        let other = Key::from_bytes([77; 32]);
        assert_eq!(Manifest::open(&bytes, &tenant, &namespace(), &other, PATH), Err(Damage::Misplaced));
        let elsewhere = Namespace { fingerprint: [8; 32], ..namespace() };
        assert_eq!(Manifest::open(&bytes, &tenant, &elsewhere, &key, PATH), Err(Damage::Misplaced));
    }

    #[test]
    fn rows_that_do_not_fill_the_segments_are_refused() {
        let tenant = tenant(false);
        let mut manifest = manifest(&[100, 200], 0);
        manifest.segments[0].stored.length += 1;
        let bytes = manifest.encode(&tenant, &namespace(), PATH).expect("encoded");
        assert_eq!(open(&bytes, &tenant, &manifest), Err(Damage::Malformed));
    }

    #[test]
    fn a_row_may_begin_inside_the_one_before_it_and_not_behind_it() {
        let tenant = tenant(false);
        let starting = |start: u32| {
            let mut manifest = manifest(&[100, 200, 300], 0);
            manifest.rows[1].start = start;
            let bytes = manifest.encode(&tenant, &namespace(), PATH).expect("encoded");
            open(&bytes, &tenant, &manifest).map(|opened| assert_eq!(opened, manifest))
        };
        assert_eq!([10, 9, 1].map(starting), [Ok(()); 3]);
        assert_eq!([11, 20, 21].map(starting), [Err(Damage::Malformed); 3]);
    }

    #[test]
    fn an_encrypted_manifest_hides_the_keys_of_its_rows() {
        let (tenant, manifest) = (tenant(true), manifest(&[100, 200], 16));
        let bytes = manifest.encode(&tenant, &namespace(), PATH).expect("encoded");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        for row in &manifest.rows {
            assert!(!text.contains(&row.key.to_string()));
        }
        assert_eq!(head(&bytes).expect("a head").segments[0].length, 316, "collection reads it without the key");
        assert_eq!(open(&bytes, &tenant, &manifest), Ok(manifest.clone()));
    }

    proptest! {
        #[test]
        fn what_was_encoded_opens_and_any_changed_byte_is_refused(
            lengths in prop::collection::vec(1_u64..1 << 20, 1..40),
            encrypts: bool,
            at: prop::sample::Index,
            flip in 1_u8..=255,
        ) {
            let overhead = if encrypts { 16 } else { 0 };
            let (tenant, manifest) = (tenant(encrypts), manifest(&lengths, overhead));
            let mut bytes = manifest.encode(&tenant, &namespace(), PATH).expect("encoded");
            prop_assert_eq!(open(&bytes, &tenant, &manifest), Ok(manifest.clone()));
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(open(&bytes, &tenant, &manifest).is_err());
        }

        #[test]
        fn bytes_of_any_kind_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), magic: bool) {
            let mut bytes = bytes;
            if magic {
                bytes.splice(0..0, *MAGIC);
            }
            let _ = head(&bytes);
            prop_assert!(open(&bytes, &tenant(false), &manifest(&[1], 0)).is_err());
        }
    }
}

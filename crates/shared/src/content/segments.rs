//! Chains as segments: rows joined and cut into objects of a good size, and put together again.
//!
//! The rule is simple: the plain segments in order, concatenated, are the rows in order, concatenated. Rows are grouped
//! from the root, so that a chain that grew shares all groups but its last with what it was. Used by uploads and
//! fetches, on threads that may compute. Pure.

use bytes::{Bytes, BytesMut};
use poncho_cache::{CanonicalRow, Chain};
use sha2::{Digest, Sha256};

use super::manifest::{Damage, Manifest, RowRange, SegmentPlan, StoredSegment};
use super::tenant::{NotOurs, Tenant};
use crate::settings::Sizes;

/// A segment ready for its upload.
#[derive(Debug, Clone)]
pub(crate) struct PackedSegment {
    pub(crate) plan: SegmentPlan,
    pub(crate) bytes: Bytes,
}

/// A chain ready for its upload.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    pub(crate) manifest: Manifest,
    pub(crate) segments: Vec<PackedSegment>,
}

/// Joins and cuts the rows of a chain, hashes and encrypts.
pub(crate) fn pack(chain: &Chain, tenant: &Tenant, sizes: &Sizes) -> Result<Packed, NotOurs> {
    let mut segments = Vec::new();
    let mut open: Vec<u8> = Vec::new();
    for row in &chain.rows {
        open.extend_from_slice(&row.bytes);
        if open.len() >= sizes.joined {
            close(std::mem::take(&mut open), tenant, sizes, &mut segments)?;
        }
    }
    close(open, tenant, sizes, &mut segments)?;
    let range =
        |row: &CanonicalRow| RowRange { key: row.key, start: row.start, end: row.end, length: row.bytes.len() as u64 };
    let manifest = Manifest {
        rows: chain.rows.iter().map(range).collect(),
        segments: segments.iter().map(|segment| segment.plan.clone()).collect(),
    };
    Ok(Packed { manifest, segments })
}

/// Cuts a group into segments.
fn close(group: Vec<u8>, tenant: &Tenant, sizes: &Sizes, segments: &mut Vec<PackedSegment>) -> Result<(), NotOurs> {
    let most = sizes.segment.max(1);
    if group.len() <= most {
        if !group.is_empty() {
            segments.push(seal(group, tenant)?);
        }
        return Ok(());
    }
    for piece in group.chunks(most) {
        segments.push(seal(piece.to_vec(), tenant)?);
    }
    Ok(())
}

fn seal(plain: Vec<u8>, tenant: &Tenant) -> Result<PackedSegment, NotOurs> {
    let plain_digest: [u8; 32] = Sha256::digest(&plain).into();
    let stored = tenant.seal_segment(&plain_digest, plain)?;
    let digest = if tenant.encrypts() { Sha256::digest(&stored).into() } else { plain_digest };
    let stored_segment = StoredSegment { digest, length: stored.len() as u64 };
    Ok(PackedSegment { plan: SegmentPlan { stored: stored_segment, plain: plain_digest }, bytes: stored.into() })
}

/// Checks the stored bytes of a segment, which come in parts that touch in memory, and decrypts them.
pub(crate) fn open(
    parts: impl IntoIterator<Item = BytesMut>,
    plan: &SegmentPlan,
    tenant: &Tenant,
) -> Result<BytesMut, Damage> {
    let (mut stored, mut hash) = (BytesMut::new(), Sha256::new());
    for part in parts {
        hash.update(&part);
        stored.unsplit(part);
    }
    open_hashed(stored, hash.finalize().into(), plan, tenant)
}

/// The same for bytes with a known SHA-256.
pub(crate) fn open_hashed(
    stored: BytesMut,
    digest: [u8; 32],
    plan: &SegmentPlan,
    tenant: &Tenant,
) -> Result<BytesMut, Damage> {
    if stored.len() as u64 != plan.stored.length {
        return Err(Damage::Length);
    }
    if digest != plan.stored.digest {
        return Err(Damage::Content);
    }
    if !tenant.encrypts() {
        return Ok(stored);
    }
    let plain = tenant.open_segment(&plan.plain, stored.into()).map_err(|_| Damage::Sealed)?;
    Ok(Bytes::from(plain).into())
}

/// Segments in order. Those that touch in memory become one piece.
#[derive(Debug, Default)]
pub(crate) struct Joined(Vec<BytesMut>);

impl Joined {
    pub(crate) fn push(&mut self, segment: BytesMut) {
        match self.0.last_mut() {
            Some(last) if last.as_ptr_range().end == segment.as_ptr() => last.unsplit(segment),
            _ => self.0.push(segment),
        }
    }

    /// Bytes of the longest piece.
    pub(crate) fn longest(&self) -> usize {
        self.0.iter().map(BytesMut::len).max().unwrap_or(0)
    }

    pub(crate) fn into_pieces(self) -> Vec<Bytes> {
        self.0.into_iter().map(BytesMut::freeze).collect()
    }
}

/// The rows of a chain out of its checked segments. A row inside one piece of memory shares it.
pub(crate) fn unpack(manifest: &Manifest, pieces: Vec<Bytes>) -> Result<Vec<CanonicalRow>, Damage> {
    let mut segments = pieces.into_iter();
    let mut rest = Bytes::new();
    let mut rows = Vec::with_capacity(manifest.rows.len());
    for row in &manifest.rows {
        let length = usize::try_from(row.length).map_err(|_| Damage::Malformed)?;
        if rest.is_empty() && length > 0 {
            rest = segments.next().ok_or(Damage::Length)?;
        }
        let bytes = if rest.len() >= length {
            rest.split_to(length)
        } else {
            let mut joined = Vec::with_capacity(length);
            while joined.len() < length {
                if rest.is_empty() {
                    rest = segments.next().ok_or(Damage::Length)?;
                }
                joined.extend_from_slice(&rest.split_to(rest.len().min(length - joined.len())));
            }
            joined.into()
        };
        rows.push(CanonicalRow { key: row.key, start: row.start, end: row.end, bytes });
    }
    let complete = rest.is_empty() && segments.next().is_none();
    complete.then_some(rows).ok_or(Damage::Length)
}

#[cfg(test)]
mod tests {
    use poncho_cache::{Key, Namespace, OwnerId, QuantType};
    use proptest::prelude::*;

    use super::*;
    use crate::content::tenant::ClusterSecret;

    fn chain(lengths: &[usize]) -> Chain {
        let row = |(number, length): (u32, &usize)| CanonicalRow {
            key: Key::from_bytes([u8::try_from(number % 251).unwrap_or(0); 32]),
            start: number * 8,
            end: number * 8 + 8,
            bytes: (0..*length).map(|at| u8::try_from((at * 7 + number as usize) % 251).unwrap_or(0)).collect(),
        };
        Chain {
            owner: OwnerId::from_bytes([1; 16]),
            namespace: Namespace { fingerprint: [7; 32], quant: QuantType::Q4_1, context_hash: [9; 32] },
            rows: (0..).zip(lengths).map(row).collect(),
        }
    }

    fn tenant(encrypts: bool) -> Tenant {
        let secret = if encrypts { ClusterSecret::from_bytes([3; 32]) } else { ClusterSecret::none() };
        secret.tenant(OwnerId::from_bytes([1; 16]))
    }

    fn opened(packed: &Packed, tenant: &Tenant) -> Vec<Bytes> {
        let open_one = |segment: &PackedSegment| opened_one(&segment.bytes, segment, tenant).expect("whole").freeze();
        packed.segments.iter().map(open_one).collect()
    }

    /// Opens these bytes as a segment that comes in two parts.
    fn opened_one(bytes: &[u8], segment: &PackedSegment, tenant: &Tenant) -> Result<BytesMut, Damage> {
        let mut first = BytesMut::from(bytes);
        let second = first.split_off(bytes.len() / 2);
        open([first, second], &segment.plan, tenant)
    }

    #[test]
    fn segments_that_touch_in_memory_become_one_piece() {
        let mut whole = BytesMut::from(&b"0123456789"[..]);
        let tail = whole.split_off(7);
        let middle = whole.split_off(4);
        let mut joined = Joined::default();
        [whole, middle, tail, BytesMut::from(&b"apart"[..])].into_iter().for_each(|segment| joined.push(segment));
        assert_eq!(joined.into_pieces(), [&b"0123456789"[..], b"apart"]);
    }

    #[test]
    fn small_rows_are_joined_and_large_ones_are_cut() {
        let sizes = Sizes { joined: 100, segment: 800, ..Sizes::default() };
        let packed = pack(&chain(&[30, 30, 50, 2000, 10]), &tenant(false), &sizes).expect("packed");
        let lengths: Vec<usize> = packed.segments.iter().map(|segment| segment.bytes.len()).collect();
        assert_eq!(lengths, [110, 800, 800, 400, 10]);
    }

    #[test]
    fn a_chain_that_grew_shares_its_earlier_segments() {
        let sizes = Sizes { joined: 100, segment: 800, ..Sizes::default() };
        for encrypts in [false, true] {
            let before = pack(&chain(&[60, 60, 30]), &tenant(encrypts), &sizes).expect("packed");
            let after = pack(&chain(&[60, 60, 30, 90]), &tenant(encrypts), &sizes).expect("packed");
            assert_eq!(before.segments[0].plan, after.segments[0].plan);
            assert_ne!(before.segments[1].plan, after.segments[1].plan);
        }
    }

    #[test]
    fn a_truncated_segment_and_wrong_bytes_are_refused_with_their_reason() {
        let tenant = tenant(false);
        let packed = pack(&chain(&[100]), &tenant, &Sizes::default()).expect("packed");
        let segment = &packed.segments[0];
        let mut bytes = segment.bytes.to_vec();
        bytes.pop();
        assert_eq!(opened_one(&bytes, segment, &tenant), Err(Damage::Length));
        bytes.push(1);
        assert_eq!(opened_one(&bytes, segment, &tenant), Err(Damage::Content));
    }

    proptest! {
        #[test]
        fn a_packed_chain_comes_back_byte_for_byte(
            lengths in prop::collection::vec(1_usize..500, 1..30),
            joined in 1_usize..400,
            segment in 1_usize..900,
            encrypts: bool,
        ) {
            let sizes = Sizes { joined, segment, ..Sizes::default() };
            let (chain, tenant) = (chain(&lengths), tenant(encrypts));
            let packed = pack(&chain, &tenant, &sizes).expect("packed");
            let rows = unpack(&packed.manifest, opened(&packed, &tenant)).expect("whole");
            prop_assert_eq!(rows, chain.rows);
        }

        #[test]
        fn a_lost_or_doubled_segment_is_refused(lengths in prop::collection::vec(1_usize..50, 2..9), double: bool) {
            let sizes = Sizes { joined: 1, segment: 900, ..Sizes::default() };
            let (chain, tenant) = (chain(&lengths), tenant(false));
            let packed = pack(&chain, &tenant, &sizes).expect("packed");
            let mut segments = opened(&packed, &tenant);
            let last = segments.pop().expect("a segment");
            if double {
                segments.extend([last.clone(), last]);
            }
            prop_assert_eq!(unpack(&packed.manifest, segments), Err(Damage::Length));
        }
    }
}

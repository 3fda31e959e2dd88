//! Rows that travel between machines: what is exported is the same wherever it comes from, what is imported is served like
//! any other row, and no wrong byte gets in.

use std::sync::Arc;

use bytes::Bytes;
use poncho_cache::{
    Cache, CacheConfig, CanonicalRow, Chain, ExportError, ImportError, ImportRequest, Imported, Key, Needs, OwnerId,
    PartKind, PausedClock, PayloadPart, SaveReason, SaveRequest,
};
use proptest::prelude::*;

use crate::support::{at_end, attention, check_plan, conversation, namespace, on_disk, reach, request};

const OWNER: OwnerId = OwnerId::from_bytes([1; 16]);
const STRANGER: OwnerId = OwnerId::from_bytes([2; 16]);

fn in_memory() -> Cache {
    Cache::open(CacheConfig::in_memory(1 << 20)).unwrap()
}

/// Saves the tokens up to each end, one row on the other, with every kind of part.
fn save_chain(cache: &Cache, tokens: &[u32], ends: &[usize], owner: OwnerId) -> Key {
    let mut key = None;
    for end in ends {
        let tokens = &tokens[..*end];
        let base = cache.base_for(&namespace(1), tokens, None);
        let mut save = SaveRequest { owner: Some(owner), ..request(namespace(1), tokens, base.as_ref()) };
        save.parts.push(PayloadPart { kind: PartKind::Partial, bytes: at_end(tokens, PartKind::Partial).into() });
        key = Some(cache.save(save).unwrap().key);
    }
    key.unwrap()
}

fn import(cache: &Cache, chain: &Chain, prompt: &[u32]) -> Result<Imported, ImportError> {
    cache.import(chain, ImportRequest { owner: OWNER, namespace: &namespace(1), prompt }, None)
}

/// Everything that a lookup gives: ranges and all bytes.
fn served(cache: &Cache, tokens: &[u32], needs: Needs) -> Vec<(u32, u32, Vec<Option<Bytes>>)> {
    let plan = cache.lookup(&namespace(1), tokens, needs).unwrap();
    let parts = |row: &poncho_cache::PinnedRow| {
        PartKind::ALL.map(|kind| row.length(kind).map(|_| row.load(kind, u64::MAX).unwrap())).to_vec()
    };
    plan.rows().iter().map(|row| (row.range().start, row.range().end, parts(row))).collect()
}

#[test]
fn an_imported_chain_is_served_like_the_one_it_was_exported_from() {
    let folder = tempfile::tempdir().unwrap();
    for config in [CacheConfig::in_memory(1 << 20), on_disk(folder.path(), 1 << 20)] {
        let (from, to) = (in_memory(), Cache::open(config).unwrap());
        let tokens = conversation(1, 90);
        let key = save_chain(&from, &tokens, &[20, 50, 90], OWNER);
        let chain = from.export(&key, OWNER).unwrap();
        assert_eq!(
            chain.rows.iter().map(|row| (row.start, row.end)).collect::<Vec<_>>(),
            [(0, 20), (20, 50), (50, 90)]
        );
        assert_eq!(import(&to, &chain, &conversation(1, 120)).unwrap(), Imported { key, tokens: 90, rows: 3 });
        to.flush();
        for count in [20, 50, 90] {
            for needs in [Needs::ATTENTION, Needs::ATTENTION_AND_PARTIAL] {
                assert_eq!(served(&to, &tokens[..count], needs), served(&from, &tokens[..count], needs));
            }
        }
        assert_eq!(reach(&to, namespace(1), &tokens[..33]), 33, "a prompt may part inside of it");
        assert_eq!(to.export(&key, OWNER).unwrap(), chain, "and it travels on unchanged");
        assert_eq!(import(&to, &chain, &tokens).unwrap().rows, 0, "it is there already");
    }
    let again = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
    assert_eq!(reach(&again, namespace(1), &conversation(1, 90)), 90, "published like any other");
}

#[test]
fn the_same_state_gives_the_same_bytes_whatever_the_time_the_reason_and_the_hits() {
    let tokens = conversation(1, 60);
    let clock = Arc::new(PausedClock::default());
    let late = Cache::open(CacheConfig { clock: clock.clone(), ..CacheConfig::in_memory(1 << 20) }).unwrap();
    clock.advance(std::time::Duration::from_secs(1_000_000));
    let early = in_memory();
    let one = save_chain(&early, &tokens, &[20, 60], OWNER);
    for end in [20, 60] {
        let base = late.base_for(&namespace(1), &tokens[..end], None);
        let mut save = SaveRequest {
            owner: Some(OWNER),
            reason: SaveReason::Evict,
            context_size: 77,
            text: "other words".to_owned(),
            ..request(namespace(1), &tokens[..end], base.as_ref())
        };
        save.parts.insert(
            0,
            PayloadPart { kind: PartKind::Partial, bytes: at_end(&tokens[..end], PartKind::Partial).into() },
        );
        late.save(save).unwrap();
    }
    late.claim(&namespace(1), &tokens, STRANGER);
    drop(late.lookup(&namespace(1), &tokens, Needs::ATTENTION));
    assert_eq!(late.export(&one, OWNER).unwrap(), early.export(&one, OWNER).unwrap());
}

#[test]
fn a_tenant_neither_exports_nor_imports_the_rows_of_another() {
    let (from, to) = (in_memory(), in_memory());
    let tokens = conversation(1, 60);
    let key = save_chain(&from, &tokens, &[20, 60], OWNER);
    assert!(matches!(from.export(&key, STRANGER), Err(ExportError::NotOwned { .. })));
    // It has sent the first twenty tokens too, and builds on them.
    let mut own = tokens[..20].to_vec();
    own.extend(conversation(7, 30));
    let base = from.base_for(&namespace(1), &own, None);
    let saved = from.save(SaveRequest { owner: Some(STRANGER), ..request(namespace(1), &own, base.as_ref()) }).unwrap();
    assert!(matches!(from.export(&saved.key, STRANGER), Err(ExportError::NotOwned { .. })));
    from.claim(&namespace(1), &own, STRANGER);
    assert_eq!(from.export(&saved.key, STRANGER).unwrap().rows.len(), 2);
    let chain = from.export(&key, OWNER).unwrap();
    let other = ImportRequest { owner: STRANGER, namespace: &namespace(1), prompt: &tokens };
    assert!(matches!(to.import(&chain, other, None), Err(ImportError::Other)));
    let elsewhere = ImportRequest { owner: OWNER, namespace: &namespace(2), prompt: &tokens };
    assert!(matches!(to.import(&chain, elsewhere, None), Err(ImportError::Other)));
    assert!(matches!(import(&to, &chain, &conversation(3, 90)), Err(ImportError::Other)), "another prompt");
    assert!(to.is_empty());
    import(&to, &chain, &tokens).unwrap();
    assert_eq!((to.rows_of(OWNER).len(), to.rows_of(STRANGER).len()), (2, 0));
    assert!(matches!(to.export(&namespace(1).key(&own), OWNER), Err(ExportError::Gone { .. })));
}

/// The state of the same tokens as another machine computed it: other bits.
fn other_bits(bytes: Vec<u8>) -> Bytes {
    bytes.into_iter().map(|byte| byte ^ 0x80).collect::<Vec<u8>>().into()
}

fn save_other(cache: &Cache, tokens: &[u32]) {
    let base = cache.base_for(&namespace(1), tokens, None);
    let start = base.as_ref().map_or(0, poncho_cache::SaveBase::start) as usize;
    let parts = vec![PayloadPart { kind: PartKind::Attention, bytes: other_bits(attention(tokens, start)) }];
    cache.save(SaveRequest { parts, owner: Some(OWNER), ..request(namespace(1), tokens, base.as_ref()) }).unwrap();
}

#[test]
fn rows_of_two_origins_are_never_mixed() {
    let from = in_memory();
    let tokens = conversation(1, 60);
    let key = save_chain(&from, &tokens, &[20, 60], OWNER);
    let chain = from.export(&key, OWNER).unwrap();
    // Nothing uses the local row: it leaves.
    let to = in_memory();
    save_other(&to, &tokens[..20]);
    assert_eq!(import(&to, &chain, &tokens).unwrap().rows, 2);
    assert_eq!(reach(&to, namespace(1), &tokens), 60, "every byte is of one origin");
    // A local conversation builds on it: it stays, and the fetched chain is joined or refused.
    let to = in_memory();
    save_other(&to, &tokens[..20]);
    let mut local = tokens[..20].to_vec();
    local.extend(conversation(9, 20));
    save_other(&to, &local);
    assert!(matches!(import(&to, &chain, &tokens), Err(ImportError::Conflict { .. })));
    assert_eq!(to.len(), 2);
    let join = |segments: &[&[u8]], range: std::ops::Range<u32>| {
        assert_eq!((segments.len(), range), (2, 0..60));
        Some(segments.concat())
    };
    let asked = ImportRequest { owner: OWNER, namespace: &namespace(1), prompt: &tokens };
    assert_eq!(to.import(&chain, asked, Some(&join)).unwrap().rows, 1);
    let plan = to.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
    assert_eq!((plan.rows().len(), check_plan(&plan, &tokens).unwrap()), (1, 60), "it builds on nothing");
    let plan = to.lookup(&namespace(1), &local, Needs::ATTENTION).unwrap();
    assert_eq!((plan.rows().len(), plan.reach()), (2, 40), "and the local conversation has what it had");
}

#[test]
fn a_chain_in_another_order_or_with_a_row_missing_is_refused() {
    let (from, to) = (in_memory(), in_memory());
    let tokens = conversation(1, 60);
    let key = save_chain(&from, &tokens, &[20, 40, 60], OWNER);
    let chain = from.export(&key, OWNER).unwrap();
    let with = |rows: Vec<CanonicalRow>| Chain { rows, ..chain.clone() };
    let [a, b, c] = [0, 1, 2].map(|at| chain.rows[at].clone());
    for rows in [vec![], vec![b.clone()], vec![a.clone(), c.clone()], vec![b.clone(), a.clone(), c.clone()]] {
        assert!(import(&to, &with(rows), &tokens).is_err());
    }
    let renamed = CanonicalRow { key: a.key, ..b.clone() };
    assert!(import(&to, &with(vec![a.clone(), renamed, c.clone()]), &tokens).is_err());
    let moved = CanonicalRow { start: 19, ..b.clone() };
    assert!(import(&to, &with(vec![a.clone(), moved, c]), &tokens).is_err());
    assert!(to.is_empty(), "nothing of it was entered");
    assert_eq!(import(&to, &with(vec![a, b]), &tokens).unwrap().tokens, 40);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_flipped_or_missing_byte_gets_in(
        ends in prop::collection::btree_set(1_usize..80, 1..4),
        number in 1_u32..50,
        at in any::<prop::sample::Index>(),
        bit in 0_u32..8,
        cut in any::<prop::sample::Index>(),
    ) {
        let ends: Vec<usize> = ends.into_iter().collect();
        let tokens = conversation(number, 80);
        let (from, to) = (in_memory(), in_memory());
        let key = save_chain(&from, &tokens, &ends, OWNER);
        let chain = from.export(&key, OWNER).unwrap();
        let total: usize = chain.rows.iter().map(|row| row.bytes.len()).sum();
        let mut place = at.index(total);
        for row in 0..chain.rows.len() {
            let length = chain.rows[row].bytes.len();
            if place >= length {
                place -= length;
                continue;
            }
            let mut wrong = chain.clone();
            let mut bytes = wrong.rows[row].bytes.to_vec();
            bytes[place] ^= 1 << bit;
            wrong.rows[row].bytes = bytes.into();
            prop_assert!(import(&to, &wrong, &tokens).is_err(), "byte {place} of row {row}");
            let mut short = chain.clone();
            short.rows[row].bytes = short.rows[row].bytes.slice(..cut.index(length));
            prop_assert!(import(&to, &short, &tokens).is_err());
            let mut long = chain.clone();
            long.rows[row].bytes = [&long.rows[row].bytes[..], &[0]].concat().into();
            prop_assert!(import(&to, &long, &tokens).is_err());
            break;
        }
        prop_assert!(to.is_empty());
        import(&to, &chain, &tokens).unwrap();
        prop_assert_eq!(served(&to, &tokens, Needs::ATTENTION), served(&from, &tokens, Needs::ATTENTION));
    }
}

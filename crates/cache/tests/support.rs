//! Shared by the integration tests: namespaces, tokens, payloads with bytes that follow from their tokens, and reading
//! a plan back.

use std::path::Path;

use poncho_cache::{
    Cache, CacheConfig, FingerprintMode, Namespace, Needs, PartKind, PayloadPart, QuantType, RestorePlan, SaveBase,
    SaveReason, SaveRequest, Saved, Tier, Unusable,
};

/// State bytes per token in these tests.
pub(crate) const BYTES_PER_TOKEN: usize = 40;

pub(crate) fn namespace(number: u8) -> Namespace {
    Namespace { fingerprint: [number; 32], quant: QuantType::Q4_1, context_hash: [number ^ 0xff; 32] }
}

/// A cache on a folder with everything else at its default, but no copies in memory, so that reads meet the files.
pub(crate) fn on_disk(folder: &Path, quota: u64) -> CacheConfig {
    CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(folder, quota) }
}

/// The state of token `position` after these tokens: it depends on every token before, as real state does.
fn state_of(tokens: &[u32], position: usize) -> [u8; BYTES_PER_TOKEN] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for token in &tokens[..=position] {
        hash = (hash ^ u64::from(*token)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let mut state = [0; BYTES_PER_TOKEN];
    for (index, byte) in state.iter_mut().enumerate() {
        *byte = hash.rotate_left(u32::try_from(index).unwrap() * 7).to_le_bytes()[index % 8];
    }
    state
}

/// The attention state of tokens `start..`.
pub(crate) fn attention(tokens: &[u32], start: usize) -> Vec<u8> {
    (start..tokens.len()).flat_map(|position| state_of(tokens, position)).collect()
}

/// What follows from the last token alone: logits, or a partial state.
pub(crate) fn at_end(tokens: &[u32], kind: PartKind) -> Vec<u8> {
    let mut bytes = state_of(tokens, tokens.len() - 1).to_vec();
    bytes.push(kind.byte());
    bytes
}

/// A save of `tokens` on top of `base`, with attention and logits.
pub(crate) fn request<'a>(namespace: Namespace, tokens: &'a [u32], base: Option<&'a SaveBase>) -> SaveRequest<'a> {
    let start = base.map_or(0, SaveBase::start) as usize;
    SaveRequest {
        namespace,
        mode: FingerprintMode::Safe,
        tokens,
        base,
        parts: vec![
            PayloadPart { kind: PartKind::Attention, bytes: attention(tokens, start).into() },
            PayloadPart { kind: PartKind::Logits, bytes: at_end(tokens, PartKind::Logits).into() },
        ],
        reason: SaveReason::Finish,
        flags: 0,
        context_size: 4096,
        text: "for people".to_owned(),
        tier: None,
        owner: None,
    }
}

/// Saves `tokens` on top of whatever the cache has of them.
pub(crate) fn save(cache: &Cache, namespace: Namespace, tokens: &[u32]) -> Saved {
    save_to(cache, namespace, tokens, None)
}

/// The same, into a tier.
pub(crate) fn save_to(cache: &Cache, namespace: Namespace, tokens: &[u32], tier: Option<Tier>) -> Saved {
    let base = cache.base_for(&namespace, tokens, tier);
    cache.save(SaveRequest { tier, ..request(namespace, tokens, base.as_ref()) }).unwrap()
}

/// Loads everything a plan offers and checks every byte against what the tokens say it must be. Returns the reach.
pub(crate) fn check_plan(plan: &RestorePlan, tokens: &[u32]) -> Result<usize, Unusable> {
    let reach = plan.reach() as usize;
    assert!(reach <= tokens.len());
    let expected = attention(&tokens[..reach], 0);
    let mut covered = 0;
    for segment in plan.rows() {
        let (range, stored) = (segment.range(), segment.stored_range());
        assert_eq!(range.start as usize, covered, "no gap and no overlap");
        covered = range.end as usize;
        if range.is_empty() {
            continue;
        }
        assert!(stored.start == range.start && stored.end >= range.end);
        let mut buffer = vec![0; usize::try_from(segment.length(PartKind::Attention).unwrap()).unwrap()];
        segment.read(PartKind::Attention, &mut buffer)?;
        let used = &buffer[..(range.end - range.start) as usize * BYTES_PER_TOKEN];
        assert!(
            used == &expected[range.start as usize * BYTES_PER_TOKEN..range.end as usize * BYTES_PER_TOKEN],
            "the bytes of tokens {range:?} are not what was saved"
        );
    }
    assert_eq!(covered, reach);
    if plan.has_logits() {
        let boundary = plan.boundary().unwrap();
        let mut buffer = vec![0; usize::try_from(boundary.length(PartKind::Logits).unwrap()).unwrap()];
        boundary.read(PartKind::Logits, &mut buffer)?;
        assert_eq!(buffer, at_end(&tokens[..reach], PartKind::Logits));
    }
    Ok(reach)
}

/// How many leading tokens are served, every byte checked. Looks again when a row turns out unusable.
pub(crate) fn reach(cache: &Cache, namespace: Namespace, tokens: &[u32]) -> usize {
    loop {
        let Some(plan) = cache.lookup(&namespace, tokens, Needs::ATTENTION) else { return 0 };
        if let Ok(reach) = check_plan(&plan, tokens) {
            return reach;
        }
    }
}

/// `count` tokens that begin a conversation of their own.
pub(crate) fn conversation(number: u32, count: usize) -> Vec<u32> {
    let first = number.wrapping_mul(1_000_003);
    (0..u32::try_from(count).unwrap()).map(|position| first.wrapping_add(position * 17 + 1)).collect()
}

//! An encrypted store shows nothing of a prompt: every byte of every object is searched for its words, its token ids and
//! the names of its rows. The same search finds all of them in a store without a key.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use poncho_cache::{Cache, CacheConfig, Chain, PartKind, PayloadPart, SaveReason, SaveRequest, to_hex};
use poncho_shared::Settings;

use crate::fixture::azurite::Azurite;
use crate::fixture::weed::Weed;
use crate::fixture::{ANNA, NAMESPACE, contents, folder_url, open, restore, settings, upload};

/// Every word is long enough to be found by itself.
const PROMPT: &str = "Xylophonkonzert marmaladefactory quicksilverbadger Überraschungseier 東京特許許可局";
/// Bytes of every needle that lead to it.
const START: usize = 8;
/// Consecutive token ids that count as a readable prompt.
const RUN: usize = 4;

fn tokens() -> Vec<u32> {
    (0..600).map(|number| 20_000 + number * 37 % 9973).collect()
}

/// Two rows that the cache saved, as it exports them. The states contain the words of the prompt: bytes of a state are all
/// that an upload could show of the text.
fn uploaded() -> Chain {
    let cache = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
    let tokens = tokens();
    let mut key = None;
    for end in [300, 600] {
        let base = cache.base_for(&NAMESPACE, &tokens[..end], None);
        let state = PROMPT.repeat(20).into_bytes();
        let parts = vec![PayloadPart { kind: PartKind::Attention, bytes: state.into() }];
        let request = SaveRequest {
            base: base.as_ref(),
            reason: SaveReason::Finish,
            context_size: 4096,
            text: PROMPT.to_owned(),
            owner: Some(ANNA),
            ..SaveRequest::new(NAMESPACE, &tokens[..end], parts)
        };
        key = Some(cache.save(request).unwrap().key);
    }
    let chain = cache.export(&key.unwrap(), ANNA).unwrap();
    assert_eq!(chain.rows.len(), 2, "a row and the one that it builds on");
    chain
}

/// What is searched for, by its first bytes.
#[derive(Default)]
struct Needles(HashMap<[u8; START], Vec<(&'static str, Vec<u8>)>>);

impl Needles {
    fn add(&mut self, what: &'static str, needle: &[u8]) {
        let start = *needle.first_chunk().expect("long enough");
        self.0.entry(start).or_default().push((what, needle.to_vec()));
    }

    /// A secret or a name: as bytes and as text, half of it is enough.
    fn add_key(&mut self, what: &'static str, key: &[u8]) {
        for half in key.chunks(16) {
            self.add(what, half);
            self.add(what, to_hex(half).as_bytes());
            self.add(what, to_hex(half).to_uppercase().as_bytes());
        }
    }

    fn of(chain: &Chain, secret: &[u8; 32]) -> Self {
        let mut needles = Self::default();
        PROMPT.split(' ').for_each(|word| needles.add("a word", word.as_bytes()));
        for run in tokens().windows(RUN) {
            let ids: Vec<u8> = run.iter().flat_map(|token| token.to_le_bytes()).collect();
            needles.add("token ids", &ids);
        }
        chain.rows.iter().for_each(|row| needles.add_key("the name of a row", row.key.as_bytes()));
        needles.add_key("the namespace", &NAMESPACE.fingerprint);
        needles.add_key("the namespace", &NAMESPACE.context_hash);
        needles.add_key("the owner", ANNA.as_bytes());
        needles.add_key("the cluster's secret", secret);
        needles
    }

    /// What some objects or their names show.
    fn seen_in(&self, objects: &[(String, Bytes)]) -> BTreeSet<&'static str> {
        let mut seen = BTreeSet::new();
        for bytes in objects.iter().flat_map(|(name, bytes)| [name.as_bytes(), bytes]) {
            for at in 0..bytes.len() {
                let rest = &bytes[at..];
                let candidates = rest.first_chunk().and_then(|start| self.0.get(start));
                let found = candidates.into_iter().flatten().filter(|(_, needle)| rest.starts_with(needle));
                seen.extend(found.map(|(what, _)| *what));
            }
        }
        seen
    }
}

/// Uploads the prompt with a key, then without one to another place of the same store, and compares what the store shows.
fn search(sealed: Settings, plain: &Settings, all: impl Fn() -> Vec<(String, Bytes)>) {
    let secret = [0xA1; 32];
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, to_hex(&secret)).unwrap();
    let sealed = Settings { key_file: Some(key_file), ..sealed };
    let chain = uploaded();
    let needles = Needles::of(&chain, &secret);
    let key = chain.key().unwrap();

    upload(&open(&sealed), chain.clone());
    assert_eq!(restore(&open(&sealed), ANNA, &[key]).as_ref(), Some(&chain), "it is there");
    let objects = all();
    assert!(objects.iter().any(|(name, _)| name.contains("/row/")), "a manifest is among {} objects", objects.len());
    assert_eq!(needles.seen_in(&objects), BTreeSet::new());

    upload(&open(plain), chain);
    let expected = ["a word", "the name of a row", "the namespace", "token ids"];
    assert_eq!(needles.seen_in(&all()), BTreeSet::from(expected));
    // The secret is in neither store; the search finds it where it is.
    assert_eq!(needles.seen_in(&contents(folder.path())), BTreeSet::from(["the cluster's secret"]));
}

#[test]
fn an_encrypted_folder_shows_no_word_token_or_name_of_a_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| settings(&format!("{}/{name}", folder_url(&folder)));
    search(at("sealed"), &at("plain"), || contents(folder.path()));
}

#[test]
fn an_encrypted_bucket_shows_no_word_token_or_name_of_a_prompt() {
    let weed = Weed::start();
    let at = |name: &str| Settings { url: format!("s3://poncho-kv/{name}"), ..weed.settings() };
    search(at("sealed"), &at("plain"), || weed.contents());
}

#[test]
fn an_encrypted_container_shows_no_word_token_or_name_of_a_prompt() {
    let azurite = Azurite::start();
    let at = |name: &str| Settings { url: format!("az://poncho-kv/{name}"), ..azurite.settings() };
    search(at("sealed"), &at("plain"), || azurite.contents());
}

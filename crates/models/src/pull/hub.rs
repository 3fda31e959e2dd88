//! A hub repository: its list of files, and the one that a reference means.
//!
//! The list comes with sizes and hashes, and with the commit that the file is then fetched from, so that list and file
//! belong together. Choosing is pure.

use serde::Deserialize;

use crate::digest::Sha256;
use crate::reference::{HubChoice, HubReference, without_secrets};

use super::error::PullError;
use super::http::{Get, agent, get};
use super::options::PullOptions;
use super::remote::Remote;

/// Bytes of a listing; one with thousands of files has less than one MiB.
const MOST_LISTING: u64 = 16 << 20;
/// Names that an error lists.
const MOST_NAMES: usize = 16;

/// Quantisations in order of preference if the user names none: small enough for most machines, close to the original.
const PREFERRED: [&str; 12] =
    ["Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_1", "Q4_0", "IQ4_XS", "Q5_K_S", "Q6_K", "Q8_0", "BF16", "F16", "F32"];

#[derive(Debug, Deserialize)]
struct Listing {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<ListedFile>,
}

#[derive(Debug, Clone, Deserialize)]
struct ListedFile {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<LargeFile>,
}

#[derive(Debug, Clone, Deserialize)]
struct LargeFile {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Asks the hub for the file that a reference means.
pub(super) fn find(hub: &HubReference, options: &PullOptions) -> Result<Remote, PullError> {
    let repository = format!("{}/{}", hub.owner, hub.repo);
    let url = format!("{}/api/models/{repository}?blobs=true", options.hub);
    let token = options.hub_token.as_deref();
    let mut response = get(&agent(options, &url), &url, &Get { token, ..Get::default() })?;
    let bad = |reason: String| PullError::BadListing { url: without_secrets(&url), reason };
    let body = response.body_mut().with_config().limit(MOST_LISTING).read_to_vec();
    let body = body.map_err(|error| bad(error.to_string()))?;
    let listing: Listing = serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
    let file = choose(&listing.siblings, hub)?;
    let is_commit = |text: &String| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let commit = listing.sha.filter(is_commit).unwrap_or_else(|| "main".to_owned());
    let lfs = file.lfs.as_ref();
    Ok(Remote {
        url: format!("{}/{repository}/resolve/{commit}/{}", options.hub, encoded(&file.rfilename)),
        token: options.hub_token.clone(),
        sha256: lfs.and_then(|lfs| lfs.sha256.as_deref()).and_then(Sha256::parse),
        bytes: lfs.and_then(|lfs| lfs.size).or(file.size),
    })
}

/// The path of a file in an address.
fn encoded(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'/' => text.push(char::from(byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn choose<'a>(files: &'a [ListedFile], hub: &HubReference) -> Result<&'a ListedFile, PullError> {
    let mut there: Vec<&ListedFile> = files.iter().filter(|file| is_gguf(&file.rfilename)).collect();
    there.sort_by_key(|file| (file.rfilename.len(), file.rfilename.clone()));
    let whole = || there.iter().copied().filter(|file| !is_part(&file.rfilename) && !is_projector(&file.rfilename));
    let of_quant = |quant: &str| whole().find(|file| has_word(&file.rfilename, quant));
    let found = match &hub.choice {
        HubChoice::File(wanted) => there
            .iter()
            .copied()
            .find(|file| file.rfilename == *wanted)
            .or_else(|| there.iter().copied().find(|file| base_name(&file.rfilename).eq_ignore_ascii_case(wanted))),
        HubChoice::Quant(quant) => of_quant(quant),
        HubChoice::Best => PREFERRED.iter().find_map(|quant| of_quant(quant)).or_else(|| whole().next()),
    };
    found.ok_or_else(|| PullError::NoSuchFile {
        repository: format!("hf:{}/{}", hub.owner, hub.repo),
        wanted: match &hub.choice {
            HubChoice::Best => "any quantisation in one file".to_owned(),
            HubChoice::Quant(text) | HubChoice::File(text) => text.clone(),
        },
        there: there.iter().take(MOST_NAMES).map(|file| file.rfilename.clone()).collect(),
    })
}

fn is_gguf(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".gguf")
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `name-00001-of-00003.gguf`.
fn is_part(path: &str) -> bool {
    base_name(path).to_ascii_lowercase().split("-of-").nth(1).is_some_and(|end| end.starts_with("0"))
}

/// The vision half of a model.
fn is_projector(path: &str) -> bool {
    base_name(path).to_ascii_lowercase().contains("mmproj")
}

/// Whether a quantisation stands in a file name as a word: `Q4_K` is not in `x-Q4_K_M.gguf`.
fn has_word(path: &str, word: &str) -> bool {
    let (name, word) = (base_name(path).to_ascii_uppercase(), word.to_ascii_uppercase());
    let is_inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.match_indices(&word).any(|(at, _)| {
        let before = name.get(..at).and_then(|text| text.chars().next_back());
        let after = name.get(at + word.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(is_inside) && !after.is_some_and(is_inside)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Reference;

    fn chosen(files: &[&str], text: &str) -> Result<String, String> {
        let listed: Vec<ListedFile> =
            files.iter().map(|file| ListedFile { rfilename: (*file).to_owned(), size: None, lfs: None }).collect();
        let Ok(Reference::Hub(hub)) = Reference::parse(text) else { panic!("{text} is a hub reference") };
        choose(&listed, &hub).map(|file| file.rfilename.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn files_are_chosen_as_people_mean_them() {
        let files = [
            "README.md",
            "mmproj-Q4_K_M.gguf",
            "m-Q4_K_M-00001-of-00002.gguf",
            "m-Q8_0.gguf",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-f16.gguf",
            "sub/m-Q2_K.gguf",
        ];
        for (text, expected) in [
            ("hf:o/r", "m-Q4_K_M.gguf"),
            ("hf:o/r:q8_0", "m-Q8_0.gguf"),
            ("hf:o/r:F16", "m-f16.gguf"),
            ("hf:o/r:Q2_K", "sub/m-Q2_K.gguf"),
            ("hf:o/r:sub/m-Q2_K.gguf", "sub/m-Q2_K.gguf"),
            ("hf:o/r:m-Q2_K.gguf", "sub/m-Q2_K.gguf"),
            ("hf:o/r:mmproj-Q4_K_M.gguf", "mmproj-Q4_K_M.gguf"),
        ] {
            assert_eq!(chosen(&files, text).as_deref(), Ok(expected), "{text}");
        }
        let refused = chosen(&files, "hf:o/r:Q4_K").unwrap_err();
        assert!(refused.contains("m-Q4_K_M.gguf") && refused.contains("Q4_K"), "{refused}");
        assert_eq!(chosen(&["odd.gguf"], "hf:o/r").as_deref(), Ok("odd.gguf"));
        assert!(chosen(&["model.safetensors"], "hf:o/r").unwrap_err().contains("-GGUF"));
    }

    #[test]
    fn paths_in_addresses_are_encoded() {
        assert_eq!(encoded("a b/c+%?#.gguf"), "a%20b/c%2B%25%3F%23.gguf");
    }
}

//! The console of Poncho's server as bytes: a page, a script, a style sheet and an icon.
//!
//! The page is written in TypeScript in `web/` and built by npm; the build script embeds what was built. Read by the
//! server, which knows how to send it. Without node, [`PAGE`] explains how to get the console. Nothing here runs.

/// One file.
#[derive(Debug)]
pub struct File {
    /// Its content type.
    pub kind: &'static str,
    /// Its entity tag, with quotes.
    pub tag: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
    /// The same, packed with gzip.
    pub gzip: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/files.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    /// What a browser loads, packed.
    const MOST_BYTES: usize = 250_000;

    #[test]
    fn the_console_is_small_and_asks_nobody_else() {
        let files = [&PAGE, &SCRIPT, &STYLE, &ICON];
        let packed: usize = files.iter().map(|file| file.gzip.unwrap_or(file.bytes).len()).sum();
        assert!(packed <= MOST_BYTES, "{packed} bytes");
        for file in files {
            assert!(file.tag.starts_with('"') && file.tag.ends_with('"') && file.tag.len() == 18, "{}", file.tag);
        }
        let page = String::from_utf8_lossy(PAGE.bytes);
        for forbidden in ["http://", "https://", "<style", " style=", "onclick"] {
            assert!(!page.contains(forbidden), "{forbidden} in {page}");
        }
    }
}

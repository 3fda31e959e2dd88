//! The licences that a dependency may have.
//!
//! Poncho is MIT and ships one binary: everything in it must allow that without conditions on our own source.

use spdx::{Expression, LicenseReq};

use super::Package;

/// Identifiers of licences that ask for no more than their text being kept.
const ALLOWED: [&str; 15] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "WTFPL",
    "Zlib",
];

/// What is wrong with the licence of a package.
pub(super) fn check(package: &Package) -> Option<String> {
    let Some(text) = &package.licence else {
        return Some("states no licence; look at its files and list it here if it may be used".to_owned());
    };
    // Old packages write a slash where the standard wants OR.
    match Expression::parse(&text.replace('/', " OR ")) {
        Ok(expression) if expression.evaluate(is_allowed) => None,
        Ok(_) => Some(format!("the licence {text} is not allowed (xtask/src/deny/licences.rs)")),
        Err(error) => Some(format!("the licence {text:?} cannot be read: {}", error.reason)),
    }
}

fn is_allowed(required: &LicenseReq) -> bool {
    required.license.id().is_some_and(|id| ALLOWED.contains(&id.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(licence: &str) -> Option<String> {
        let owned = Some(licence.to_owned());
        check(&Package { name: "x".to_owned(), version: "1.0.0".to_owned(), licence: owned, source: None })
    }

    #[test]
    fn expressions_are_judged_as_a_whole() {
        for fine in ["MIT", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0", "GPL-3.0-only OR MIT"] {
            assert_eq!(verdict(fine), None, "{fine}");
        }
        for wrong in ["GPL-3.0-only", "MIT AND AGPL-3.0-only", "LGPL-2.1-or-later", "nonsense"] {
            assert!(verdict(wrong).is_some(), "{wrong}");
        }
    }
}

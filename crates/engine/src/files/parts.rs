//! The files of a model: one, or the parts of a split one, found as llama.cpp finds them and checked before it does.
//!
//! Used when a model is loaded and when its memory is estimated. `split.count` of the first file says how many parts there
//! are, `-00001-of-00003.gguf` at the end of its name where the others lie. Every part must be there and say which one it
//! is; nothing here reads more of a file than its header.

use std::path::{Path, PathBuf};

use poncho_cache::{identify, split_part_names};
use poncho_gguf::GgufIdentity;

use crate::backend::ModelOptions;

/// Why the files of a model are not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PartsError {
    #[error("{} is missing: the model is split into {count} parts; put all of them into one folder", path.display())]
    Missing { path: PathBuf, count: u32 },
    #[error(
        "{path} is part {number} of {count} of a split model, and its name does not end in \
         -{number:05}-of-{count:05}.gguf, by which the other parts are found; give the parts such names, or join them \
         with `llama-gguf-split --merge`",
        path = path.display()
    )]
    Name { path: PathBuf, number: u32, count: u32 },
    #[error(
        "{path} should be part {expected} of {expected_count} of a split model and says that it is part {number} of \
         {count}; download it again",
        path = path.display()
    )]
    Number { path: PathBuf, expected: u32, expected_count: u32, number: u32, count: u32 },
    #[error("the model is split into {count} parts and {given} files were given; name each part once")]
    Count { given: usize, count: u32 },
    #[error("{reason}; download {} again", path.display())]
    Unreadable { path: PathBuf, reason: String },
}

/// Which part a file says it is, counted from 1, and of how many; `None` for a whole model.
fn place(identity: &GgufIdentity) -> Option<(u32, u32)> {
    let count = identity.split_count.filter(|count| *count > 1)?;
    Some((identity.split_no.unwrap_or(0).saturating_add(1), count))
}

/// Fills in the parts of a split model, so that everything after this sees all of its files. Leaves a file that cannot
/// be read to the loader, which says why.
pub(crate) fn settle(options: &mut ModelOptions) -> Result<(), PartsError> {
    let Ok(first) = identify(&options.path) else { return Ok(()) };
    let Some((number, count)) = place(&first) else {
        // Names alone do not split a model: llama.cpp would read this file and no other.
        return if options.split_paths.is_empty() {
            Ok(())
        } else {
            Err(PartsError::Count { given: options.split_paths.len() + 1, count: 1 })
        };
    };
    let parts = if options.split_paths.is_empty() {
        by_name(&options.path, number, count)?
    } else {
        std::iter::once(&options.path).chain(&options.split_paths).cloned().collect()
    };
    if parts.len() != count as usize {
        return Err(PartsError::Count { given: parts.len(), count });
    }
    for (expected, path) in (1..).zip(&parts) {
        check(path, expected, count)?;
    }
    let mut parts = parts.into_iter();
    options.path = parts.next().unwrap_or_default();
    options.split_paths = parts.collect();
    Ok(())
}

fn by_name(path: &Path, number: u32, count: u32) -> Result<Vec<PathBuf>, PartsError> {
    let wrong = || PartsError::Name { path: path.to_path_buf(), number, count };
    let names = split_part_names(path).filter(|names| names.len() == count as usize).ok_or_else(wrong)?;
    // The file itself has to stand at its own place, else its number contradicts its name.
    let own = number.checked_sub(1).and_then(|place| names.get(place as usize));
    if own.map(PathBuf::as_path) == Some(path) { Ok(names) } else { Err(wrong()) }
}

fn check(path: &Path, expected: u32, expected_count: u32) -> Result<(), PartsError> {
    let path = path.to_path_buf();
    if !path.is_file() {
        return Err(PartsError::Missing { path, count: expected_count });
    }
    let identity = match identify(&path) {
        Ok(identity) => identity,
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            return Err(PartsError::Unreadable { path, reason: format!("{error}{cause}") });
        }
    };
    let (number, count) = place(&identity).unwrap_or((1, 1));
    if (number, count) == (expected, expected_count) {
        Ok(())
    } else {
        Err(PartsError::Number { path, expected, expected_count, number, count })
    }
}

/// The files that count for memory: all parts that are there, for a file that says it has `count` of them.
pub(crate) fn files(options: &ModelOptions, count: Option<u64>) -> Vec<PathBuf> {
    let named = || {
        let names = split_part_names(&options.path)?;
        (names.len() as u64 == count.filter(|count| *count > 1)?).then_some(names)
    };
    if !options.split_paths.is_empty() {
        return std::iter::once(&options.path).chain(&options.split_paths).cloned().collect();
    }
    named().unwrap_or_else(|| vec![options.path.clone()])
}

#[cfg(test)]
mod tests {
    use poncho_testkit::{ModelKind, ModelSpec, model_path, write_split_model};

    use super::*;

    fn parts(folder: &Path, count: u16) -> Vec<PathBuf> {
        write_split_model(&ModelSpec::tiny(ModelKind::Attention), folder, "m", count).unwrap()
    }

    fn settled(path: &Path) -> Result<Vec<PathBuf>, PartsError> {
        let mut options = ModelOptions::new(path);
        settle(&mut options)?;
        Ok(std::iter::once(options.path).chain(options.split_paths).collect())
    }

    /// Hardening 18: nobody filled in the parts of a split model.
    #[test]
    fn the_parts_of_a_split_model_are_found_whichever_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let parts = parts(folder.path(), 3);
        for part in &parts {
            assert_eq!(settled(part).unwrap(), parts);
        }
        let whole = model_path(ModelKind::Attention);
        assert_eq!(settled(&whole).unwrap(), [whole]);
        let mut options = ModelOptions::new(&parts[0]);
        options.split_paths = parts[1..].to_vec();
        settle(&mut options).unwrap();
        assert_eq!(options.split_paths, parts[1..]);
    }

    #[test]
    fn a_part_that_is_missing_misnamed_or_another_ones_is_told_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let parts = parts(folder.path(), 3);
        let third = std::fs::read(&parts[2]).unwrap();
        std::fs::remove_file(&parts[2]).unwrap();
        let error = settled(&parts[0]).unwrap_err();
        assert_eq!(error, PartsError::Missing { path: parts[2].clone(), count: 3 });
        assert!(error.to_string().contains("m-00003-of-00003.gguf is missing"), "{error}");
        std::fs::copy(&parts[1], &parts[2]).unwrap();
        let error = settled(&parts[0]).unwrap_err();
        assert!(matches!(error, PartsError::Number { expected: 3, number: 2, count: 3, .. }), "{error}");
        std::fs::write(&parts[2], b"GGUF").unwrap();
        let error = settled(&parts[0]).unwrap_err();
        assert!(matches!(&error, PartsError::Unreadable { path, .. } if *path == parts[2]), "{error}");
        std::fs::write(&parts[2], third).unwrap();
        for name in ["model.gguf", "m-00002-of-00003.gguf", "m-00001-of-00002.gguf"] {
            let path = folder.path().join(name);
            let before = std::fs::read(&path).ok();
            std::fs::copy(&parts[0], &path).unwrap();
            let error = settled(&path).unwrap_err();
            assert!(matches!(error, PartsError::Name { number: 1, count: 3, .. }), "{name}: {error}");
            if let Some(bytes) = before {
                std::fs::write(&path, bytes).unwrap();
            }
        }
        let mut options = ModelOptions::new(&parts[0]);
        options.split_paths = vec![parts[1].clone()];
        assert_eq!(settle(&mut options), Err(PartsError::Count { given: 2, count: 3 }));
    }

    #[test]
    fn a_whole_model_with_the_name_of_a_part_stays_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m-00001-of-00002.gguf");
        std::fs::copy(model_path(ModelKind::Attention), &path).unwrap();
        assert_eq!(settled(&path).unwrap(), [path]);
        let none = folder.path().join("none.gguf");
        assert_eq!(settled(&none).unwrap(), [none], "the loader says what is wrong with it");
    }
}

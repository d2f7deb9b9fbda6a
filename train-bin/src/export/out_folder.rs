//! Folders that results are written to: empty or given up by `--force`, and never one that the result is made from.

use std::fs;
use std::path::{Path, PathBuf};

/// Why a folder can't be written to.
#[derive(Debug, thiserror::Error)]
pub enum OutFolderError {
    /// It has something in it.
    #[error("{}: the folder isn't empty. Name another, or replace it with --force", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
    },
    /// It is, or holds, what the result is made from.
    #[error(
        "{}: this is where the {what} lies ({}), and it would be replaced. Name another folder with --out",
        path.display(),
        source_path.display()
    )]
    Source {
        /// The folder.
        path: PathBuf,
        /// What it is to the result.
        what: &'static str,
        /// Where that lies.
        source_path: PathBuf,
    },
}

/// Whether `out` may be written to; with `force`, whatever is in it goes. `sources` are what the result is made from,
/// each with what it is called. Links count as what they point to.
///
/// # Errors
/// [`OutFolderError`].
pub fn check(
    out: &Path,
    force: bool,
    sources: &[(&'static str, &Path)],
) -> Result<(), OutFolderError> {
    // What doesn't exist has no canonical path, and can't hold anything either.
    if let Ok(canonical) = out.canonicalize() {
        for &(what, source) in sources {
            if source.canonicalize().is_ok_and(|source| source.starts_with(&canonical)) {
                let (path, source_path) = (out.into(), source.into());
                return Err(OutFolderError::Source { path, what, source_path });
            }
        }
    }
    let is_taken = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
    if is_taken && !force { Err(OutFolderError::Taken { path: out.into() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_never_replaced() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir_all(at("models/base")).unwrap();
        fs::write(at("models/base/config.json"), "{}").unwrap();
        let base = at("models/base");
        let sources = [("base model", base.as_path())];
        for (out, force) in
            [("models/base", true), ("models/base/../base", false), ("models", true)]
        {
            let error = check(&at(out), force, &sources).unwrap_err();
            assert!(matches!(error, OutFolderError::Source { .. }), "{out}: {error}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("models/base"), at("link")).unwrap();
            assert!(check(&at("link"), true, &sources).is_err());
        }
        // Below and beside are other folders.
        check(&at("models/base/merged"), false, &sources).unwrap();
        check(&at("models/other"), false, &sources).unwrap();
    }

    #[test]
    fn what_is_in_a_folder_goes_only_by_force() {
        let place = tempfile::tempdir().unwrap();
        check(place.path(), false, &[]).unwrap();
        fs::write(place.path().join("mine"), "mine").unwrap();
        assert!(matches!(check(place.path(), false, &[]), Err(OutFolderError::Taken { .. })));
        check(place.path(), true, &[]).unwrap();
    }
}

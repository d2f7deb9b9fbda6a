//! Output folders: empty, or replaced by `--force`, and never one with an input.

use std::fs;
use std::path::{Path, PathBuf};

/// Why an output folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutFolderError {
    /// It is not empty.
    #[error("{}: the folder is not empty. Choose another, or replace it with --force", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
    },
    /// It is, or contains, an input.
    #[error(
        "{}: the folder contains the {what} ({}), which would be replaced. Choose another folder with --out",
        path.display(),
        source_path.display()
    )]
    Source {
        /// The folder.
        path: PathBuf,
        /// Role of the input.
        what: &'static str,
        /// Path of the input.
        source_path: PathBuf,
    },
}

/// Checks that `out` may be written to; with `force`, its contents will be replaced. `sources`: inputs, each with its role.
/// Links are followed.
///
/// # Errors
/// [`OutFolderError`].
pub fn check(
    out: &Path,
    force: bool,
    sources: &[(&'static str, &Path)],
) -> Result<(), OutFolderError> {
    // A folder that does not exist has no canonical path, and contains nothing.
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
        // Subfolders and siblings are allowed.
        check(&at("models/base/merged"), false, &sources).unwrap();
        check(&at("models/other"), false, &sources).unwrap();
    }

    #[test]
    fn contents_are_replaced_only_with_force() {
        let place = tempfile::tempdir().unwrap();
        check(place.path(), false, &[]).unwrap();
        fs::write(place.path().join("mine"), "mine").unwrap();
        assert!(matches!(check(place.path(), false, &[]), Err(OutFolderError::Taken { .. })));
        check(place.path(), true, &[]).unwrap();
    }
}

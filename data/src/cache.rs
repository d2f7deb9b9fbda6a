//! The cache of tokenized data sets: a folder of memory-mapped token files.
//!
//! A token file is named by a hash of everything that determines its content: the data files, the tokenizer's files
//! (including the chat template), the settings, the version of emberlm, and the day if the template uses it. So a stale
//! file is never used. A damaged one is detected by its checksum and rebuilt.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::example::ExampleOptions;
use crate::examples::Examples;
use crate::source::Rejects;
use crate::token_file::{TokenFile, TokenWriter, VERSION, hashed, path_in};
use crate::tokenize::{DataFiles, Tokenized};

/// A data set with a cache.
#[derive(Debug, Clone, Copy)]
pub struct Cached<'a> {
    /// The folder of token files, created if needed.
    pub folder: &'a Path,
    /// The data files and how to tokenize them.
    pub data: DataFiles<'a>,
}

/// How the cache was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// The tokens were read from the cache.
    Found {
        /// The token file.
        path: PathBuf,
    },
    /// A token file is damaged and is rebuilt.
    Damaged {
        /// The token file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The rows were tokenized and written to the cache.
    Written {
        /// The token file.
        path: PathBuf,
    },
}

impl Cached<'_> {
    /// Loads the data set from its token file. If there is none, the rows are tokenized on all cores and written batch by
    /// batch, so memory holds few of them. Skipped rows go to `rejects`, also when the file exists: it records them.
    ///
    /// # Errors
    /// Files that can't be read or written; invalid rows that `rejects` doesn't skip; no example left. No token file is
    /// written then.
    pub fn load(
        &self,
        rejects: &mut Rejects,
        mut on_event: impl FnMut(CacheEvent),
    ) -> Result<Dataset, DataError> {
        let path = path_in(self.folder, self.key()?);
        if path.exists() {
            match TokenFile::open(&path) {
                Ok(file) => {
                    file.faults().try_for_each(|fault| rejects.take(fault))?;
                    rejects.check()?;
                    mark_as_used(&path);
                    on_event(CacheEvent::Found { path });
                    return Ok(self.dataset(file));
                }
                Err(why) => on_event(CacheEvent::Damaged { path: path.clone(), why }),
            }
        }
        self.write(&path, rejects)?;
        let file = TokenFile::open(&path).map_err(|why| DataError::Read {
            path: path.clone(),
            cause: io::Error::other(format!("the file just written {why}")),
        })?;
        on_event(CacheEvent::Written { path });
        Ok(self.dataset(file))
    }

    fn dataset(&self, file: TokenFile) -> Dataset {
        Dataset {
            summary: file.summary().clone(),
            examples: Examples::from(file),
            max_length: self.data.options.max_length,
            shares: Vec::new(),
        }
    }

    fn write(&self, path: &Path, rejects: &mut Rejects) -> Result<(), DataError> {
        let failed = |cause| DataError::Write { path: path.to_owned(), cause };
        let mut writer = TokenWriter::create(path).map_err(failed)?;
        let summary = self.data.tokenize(rejects, |row| {
            let written = match row {
                Tokenized::Example(example) => writer.push(&example),
                Tokenized::Fault(fault) => writer.fault(fault),
            };
            written.map_err(failed)
        })?;
        writer.finish(path, &summary).map_err(failed)
    }

    /// The hash of everything that determines the content of the token file.
    fn key(&self) -> Result<u128, DataError> {
        let DataFiles { files, read, tokenizer, options } = self.data;
        let mut hasher = Xxh3::new();
        let mut hash = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        let ExampleOptions { max_length, train_on, template, date } = options;
        hash(&VERSION.to_le_bytes());
        hash(env!("CARGO_PKG_VERSION").as_bytes());
        hash(format!("{read:?}").as_bytes());
        hash(format!("{max_length:?} {train_on:?} {template:?}").as_bytes());
        let day = tokenizer.uses_date().then(|| match date {
            Some(date) => date.clone(),
            None => jiff::Zoned::now().date().to_string(),
        });
        hash(format!("{day:?}").as_bytes());
        for (name, bytes) in tokenizer.files() {
            hash(name.as_bytes());
            hash(bytes);
        }
        for path in files {
            // The path is part of messages about rows.
            hash(path.as_os_str().as_encoded_bytes());
            let (length, content) = File::open(path)
                .and_then(|mut file| hashed(&mut file))
                .map_err(|cause| DataError::Read { path: path.clone(), cause })?;
            hash(&length.to_le_bytes());
            hash(&content.digest128().to_le_bytes());
        }
        Ok(hasher.digest128())
    }
}

/// Sets the modification time, which records the last use of a token file.
fn mark_as_used(path: &Path) {
    // If this fails, the file only looks older.
    let _ = File::options()
        .append(true)
        .open(path)
        .and_then(|file| file.set_modified(SystemTime::now()));
}

//! Data sets that are tokenized once, kept in a folder, and read from there by mapping.
//!
//! A token file is named by a hash of everything that decides what is in it: the contents of the data files, the files of
//! the tokenizer (its chat template among them), the settings, this program's version, and the day where the template asks
//! for it. So one that is stale is never found; one that is damaged is found out by its checksum and made again.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use xxhash_rust::xxh3::Xxh3;

use crate::dataset::{Dataset, Summary};
use crate::error::{DataError, Fault, Faults};
use crate::example::{ExampleOptions, build};
use crate::examples::Examples;
use crate::row::SourcedRow;
use crate::token_file::{TokenFile, TokenWriter, VERSION, hashed, path_in};
use crate::tokenizer::TextTokenizer;

/// A data set that may be cached.
#[derive(Debug, Clone, Copy)]
pub struct Cached<'a> {
    /// The folder of token files; made if need be.
    pub folder: &'a Path,
    /// The data files, in order.
    pub files: &'a [PathBuf],
    /// How the files are read: whatever else decides which rows they give, such as the format.
    pub reading: &'a str,
    /// What tokenizes.
    pub tokenizer: &'a TextTokenizer,
    /// How examples are made.
    pub options: &'a ExampleOptions,
}

/// What became of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// The tokens were there already.
    Found {
        /// The token file.
        path: PathBuf,
    },
    /// A token file is damaged, and is made again.
    Damaged {
        /// The token file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The tokens were made and written.
    Written {
        /// The token file.
        path: PathBuf,
    },
}

/// Where rows go as they are read, some thousand at a time.
pub type Sink<'a> = dyn FnMut(Vec<Result<SourcedRow, Fault>>) -> Result<(), DataError> + 'a;

impl Cached<'_> {
    /// The data set from its token file. If there is none, `read` is asked to give all rows of the files to a sink, in
    /// order; each batch is tokenized on all cores and written before the next is asked for, so memory holds one batch.
    ///
    /// # Errors
    /// Files that can't be read or written; rows at fault, up to twenty told at once; no example left. Then no token
    /// file is written.
    pub fn load(
        &self,
        read: impl FnOnce(&mut Sink<'_>) -> Result<(), DataError>,
        mut on_event: impl FnMut(CacheEvent),
    ) -> Result<Dataset, DataError> {
        let path = path_in(self.folder, self.key()?);
        if path.exists() {
            match TokenFile::open(&path) {
                Ok(file) => {
                    on_event(CacheEvent::Found { path });
                    return Ok(self.dataset(file));
                }
                Err(why) => on_event(CacheEvent::Damaged { path: path.clone(), why }),
            }
        }
        self.write(&path, read)?;
        let file = TokenFile::open(&path).map_err(|why| DataError::Read {
            path: path.clone(),
            cause: io::Error::other(format!("just written, {why}")),
        })?;
        on_event(CacheEvent::Written { path });
        Ok(self.dataset(file))
    }

    fn dataset(&self, file: TokenFile) -> Dataset {
        Dataset {
            summary: file.summary().clone(),
            examples: Examples::from(file),
            max_length: self.options.max_length,
            shares: Vec::new(),
        }
    }

    fn write(
        &self,
        path: &Path,
        read: impl FnOnce(&mut Sink<'_>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let failed = |cause| DataError::Write { path: path.to_owned(), cause };
        let mut writer = TokenWriter::create(path).map_err(failed)?;
        let mut summary = Summary::default();
        let mut faults = Faults::default();
        read(&mut |rows| {
            summary.rows += rows.len();
            let built: Vec<_> = rows
                .into_par_iter()
                .map(|row| {
                    let row = row?;
                    build(self.tokenizer, &row, self.options)
                        .map_err(|cause| Fault::new(row.source, cause))
                })
                .collect();
            for result in built {
                match result {
                    Err(fault) => faults.push_fault(fault),
                    Ok(example) => {
                        // After a fault nothing is kept, but all faults are to be told.
                        if faults.is_empty() && summary.count(&example, self.options.max_length) {
                            writer.push(&example).map_err(failed)?;
                        }
                    }
                }
            }
            Ok(())
        })?;
        if !faults.is_empty() {
            return Err(DataError::Faults(faults));
        }
        if summary.examples == 0 {
            return Err(DataError::NothingToTrain(summary.why_nothing(self.options)));
        }
        writer.finish(path, &summary).map_err(failed)
    }

    /// The hash of everything that decides what is in the token file.
    fn key(&self) -> Result<u128, DataError> {
        let mut hasher = Xxh3::new();
        let mut tell = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        let ExampleOptions { max_length, train_on, template, date } = self.options;
        tell(&VERSION.to_le_bytes());
        tell(env!("CARGO_PKG_VERSION").as_bytes());
        tell(self.reading.as_bytes());
        tell(format!("{max_length:?} {train_on:?} {template:?}").as_bytes());
        let day = self.tokenizer.asks_for_the_day().then(|| match date {
            Some(date) => date.clone(),
            None => jiff::Zoned::now().date().to_string(),
        });
        tell(format!("{day:?}").as_bytes());
        for (name, bytes) in self.tokenizer.files() {
            tell(name.as_bytes());
            tell(bytes);
        }
        for path in self.files {
            // Messages name the rows by it.
            tell(path.as_os_str().as_encoded_bytes());
            let (length, content) = File::open(path)
                .and_then(|mut file| hashed(&mut file))
                .map_err(|cause| DataError::Read { path: path.clone(), cause })?;
            tell(&length.to_le_bytes());
            tell(&content.digest128().to_le_bytes());
        }
        Ok(hasher.digest128())
    }
}

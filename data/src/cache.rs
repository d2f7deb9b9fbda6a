//! Data sets that are tokenized once, kept in a folder, and read from there by mapping.
//!
//! A token file is named by a hash of everything that decides what is in it: the contents of the data files, the files of
//! the tokenizer (its chat template among them), the settings, this program's version, and the day where the template asks
//! for it. So one that is stale is never found; one that is damaged is found out by its checksum and made again.

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
use crate::tokenize::{DataFiles, Made};

/// A data set that may be cached.
#[derive(Debug, Clone, Copy)]
pub struct Cached<'a> {
    /// The folder of token files; made if need be.
    pub folder: &'a Path,
    /// What is in them.
    pub data: DataFiles<'a>,
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

impl Cached<'_> {
    /// The data set from its token file. If there is none, it is made: each batch of rows is tokenized on all cores and
    /// written before the next is taken, so memory holds few of them. Rows that are skipped go to `rejects`, also when
    /// the file is found: it knows them.
    ///
    /// # Errors
    /// Files that can't be read or written; rows at fault that `rejects` doesn't take; no example left. Then no token
    /// file is written.
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
                    rejects.so_far()?;
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
            cause: io::Error::other(format!("just written, {why}")),
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
        let summary = self.data.make(rejects, |made| {
            let written = match made {
                Made::Example(example) => writer.push(&example),
                Made::Fault(fault) => writer.fault(fault),
            };
            written.map_err(failed)
        })?;
        writer.finish(path, &summary).map_err(failed)
    }

    /// The hash of everything that decides what is in the token file.
    fn key(&self) -> Result<u128, DataError> {
        let DataFiles { files, read, tokenizer, options } = self.data;
        let mut hasher = Xxh3::new();
        let mut tell = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        let ExampleOptions { max_length, train_on, template, date } = options;
        tell(&VERSION.to_le_bytes());
        tell(env!("CARGO_PKG_VERSION").as_bytes());
        tell(format!("{read:?}").as_bytes());
        tell(format!("{max_length:?} {train_on:?} {template:?}").as_bytes());
        let day = tokenizer.asks_for_the_day().then(|| match date {
            Some(date) => date.clone(),
            None => jiff::Zoned::now().date().to_string(),
        });
        tell(format!("{day:?}").as_bytes());
        for (name, bytes) in tokenizer.files() {
            tell(name.as_bytes());
            tell(bytes);
        }
        for path in files {
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

/// The time of a token file's last use is that of its last change: so it can be told which are old.
fn mark_as_used(path: &Path) {
    // Where it can't be noted, the file only looks older than it is.
    let _ = File::options()
        .append(true)
        .open(path)
        .and_then(|file| file.set_modified(SystemTime::now()));
}

//! Files of lines that are there whole or not at all, compressed if their name says so.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::error::DataError;

/// Writes lines beside the file that they are to become; [`LineWriter::commit`] puts it in place.
pub struct LineWriter {
    path: PathBuf,
    encoder: Encoder,
    lines: u64,
}

enum Encoder {
    Plain(BufWriter<NamedTempFile>),
    Gzip(Box<flate2::write::GzEncoder<BufWriter<NamedTempFile>>>),
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<NamedTempFile>>),
}

impl std::fmt::Debug for LineWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

impl LineWriter {
    /// Begins a file; a name that ends in `.gz` or `.zst` makes it compressed. The folder is made if need be.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn create(path: &Path) -> Result<Self, DataError> {
        let begun = || -> io::Result<Encoder> {
            let file = BufWriter::with_capacity(1 << 18, beside(path)?);
            let end = path.extension().and_then(|end| end.to_str()).unwrap_or("");
            Ok(match end.to_lowercase().as_str() {
                "gz" => Encoder::Gzip(Box::new(flate2::write::GzEncoder::new(
                    file,
                    flate2::Compression::default(),
                ))),
                "zst" | "zstd" => Encoder::Zstd(zstd::stream::write::Encoder::new(file, 3)?),
                _ => Encoder::Plain(file),
            })
        };
        let encoder = begun().map_err(|cause| write_error(path, cause))?;
        Ok(Self { path: path.to_owned(), encoder, lines: 0 })
    }

    /// Writes a line.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn line(&mut self, line: &str) -> Result<(), DataError> {
        let writer: &mut dyn Write = match &mut self.encoder {
            Encoder::Plain(writer) => writer,
            Encoder::Gzip(writer) => writer,
            Encoder::Zstd(writer) => writer,
        };
        self.lines += 1;
        let written = writer.write_all(line.as_bytes()).and_then(|()| writer.write_all(b"\n"));
        written.map_err(|cause| write_error(&self.path, cause))
    }

    /// Writes a value as a line.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn value(&mut self, value: &Value) -> Result<(), DataError> {
        self.line(&value.to_string())
    }

    /// Lines written.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Puts the file in place, replacing one that is there.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn commit(self) -> Result<(), DataError> {
        let Self { path, encoder, .. } = self;
        let done = || -> io::Result<()> {
            let writer = match encoder {
                Encoder::Plain(writer) => writer,
                Encoder::Gzip(writer) => writer.finish()?,
                Encoder::Zstd(writer) => writer.finish()?,
            };
            settle(writer.into_inner().map_err(io::IntoInnerError::into_error)?, &path)
        };
        done().map_err(|cause| write_error(&path, cause))
    }
}

/// Writes a file whole or not at all. The folder is made if need be.
///
/// # Errors
/// A file that cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let done = || -> io::Result<()> {
        let mut file = beside(path)?;
        file.write_all(bytes)?;
        settle(file, path)
    };
    done().map_err(|cause| write_error(path, cause))
}

/// A file of another name in the folder of `path`.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".{name}.");
    builder.prefix(&prefix);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any new file: the umask takes its share.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

fn settle(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn write_error(path: &Path, cause: io::Error) -> DataError {
    DataError::Write { path: path.to_owned(), cause }
}

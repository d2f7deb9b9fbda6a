//! Output files that appear under their names only when complete.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::error::DataError;

/// Writes lines to a temporary file, which [`LineWriter::commit`] moves to its path.
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
    /// Starts a file, compressed if its name ends in `.gz` or `.zst`. The folder is created if needed.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn create(path: &Path) -> Result<Self, DataError> {
        let create = || -> io::Result<Encoder> {
            let file = BufWriter::with_capacity(1 << 18, temporary_file(path)?);
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
        let encoder = create().map_err(|cause| write_error(path, cause))?;
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

    /// Number of lines written.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Moves the file to its path, replacing an existing one.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn commit(self) -> Result<(), DataError> {
        let Self { path, encoder, .. } = self;
        let commit = || -> io::Result<()> {
            let writer = match encoder {
                Encoder::Plain(writer) => writer,
                Encoder::Gzip(writer) => writer.finish()?,
                Encoder::Zstd(writer) => writer.finish()?,
            };
            persist(writer.into_inner().map_err(io::IntoInnerError::into_error)?, &path)
        };
        commit().map_err(|cause| write_error(&path, cause))
    }
}

/// Writes a file atomically: readers see the old content or the new. The folder is created if needed.
///
/// # Errors
/// A file that cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let write = || -> io::Result<()> {
        let mut file = temporary_file(path)?;
        file.write_all(bytes)?;
        persist(file, path)
    };
    write().map_err(|cause| write_error(path, cause))
}

/// A temporary file in the folder of `path`, which is created if needed.
pub(crate) fn temporary_file(path: &Path) -> io::Result<NamedTempFile> {
    let folder = folder_of(path);
    fs::create_dir_all(folder)?;
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".{name}.");
    builder.prefix(&prefix);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The permissions of any new file; the umask applies.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Moves a complete temporary file to its path, replacing an existing one. File and folder are synced, so that the file
/// survives a power failure.
pub(crate) fn persist(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // Other systems can't sync folders.
    #[cfg(unix)]
    fs::File::open(folder_of(path))?.sync_all()?;
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn write_error(path: &Path, cause: io::Error) -> DataError {
    DataError::Write { path: path.to_owned(), cause }
}

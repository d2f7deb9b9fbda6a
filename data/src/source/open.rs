//! Opening data files: detecting the type, decompressing gzip and zstd.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::error::DataError;

/// The decompressed bytes of a file.
pub(crate) type Input = Box<dyn BufRead + Send>;

const BUFFER: usize = 1 << 18;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The type of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    JsonLines,
    /// A list, or JSON Lines in a file named `.json`.
    Json,
    Csv {
        delimiter: u8,
    },
    Text,
    Parquet,
}

/// The type of a file by its name.
pub(crate) fn kind(path: &Path) -> Result<Kind, DataError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("").to_lowercase();
    let inner = [".gz", ".zst", ".zstd"].iter().find_map(|end| name.strip_suffix(end));
    let extension = Path::new(inner.unwrap_or(&name)).extension().and_then(|end| end.to_str());
    Ok(match extension.unwrap_or("") {
        "jsonl" | "ndjson" => Kind::JsonLines,
        "json" => Kind::Json,
        "csv" => Kind::Csv { delimiter: b',' },
        "tsv" => Kind::Csv { delimiter: b'\t' },
        "txt" => Kind::Text,
        "parquet" if inner.is_none() => Kind::Parquet,
        other => {
            let end = &name[inner.map_or(name.len(), str::len)..];
            let found = match (other, end) {
                ("", "") => "none".to_owned(),
                ("", end) => end.to_owned(),
                (other, end) => format!(".{other}{end}"),
            };
            return Err(DataError::UnknownExtension { path: path.to_owned(), found });
        }
    })
}

/// Opens a file.
pub(crate) fn open(path: &Path) -> Result<Input, DataError> {
    let opened =
        File::open(path).and_then(|file| decompress(BufReader::with_capacity(BUFFER, file)));
    opened.map_err(|cause| DataError::Read { path: path.to_owned(), cause })
}

/// Decompresses the bytes. Compression is detected from the first bytes, not from the name; a byte order mark, as
/// Windows tools write it, is skipped.
pub(crate) fn decompress(mut bytes: impl BufRead + Send + 'static) -> io::Result<Input> {
    let start = bytes.fill_buf()?;
    let mut input: Input = if start.starts_with(&GZIP) {
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(bytes)))
    } else if start.starts_with(&ZSTD) {
        let decoder = zstd::stream::read::Decoder::with_buffer(bytes)?;
        Box::new(BufReader::with_capacity(BUFFER, decoder))
    } else {
        Box::new(bytes)
    };
    // An error here is reported when the input is read.
    if input.fill_buf().is_ok_and(|start| start.starts_with(BYTE_ORDER_MARK)) {
        input.consume(BYTE_ORDER_MARK.len());
    }
    Ok(input)
}

/// Result of reading a line.
pub(crate) enum LineRead {
    /// The whole line.
    Whole,
    /// Longer than the limit; it was skipped.
    TooLong,
    /// End of the input.
    End,
}

/// Reads a line with its `\n` into `line`, which is cleared first and stays empty if the line is longer than `limit`.
pub(crate) fn line(input: &mut Input, limit: usize, line: &mut Vec<u8>) -> io::Result<LineRead> {
    line.clear();
    let read = input.by_ref().take(limit as u64 + 1).read_until(b'\n', line)?;
    if read == 0 {
        return Ok(LineRead::End);
    }
    if read > limit {
        if line.last() != Some(&b'\n') {
            input.skip_until(b'\n')?;
        }
        line.clear();
        return Ok(LineRead::TooLong);
    }
    Ok(LineRead::Whole)
}

/// Skips white space and returns the number of line breaks in it.
pub(crate) fn blank_lines(input: &mut Input) -> usize {
    let mut lines = 0;
    // An error here is reported by the reader that follows.
    while let Ok(bytes) = input.fill_buf() {
        let white = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if white == 0 {
            break;
        }
        lines += bytes[..white].iter().filter(|byte| **byte == b'\n').count();
        input.consume(white);
    }
    lines
}

/// Whether the next byte is `byte`.
pub(crate) fn starts_with(input: &mut Input, byte: u8) -> bool {
    input.fill_buf().is_ok_and(|bytes| bytes.first() == Some(&byte))
}

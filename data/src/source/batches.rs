//! Rows in batches, read on a separate thread while the previous batch is processed.

use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::thread;

use super::record::Record;
use super::records::{ReadOptions, Rows};
use crate::error::{DataError, Fault};
use crate::format::Format;
use crate::row::SourcedRow;

/// A row, its format, and the object it was read from.
pub type ReadRow = (SourcedRow, Format, Record);

/// A row, or why it is invalid.
pub type Read = Result<ReadRow, Fault>;

/// Maximum rows of a batch.
const ROWS: usize = 2048;
/// Bytes from which a batch is full.
const BYTES: usize = 8 << 20;

/// Passes the rows of files to `take` in order, in batches limited in rows and bytes.
///
/// # Errors
/// A file that cannot be opened; an error of `take`.
pub fn for_each_batch<E: From<DataError>>(
    files: &[PathBuf],
    options: &ReadOptions,
    mut take: impl FnMut(Vec<Read>) -> Result<(), E>,
) -> Result<(), E> {
    thread::scope(|scope| {
        let (send, receive) = sync_channel::<Result<Vec<Read>, DataError>>(1);
        scope.spawn(move || {
            let mut batch = Vec::new();
            let mut bytes = 0;
            for file in files {
                let mut rows = match Rows::open(file, options) {
                    Ok(rows) => rows,
                    Err(error) => {
                        // Sending fails only if the receiver was dropped.
                        let _ = send.send(Err(error));
                        return;
                    }
                };
                while let Some(row) = rows.next_with_record() {
                    bytes += size_of_row(&row);
                    batch.push(row);
                    if batch.len() >= ROWS || bytes >= BYTES {
                        bytes = 0;
                        if send.send(Ok(std::mem::take(&mut batch))).is_err() {
                            return;
                        }
                    }
                }
            }
            if !batch.is_empty() {
                let _ = send.send(Ok(batch));
            }
        });
        // Dropped when `take` fails, which stops the reader.
        for batch in receive {
            take(batch?)?;
        }
        Ok(())
    })
}

/// Approximate memory of a row in bytes.
fn size_of_row(row: &Read) -> usize {
    use crate::row::Row;
    let text = match row {
        Err(fault) => return fault.text.as_deref().map_or(0, str::len),
        Ok((row, _, record)) => record.text.as_deref().map_or(0, str::len).max(match &row.row {
            Row::Text(text) => text.len(),
            Row::Completion { prompt, completion } => prompt.len() + completion.len(),
            Row::Chat { messages, .. } => messages.iter().map(|m| m.content.len()).sum(),
        }),
    };
    3 * text
}

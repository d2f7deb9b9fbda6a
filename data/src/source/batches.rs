//! Rows in batches, read on a thread of their own while the batch before is worked on.

use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::thread;

use super::{Fault, ReadOptions, Record, Rows};
use crate::error::DataError;
use crate::row::{Format, SourcedRow};

/// A row, by which keys it is one, and the object it was made from.
pub type ReadRow = (SourcedRow, Format, Record);

/// A row, or what is wrong with it.
pub type Read = Result<ReadRow, Fault>;

/// Rows of a batch at most.
const ROWS: usize = 2048;
/// Bytes of a batch, from which it takes no further row.
const BYTES: usize = 8 << 20;

/// Gives the rows of files to `take` in order, in batches whose size is bounded in rows and in bytes.
///
/// # Errors
/// A file that cannot be opened; what `take` fails with.
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
                        // Nobody waits any more where sending fails.
                        let _ = send.send(Err(error));
                        return;
                    }
                };
                while let Some(row) = rows.next_with_record() {
                    bytes += weight(&row);
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
        // Dropped when `take` fails: the reader then stops.
        for batch in receive {
            take(batch?)?;
        }
        Ok(())
    })
}

/// About the bytes that a row holds.
fn weight(row: &Read) -> usize {
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

//! Reading rows from files one after another: memory use does not depend on the size of the files.
//!
//! [`Records`] reads JSON objects (from JSON Lines, JSON lists, CSV, Parquet or plain text, compressed or not);
//! [`RowShape`] turns them into rows; [`Rows`] does both.

mod array;
mod batches;
mod columns;
mod documents;
mod fields;
mod json_path;
mod lines;
mod open;
mod paths;
mod record;
mod records;
mod rejects;
mod row_template;
mod table;

pub use batches::{Read, ReadRow, for_each_batch};
pub use documents::TextBy;
pub use fields::{FieldMap, RowShape};
pub(crate) use json_path::at_path;
pub(crate) use lines::json_error;
pub use paths::data_files;
pub use record::Record;
pub use records::{ReadOptions, Records, Rows};
pub use rejects::{OnError, Rejects};
pub(crate) use rejects::{from_reject_line, reject_line};
pub use row_template::{RowTemplate, RowTemplates};

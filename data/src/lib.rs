//! Rows, chat templates, tokens, label masks and batches. Knows nothing of Burn.
//!
//! The way of a row: [`read_rows`] → [`Dataset::build`] (chat template, tokens, mask: [`example`]) →
//! [`Loader`] (which examples stand in which row, and which rows a step takes) → [`Batch::of_rows`].
//!
//! Labels are masked by position, never by token id: where the padding token is also the end of a turn, the end
//! must still be learned.
#![deny(missing_docs)]

mod batch;
mod cache;
mod dataset;
pub mod date;
mod error;
mod example;
mod examples;
mod files;
mod generation_tag;
mod loader;
mod mix;
mod order;
mod packing;
mod preview;
mod python;
mod read;
mod row;
mod shape;
mod stream;
mod supervision;
mod template;
mod token_file;
mod tokenizer;
mod turns;

pub use batch::{Batch, Target};
pub use cache::{CacheEvent, Cached, Sink};
pub use dataset::{Dataset, Summary};
pub use error::{DataError, Fault, Faults, RowError, TemplateError};
pub use example::{Example, ExampleOptions, TemplateChoice, example};
pub use examples::Examples;
pub use files::TokenizerFiles;
pub use loader::{Cursor, Layout, Loader, LoaderOptions, Piece};
pub use mix::{MixReport, MixSource, Mixed, mix};
pub use order::Share;
pub use preview::preview;
pub use read::{parse_rows, read_rows};
pub use row::{Format, Message, Row, Source, SourcedRow};
pub use shape::row_from_value;
pub use stream::StreamDecoder;
pub use supervision::TrainOn;
pub use template::Rendered;
pub use tokenizer::TextTokenizer;

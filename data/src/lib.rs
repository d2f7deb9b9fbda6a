//! Rows, chat templates, tokens, label masks and batches. Knows nothing of Burn.
//!
//! The way of a row: [`read_rows`] → [`Dataset::build`] (chat template, tokens, mask: [`example`]) →
//! [`Loader`] (which examples stand in which row, and which rows a step takes) → [`Batch::of_rows`].
//!
//! Labels are masked by position, never by token id: where the padding token is also the end of a turn, the end
//! must still be learned.
#![deny(missing_docs)]

mod added_tokens;
mod audit;
mod batch;
mod bpe;
mod cache;
mod cache_folder;
mod clean;
mod dataset;
pub mod date;
mod error;
mod example;
mod examples;
mod files;
mod fingerprint;
mod generation_tag;
mod loader;
mod mix;
mod near;
mod nearest;
mod order;
mod output;
mod packing;
mod preview;
mod python;
mod read;
mod row;
mod shape;
mod source;
mod split;
mod stream;
mod supervision;
mod template;
mod text;
mod token_file;
mod tokenize;
mod tokenizer;
mod turns;

pub use audit::{
    Allowed, AuditOptions, AuditReport, Bin, Count, FailOn, Finding, Kind, Lengths, audit,
};
pub use batch::{Batch, Target};
pub use bpe::{BpeOptions, BpeReport, train_tokenizer};
pub use cache::{CacheEvent, Cached};
pub use cache_folder::{TokenFileHolds, TokenFileInfo, token_files};
pub use clean::{CleanOptions, CleanReport, Rule, RuleCount, clean, pattern};
pub use dataset::{Dataset, Summary};
pub use error::{DataError, Fault, Faults, RowError, TemplateError};
pub use example::{Example, ExampleOptions, TemplateChoice, example};
pub use examples::Examples;
pub use files::TokenizerFiles;
pub use loader::{Cursor, Layout, Loader, LoaderOptions, Piece};
pub use mix::{MixReport, MixSource, Mixed, mix};
pub use near::Part;
pub use nearest::{likeness, nearest};
pub use order::Share;
pub use output::{LineWriter, write_whole};
pub use preview::preview;
pub use read::{parse_rows, read_all_rows, read_rows};
pub use row::{Format, Message, Row, Source, SourcedRow};
pub use shape::row_from_value;
pub use source::{
    FieldMap, OnError, Read, ReadOptions, ReadRow, Record, Records, Rejects, RowShape, RowTemplate,
    RowTemplates, Rows, TextBy, data_files, for_each_batch,
};
pub use split::{
    EntityKind, EvalSize, LeakOptions, LeakPair, LeakReport, MaskOptions, MaskReport, SplitBy,
    SplitReport, leaks, mask, split,
};
pub use stream::StreamDecoder;
pub use supervision::TrainOn;
pub use template::Rendered;
pub use text::language::Languages;
pub use tokenize::DataFiles;
pub use tokenizer::TextTokenizer;

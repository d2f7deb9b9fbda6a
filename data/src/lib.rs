//! Rows, chat templates, tokens, loss masks and batches. Independent of Burn.
//!
//! The stages: [`read_rows`] → [`Dataset::build`] (chat template, tokens, loss mask: [`example`]) → [`Loader`] (packing
//! of examples into rows, order of the rows) → [`Batch::of_rows`].
//!
//! Labels are masked by position, never by token id: a padding token that also ends a turn is still trained on there.
#![deny(missing_docs)]

mod added_tokens;
mod audit;
mod batch;
mod bpe;
mod cache;
mod cache_folder;
mod choice;
mod clean;
mod dataset;
pub mod date;
mod error;
mod example;
mod example_view;
mod examples;
mod files;
mod fingerprint;
mod format;
mod generation_tag;
mod loader;
mod location;
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
mod source;
mod split;
mod stream;
mod summary;
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
pub use cache_folder::{TokenFileContent, TokenFileInfo, token_files};
pub use clean::{CleanOptions, CleanReport, Rule, RuleCount, clean, pattern};
pub use dataset::Dataset;
pub use error::{DataError, Fault, Faults, RowError, TemplateError};
pub use example::{Example, ExampleOptions, TemplateChoice, example};
pub use examples::Examples;
pub use files::TokenizerFiles;
pub use format::{Format, row_from_value};
pub use loader::{Cursor, Layout, Loader, LoaderOptions};
pub use location::Source;
pub use mix::{MixReport, MixSource, Mixed, mix};
pub use near::Part;
pub use nearest::{likeness, nearest};
pub use order::Share;
pub use output::{LineWriter, write_whole};
pub use packing::Piece;
pub use preview::preview;
pub use read::{parse_rows, read_all_rows, read_rows};
pub use row::{Message, Row, SourcedRow};
pub use source::{
    FieldMap, OnError, Read, ReadOptions, ReadRow, Record, Records, Rejects, RowShape, RowTemplate,
    RowTemplates, Rows, TextBy, data_files, for_each_batch,
};
pub use split::{
    EntityKind, EvalSize, LeakOptions, LeakPair, LeakReport, MaskOptions, MaskReport, SplitBy,
    SplitReport, leaks, mask, split,
};
pub use stream::StreamDecoder;
pub use summary::Summary;
pub use supervision::TrainOn;
pub use template::Rendered;
pub use text::language::Languages;
pub use tokenize::DataFiles;
pub use tokenizer::TextTokenizer;

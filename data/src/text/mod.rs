//! What can be told of a text without a model: its words, and what is wrong with it.

pub(crate) mod language;
pub(crate) mod quality;
pub(crate) mod words;

//! Properties of texts that need no model: words, language, signs of poor quality.

pub(crate) mod language;
pub(crate) mod quality;
pub(crate) mod words;

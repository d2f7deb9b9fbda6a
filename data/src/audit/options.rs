//! Options of an audit.

use crate::example::ExampleOptions;

/// Options of an audit.
#[derive(Debug, Clone)]
pub struct AuditOptions {
    /// How examples are built.
    pub example: ExampleOptions,
    /// Examples with fewer supervised tokens are too short.
    pub min_supervised: usize,
    /// Minimum similarity of near-duplicates, 0 < s ≤ 1; `None`: don't search for them.
    pub near: Option<f64>,
    /// Words of the n-grams that are compared.
    pub ngram: usize,
    /// Number of examples to show.
    pub show: usize,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self {
            example: ExampleOptions::default(),
            min_supervised: 3,
            near: Some(0.8),
            ngram: 3,
            show: 1,
        }
    }
}

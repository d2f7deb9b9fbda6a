//! `data.json` in a run folder: statistics of the training and evaluation data.

use std::io::Write;
use std::path::Path;

use emberlm_data::{Dataset, Summary};
use emberlm_quant::atomic_file::write_atomically;
use serde::{Deserialize, Serialize};

use crate::run::files::DATA_FILE;
use crate::run::run_folder::RunFolderError;

/// Maximum bins of a histogram.
const BINS: usize = 40;

/// The file's content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetStatsFile {
    /// The training data.
    pub train: DatasetStats,
    /// The evaluation data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<DatasetStats>,
}

/// Statistics of a data set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetStats {
    /// Rows of its files.
    pub rows: usize,
    /// Examples made of them.
    pub examples: usize,
    /// Tokens of the examples.
    pub tokens: usize,
    /// Supervised tokens.
    pub supervised_tokens: usize,
    /// Examples cut at the maximum length.
    pub truncated: usize,
    /// Dropped examples, which had no supervised token.
    pub dropped: usize,
    /// Tokens of the longest example.
    pub longest: usize,
    /// Histogram of the examples' lengths in tokens; bins of equal width, starting at 1.
    pub lengths: Vec<LengthBin>,
}

/// A bin of the histogram: `from` to `to` tokens, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthBin {
    /// Minimum length.
    pub from: usize,
    /// Maximum length.
    pub to: usize,
    /// Number of examples.
    pub count: usize,
}

impl DatasetStatsFile {
    /// The statistics of a run's data.
    pub fn of(train: &Dataset, eval: Option<&Dataset>) -> Self {
        Self { train: DatasetStats::of(train), eval: eval.map(DatasetStats::of) }
    }

    /// Writes it into a run folder.
    ///
    /// # Errors
    /// [`RunFolderError::Io`].
    pub fn write(&self, folder: &Path) -> Result<(), RunFolderError> {
        let path = folder.join(DATA_FILE);
        let written = serde_json::to_vec(self)
            .map_err(Into::into)
            .and_then(|text| write_atomically(&path, |out| out.write_all(&text)));
        written.map_err(|cause| RunFolderError::Io { path, cause })
    }
}

impl DatasetStats {
    fn of(data: &Dataset) -> Self {
        let Summary { rows, examples, tokens, supervised_tokens, .. } = data.summary;
        let Summary { truncated, dropped, longest, .. } = data.summary;
        let lengths = histogram(data.examples.iter().map(|example| example.ids.len()));
        Self { rows, examples, tokens, supervised_tokens, truncated, dropped, longest, lengths }
    }
}

/// Counts lengths in bins of equal, round width, starting at 1.
fn histogram(lengths: impl Iterator<Item = usize>) -> Vec<LengthBin> {
    let lengths: Vec<usize> = lengths.filter(|length| *length > 0).collect();
    let Some(&longest) = lengths.iter().max() else { return Vec::new() };
    let widths = (0..).map(|power| 10usize.pow(power)).flat_map(|of| [of, 2 * of, 5 * of]);
    let width = { widths }.find(|width| longest.div_ceil(*width) <= BINS).unwrap_or(longest);
    let mut bins: Vec<LengthBin> = (0..longest.div_ceil(width))
        .map(|n| LengthBin { from: n * width + 1, to: (n + 1) * width, count: 0 })
        .collect();
    for length in lengths {
        bins[(length - 1) / width].count += 1;
    }
    bins
}

#[cfg(test)]
mod tests {
    use emberlm_data::ExampleOptions;

    use super::*;
    use crate::base::builtin;

    #[test]
    fn statistics_are_written_and_read_back() {
        let tokenizer = builtin::base().unwrap().tokenizer;
        let rows = builtin::train_rows().unwrap();
        let data = Dataset::build(rows, &tokenizer, &ExampleOptions::default()).unwrap();
        let stats = DatasetStatsFile::of(&data, Some(&data));
        assert_eq!(stats.eval.as_ref(), Some(&stats.train));
        let DatasetStats { examples, longest, lengths, .. } = &stats.train;
        assert_eq!(lengths.iter().map(|bin| bin.count).sum::<usize>(), *examples);
        let last = lengths.last().unwrap();
        assert!((last.from..=last.to).contains(longest) && last.count > 0);

        let place = tempfile::tempdir().unwrap();
        stats.write(place.path()).unwrap();
        let text = std::fs::read_to_string(place.path().join(DATA_FILE)).unwrap();
        assert_eq!(serde_json::from_str::<DatasetStatsFile>(&text).unwrap(), stats);
        assert!(stats.write(&place.path().join("none")).is_err());
    }

    #[test]
    fn each_length_is_in_one_bin() {
        for lengths in [vec![1], vec![40, 1], vec![41, 41, 1], vec![2048, 7, 513, 1999]] {
            let bins = histogram(lengths.iter().copied());
            assert!(bins.len() <= BINS, "{lengths:?}: {}", bins.len());
            for bin in &bins {
                let inside = |length: &&usize| (bin.from..=bin.to).contains(length);
                assert_eq!(bin.count, lengths.iter().filter(inside).count(), "{lengths:?} {bin:?}");
            }
            assert_eq!(bins.iter().map(|bin| bin.count).sum::<usize>(), lengths.len());
        }
        assert_eq!(histogram([2048].into_iter()).len(), 21, "100 tokens a bin");
        assert!(histogram(std::iter::empty()).is_empty());
    }
}

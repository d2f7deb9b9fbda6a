//! `data.json` in a run folder: what the run learns from, in numbers.

use std::io::Write;
use std::path::Path;

use emberlm_data::{Dataset, Summary};
use emberlm_quant::atomic_file::write_atomically;
use serde::{Deserialize, Serialize};

use crate::run::run_folder::RunFolderError;

/// Its name.
pub const DATA_FILE: &str = "data.json";

/// Bins of a histogram, at most.
const BINS: usize = 40;

/// The file's content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// The rows to learn from.
    pub train: DatasetStats,
    /// The rows to evaluate on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<DatasetStats>,
}

/// One data set in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetStats {
    /// Rows that were given.
    pub rows: usize,
    /// Examples that are kept.
    pub examples: usize,
    /// Tokens of the examples that are kept.
    pub tokens: usize,
    /// Targets among them.
    pub supervised_tokens: usize,
    /// Examples that were cut at the greatest length.
    pub truncated: usize,
    /// Examples without a target, which are not kept.
    pub dropped: usize,
    /// Tokens of the longest example.
    pub longest: usize,
    /// Examples by their number of tokens; bins of equal width from 1 on.
    pub lengths: Vec<LengthBin>,
}

/// Examples of `from` to `to` tokens, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthBin {
    /// The least number of tokens.
    pub from: usize,
    /// The greatest.
    pub to: usize,
    /// How many examples have so many.
    pub count: usize,
}

impl DataFile {
    /// Of the data of a run.
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
        written.map_err(|source| RunFolderError::Io { path, source })
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

/// Counts lengths from 1 on in bins of equal, round width.
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
    fn a_data_set_is_told_in_numbers() {
        let tokenizer = builtin::base().unwrap().tokenizer;
        let rows = builtin::train_rows().unwrap();
        let data = Dataset::build(rows, &tokenizer, &ExampleOptions::default()).unwrap();
        let told = DataFile::of(&data, Some(&data));
        assert_eq!(told.eval.as_ref(), Some(&told.train));
        let DatasetStats { examples, longest, lengths, .. } = &told.train;
        assert_eq!(lengths.iter().map(|bin| bin.count).sum::<usize>(), *examples);
        let last = lengths.last().unwrap();
        assert!((last.from..=last.to).contains(longest) && last.count > 0);

        let place = tempfile::tempdir().unwrap();
        told.write(place.path()).unwrap();
        let text = std::fs::read_to_string(place.path().join(DATA_FILE)).unwrap();
        assert_eq!(serde_json::from_str::<DataFile>(&text).unwrap(), told);
        assert!(told.write(&place.path().join("none")).is_err());
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

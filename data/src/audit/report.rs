//! The report of an audit.

use std::collections::BTreeMap;

use serde::Serialize;

use super::finding::{FailOn, Finding};
use crate::example::Example;

/// The report of an audit. Serializes as the JSON object that `emberlm data check --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct AuditReport {
    /// Rows, including invalid ones.
    pub rows: u64,
    /// Rows that make an example.
    pub examples: u64,
    /// Tokens of the examples, after truncation.
    pub tokens: u64,
    /// Supervised tokens among them.
    pub supervised_tokens: u64,
    /// `supervised_tokens / tokens`
    pub supervised_share: f64,
    /// All findings, in a fixed order.
    pub findings: Vec<Count>,
    /// Rows and tokens by format.
    pub kinds: BTreeMap<String, Kind>,
    /// Lengths of the examples in tokens, before truncation.
    pub lengths: Lengths,
    /// The first invalid rows.
    pub faults: Vec<String>,
    /// The first examples.
    #[serde(skip)]
    pub shown: Vec<Example>,
}

/// The rows with a finding.
#[derive(Debug, Clone, Serialize)]
pub struct Count {
    /// The finding.
    pub finding: Finding,
    /// Number of rows.
    pub rows: u64,
    /// Share of all rows.
    pub share: f64,
    /// Files and lines of the first of them.
    pub first: Vec<String>,
}

/// Rows of one format.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Kind {
    /// Rows that make an example.
    pub rows: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Supervised tokens among them.
    pub supervised_tokens: u64,
}

/// Lengths in tokens.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Lengths {
    /// The minimum.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 95th percentile.
    pub p95: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
    /// Counts in bins of powers of two, without empty bins at the ends.
    pub histogram: Vec<Bin>,
}

/// A bin of the histogram.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// The smallest length.
    pub from: u64,
    /// The greatest length (inclusive).
    pub to: u64,
    /// Number of examples.
    pub count: u64,
}

impl AuditReport {
    /// Number of rows with a finding.
    pub fn count(&self, finding: Finding) -> u64 {
        self.findings.iter().find(|count| count.finding == finding).map_or(0, |c| c.rows)
    }

    /// The limits that are exceeded.
    pub fn failures<'a>(&self, limits: &'a [FailOn]) -> Vec<&'a FailOn> {
        limits.iter().filter(|limit| limit.fails(self.count(limit.finding), self.rows)).collect()
    }
}

impl Lengths {
    /// `counts`: examples by length.
    pub(super) fn of(counts: &BTreeMap<u64, u64>) -> Self {
        let total: u64 = counts.values().sum();
        let (Some((min, _)), Some((max, _))) = (counts.first_key_value(), counts.last_key_value())
        else {
            return Self::default();
        };
        // Nearest-rank percentile.
        let quantile = |percent: u64| {
            let rank = (total * percent).div_ceil(100).max(1);
            let mut below = 0;
            counts
                .iter()
                .find(|(_, count)| {
                    below += **count;
                    below >= rank
                })
                .map_or(*max, |(length, _)| *length)
        };
        let sum: f64 = counts.iter().map(|(length, count)| *length as f64 * *count as f64).sum();
        let bin = |length: u64| if length == 0 { 0 } else { length.ilog2() + 1 };
        let histogram = (bin(*min)..=bin(*max)).map(|at| {
            let (from, to) = if at == 0 { (0, 0) } else { (1 << (at - 1), (1 << at) - 1) };
            Bin { from, to, count: counts.range(from..=to).map(|(_, count)| count).sum() }
        });
        Self {
            min: *min,
            mean: sum / total as f64,
            p50: quantile(50),
            p90: quantile(90),
            p95: quantile(95),
            p99: quantile(99),
            max: *max,
            histogram: histogram.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_summarized() {
        let lengths = Lengths::of(&(1..=100).map(|n| (n, 1)).collect());
        assert_eq!(
            (lengths.min, lengths.p50, lengths.p90, lengths.p99, lengths.max),
            (1, 50, 90, 99, 100)
        );
        assert_eq!(lengths.mean, 50.5);
        assert_eq!(lengths.histogram.len(), 7);
        assert_eq!(lengths.histogram[6], Bin { from: 64, to: 127, count: 37 });
        assert_eq!(Lengths::of(&BTreeMap::new()).max, 0);
        assert_eq!(
            Lengths::of(&BTreeMap::from([(0, 2)])).histogram,
            [Bin { from: 0, to: 0, count: 2 }]
        );
    }
}

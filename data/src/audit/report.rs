//! What an audit found.

use std::collections::BTreeMap;

use serde::Serialize;

use super::finding::{FailOn, Finding};
use crate::example::Example;

/// What an audit found. Serializes as the JSON object that `emberlm data check --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct AuditReport {
    /// Rows, readable or not.
    pub rows: u64,
    /// Rows that make an example.
    pub examples: u64,
    /// Tokens of the examples, cut at the greatest length.
    pub tokens: u64,
    /// Targets among them.
    pub supervised_tokens: u64,
    /// `supervised_tokens / tokens`
    pub supervised_share: f64,
    /// Per finding, in a fixed order, all of them.
    pub findings: Vec<Count>,
    /// Rows and tokens by the keys the rows have.
    pub kinds: BTreeMap<&'static str, Kind>,
    /// Lengths of the examples in tokens, before they are cut.
    pub lengths: Lengths,
    /// The first rows at fault, in full.
    pub faults: Vec<String>,
    /// The first examples.
    #[serde(skip)]
    pub shown: Vec<Example>,
}

/// How many rows there are of a finding.
#[derive(Debug, Clone, Serialize)]
pub struct Count {
    /// Its name.
    pub finding: &'static str,
    /// Rows.
    pub rows: u64,
    /// Share of all rows.
    pub share: f64,
    /// Where the first of them stand.
    pub first: Vec<String>,
}

/// Rows of one kind.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Kind {
    /// Rows that make an example.
    pub rows: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Targets among them.
    pub supervised_tokens: u64,
}

/// Lengths in tokens.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Lengths {
    /// The least.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// Half are at most so long.
    pub p50: u64,
    /// 90 % are at most so long.
    pub p90: u64,
    /// 95 % are at most so long.
    pub p95: u64,
    /// 99 % are at most so long.
    pub p99: u64,
    /// The greatest.
    pub max: u64,
    /// Numbers by powers of two, without the empty ends.
    pub histogram: Vec<Bin>,
}

/// Lengths from `from` to `to`, both included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// The least length.
    pub from: u64,
    /// The greatest.
    pub to: u64,
    /// How many examples have one of them.
    pub count: u64,
}

impl AuditReport {
    /// Rows of a finding.
    pub fn count(&self, finding: Finding) -> u64 {
        self.findings.iter().find(|count| count.finding == finding.name()).map_or(0, |c| c.rows)
    }

    /// Those of the limits that are exceeded.
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
        // The nearest rank: the least length that so large a share is not longer than.
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
    fn lengths_are_summed_up() {
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

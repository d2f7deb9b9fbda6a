//! The findings of an audit, and the limits from which it fails.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;

use crate::choice;
use crate::error::DataError;

/// A problem of a row that an audit counts, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// Cannot be read as a row
    Unreadable,
    /// Cannot be rendered with the chat template
    Unusable,
    /// Longer than the maximum length
    Truncated,
    /// No token is trained on
    AllMasked,
    /// A part that is trained on does not end with an end token: the model would not learn to stop
    WithoutEndMark,
    /// Starts with two beginning-of-text tokens
    DoubledBos,
    /// The content contains the text of a special token
    SpecialTokens,
    /// An empty message, prompt or completion
    Empty,
    /// Fewer supervised tokens than the minimum
    TooShort,
    /// Same content as an earlier row
    ExactDuplicate,
    /// Content similar to an earlier row
    NearDuplicate,
    /// The answer ends in mid-sentence
    CutOff,
    /// Two or more HTML tags or entities outside of code
    Html,
    /// Ten URLs in a text, or two or more that make up 30 % of it
    Urls,
    /// UTF-8 decoded with another encoding, or replacement characters
    Mojibake,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&choice::name(self))
    }
}

/// A limit from which an audit fails: `truncated` (any row), `truncated=10` (more than ten rows), `truncated=5%` (more
/// than 5 % of the rows).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FailOn {
    /// The finding.
    pub finding: Finding,
    /// The rows that are allowed.
    pub allowed: Allowed,
}

/// The rows with a finding that are allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Allowed {
    /// This number of rows.
    Rows(u64),
    /// This share of all rows, 0 to 1.
    Share(f64),
}

impl FailOn {
    /// The default: rows that can't be read or rendered, and rows that are useless or harmful in any data set.
    pub const DEFAULT: [Self; 5] = [
        Self::any(Finding::Unreadable),
        Self::any(Finding::Unusable),
        Self::any(Finding::AllMasked),
        Self::any(Finding::WithoutEndMark),
        Self::any(Finding::DoubledBos),
    ];

    const fn any(finding: Finding) -> Self {
        Self { finding, allowed: Allowed::Rows(0) }
    }

    /// Whether `count` of `rows` rows exceed the limit.
    pub fn fails(&self, count: u64, rows: u64) -> bool {
        match self.allowed {
            Allowed::Rows(allowed) => count > allowed,
            Allowed::Share(share) => count as f64 > share * rows as f64,
        }
    }
}

impl fmt::Display for FailOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.allowed {
            Allowed::Rows(0) => write!(f, "{}", self.finding),
            Allowed::Rows(rows) => write!(f, "{}={rows}", self.finding),
            Allowed::Share(share) => write!(f, "{}={}%", self.finding, share * 100.0),
        }
    }
}

impl FromStr for FailOn {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let (name, allowed) = text.split_once('=').unwrap_or((text, "0"));
        let finding = choice::parse("fail-on", name)?;
        let allowed = match allowed.strip_suffix('%') {
            Some(percent) => percent
                .parse::<f64>()
                .ok()
                .filter(|percent| (0.0..=100.0).contains(percent))
                .map(|percent| Allowed::Share(percent / 100.0)),
            None => allowed.parse().ok().map(Allowed::Rows),
        };
        let allowed = allowed.ok_or_else(|| DataError::Setting {
            key: "fail-on".into(),
            expected: "a number of rows or a percentage, as in truncated=10 or truncated=5%".into(),
            found: text.into(),
            nearest: None,
        })?;
        Ok(Self { finding, allowed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed_and_applied() {
        let fails = |text: &str, count, rows| text.parse::<FailOn>().unwrap().fails(count, rows);
        assert!(fails("truncated", 1, 1000) && !fails("truncated", 0, 1000));
        assert!(fails("near-duplicate=2", 3, 4) && !fails("near-duplicate=2", 2, 4));
        assert!(fails("html=50%", 3, 5) && !fails("html=50%", 2, 4));
        for text in ["truncated", "html=3", "urls=2.5%"] {
            assert_eq!(text.parse::<FailOn>().unwrap().to_string(), text);
        }
        for (wrong, expected) in [
            ("trunctated", "Did you mean `truncated`?"),
            ("html=x", "percentage"),
            ("html=-1%", "%"),
        ] {
            let error = wrong.parse::<FailOn>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

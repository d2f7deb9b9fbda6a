//! What an audit looks for, and from how much of it on it fails.

use std::fmt;
use std::str::FromStr;

use crate::error::DataError;
use crate::nearest::nearest;

/// Something that an audit counts rows of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Finding {
    /// It cannot be read as a row.
    Unreadable,
    /// It cannot be written with the chat template.
    Unusable,
    /// It is longer than the greatest length.
    Truncated,
    /// Nothing of it is trained.
    AllMasked,
    /// A trained part that is whole does not end in an end mark: the model would not learn to stop.
    WithoutEndMark,
    /// It begins with the beginning-of-text token twice.
    DoubledBos,
    /// Its content holds the text of a special token.
    SpecialTokens,
    /// A message, prompt or completion is empty.
    Empty,
    /// Fewer tokens are trained than the least number.
    TooShort,
    /// Its content has occurred before.
    ExactDuplicate,
    /// Content much like its own has occurred before.
    NearDuplicate,
    /// The answer breaks off in mid-sentence.
    CutOff,
    /// It has at least two HTML tags or entities outside of code.
    Html,
    /// It consists of addresses to 30 % or more, or has ten.
    Urls,
    /// UTF-8 was read as another encoding, or replacement characters.
    Mojibake,
}

impl Finding {
    /// All of them, in the order of a report.
    pub const ALL: [Self; 15] = [
        Self::Unreadable,
        Self::Unusable,
        Self::Truncated,
        Self::AllMasked,
        Self::WithoutEndMark,
        Self::DoubledBos,
        Self::SpecialTokens,
        Self::Empty,
        Self::TooShort,
        Self::ExactDuplicate,
        Self::NearDuplicate,
        Self::CutOff,
        Self::Html,
        Self::Urls,
        Self::Mojibake,
    ];

    /// Its name, as a command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Unusable => "unusable",
            Self::Truncated => "truncated",
            Self::AllMasked => "all-masked",
            Self::WithoutEndMark => "without-end-mark",
            Self::DoubledBos => "doubled-bos",
            Self::SpecialTokens => "special-tokens",
            Self::Empty => "empty",
            Self::TooShort => "too-short",
            Self::ExactDuplicate => "exact-duplicate",
            Self::NearDuplicate => "near-duplicate",
            Self::CutOff => "cut-off",
            Self::Html => "html",
            Self::Urls => "urls",
            Self::Mojibake => "mojibake",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// From how much of a finding on an audit fails: `truncated` (a single row), `truncated=10` (more than ten rows),
/// `truncated=5%` (more than 5 % of the rows).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FailOn {
    /// The finding.
    pub finding: Finding,
    /// How much of it is allowed.
    pub allowed: Allowed,
}

/// How much of a finding is allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Allowed {
    /// So many rows.
    Rows(u64),
    /// This share of all rows, 0 to 1.
    Share(f64),
}

impl FailOn {
    /// What fails if nothing else is said: what can't be read or written, and what teaches nothing or the wrong thing
    /// whatever the data is.
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

    /// Whether `count` rows of `rows` are more than is allowed.
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
        let finding = Finding::ALL.into_iter().find(|finding| finding.name() == name);
        let wrong = |expected: &str, found: &str, nearest| DataError::Setting {
            key: "fail-on".into(),
            expected: expected.into(),
            found: found.into(),
            nearest,
        };
        let names = Finding::ALL.map(Finding::name);
        let finding =
            finding.ok_or_else(|| wrong(&names.join(", "), name, nearest(name, names)))?;
        let allowed = match allowed.strip_suffix('%') {
            Some(percent) => percent
                .parse::<f64>()
                .ok()
                .filter(|percent| (0.0..=100.0).contains(percent))
                .map(|percent| Allowed::Share(percent / 100.0)),
            None => allowed.parse().ok().map(Allowed::Rows),
        };
        let expected = "a number of rows or a percentage, as in truncated=10 or truncated=5%";
        Ok(Self { finding, allowed: allowed.ok_or_else(|| wrong(expected, text, None))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_applied() {
        let fails = |text: &str, count, rows| text.parse::<FailOn>().unwrap().fails(count, rows);
        assert!(fails("truncated", 1, 1000) && !fails("truncated", 0, 1000));
        assert!(fails("near-duplicate=2", 3, 4) && !fails("near-duplicate=2", 2, 4));
        assert!(fails("html=50%", 3, 5) && !fails("html=50%", 2, 4));
        for text in ["truncated", "html=3", "urls=2.5%"] {
            assert_eq!(text.parse::<FailOn>().unwrap().to_string(), text);
        }
        for (wrong, said) in [
            ("trunctated", "Did you mean `truncated`?"),
            ("html=x", "percentage"),
            ("html=-1%", "%"),
        ] {
            let error = wrong.parse::<FailOn>().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}

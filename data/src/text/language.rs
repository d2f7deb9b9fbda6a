//! The share of a text that is in given languages.

use whatlang::{Detector, Lang};

use crate::error::DataError;
use crate::nearest::nearest;

/// Letters of a segment whose language is detected.
const SEGMENT: usize = 200;
/// Minimum letters of a text: the language of shorter ones can't be detected.
const MIN_LETTERS: usize = 20;

/// Languages, by ISO 639-3 code (`eng`, `deu`, `cmn`) or, for common ones, ISO 639-1 code (`en`, `de`, `zh`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Languages {
    wanted: Vec<Lang>,
}

const SHORT: [(&str, Lang); 16] = [
    ("en", Lang::Eng),
    ("de", Lang::Deu),
    ("fr", Lang::Fra),
    ("es", Lang::Spa),
    ("it", Lang::Ita),
    ("pt", Lang::Por),
    ("nl", Lang::Nld),
    ("pl", Lang::Pol),
    ("ru", Lang::Rus),
    ("uk", Lang::Ukr),
    ("tr", Lang::Tur),
    ("ar", Lang::Ara),
    ("hi", Lang::Hin),
    ("ja", Lang::Jpn),
    ("ko", Lang::Kor),
    ("zh", Lang::Cmn),
];

impl Languages {
    /// From codes.
    ///
    /// # Errors
    /// An unknown code.
    pub fn new<S: AsRef<str>>(codes: &[S]) -> Result<Self, DataError> {
        let mut wanted = Vec::with_capacity(codes.len());
        for code in codes {
            let code = code.as_ref().to_lowercase();
            let short = SHORT.iter().find(|(short, _)| *short == code).map(|(_, lang)| *lang);
            wanted.push(short.or_else(|| Lang::from_code(&code)).ok_or_else(|| {
                DataError::Setting {
                    key: "language".into(),
                    expected: "a code such as eng, deu, cmn, en, de or zh".into(),
                    nearest: nearest(&code, Lang::all().iter().map(|lang| lang.code())),
                    found: code,
                }
            })?);
        }
        Ok(Self { wanted })
    }

    /// The share of the letters that are in segments of these languages. `None`: too few letters.
    pub fn share(&self, text: &str) -> Option<f64> {
        let detector = Detector::new();
        let mut letters = 0_usize;
        let mut right = 0_usize;
        let mut judge = |segment: &str, count: usize| {
            let found = detector.detect(segment);
            letters += count;
            if found.is_some_and(|found| self.wanted.contains(&found.lang())) {
                right += count;
            }
        };
        let mut start = 0;
        let mut count = 0;
        let total = text.chars().filter(|c| c.is_alphabetic()).count();
        if total < MIN_LETTERS {
            return None;
        }
        let mut judged = 0;
        for (at, c) in text.char_indices() {
            count += usize::from(c.is_alphabetic());
            // The rest of the text belongs to the last segment.
            if count >= SEGMENT && !c.is_alphanumeric() && total - judged - count >= SEGMENT / 2 {
                judge(&text[start..at], count);
                judged += count;
                (start, count) = (at, 0);
            }
        }
        judge(&text[start..], count);
        Some(right as f64 / letters.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_a_language() {
        let english =
            "The committee agreed that the proposal should be discussed again next week. ";
        let german = "Der Ausschuss war sich einig, dass der Vorschlag nächste Woche wieder besprochen werden soll. ";
        let languages = Languages::new(&["en"]).unwrap();
        assert_eq!(languages.share(&english.repeat(9)), Some(1.0));
        assert_eq!(languages.share(&german.repeat(9)), Some(0.0));
        let mixed = languages.share(&[english.repeat(9), german.repeat(9)].concat()).unwrap();
        assert!((0.3..0.7).contains(&mixed), "{mixed}");
        assert_eq!(languages.share("Yes. 42"), None);
        assert_eq!(Languages::new(&["zh", "deu"]).unwrap().share(&german.repeat(2)), Some(1.0));
        assert!(Languages::new(&["xx"]).unwrap_err().to_string().contains("`xx`"));
    }
}

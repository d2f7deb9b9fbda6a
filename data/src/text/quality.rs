//! Signs of poor quality in a text.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::words::ngrams;

/// Tags and entities of HTML outside of code.
pub(crate) fn html_marks(text: &str) -> usize {
    static MARK: LazyLock<Regex> = LazyLock::new(|| {
        expression(
            r"(?i)</?(?:a|article|b|blockquote|body|br|button|center|code|dd|div|dl|dt|em|font|footer|form|h[1-6]|head|header|hr|html|i|iframe|img|input|label|li|link|meta|nav|ol|option|p|pre|script|section|select|span|strong|style|sub|sup|table|tbody|td|tfoot|th|thead|title|tr|u|ul|video)(?:\s[^<>]*)?/?>|&(?:nbsp|amp|lt|gt|quot|apos|mdash|ndash|rsquo|lsquo|ldquo|rdquo|hellip|#\d{2,5}|#x[0-9a-f]{2,4});",
        )
    });
    if !text.contains(['<', '&']) {
        return 0;
    }
    MARK.find_iter(&without_code(text)).count()
}

/// The text without fenced and inline code, where HTML is intended.
fn without_code(text: &str) -> Cow<'_, str> {
    static CODE: LazyLock<Regex> = LazyLock::new(|| expression(r"(?s)```.*?(?:```|\z)|`[^`\n]*`"));
    if text.contains('`') { CODE.replace_all(text, " ") } else { Cow::Borrowed(text) }
}

/// Number of URLs and their share of the text's bytes.
pub(crate) fn urls(text: &str) -> (usize, f64) {
    static URL: LazyLock<Regex> =
        LazyLock::new(|| expression(r#"(?i)(?:https?://|www\.)[^\s<>"'()\[\]{}]+"#));
    let mut count = 0;
    let mut bytes = 0;
    for found in URL.find_iter(text) {
        count += 1;
        bytes += found.len();
    }
    (count, bytes as f64 / text.len().max(1) as f64)
}

/// Number of characters whose UTF-8 was decoded as Windows-1252 or Latin-1 (`Ã©` for `é`), and of replacement characters.
/// A sequence counts if encoding it as Windows-1252 gives the UTF-8 of one character, which ftfy would repair.
pub(crate) fn mojibake(text: &str) -> usize {
    let mut count = 0;
    let mut expected = 0;
    for c in text.chars() {
        if c.is_ascii() {
            expected = 0;
            continue;
        }
        if c == char::REPLACEMENT_CHARACTER {
            count += 1;
        }
        match windows_byte(c) {
            Some(0x80..=0xbf) if expected > 0 => {
                expected -= 1;
                if expected == 0 {
                    count += 1;
                }
            }
            Some(byte) => {
                expected = match byte {
                    0xc2..=0xdf => 1,
                    0xe0..=0xef => 2,
                    0xf0..=0xf4 => 3,
                    _ => 0,
                };
            }
            None => expected = 0,
        }
    }
    count
}

/// The byte of a character in Windows-1252, or else in Latin-1.
fn windows_byte(c: char) -> Option<u8> {
    const HIGH: [char; 27] = [
        '€', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', 'Ž', '‘', '’', '“', '”', '•',
        '–', '—', '˜', '™', 'š', '›', 'œ', 'ž', 'Ÿ',
    ];
    const BYTES: [u8; 27] = [
        0x80, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8b, 0x8c, 0x8e, 0x91, 0x92,
        0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0x9b, 0x9c, 0x9e, 0x9f,
    ];
    match u32::from(c) {
        code @ 0x80..=0xff => u8::try_from(code).ok(),
        _ => HIGH.iter().position(|high| *high == c).map(|at| BYTES[at]),
    }
}

/// Share of control, private-use and replacement characters.
pub(crate) fn garbage(text: &str) -> f64 {
    let mut all = 0_usize;
    let mut bad = 0_usize;
    for c in text.chars() {
        all += 1;
        let private = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}');
        let control = c.is_control() && !matches!(c, '\n' | '\t' | '\r');
        bad += usize::from(private || control || c == char::REPLACEMENT_CHARACTER);
    }
    bad as f64 / all.max(1) as f64
}

/// Share of three-word sequences that repeat earlier ones in the text; 0 if there are fewer than thirty.
pub(crate) fn repetition(text: &str) -> f64 {
    let mut grams = ngrams(text, 3);
    let all = grams.len();
    if all < 30 {
        return 0.0;
    }
    grams.sort_unstable();
    grams.dedup();
    1.0 - grams.len() as f64 / all as f64
}

/// Whether the text ends in mid-sentence: it has whole sentences (or forty words), and its last line is prose that ends in
/// a letter, a comma, an opening bracket or a hyphen; or a code fence is not closed.
pub(crate) fn cut_off(text: &str) -> bool {
    let text = text.trim_end();
    if text.lines().filter(|line| line.trim_start().starts_with("```")).count() % 2 == 1 {
        return true;
    }
    let Some(last) = text.chars().next_back() else { return false };
    let open =
        last.is_alphabetic() || matches!(last, ',' | '(' | '[' | '{' | '-' | '–' | '、' | '，');
    if !open || is_listed(text.lines().next_back().unwrap_or("")) {
        return false;
    }
    // A text without any end of a sentence may be a title, a name or a list of words.
    let ends = |c: char| matches!(c, '.' | '!' | '?' | '。' | '！' | '？');
    let words = text.split_whitespace().count();
    let whole = text.char_indices().any(|(at, c)| {
        ends(c)
            && text[at + c.len_utf8()..]
                .starts_with(|next: char| next.is_whitespace() || !next.is_ascii())
    });
    (whole && words >= 8)
        || (whole && !text.is_ascii() && text.chars().count() >= 20)
        || words >= 40
}

/// Whether a line needs no full stop: list items, headings, table rows, code, `key: value`.
fn is_listed(line: &str) -> bool {
    let line = line.trim();
    let numbered = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with(['-', '*', '•', '#', '|', '>', '+', '·', '–', '—'])
        || (numbered.len() < line.len() && numbered.starts_with(['.', ')', ':', '、']))
        || line.split_whitespace().count() < 4 && line.is_ascii()
        || line.split_once(": ").is_some_and(|(key, _)| key.split_whitespace().count() <= 3)
}

fn expression(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant that a test compiles")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_in_code_does_not_count() {
        assert_eq!(html_marks("<p>Hi<br/> there&nbsp;<a href='x'>y</a></p>"), 6);
        assert_eq!(html_marks("if a < b and c > d, x&y; <T> Vec<u8>"), 0);
        assert_eq!(html_marks("Use `<div>`:\n```html\n<p>x</p>\n```\n"), 0);
    }

    #[test]
    fn urls_are_counted_and_measured() {
        let (count, share) = urls("see https://a.example/x, www.b.example");
        assert_eq!(count, 2);
        assert!((share - 34.0 / 38.0).abs() < 0.03, "{share}");
        assert_eq!(urls("no URL: http or www").0, 0);
    }

    #[test]
    fn mojibake_differs_from_text_with_accents() {
        for (good, count) in [("café – “quoted” naïve", 5), ("été", 2), ("漢😀", 2)] {
            assert_eq!(mojibake(good), 0, "{good}");
            let broken: String = good.bytes().map(as_windows).collect();
            assert_eq!(mojibake(&broken), count, "{broken}");
        }
        assert_eq!(mojibake("ÄÖÜ äöü ß Ñandú, L’Été â l’Âge… «Â la»"), 0);
        assert_eq!(mojibake("a\u{fffd}b"), 1);
    }

    fn as_windows(byte: u8) -> char {
        let low = char::from(byte);
        (0x80..=0x20ac)
            .filter_map(char::from_u32)
            .chain(['™'])
            .find(|c| *c > '\u{ff}' && windows_byte(*c) == Some(byte))
            .unwrap_or(low)
    }

    #[test]
    fn texts_that_end_in_mid_sentence() {
        for cut in [
            "It is hard. You first have to find out what the",
            "There are three ways. One is to go, the second to stay,",
            "Here it is:\n```python\nprint(1)\n",
            "这是第一句话。我们现在来讨论第二个问题的时候需要注意到这个",
        ] {
            assert!(cut_off(cut), "{cut}");
        }
        for whole in [
            "",
            "Paris",
            "The capital of France",
            "He left. Then he came back.",
            "It depends. Some say:\n- one thing that is long\n- another thing without a stop",
            "Steps. Do this:\n1. open it slowly and carefully\n2. close it again when done",
            "All is fine (see above). Really!)",
            "Done. \n```\ncode\n```",
            "他说得对。",
        ] {
            assert!(!cut_off(whole), "{whole}");
        }
    }

    #[test]
    fn garbage_and_repetition_are_shares() {
        assert_eq!(garbage("a\nb\t"), 0.0);
        assert_eq!(garbage("a\u{0}\u{e000}b"), 0.5);
        assert_eq!(repetition("one two three"), 0.0);
        assert!(repetition(&"I am fine. ".repeat(40)) > 0.9);
        let varied: String = (0..60).map(|n| format!("w{n} ")).collect();
        assert_eq!(repetition(&varied), 0.0);
    }
}

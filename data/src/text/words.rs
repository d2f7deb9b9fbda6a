//! Words and word n-grams, as hashes.

use xxhash_rust::xxh3::xxh3_64;

/// Calls `take` with each word in lower case: a run of letters and digits, or a single character of a script without
/// spaces between words.
pub(crate) fn each_word(text: &str, mut take: impl FnMut(&str)) {
    let mut word = String::new();
    for c in text.chars() {
        let alone = is_unspaced(c);
        if (alone || !c.is_alphanumeric()) && !word.is_empty() {
            take(&word);
            word.clear();
        }
        if c.is_ascii_alphanumeric() {
            word.push(c.to_ascii_lowercase());
        } else if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        if alone {
            take(&word);
            word.clear();
        }
    }
    if !word.is_empty() {
        take(&word);
    }
}

/// Han, Hiragana, Katakana, Thai, Lao, Khmer and Myanmar letters.
fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}'
        | '\u{0e01}'..='\u{0e30}' | '\u{0e81}'..='\u{0eb0}' | '\u{1000}'..='\u{103f}' | '\u{1780}'..='\u{17b3}')
}

/// Hashes of the word n-grams, in order. A text of fewer than `n` words has one n-gram of all words; a text without words
/// has none.
pub(crate) fn ngrams(text: &str, n: usize) -> Vec<u64> {
    let mut words: Vec<u64> = Vec::new();
    each_word(text, |word| words.push(xxh3_64(word.as_bytes())));
    if words.is_empty() {
        return Vec::new();
    }
    words.windows(n.max(1).min(words.len())).map(joined).collect()
}

fn joined(words: &[u64]) -> u64 {
    words.iter().fold(0, |hash, word| mixed(hash.rotate_left(23) ^ word))
}

/// The finalizer of MurmurHash3: each input bit affects all output bits.
pub(crate) fn mixed(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_runs_of_letters_or_single_ideographs() {
        let mut words = Vec::new();
        each_word("Don't  STOP—Übung 3, 漢字kana", |word| words.push(word.to_owned()));
        assert_eq!(words, ["don", "t", "stop", "übung", "3", "漢", "字", "kana"]);
        assert_eq!(ngrams("a b c d", 3).len(), 2);
        assert_eq!(ngrams("A, b", 3), ngrams("a b", 3));
        assert_ne!(ngrams("a b", 3), ngrams("b a", 3));
        assert!(ngrams("… !", 3).is_empty());
    }
}

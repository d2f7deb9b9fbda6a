//! MinHash signatures of sets: the share of places in which two signatures agree estimates the Jaccard similarity of the
//! sets (Broder, "On the resemblance and containment of documents", 1997).

use std::sync::LazyLock;

use crate::text::words::{mixed, ngrams};

/// Number of places in a signature.
pub(crate) const PLACES: usize = 128;

/// For each of [`PLACES`] hash functions, the minimum hash over the set. Only 16 bits are kept: different hashes agree by
/// chance once in 65536 (Li and König, "b-bit minwise hashing", 2010).
pub(crate) type Signature = [u16; PLACES];

/// The signature of a text's word n-grams; `None` for a text without words.
pub(crate) fn signature(text: &str, n: usize) -> Option<Signature> {
    static FUNCTIONS: LazyLock<[(u64, u64); PLACES]> = LazyLock::new(|| {
        std::array::from_fn(|place| {
            let at = place as u64;
            (mixed(2 * at + 1), mixed((2 * at + 2) << 32) | 1)
        })
    });
    let mut grams = ngrams(text, n);
    if grams.is_empty() {
        return None;
    }
    grams.sort_unstable();
    grams.dedup();
    let mut least = [u32::MAX; PLACES];
    for gram in grams {
        for (least, (xor, factor)) in least.iter_mut().zip(FUNCTIONS.iter()) {
            let hash = ((gram ^ xor).wrapping_mul(*factor) >> 32) as u32;
            *least = (*least).min(hash);
        }
    }
    // The low bits, as the high bits of a minimum are nearly always zero.
    Some(least.map(|hash| hash as u16))
}

/// The share of places in which signatures agree: an estimate of the Jaccard similarity, with a standard error of at
/// most 0.044.
pub(crate) fn similarity(a: &Signature, b: &Signature) -> f64 {
    let equal = a.iter().zip(b).filter(|(a, b)| a == b).count();
    equal as f64 / PLACES as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_estimate_the_similarity() {
        let words =
            |from: usize, to: usize| -> String { (from..to).map(|n| format!("w{n} ")).collect() };
        let base = signature(&words(0, 1000), 1).unwrap();
        for (from, jaccard) in [(0, 1.0), (111, 889.0 / 1111.0), (333, 667.0 / 1333.0), (1000, 0.0)]
        {
            let found = similarity(&base, &signature(&words(from, from + 1000), 1).unwrap());
            assert!((found - jaccard).abs() < 0.1, "{from}: {found} for {jaccard}");
        }
        assert!(signature("?!", 3).is_none());
    }
}

//! Suggestions for misspelled names.

/// Similarity of two names, from 0 to 1.
pub fn likeness(a: &str, b: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(a, b)
}

/// The name of `known` that is most similar to `found`, if the similarity is at least 0.5.
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let found = found.to_lowercase();
    known
        .into_iter()
        .map(|name| (likeness(&found, name), name))
        .filter(|(likeness, _)| *likeness >= 0.5)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_if_it_is_similar_enough() {
        let known = ["file", "paragraph", "line"];
        assert_eq!(nearest("paragraphs", known).as_deref(), Some("paragraph"));
        assert_eq!(nearest("Lines", known).as_deref(), Some("line"));
        assert_eq!(nearest("sentence", known), None);
    }
}

//! The name that a misspelt one was probably meant to be.

/// How alike two names are, from 0 to 1.
pub fn likeness(a: &str, b: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(a, b)
}

/// The one of `known` that is most like `found`, if it is more alike than not.
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
    fn the_nearest_name_is_one_that_is_mostly_alike() {
        let known = ["file", "paragraph", "line"];
        assert_eq!(nearest("paragraphs", known).as_deref(), Some("paragraph"));
        assert_eq!(nearest("Lines", known).as_deref(), Some("line"));
        assert_eq!(nearest("sentence", known), None);
    }
}

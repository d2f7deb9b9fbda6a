//! `{% generation %}` … `{% endgeneration %}`: Hugging Face's tags around the text that an assistant generates.
//!
//! minijinja doesn't support them. They are rewritten as a filter block, which has the same whitespace control; the
//! filter puts marks around its content.

use std::borrow::Cow;
use std::ops::Range;

/// The filter that replaces the tags.
pub(crate) const FILTER: &str = "emberlm_generation";
/// The variable with the filter's marks. It is passed as an argument so that it is available in macros too.
pub(crate) const MARKS: &str = "emberlm_marks";

/// Rewrites the tags as filter blocks. Borrowed if there are none.
pub(crate) fn rewrite(source: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(open) = source[at..].find('{').map(|found| at + found) {
        let rest = &source[open..];
        let end = if rest.starts_with("{#") {
            rest.find("#}").map(|end| open + end + 2)
        } else if rest.starts_with("{{") {
            tag_end(source, open, "}}")
        } else if rest.starts_with("{%") {
            tag_end(source, open, "%}")
        } else {
            Some(open + 1)
        };
        // The parser reports an unclosed tag.
        let Some(end) = end else { break };
        at = end;
        if !rest.starts_with("{%") {
            continue;
        }
        let inner = &source[open + 2..end - 2];
        let name = inner.trim_matches(['-', '+']).trim();
        let tag = match name {
            "generation" => format!("filter {FILTER}({MARKS})"),
            "endgeneration" => "endfilter".to_owned(),
            "raw" => {
                at = raw_end(source, end);
                continue;
            }
            _ => continue,
        };
        let [before, after] = [inner.chars().next(), inner.chars().next_back()].map(|sign| {
            sign.filter(|c| ['-', '+'].contains(c)).map_or(String::new(), String::from)
        });
        out.push_str(&source[copied..open]);
        out.push_str(&format!("{{%{before} {tag} {after}%}}"));
        copied = end;
    }
    if copied == 0 {
        return Cow::Borrowed(source);
    }
    out.push_str(&source[copied..]);
    Cow::Owned(out)
}

/// End of the tag that starts at `open`; closing marks within strings don't count.
fn tag_end(source: &str, open: usize, close: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in source[open + 2..].char_indices() {
        let at = open + 2 + at;
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if source[at..].starts_with(close) => return Some(at + close.len()),
            None => {}
        }
    }
    None
}

fn raw_end(source: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(open) = source[at..].find("{%").map(|found| at + found) {
        at = open + 2;
        if source[at..].trim_start_matches(['-', '+']).trim_start().starts_with("endraw") {
            return open;
        }
    }
    source.len()
}

/// Two characters that occur in none of the texts.
pub(crate) fn unused_marks<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> [char; 2] {
    let mut unused =
        ('\u{f0000}'..='\u{ffffd}').filter(|c| texts.clone().all(|text| !text.contains(*c)));
    // There are 65534 of these characters. If a text contained all of them, nothing would be marked.
    [(); 2].map(|()| unused.next().unwrap_or('\0'))
}

/// Removes the marks from a rendering: the text, and the ranges that they enclosed.
pub(crate) fn unmark(marked: &str, [begin, end]: [char; 2]) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(marked.len());
    let mut spans: Vec<Range<usize>> = Vec::new();
    let mut depth = 0_usize;
    let mut start = 0;
    for c in marked.chars() {
        if c == begin {
            if depth == 0 {
                start = text.len();
            }
            depth += 1;
        } else if c == end {
            depth = depth.saturating_sub(1);
            if depth == 0 && start < text.len() {
                spans.push(start..text.len());
            }
        } else {
            text.push(c);
        }
    }
    (text, spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_become_filter_blocks_with_their_whitespace_marks() {
        let on = "filter emberlm_generation(emberlm_marks)";
        assert_eq!(
            rewrite("a{%- generation -%}b{% endgeneration %}c{%+endgeneration-%}"),
            format!("a{{%- {on} -%}}b{{% endfilter %}}c{{%+ endfilter -%}}")
        );
        for kept in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% if add_generation_prompt %}x{% endif %}",
            "{ {% set x = '%} {% generation %}' %}",
        ] {
            assert_eq!(rewrite(kept), kept);
        }
    }

    #[test]
    fn marks_are_characters_that_the_content_does_not_contain() {
        let texts = ["\u{f0000} and \u{f0002}"];
        let marks = unused_marks(texts.into_iter());
        assert_eq!(marks, ['\u{f0001}', '\u{f0003}']);
        let (text, spans) = unmark("é\u{f0001}ab\u{f0003}\u{f0000}", marks);
        assert_eq!(text, "éab\u{f0000}");
        assert_eq!((spans.len(), spans[0].clone()), (1, 2..4));
    }
}

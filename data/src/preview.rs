//! Showing an example as text, with the supervised part marked.

use crate::example::Example;
use crate::tokenizer::TextTokenizer;

/// Maximum tokens shown: a document may be a whole book.
const SHOWN: usize = 2048;

/// The example's text, or its start. The supervised part is colored (`ansi`) or enclosed in ⟦ and ⟧.
pub fn preview(example: &Example, tokenizer: &TextTokenizer, ansi: bool) -> String {
    let [open, close] = if ansi { ["\u{1b}[32m", "\u{1b}[0m"] } else { ["⟦", "⟧"] };
    let mut text = String::new();
    let mut from = 0;
    let shown = example.loss_mask.len().min(SHOWN);
    for run in example.loss_mask[..shown].chunk_by(|a, b| a == b) {
        let ids = &example.ids[from..from + run.len()];
        from += run.len();
        let piece = visible(&tokenizer.decode(ids, false).unwrap_or_else(|_| format!("{ids:?}")));
        if run[0] {
            text.push_str(open);
            text.push_str(&piece);
            text.push_str(close);
        } else {
            text.push_str(&piece);
        }
    }
    if example.truncated || shown < example.loss_mask.len() {
        text.push('…');
    }
    text
}

/// Replaces control characters, which could manipulate the terminal.
fn visible(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() => {
                char::from_u32(0x2400 + u32::from(c)).filter(|_| c < ' ').unwrap_or('\u{fffd}')
            }
            c => c,
        })
        .collect()
}

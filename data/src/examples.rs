//! The examples of a data set, in memory or in token files.

use std::sync::Arc;

use crate::example::Example;
use crate::example_view::ExampleView;
use crate::location::Source;
use crate::token_file::TokenFile;

/// Examples in order, in memory or in memory-mapped token files, which are read on demand.
#[derive(Debug, Clone, Default)]
pub struct Examples {
    parts: Vec<Part>,
    /// Index of each part's first example.
    starts: Vec<usize>,
    len: usize,
}

#[derive(Debug, Clone)]
enum Part {
    Memory(Arc<Vec<Example>>),
    File(Arc<TokenFile>),
}

impl From<Vec<Example>> for Examples {
    fn from(examples: Vec<Example>) -> Self {
        let mut all = Self::default();
        all.push(examples.len(), Part::Memory(Arc::new(examples)));
        all
    }
}

impl From<TokenFile> for Examples {
    fn from(file: TokenFile) -> Self {
        let mut all = Self::default();
        all.push(file.len(), Part::File(Arc::new(file)));
        all
    }
}

impl FromIterator<Self> for Examples {
    fn from_iter<I: IntoIterator<Item = Self>>(parts: I) -> Self {
        let mut all = Self::default();
        for examples in parts {
            let lengths: Vec<usize> =
                (0..examples.parts.len()).map(|n| examples.len_of(n)).collect();
            for (part, len) in examples.parts.into_iter().zip(lengths) {
                all.push(len, part);
            }
        }
        all
    }
}

impl Examples {
    fn push(&mut self, len: usize, part: Part) {
        self.parts.push(part);
        self.starts.push(self.len);
        self.len += len;
    }

    fn len_of(&self, part: usize) -> usize {
        self.starts.get(part + 1).copied().unwrap_or(self.len) - self.starts[part]
    }

    /// Number of examples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A copy of an example.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn get(&self, index: usize) -> Example {
        let (part, at) = self.place(index);
        match part {
            Part::Memory(examples) => examples[at].clone(),
            Part::File(file) => file.view(at).to_example(file.source(at)),
        }
    }

    /// Copies of all examples, in order.
    pub fn iter(&self) -> impl Iterator<Item = Example> + '_ {
        (0..self.len).map(|index| self.get(index))
    }

    /// Where an example's row was read.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn source(&self, index: usize) -> Source {
        let (part, at) = self.place(index);
        match part {
            Part::Memory(examples) => examples[at].source.clone(),
            Part::File(file) => file.source(at),
        }
    }

    /// An example, borrowed.
    pub(crate) fn view(&self, index: usize) -> ExampleView<'_> {
        let (part, at) = self.place(index);
        match part {
            Part::Memory(examples) => ExampleView::of(&examples[at]),
            Part::File(file) => file.view(at),
        }
    }

    fn place(&self, index: usize) -> (&Part, usize) {
        assert!(index < self.len, "example {index} of {}", self.len);
        // Empty parts have the same start as the next one.
        let part = self.starts.partition_point(|start| *start <= index) - 1;
        (&self.parts[part], index - self.starts[part])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_order() {
        let example = |line| Example {
            ids: vec![7; line],
            loss_mask: vec![true; line],
            weights: Vec::new(),
            source: Source::new("x", line),
            truncated: false,
            is_document: false,
        };
        let parts = [vec![example(1), example(2)], vec![], vec![example(3)]];
        let all: Examples = parts.into_iter().map(Examples::from).collect();
        assert_eq!((all.len(), all.is_empty()), (3, false));
        let lines: Vec<usize> = all.iter().map(|example| example.source.line).collect();
        assert_eq!(lines, [1, 2, 3]);
        assert_eq!(all.get(2), example(3));
        let again: Examples = [all.clone(), all].into_iter().collect();
        assert_eq!((again.len(), again.source(4).line), (6, 2));
    }
}

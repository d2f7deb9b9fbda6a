//! Weights of rows and messages, from the file to the targets of a batch.

mod fixture;

use std::fs;
use std::path::PathBuf;

use emberlm_data::{
    Batch, Cached, Cursor, DataFiles, Dataset, Example, ExampleOptions, FieldMap, Layout, Loader,
    LoaderOptions, OnError, ReadOptions, Rejects, RowShape, TextTokenizer, TrainOn,
};
use fixture::tokenizer;

const TOKENS: [&str; 3] = ["<s>", "</s>", "<turn>"];
const PLAIN: &str = "{% for m in messages %}{{ '<turn>' + m.role + ':' + m.content + '</s>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<turn>assistant:' }}{% endif %}";
const MARKED: &str = "{% for m in messages %}{{ '<turn>' + m.role + ':' }}{% if m.role == 'assistant' %}\
    {% generation %}{{ m.content + '</s>' }}{% endgeneration %}{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}";

const ROWS: &str = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "aa", "weight": 0.5}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "bbb"}, {"role": "assistant", "content": "c", "weight": 0}], "weight": 3}
{"prompt": "p", "completion": "cc", "weight": 0}
{"question": "q", "answer": "a", "train": false}
{"text": "some", "weight": 0.25}
{"question": "q", "answer": "dddd"}
"#;

struct Place {
    dir: tempfile::TempDir,
    files: Vec<PathBuf>,
}

impl Place {
    fn new(name: &str, text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = vec![dir.path().join(name)];
        fs::write(&files[0], text).unwrap();
        Self { dir, files }
    }

    fn data<'a>(
        &'a self,
        read: &'a ReadOptions,
        tokenizer: &'a TextTokenizer,
        options: &'a ExampleOptions,
    ) -> DataFiles<'a> {
        DataFiles { files: &self.files, read, tokenizer, options }
    }
}

fn rejects() -> Rejects {
    Rejects::new(OnError::Fail, None).unwrap()
}

fn marked() -> ExampleOptions {
    ExampleOptions { train_on: TrainOn::Marked, ..ExampleOptions::default() }
}

/// The texts that are trained on, with their weights.
fn weighted(example: &Example, tokenizer: &TextTokenizer) -> Vec<(String, f32)> {
    let weight = |at: usize| example.weights.get(at).copied().unwrap_or(1.0);
    let trained: Vec<usize> = (0..example.ids.len()).filter(|at| example.loss_mask[*at]).collect();
    let runs = trained.chunk_by(|a, b| a + 1 == *b && weight(*a) == weight(*b));
    runs.map(|run| {
        let ids: Vec<u32> = run.iter().map(|at| example.ids[*at]).collect();
        (tokenizer.decode(&ids, false).unwrap(), weight(run[0]))
    })
    .collect()
}

#[test]
fn weights_of_rows_and_messages_multiply_and_zero_excludes() {
    for template in [PLAIN, MARKED] {
        let place = Place::new("rows.jsonl", ROWS);
        let tokenizer = tokenizer(&TOKENS, Some(template));
        let (read, options) = (ReadOptions::default(), marked());
        let data = place.data(&read, &tokenizer, &options);
        let memory = Dataset::of_files(data, &mut rejects()).unwrap();
        let found: Vec<_> = memory.examples.iter().map(|e| weighted(&e, &tokenizer)).collect();
        let expected = [
            vec![("aa</s>".to_owned(), 1.5), ("bbb</s>".to_owned(), 3.0)],
            vec![("some</s>".to_owned(), 0.25)],
            vec![("dddd</s>".to_owned(), 1.0)],
        ];
        assert_eq!(found, expected, "{template}");
        assert_eq!((memory.summary.dropped, memory.summary.examples), (2, 3));
        assert!(memory.examples.get(2).weights.is_empty());

        // The cache gives the same examples and batches.
        let cached = Cached { folder: &place.dir.path().join("cache"), data };
        for _ in 0..2 {
            let file = cached.load(&mut rejects(), |_| ()).unwrap();
            assert!(memory.examples.iter().eq(file.examples.iter()));
            let options = LoaderOptions { layout: Layout::Packed, ..LoaderOptions::default() };
            let batch = |data: &Dataset| {
                let (rows, _) = Loader::new(data, options).take(Cursor::default(), 1);
                Batch::of_rows(&rows, &data.examples, 0)
            };
            assert_eq!(batch(&file), batch(&memory));
        }
    }
}

#[test]
fn marks_have_no_effect_without_train_on_marked() {
    let place = Place::new("rows.jsonl", ROWS);
    let tokenizer = tokenizer(&TOKENS, Some(PLAIN));
    for train_on in [TrainOn::All, TrainOn::Last] {
        let options = ExampleOptions { train_on, ..ExampleOptions::default() };
        let read = ReadOptions::default();
        let data = place.data(&read, &tokenizer, &options);
        let data = Dataset::of_files(data, &mut rejects()).unwrap();
        assert_eq!((data.summary.examples, data.summary.dropped), (5, 0));
        assert!(data.examples.iter().all(|example| example.weights.is_empty()));
    }
}

#[test]
fn marks_can_have_configured_names_and_be_in_tables() {
    let place = Place::new("rows.csv", "text,weight,score\nab,7,0.5\ncd,7,2\nef,7,\ngh,7,0\n");
    let tokenizer = tokenizer(&TOKENS, Some(PLAIN));
    let weights = |pairs: &[(&str, &str)]| -> Vec<f32> {
        let pairs = pairs.iter().map(|(known, name)| ((*known).to_owned(), (*name).to_owned()));
        let fields = FieldMap::new(pairs).unwrap();
        let read = ReadOptions { shape: RowShape::Fields(fields), ..ReadOptions::default() };
        let options = marked();
        let data = Dataset::of_files(place.data(&read, &tokenizer, &options), &mut rejects());
        let weight = |e: Example| e.weights.iter().copied().reduce(f32::max).unwrap_or(1.0);
        data.unwrap().examples.iter().map(weight).collect()
    };
    assert_eq!(weights(&[("text", "text"), ("weight", "weight")]), [7.0; 4]);
    assert_eq!(weights(&[("text", "text")]), [1.0; 4], "only configured fields count");
    let place = Place::new("rows.csv", "text,weight\nab,0.5\ncd,much\n");
    let options = marked();
    let read = ReadOptions::default();
    let error = Dataset::of_files(place.data(&read, &tokenizer, &options), &mut rejects());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("rows.csv:3: `weight`: expected a number of at least 0"), "{error}");
}

//! The token cache: it returns what was written, and never stale or damaged files.

mod fixture;

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use emberlm_data::{
    Batch, CacheEvent, Cached, Cursor, DataError, DataFiles, Dataset, ExampleOptions, Format,
    Layout, Loader, LoaderOptions, OnError, ReadOptions, Rejects, TextTokenizer, TrainOn,
    read_rows, token_files,
};
use fixture::tokenizer;

const TOKENS: [&str; 3] = ["<s>", "</s>", "<turn>"];
const TEMPLATE: &str = "{% for m in messages %}{{ '<turn>' + m.role + ':' + m.content + '</s>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<turn>assistant:' }}{% endif %}";

struct Place {
    dir: tempfile::TempDir,
    files: Vec<PathBuf>,
    options: ExampleOptions,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = vec![dir.path().join("a.jsonl"), dir.path().join("b.jsonl")];
        let chat = |n: usize| {
            format!(
                "{{\"messages\": [{{\"role\": \"user\", \"content\": \"q{n}\"}}, {{\"role\": \"assistant\", \"content\": \"{}\"}}, \
                 {{\"role\": \"user\", \"content\": \"r\"}}, {{\"role\": \"assistant\", \"content\": \"yes\"}}]}}\n",
                "a".repeat(n)
            )
        };
        fs::write(&files[0], (0..30).map(chat).collect::<String>()).unwrap();
        let text = "\n{\"text\": \"once upon a time there was a forge, and that was not the end of it\"}\n";
        fs::write(&files[1], format!("{text}{{\"prompt\": \"p\", \"completion\": \"c\"}}\n"))
            .unwrap();
        let max_length = NonZeroUsize::new(48);
        let options = ExampleOptions { max_length, ..ExampleOptions::default() };
        Self { dir, files, options }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    fn load_with(
        &self,
        tokenizer: &TextTokenizer,
    ) -> (Result<Dataset, DataError>, Vec<CacheEvent>) {
        let mut rejects = Rejects::new(OnError::Fail, None).unwrap();
        self.load_into(tokenizer, &mut rejects)
    }

    fn load_into(
        &self,
        tokenizer: &TextTokenizer,
        rejects: &mut Rejects,
    ) -> (Result<Dataset, DataError>, Vec<CacheEvent>) {
        let read = &ReadOptions::default();
        let data = DataFiles { files: &self.files, read, tokenizer, options: &self.options };
        let mut events = Vec::new();
        let cached = Cached { folder: &self.folder(), data };
        let data = cached.load(rejects, |event| events.push(event));
        (data, events)
    }

    fn load(&self) -> (Dataset, Vec<CacheEvent>) {
        let (data, events) = self.load_with(&tokenizer(&TOKENS, Some(TEMPLATE)));
        (data.unwrap(), events)
    }

    fn token_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

fn written(events: &[CacheEvent]) -> &Path {
    match events {
        [CacheEvent::Written { path }] => path,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_cache_returns_what_was_written() {
    let place = Place::new();
    let rows: Vec<_> =
        place.files.iter().flat_map(|file| read_rows(file, Format::Auto).unwrap()).collect();
    let tokenizer = tokenizer(&TOKENS, Some(TEMPLATE));
    let expected = Dataset::build(&rows, &tokenizer, &place.options).unwrap();
    assert!(expected.summary.truncated > 0 && expected.summary.split == 1);
    let (made, events) = place.load();
    let path = written(&events).to_owned();
    let (found, events) = place.load();
    assert_eq!(events, [CacheEvent::Found { path: path.clone() }]);
    assert_eq!(place.token_files(), [path], "there is no other file in the folder");
    for data in [made, found] {
        assert_eq!(data.summary, expected.summary);
        assert_eq!(data.max_length, expected.max_length);
        assert_eq!(
            data.examples.iter().collect::<Vec<_>>(),
            expected.examples.iter().collect::<Vec<_>>()
        );
        assert_eq!(data.examples.source(31).to_string(), format!("{}:3", place.files[1].display()));
        // Batches are equal too, including parts of documents.
        let batch = |data: &Dataset| {
            let options = LoaderOptions { seed: 1, shuffle: true, layout: Layout::Packed };
            let loader = Loader::new(data, options);
            let (rows, _) = loader.take(Cursor::default(), loader.rows_of(0) as usize);
            Batch::of_rows(&rows, &data.examples, 0)
        };
        assert_eq!(batch(&data), batch(&expected));
    }
}

#[test]
fn each_input_that_determines_tokens_gives_another_file() {
    let mut place = Place::new();
    let (_, events) = place.load();
    let mut seen = vec![written(&events).to_owned()];
    let mut another = |place: &Place, tokenizer: &TextTokenizer| {
        let (data, events) = place.load_with(tokenizer);
        data.unwrap();
        let path = written(&events).to_owned();
        assert!(!seen.contains(&path));
        seen.push(path);
    };
    let plain = tokenizer(&TOKENS, Some(TEMPLATE));
    // Content of the same length.
    let text = fs::read_to_string(&place.files[1]).unwrap();
    fs::write(&place.files[1], text.replace("once", "twice").replace("was a", "was")).unwrap();
    another(&place, &plain);
    place.options.max_length = NonZeroUsize::new(47);
    another(&place, &plain);
    place.options.train_on = TrainOn::Last;
    another(&place, &plain);
    another(&place, &tokenizer(&TOKENS, Some(&TEMPLATE.replace("<turn>", "<turn> "))));
    another(&place, &tokenizer(&["<s>", "</s>", "<turn>", "<more>"], Some(TEMPLATE)));
    place.files.reverse();
    another(&place, &plain);
    // The date matters only if the template uses it.
    place.options.date = Some("2024-07-26".into());
    let (_, events) = place.load();
    assert!(matches!(events[..], [CacheEvent::Found { .. }]));
    let dated = format!("{{{{ strftime_now('%d') }}}}{TEMPLATE}");
    another(&place, &tokenizer(&TOKENS, Some(&dated)));
    place.options.date = Some("2024-07-27".into());
    another(&place, &tokenizer(&TOKENS, Some(&dated)));
}

#[test]
fn a_damaged_file_is_detected_and_rebuilt() {
    let place = Place::new();
    let (expected, events) = place.load();
    let path = written(&events).to_owned();
    let good = fs::read(&path).unwrap();
    let mut broken: Vec<Vec<u8>> =
        [0, 7, 63, 64, good.len() - 1].into_iter().map(|length| good[..length].to_vec()).collect();
    // A bit in each section: header, tokens, records, tail.
    for at in (0..56).chain((64..good.len()).step_by(97)).chain([good.len() - 1]) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        broken.push(bytes);
    }
    for bytes in broken {
        fs::write(&path, &bytes).unwrap();
        let (data, events) = place.load();
        assert!(
            matches!(&events[..], [CacheEvent::Damaged { .. }, CacheEvent::Written { .. }]),
            "{events:?}"
        );
        assert_eq!(data.summary, expected.summary);
        assert_eq!(fs::read(&path).unwrap(), good);
    }
}

#[test]
fn invalid_rows_leave_no_file() {
    let place = Place::new();
    let without_template = tokenizer(&TOKENS, None);
    let (data, events) = place.load_with(&without_template);
    let error = data.unwrap_err().to_string();
    assert!(error.contains("30 invalid rows") && error.contains("a.jsonl:1: "), "{error}");
    assert!(events.is_empty() && place.token_files().is_empty());
}

/// A template that rejects some conversations, and rows of which some can't be read.
fn rejecting() -> (Place, TextTokenizer) {
    let place = Place::new();
    let mut text = fs::read_to_string(&place.files[0]).unwrap();
    text.insert_str(0, "{\"nothing\": 1}\n");
    text.push_str("no row\n");
    fs::write(&place.files[0], text).unwrap();
    let template = format!(
        "{{% if messages[0].content in ['q3', 'q7'] %}}{{{{ raise_exception('not ' + messages[0].content) }}}}{{% endif %}}{TEMPLATE}"
    );
    (place, tokenizer(&TOKENS, Some(&template)))
}

#[test]
fn rows_that_the_template_rejects_are_skipped_and_reported_like_other_invalid_rows() {
    let (place, tokenizer) = rejecting();
    let out = place.dir.path().join("rejects.jsonl");
    let load = || {
        let mut rejects = Rejects::new(OnError::Skip { limit: Some(4) }, Some(&out)).unwrap();
        let (data, events) = place.load_into(&tokenizer, &mut rejects);
        let faults: Vec<String> =
            rejects.finish().unwrap().listed.iter().map(ToString::to_string).collect();
        let written = fs::read_to_string(&out).unwrap();
        fs::remove_file(&out).unwrap();
        (data.unwrap(), events, faults, written)
    };
    let (made, events, faults, written) = load();
    assert!(matches!(events[..], [CacheEvent::Written { .. }]));
    let places: Vec<&str> = faults
        .iter()
        .map(|fault| fault.rsplit('/').next().unwrap().split(": ").next().unwrap())
        .collect();
    assert_eq!(places, ["a.jsonl:1", "a.jsonl:5", "a.jsonl:9", "a.jsonl:32"]);
    assert!(
        faults[1].contains("the chat template rejected the conversation: ")
            && faults[1].contains("not q3")
    );
    let rows: Vec<serde_json::Value> =
        written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[2]["row"]["messages"][0]["content"], "q7");
    assert_eq!(rows[3]["row"], "no row");
    assert_eq!(made.summary.rows, 30);

    // They are reported again, with the same messages, if the tokens are read from the cache.
    let (found, events, again, rewritten) = load();
    assert!(matches!(events[..], [CacheEvent::Found { .. }]));
    assert_eq!((again, rewritten), (faults, written));
    assert_eq!(found.summary, made.summary);

    // They count towards the limit, and are an error if they may not be skipped.
    let limited = OnError::Skip { limit: Some(3) };
    for (on_error, expected) in
        [(limited, "more than 3 invalid rows"), (OnError::Fail, "4 invalid rows")]
    {
        let mut rejects = Rejects::new(on_error, None).unwrap();
        let (data, events) = place.load_into(&tokenizer, &mut rejects);
        let error = data.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("not q3"), "{error}");
        assert!(events.is_empty());
    }
}

#[test]
fn tokenizing_into_memory_and_into_the_cache_give_the_same() {
    let (place, tokenizer) = rejecting();
    let read = &ReadOptions::default();
    let (options, files) = (&place.options, &place.files[..]);
    let data = DataFiles { files, read, tokenizer: &tokenizer, options };
    let skip = || Rejects::new(OnError::Skip { limit: None }, None).unwrap();
    let (mut in_memory, mut in_file) = (skip(), skip());
    let memory = Dataset::of_files(data, &mut in_memory).unwrap();
    let (file, _) = place.load_into(&tokenizer, &mut in_file);
    let file = file.unwrap();
    assert_eq!(memory.summary, file.summary);
    assert!(memory.examples.iter().eq(file.examples.iter()));
    let text = |rejects: Rejects| rejects.finish().unwrap().to_string();
    assert_eq!(text(in_memory), text(in_file));

    // All invalid rows are reported at once; an empty file is an error.
    let mut fail = Rejects::new(OnError::Fail, None).unwrap();
    let error = Dataset::of_files(data, &mut fail).unwrap_err().to_string();
    assert!(error.contains("4 invalid rows") && error.contains("not q7"), "{error}");
    let empty = place.dir.path().join("empty.jsonl");
    fs::write(&empty, "\n").unwrap();
    let files = &[place.files[1].clone(), empty][..];
    let error = Dataset::of_files(DataFiles { files, ..data }, &mut skip()).unwrap_err();
    assert!(error.to_string().contains("empty.jsonl: no rows"), "{error}");
}

#[test]
fn token_files_are_listed_with_their_content() {
    let mut place = Place::new();
    let (first, events) = place.load();
    let first_path = written(&events).to_owned();
    place.options.max_length = NonZeroUsize::new(47);
    let (_, events) = place.load();
    let second_path = written(&events).to_owned();
    fs::write(place.folder().join("notes.txt"), "not a token file").unwrap();
    fs::write(place.folder().join("x.tokens"), "neither").unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(1000);
    for path in [&first_path, &second_path] {
        fs::File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
    }
    // The first one is used again, so it is the most recently used.
    place.options.max_length = NonZeroUsize::new(48);
    place.load();
    let listed = token_files(&place.folder()).unwrap();
    let paths: Vec<&Path> = listed.iter().map(|file| file.path.as_path()).collect();
    assert_eq!(paths, [&first_path, &second_path]);
    let content = listed[0].content.as_ref().unwrap();
    assert_eq!((&content.files, &content.summary), (&place.files, &first.summary));
    assert_eq!(listed[0].bytes, fs::metadata(&first_path).unwrap().len());
    assert_eq!(listed[1].used, old);
    // A file of another version.
    let mut bytes = fs::read(&second_path).unwrap();
    bytes[8] = 1;
    fs::write(&second_path, bytes).unwrap();
    let listed = token_files(&place.folder()).unwrap();
    let why = listed.iter().find(|file| file.path == second_path).unwrap().content.clone();
    assert!(why.unwrap_err().contains("another version"));
    assert!(token_files(&place.dir.path().join("nowhere")).is_err());
}

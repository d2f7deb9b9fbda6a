//! Tokens, labels and trained spans against transformers, on tiny and on real tokenizers.

use std::ops::Range;
use std::path::{Path, PathBuf};

use emberlm_data::{
    Dataset, Example, ExampleOptions, Format, Loader, LoaderOptions, Message, SourcedRow,
    TextTokenizer, TrainOn, example, parse_rows, preview, read_rows,
};
use serde_json::{Value, json};

const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/goldens");
/// The day the real goldens were rendered on.
const DATE: &str = "2024-07-26";

fn goldens() -> PathBuf {
    PathBuf::from(GOLDENS)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn options() -> ExampleOptions {
    ExampleOptions { date: Some(DATE.into()), ..ExampleOptions::default() }
}

fn row(golden: &Value) -> SourcedRow {
    parse_rows(&golden.to_string(), "golden", Format::Messages).unwrap().remove(0)
}

fn messages(golden: &Value) -> Vec<Message> {
    let list = golden["messages"].as_array().unwrap();
    list.iter()
        .map(|m| Message::new(m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
        .collect()
}

/// Labels as transformers has them: the token where it is trained, -100 elsewhere.
fn labels(example: &Example) -> Vec<i64> {
    example
        .ids
        .iter()
        .zip(&example.loss_mask)
        .map(|(id, trained)| if *trained { i64::from(*id) } else { -100 })
        .collect()
}

fn numbers(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect()
}

fn equals_golden(tokenizer: &TextTokenizer, golden: &Value) {
    let example = example(tokenizer, &row(golden), &options()).unwrap();
    let ids: Vec<i64> = example.ids.iter().map(|id| i64::from(*id)).collect();
    assert_eq!(ids, numbers(&golden["ids"]), "ids of {golden}");
    assert_eq!(labels(&example), numbers(&golden["labels"]), "labels of {golden}");
    only_last_is_trained(tokenizer, golden);
}

fn labels_on(tokenizer: &TextTokenizer, golden: &Value, train_on: TrainOn) -> Vec<i64> {
    let options = ExampleOptions { train_on, ..options() };
    labels(&example(tokenizer, &row(golden), &options).unwrap())
}

/// The last turn is the last run of the golden's labels.
fn only_last_is_trained(tokenizer: &TextTokenizer, golden: &Value) {
    let mut expected = numbers(&golden["labels"]);
    let end = expected.iter().rposition(|&label| label >= 0).unwrap();
    let before = expected[..end].iter().rposition(|&label| label < 0).unwrap();
    expected[..before].fill(-100);
    assert_eq!(labels_on(tokenizer, golden, TrainOn::Last), expected, "{golden}");
}

/// Goldens count characters, we count bytes.
fn in_bytes(text: &str, spans: &Value) -> Vec<Range<usize>> {
    let at = |n: &Value| {
        let n = usize::try_from(n.as_u64().unwrap()).unwrap();
        text.char_indices().nth(n).map_or(text.len(), |(at, _)| at)
    };
    spans.as_array().unwrap().iter().map(|span| at(&span[0])..at(&span[1])).collect()
}

fn tiny() -> TextTokenizer {
    TextTokenizer::from_dir(&goldens().join("models/llama")).unwrap()
}

#[test]
fn tiny_conversations_equal_transformers() {
    let tokenizer = tiny();
    for golden in json(&goldens().join("chat/golden.json")).as_array().unwrap() {
        equals_golden(&tokenizer, golden);
        let chat = messages(golden);
        assert_eq!(tokenizer.render(&chat, None, false).unwrap(), golden["text"].as_str().unwrap());
        let prompt = tokenizer.render(&chat[..chat.len() - 1], None, true).unwrap();
        assert_eq!(prompt, golden["prompt"].as_str().unwrap());
    }
    assert_eq!(tokenizer.stop_ids().into_iter().collect::<Vec<_>>(), [2]);
}

#[test]
fn spans_derived_equal_spans_marked() {
    let marked = tiny();
    let template =
        std::fs::read_to_string(goldens().join("models/llama/chat_template.jinja")).unwrap();
    let bare = template.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "");
    let derived = tiny().with_chat_template(&bare).unwrap();
    for golden in json(&goldens().join("chat/golden.json")).as_array().unwrap() {
        let chat = messages(golden);
        let expected = marked.render_with_loss_spans(&chat, None, None).unwrap();
        assert_eq!(derived.render_with_loss_spans(&chat, None, None).unwrap(), expected);
        equals_golden(&derived, golden);
    }
}

/// `chat/turns.json` has, for each turn, what transformers trains of a conversation that ends with it and not of the one
/// before.
#[test]
fn chosen_turns_equal_transformers() {
    let template =
        std::fs::read_to_string(goldens().join("models/llama/chat_template.jinja")).unwrap();
    let bare = template.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "");
    let cases = json(&goldens().join("chat/turns.json"));
    for tokenizer in [tiny(), tiny().with_chat_template(&bare).unwrap()] {
        for golden in cases.as_array().unwrap() {
            let turns: Vec<(usize, Vec<i64>)> = golden["turns"]
                .as_array()
                .unwrap()
                .iter()
                .map(|turn| (turn["turn"].as_u64().unwrap() as usize, numbers(&turn["labels"])))
                .collect();
            let union = |chosen: &dyn Fn(usize) -> bool| -> Vec<i64> {
                let chosen: Vec<_> =
                    (0..turns.len()).filter(|&n| chosen(n)).map(|n| &turns[n].1).collect();
                let length = golden["ids"].as_array().unwrap().len();
                let label = |i: usize| chosen.iter().map(|labels| labels[i]).max().unwrap_or(-100);
                (0..length).map(label).collect()
            };
            let on = |golden: &Value, train_on| labels_on(&tokenizer, golden, train_on);
            assert_eq!(on(golden, TrainOn::All), union(&|_| true));
            assert_eq!(on(golden, TrainOn::Last), union(&|n| n + 1 == turns.len()));
            // Every choice of turns, marked in either way.
            for choice in 0..1_usize << turns.len() {
                let mut marked = golden.clone();
                for (n, (turn, _)) in turns.iter().enumerate() {
                    let train = choice >> n & 1 == 1;
                    let message = &mut marked["messages"][*turn];
                    match (train, n % 2) {
                        (_, 0) => message["train"] = train.into(),
                        (true, _) => {}
                        (false, _) => message["weight"] = json!(0),
                    }
                }
                let expected = union(&|n| choice >> n & 1 == 1);
                assert_eq!(on(&marked, TrainOn::Marked), expected, "{marked}");
                assert_eq!(on(&marked, TrainOn::All), union(&|_| true), "marks are not asked for");
            }
        }
    }
}

#[test]
fn training_data_counts_the_supervised_tokens_of_the_goldens() {
    let tokenizer = tiny();
    let rows = read_rows(&goldens().join("train/lora-sft/data.jsonl"), Format::Auto).unwrap();
    let data = Dataset::build(&rows, &tokenizer, &options()).unwrap();
    let golden = json(&goldens().join("train/lora-sft/golden.json"));
    // Micro-batches of 2, accumulated twice, in file order, the epochs end to end.
    for (step, log) in golden["steps_log"].as_array().unwrap().iter().enumerate() {
        let loader = Loader::new(&data, LoaderOptions::default());
        let (taken, after) = loader.take(loader.cursor(4 * step as u64), 4);
        assert_eq!(after, loader.cursor(4 * step as u64 + 4));
        let examples = taken.iter().flatten().map(|piece| data.examples.get(piece.example));
        let supervised: usize = examples.map(|example| example.supervised()).sum();
        assert_eq!(
            supervised as u64,
            log["supervised_tokens"].as_u64().unwrap(),
            "step {}",
            step + 1
        );
    }
    let shown = preview(&data.examples.get(0), &tokenizer, false);
    assert!(shown.ends_with("assistant\n⟦About 1200 °C for steel.<|im_end|>⟧\n"), "{shown}");
}

#[test]
fn real_tokenizers_equal_transformers() {
    let assets = std::env::var_os("EMBERLM_ASSETS").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(PathBuf::from(home).join(".cache/emberlm-assets"))
    });
    let golden = json(&goldens().join("chat/real_tokenizers.json"));
    for (name, golden) in golden.as_object().unwrap() {
        let folder = if name == "smollm2" { "smollm2-135m" } else { name };
        let dir = assets.clone().unwrap_or_default().join(folder);
        if !dir.join("tokenizer.json").is_file() {
            eprintln!(
                "skipped: {name}: no tokenizer under EMBERLM_ASSETS (looked for {folder}/tokenizer.json)"
            );
            continue;
        }
        let tokenizer = TextTokenizer::from_dir(&dir).unwrap();
        for row in golden["rows"].as_array().unwrap() {
            let chat = messages(row);
            let rendered = tokenizer.render_with_loss_spans(&chat, None, Some(DATE)).unwrap();
            let text = row["text"].as_str().unwrap();
            assert_eq!(rendered.text, text, "{name}");
            assert_eq!(
                rendered.loss_spans,
                in_bytes(text, &row["trained_spans"]),
                "{name}: {text}"
            );
            equals_golden(&tokenizer, row);
            streams(&tokenizer, text);
        }
        let stops: Vec<String> =
            tokenizer.stop_ids().iter().filter_map(|id| tokenizer.id_to_token(*id)).collect();
        let end = if name.contains("llama") { "<|eot_id|>" } else { "<|im_end|>" };
        assert!(stops.iter().any(|token| token == end), "{name}: {stops:?}");
    }
}

/// Tokens decoded one by one give the text that all of them give, and never half a character.
fn streams(tokenizer: &TextTokenizer, text: &str) {
    let ids = tokenizer.encode(text).unwrap();
    let mut stream = tokenizer.decode_stream(false);
    let mut streamed = String::new();
    for id in &ids {
        let piece = stream.push(*id).unwrap();
        assert!(!piece.contains('\u{fffd}'), "half a character in {piece:?}");
        streamed.push_str(&piece);
    }
    streamed.push_str(&stream.finish().unwrap());
    assert_eq!(streamed, tokenizer.decode(&ids, false).unwrap());
}

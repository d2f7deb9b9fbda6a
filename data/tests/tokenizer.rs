//! Files of tokenizers, documents, streams, and examples.

mod fixture;

use std::fs;
use std::num::NonZeroUsize;

use emberlm_data::{
    DataError, Dataset, ExampleOptions, Format, TemplateChoice, TextTokenizer, TokenizerFiles,
    example, parse_rows, preview,
};
use fixture::{tokenizer, tokenizer_json};

const TOKENS: [&str; 3] = ["<s>", "</s>", "<turn>"];
const TEMPLATE: &str = "{% for m in messages %}{{ '<turn>' + m.role + ':' + m.content + '</s>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<turn>assistant:' }}{% endif %}";

fn text_of(tokenizer: &TextTokenizer, ids: &[u32], trained: &[bool]) -> String {
    let kept: Vec<u32> =
        ids.iter().zip(trained).filter(|(_, trained)| **trained).map(|(id, _)| *id).collect();
    tokenizer.decode(&kept, false).unwrap()
}

#[test]
fn settings_of_truncation_and_padding_in_the_file_do_not_apply() {
    let tokenizer = tokenizer(&TOKENS, None);
    assert_eq!(tokenizer.encode("abcdef").unwrap().len(), 6);
    assert_eq!(tokenizer.encode("a</s>").unwrap()[1], 1);
    assert_eq!(tokenizer.vocab_size(), 259);
    assert_eq!(
        (tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()),
        (Some(0), Some(1), None)
    );
}

#[test]
fn documents_start_and_end_as_configured() {
    let json = tokenizer_json(&TOKENS);
    for (config, expected) in [
        (r#"{"bos_token": "<s>", "eos_token": "</s>"}"#, "ab"),
        (r#"{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true}"#, "<s>ab"),
        (
            r#"{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true}"#,
            "<s>ab</s>",
        ),
    ] {
        let tokenizer = TextTokenizer::from_parts(TokenizerFiles {
            tokenizer_json: &json,
            tokenizer_config: Some(config.as_bytes()),
            ..TokenizerFiles::default()
        })
        .unwrap();
        let ids = tokenizer.encode_document("ab").unwrap();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), expected);
        // A text that is trained on always has an end-of-text token.
        let rows = parse_rows(r#"{"text": "ab"}"#, "x", Format::Auto).unwrap();
        let made = example(&tokenizer, &rows[0], &ExampleOptions::default()).unwrap();
        assert!(tokenizer.decode(&made.ids, false).unwrap().ends_with("b</s>"));
        assert!(made.loss_mask.iter().all(|trained| *trained));
    }
}

#[test]
fn completions_are_trained_on_with_their_end_token_and_use_the_template_if_there_is_one() {
    let rows = parse_rows(r#"{"prompt": "p🔥", "completion": "🔥"}"#, "x", Format::Auto).unwrap();
    let options = ExampleOptions::default();
    let plain = tokenizer(&TOKENS, None);
    let made = example(&plain, &rows[0], &options).unwrap();
    assert_eq!(text_of(&plain, &made.ids, &made.loss_mask), "🔥</s>");
    assert_eq!(preview(&made, &plain, false), "p🔥⟦🔥</s>⟧");

    let templated = tokenizer(&TOKENS, Some(TEMPLATE));
    let made = example(&templated, &rows[0], &options).unwrap();
    assert_eq!(preview(&made, &templated, false), "<turn>user:p🔥</s><turn>assistant:⟦🔥</s>⟧");
    let options = ExampleOptions { template: TemplateChoice::None, ..options };
    assert_eq!(
        preview(&example(&templated, &rows[0], &options).unwrap(), &templated, false),
        "p🔥⟦🔥</s>⟧"
    );
}

#[test]
fn truncation_keeps_the_first_tokens_and_counts_what_it_drops() {
    let tokenizer = tokenizer(&TOKENS, None);
    let text = "{\"prompt\":\"abcd\",\"completion\":\"ef\"}\n{\"prompt\":\"a\",\"completion\":\"bcdef\"}\n{\"text\":\"ab\"}\n";
    let rows = parse_rows(text, "rows", Format::Auto).unwrap();
    let options =
        |most| ExampleOptions { max_length: NonZeroUsize::new(most), ..ExampleOptions::default() };
    let data = Dataset::build(&rows, &tokenizer, &options(4)).unwrap();
    let summary = &data.summary;
    assert_eq!((summary.examples, summary.dropped, summary.truncated), (2, 1, 1));
    assert_eq!((summary.tokens, summary.supervised_tokens, summary.longest), (7, 5, 4));
    assert_eq!(
        summary.to_string(),
        "2 examples, 7 tokens, 5 trained on, longest 4; 1 truncated; 1 dropped without supervised tokens (1 of them truncated)"
    );
    assert_eq!(data.examples.source(0).to_string(), "rows:2");
    let error = Dataset::build(&rows[..1], &tokenizer, &options(2)).unwrap_err().to_string();
    assert!(
        error.contains("within the first 2 tokens") && error.contains("Raise data.max_length"),
        "{error}"
    );
}

#[test]
fn rows_that_cannot_be_rendered_are_reported_with_a_remedy() {
    let chat = r#"{"messages": [{"role": "user", "content": "q"}]}"#;
    let rows = parse_rows(&format!("{chat}\n{chat}"), "rows", Format::Auto).unwrap();
    let options = ExampleOptions::default();
    let error = Dataset::build(&rows, &tokenizer(&TOKENS, None), &options).unwrap_err().to_string();
    assert!(
        error.contains("rows:2: a conversation needs a chat template")
            && error.contains("chat_template.jinja"),
        "{error}"
    );
    let error = Dataset::build(&rows, &tokenizer(&TOKENS, Some(TEMPLATE)), &options)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("rows:1: nothing to train on") && error.contains("only `user`"),
        "{error}"
    );
}

#[test]
fn streams_never_emit_half_a_character() {
    let tokenizer = tokenizer(&TOKENS, None);
    let mut stream = tokenizer.decode_stream(true);
    let ids = tokenizer.encode("a🔥é</s>b").unwrap();
    let pieces: Vec<String> =
        ids.iter().map(|id| stream.push(*id).unwrap()).filter(|piece| !piece.is_empty()).collect();
    assert_eq!(pieces, ["a", "🔥", "é", "b"]);
    let half = tokenizer.encode("🔥").unwrap()[0];
    assert_eq!(stream.push(half).unwrap(), "");
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
}

#[test]
fn folders_are_read_saved_byte_for_byte_or_rejected_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    write("tokenizer.model", b"x");
    let error = TextTokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("contains tokenizer.model") && error.contains("save_pretrained"),
        "{error}"
    );
    write("tokenizer.json", b"version https://git-lfs");
    let error = TextTokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("tokenizer.json: invalid tokenizer") && error.contains("LFS"),
        "{error}"
    );

    write("tokenizer.json", &tokenizer_json(&TOKENS));
    // chat_template.jinja takes precedence over the configuration, whose list has a template for tools.
    write("special_tokens_map.json", br#"{ "eos_token": {"content": "</s>"} }"#);
    write(
        "tokenizer_config.json",
        br#"{"bos_token": null, "chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}"#,
    );
    write("generation_config.json", br#"{"eos_token_id": [1, 2], "pad_token_id": 0}"#);
    let tokenizer = TextTokenizer::from_dir(dir.path()).unwrap();
    assert_eq!(
        (tokenizer.eos_id(), tokenizer.pad_id(), tokenizer.bos_id()),
        (Some(1), Some(0), None)
    );
    assert_eq!(tokenizer.stop_ids().into_iter().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(tokenizer.render(&[], None, false).unwrap(), "d");
    assert_eq!(tokenizer.render(&[], Some(&serde_json::json!([{}])), false).unwrap(), "t");
    write("chat_template.jinja", b"file");
    let tokenizer = TextTokenizer::from_dir(dir.path()).unwrap();
    assert_eq!(tokenizer.render(&[], None, false).unwrap(), "file");

    let copy = dir.path().join("copy/here");
    tokenizer.save(&copy).unwrap();
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "tokenizer.model",
    ] {
        assert_eq!(
            fs::read(copy.join(name)).unwrap(),
            fs::read(dir.path().join(name)).unwrap(),
            "{name}"
        );
    }

    write("chat_template.jinja", b"a\n{% for %}");
    let error = TextTokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja") && error.contains(":2"), "{error}");
    write("tokenizer_config.json", b"{\n  oops");
    let error = TextTokenizer::from_dir(dir.path()).unwrap_err();
    assert!(
        matches!(error, DataError::TokenizerFile { .. }) && error.to_string().contains("line 2"),
        "{error}"
    );
}

#[test]
fn added_tokens_are_found_in_text_and_saved_in_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::json!({"bos_token": "<s>", "eos_token": "</s>",
        "added_tokens_decoder": {"0": {"content": "<s>", "special": true}}});
    fs::write(dir.path().join("tokenizer.json"), fixture::tokenizer_json(&["<s>", "</s>"]))
        .unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    fs::write(dir.path().join("added_tokens.json"), "{\"<s>\": 0}").unwrap();
    let base = TextTokenizer::from_dir(dir.path()).unwrap();
    let size = base.vocab_size();
    let before = base.encode("ab <s>").unwrap();
    let names = ["<tool>", "</tool>", " two words"].map(str::to_owned);
    let (tokenizer, ids) = base.with_added_tokens(&names).unwrap();
    let next = size as u32;
    assert_eq!(ids, [next, next + 1, next + 2]);
    assert_eq!(tokenizer.vocab_size(), size + 3);
    assert_eq!(tokenizer.encode("ab <s>").unwrap(), before, "other tokens are unchanged");
    let text = "a<tool>b</tool> two words";
    let found = tokenizer.encode(text).unwrap();
    let [a, b] = ["a", "b"].map(|text| tokenizer.token_to_id(text).unwrap());
    assert_eq!(found, [a, next, b, next + 1, next + 2]);
    assert_eq!(tokenizer.decode(&found, true).unwrap(), text, "they aren't special tokens");

    // The saved files give the same tokenizer.
    let out = tempfile::tempdir().unwrap();
    tokenizer.save(out.path()).unwrap();
    let again = TextTokenizer::from_dir(out.path()).unwrap();
    assert_eq!(again.encode(text).unwrap(), found);
    assert_eq!((again.eos_id(), again.bos_id()), (tokenizer.eos_id(), tokenizer.bos_id()));
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(out.path().join(name)).unwrap()).unwrap()
    };
    let decoder = &read("tokenizer_config.json")["added_tokens_decoder"];
    assert_eq!(decoder[next.to_string()]["content"], "<tool>");
    assert_eq!(decoder["0"]["content"], "<s>");
    assert_eq!(read("added_tokens.json")["</tool>"], next + 1);

    let base = || TextTokenizer::from_dir(dir.path()).unwrap();
    for (names, expected) in [
        (vec!["<x>", "<x>"], "each token once"),
        (vec![" "], "at least one character other than white space"),
        (vec!["</s>"], "already has it as token 1"),
    ] {
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let error = base().with_added_tokens(&names).unwrap_err().to_string();
        assert!(error.contains("model.add_tokens") && error.contains(expected), "{error}");
    }
}

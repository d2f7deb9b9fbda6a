//! Writes the material of the built-in example: the pre-training corpus, the fine-tuning rows, the tokenizer and the
//! model's configuration. Everything comes from `world.txt`, which explains its template language, and one seed: same
//! text, same bytes.
//!
//! `cargo run --release --example make_assets [OUT_DIR]` (default `assets`).

use std::collections::{HashMap, HashSet};
use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    TokenizerBuilder,
};

const SEED: u64 = 1;
const PROSE_ROWS: usize = 3300;
const CHAT_ROWS: usize = 6000;
const VOCAB_SIZE: usize = 1024;
const SPECIAL_TOKENS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const HELD_OUT_ROWS: usize = 40;
/// Evaluation questions that the example asks before and after the fine-tune.
const SHOWN: [&str; 3] = [
    "Does your cat have a name?",
    "What is the price of a knife?",
    "I cannot find the aprons. Can you help me?",
];

const WORLD: &str = include_str!("world.txt");

// ------------------------------------------------------------------------------------------------ from words to rows

struct Table {
    columns: Vec<String>,
    rows: Vec<String>,
}

/// `world.txt`, taken apart.
struct World {
    sections: HashMap<String, Vec<String>>,
    tables: HashMap<String, Table>,
    rules: HashMap<String, String>,
}

impl World {
    fn parse(text: &str) -> Result<World> {
        let mut sections: HashMap<String, Vec<String>> = HashMap::new();
        let mut name = String::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if let Some(next) = line.strip_prefix("== ") {
                name = next.to_owned();
                continue;
            }
            let entries = sections.entry(name.clone()).or_default();
            match entries.last_mut() {
                Some(entry) if line.starts_with("  ") => {
                    entry.push(' ');
                    entry.push_str(line.trim());
                }
                _ => entries.push(line.to_owned()),
            }
        }
        let mut world = World { sections, tables: HashMap::new(), rules: HashMap::new() };
        for entry in world.section("tables")?.to_vec() {
            let (name, rest) =
                entry.split_once(": ").with_context(|| format!("no columns: {entry}"))?;
            let (columns, rows) =
                rest.split_once(" = ").with_context(|| format!("no rows: {entry}"))?;
            let columns = columns.split(' ').map(str::to_owned).collect();
            let rows = rows.split("; ").map(str::to_owned).collect();
            world.tables.insert(name.to_owned(), Table { columns, rows });
        }
        for entry in world.section("rules")?.to_vec() {
            let (name, rule) =
                entry.split_once(": ").with_context(|| format!("no rule: {entry}"))?;
            world.rules.insert(name.to_owned(), rule.to_owned());
        }
        Ok(world)
    }

    fn section(&self, name: &str) -> Result<&[String]> {
        let entries = self.sections.get(name).with_context(|| format!("no section `{name}`"))?;
        Ok(entries)
    }

    /// Expands a template and finishes it as sentences.
    fn write(&self, rng: &mut ChaCha8Rng, template: &str) -> Result<String> {
        let mut text = Text { world: self, rng, slots: HashMap::new() };
        Ok(sentences(&text.expand(template)?))
    }
}

/// A random one; drawn as `u32`, so that it is the same one on every platform.
fn pick<'a, T>(rng: &mut ChaCha8Rng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len() as u32) as usize]
}

/// One text in the making: the rows that its slots stand for.
struct Text<'w> {
    world: &'w World,
    rng: &'w mut ChaCha8Rng,
    slots: HashMap<String, &'w str>,
}

impl Text<'_> {
    fn expand(&mut self, template: &str) -> Result<String> {
        let mut out = String::new();
        let mut rest = template;
        while let Some(at) = rest.find(['[', '{']) {
            out.push_str(&rest[..at]);
            let end = at
                + closing(&rest[at..])
                    .with_context(|| format!("unbalanced template: {template}"))?;
            let inner = &rest[at + 1..end];
            if rest[at..].starts_with('[') {
                let choice = *pick(self.rng, &split_choices(inner));
                out.push_str(&self.expand(choice)?);
            } else {
                out.push_str(&self.slot(inner)?);
            }
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn slot(&mut self, slot: &str) -> Result<String> {
        let world = self.world;
        if let Some(rule) = slot.strip_prefix('>') {
            return self
                .expand(world.rules.get(rule).with_context(|| format!("no rule `{rule}`"))?);
        }
        let (slot, column) = slot.split_once('.').unwrap_or((slot, ""));
        let name = slot.trim_end_matches(|c: char| c.is_ascii_digit());
        let Table { columns, rows } =
            world.tables.get(name).with_context(|| format!("no table `{name}`"))?;
        let row = match self.slots.get(slot) {
            Some(row) => *row,
            None => {
                let taken = |row: &&String| self.slots.values().any(|taken| taken == row);
                let free: Vec<&String> = rows.iter().filter(|row| !taken(row)).collect();
                ensure!(!free.is_empty(), "no row left in `{name}` for `{slot}`");
                let row = pick(self.rng, &free).as_str();
                self.slots.insert(slot.to_owned(), row);
                row
            }
        };
        let index = match column {
            "" => 0,
            _ => columns
                .iter()
                .position(|c| c == column)
                .with_context(|| format!("no column `{slot}.{column}`"))?,
        };
        let cells = split_choices(row);
        self.expand(cells.get(index).with_context(|| format!("short row `{row}`"))?)
    }
}

/// Where the bracket that opens `text` closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, c) in text.char_indices() {
        depth += match c {
            '[' | '{' => 1,
            ']' | '}' => -1,
            _ => 0,
        };
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Splits at the `|` that stand outside of brackets.
fn split_choices(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            '|' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Puts in the articles, and a capital letter at the start of each sentence.
fn sentences(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut words = text.split_whitespace().peekable();
    let mut start = true;
    while let Some(word) = words.next() {
        let word = match (word, words.peek()) {
            ("a~", Some(next)) if next.starts_with(['a', 'e', 'i', 'o', 'u']) => "an",
            ("a~", _) => "a",
            _ => word,
        };
        if !out.is_empty() {
            out.push(' ');
        }
        let first = word.chars().next().unwrap_or_default();
        if start {
            out.extend(first.to_uppercase());
            out.push_str(&word[first.len_utf8()..]);
        } else {
            out.push_str(word);
        }
        start = word.ends_with(['.', '!', '?']);
    }
    out
}

/// A sum, a count or a comparison, as the template of a question and its answer.
fn reckoning(world: &World, rng: &mut ChaCha8Rng) -> Result<String> {
    let a = rng.random_range(0..20_u32) as usize;
    let b = rng.random_range(0..(20 - a) as u32) as usize;
    let numbers = world.section("numbers")?;
    let (first, second, sum) = (&numbers[a], &numbers[b], &numbers[a + b]);
    Ok(match rng.random_range(0..10_u32) {
        0..=2 => format!(
            "[what is|how much is] {first} plus {second}? => {first} plus {second} is {sum}."
        ),
        3 | 4 => format!(
            "[what is|how much is] {sum} minus {first}? => {sum} minus {first} is {second}."
        ),
        5 if a > 1 && b > 1 => format!(
            "{{child}} has {first} {{fruit.s}} and gets {second} more. How many {{fruit.s}} does {{child}} have? => \
             {{child}} has {sum} {{fruit.s}}."
        ),
        6 if a > 1 && b > 1 => format!(
            "there are {sum} {{animal.s}}, and {first} go away. How many {{animal.s}} are left? => {second} \
             {{animal.s}} are left."
        ),
        7 if a < 19 => {
            let next = &numbers[a + 1];
            format!("[which|what] number comes after {first}? => {next} comes after {first}.")
        }
        _ => {
            let scale = pick(rng, world.section("scales")?);
            let (words, things) =
                scale.split_once(": ").with_context(|| format!("no things: {scale}"))?;
            let (more, less) =
                words.split_once('|').with_context(|| format!("no opposite: {scale}"))?;
            let things: Vec<&str> = things.split("; ").collect();
            let high = rng.random_range(1..things.len() as u32) as usize;
            let low = rng.random_range(0..high as u32) as usize;
            let (big, small) = (things[high], things[low]);
            let either = format!("[{big} or {small}|{small} or {big}]");
            format!(
                "[[what|which] is {more}, {either}? => {big} is {more} than {small}.\
                 |[what|which] is {less}, {either}? => {small} is {less} than {big}.\
                 |is {small} {more} than {big}? => No, {small} is {less} than {big}.\
                 |is {big} {more} than {small}? => Yes, {big} is {more} than {small}.]"
            )
        }
    })
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// Perhaps a greeting, one to three questions, perhaps thanks.
fn chat(world: &World, rng: &mut ChaCha8Rng) -> Result<Value> {
    let mut templates: Vec<String> = Vec::new();
    if rng.random_bool(0.15) {
        templates.push(pick(rng, world.section("greetings")?).clone());
    }
    for _ in 0..*pick(rng, &[1, 1, 1, 2, 2, 3]) {
        let sum = rng.random_bool(0.2);
        templates.push(if sum {
            reckoning(world, rng)?
        } else {
            pick(rng, world.section("chats")?).clone()
        });
    }
    if rng.random_bool(0.12) {
        templates.push(pick(rng, world.section("farewells")?).clone());
    }
    let mut messages = Vec::new();
    if rng.random_bool(0.06) {
        let line = pick(rng, world.section("system")?);
        messages.push(message("system", line));
    }
    for template in &templates {
        let turn = world.write(rng, template)?;
        let (question, answer) =
            turn.split_once(" => ").with_context(|| format!("no answer in: {template}"))?;
        messages.push(message("user", question));
        messages.push(message("assistant", &sentences(answer)));
    }
    Ok(json!({"messages": messages}))
}

/// The base's corpus, no row twice.
fn corpus(world: &World, rng: &mut ChaCha8Rng) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    let mut seen = HashSet::new();
    while rows.len() < PROSE_ROWS {
        let section = if rng.random_bool(0.55) { "stories" } else { "descriptions" };
        let template = pick(rng, world.section(section)?);
        let text = world.write(rng, template)?;
        if seen.insert(text.clone()) {
            rows.push(json!({"text": text}));
        }
    }
    while rows.len() < PROSE_ROWS + CHAT_ROWS {
        let row = chat(world, rng)?;
        if seen.insert(row.to_string()) {
            rows.push(row);
        }
    }
    rows.shuffle(rng);
    Ok(rows)
}

/// Training and evaluation rows: one phrasing of each fact is for evaluation only. The shown rows come first.
fn fine_tune_rows(world: &World, rng: &mut ChaCha8Rng) -> Result<(Vec<Value>, Vec<Value>)> {
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    let mut add = |answer: &str, questions: &[String], kept_back: usize| {
        for (n, question) in questions.iter().enumerate() {
            let row =
                json!({"messages": [message("user", question), message("assistant", answer)]});
            if n == kept_back { held_out.push(row) } else { train.push(row) }
        }
    };
    // Of facts of one kind each keeps back another question: its words are known from the other facts.
    for kind in world.section("kinds")? {
        let parts: Vec<&str> = kind.split(" <= ").collect();
        let [answer, questions, rows] = parts[..] else {
            bail!("expected answer, questions and rows: {kind}")
        };
        for (n, row) in rows.split("; ").enumerate() {
            let fill = |template: &str| {
                let cells = row.split('|').enumerate();
                let text = cells.fold(template.to_owned(), |text, (i, cell)| {
                    text.replace(&format!("{{{i}}}"), cell)
                });
                sentences(&text)
            };
            let questions: Vec<String> = questions.split(" / ").map(fill).collect();
            add(&fill(answer), &questions, n % questions.len());
        }
    }
    // A fact that stands alone keeps back the last one, which is written from the words of the others.
    for fact in world.section("facts")? {
        let (answer, questions) =
            fact.split_once(" <= ").with_context(|| format!("no questions: {fact}"))?;
        let questions: Vec<String> = questions.split(" / ").map(str::to_owned).collect();
        add(answer, &questions, questions.len() - 1);
    }
    train.shuffle(rng);
    held_out.shuffle(rng);
    held_out.sort_by_key(|row| !SHOWN.iter().any(|shown| row["messages"][0]["content"] == *shown));
    held_out.truncate(HELD_OUT_ROWS);
    Ok((train, held_out))
}

// -------------------------------------------------------------------------------------------- tokenizer and settings

/// Byte-level BPE over everything that the corpus says, the roles included.
fn write_tokenizer(rows: &[Value], path: &Path) -> Result<()> {
    let mut texts: Vec<&str> = Vec::new();
    for row in rows {
        texts.extend(row["text"].as_str());
        for message in row["messages"].as_array().into_iter().flatten() {
            texts.extend(message["role"].as_str());
            texts.extend(message["content"].as_str());
        }
    }
    let byte_level = ByteLevel::default().add_prefix_space(false);
    let mut tokenizer = TokenizerBuilder::<
        BPE,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    >::new()
    .with_model(BPE::default())
    .with_pre_tokenizer(Some(byte_level.into()))
    .with_decoder(Some(byte_level.into()))
    .build()
    .map_err(anyhow::Error::from_boxed)?;
    let mut trainer = BpeTrainerBuilder::new()
        .vocab_size(VOCAB_SIZE)
        .special_tokens(SPECIAL_TOKENS.map(|token| AddedToken::from(token, true)).to_vec())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    tokenizer.train(&mut trainer, texts.into_iter()).map_err(anyhow::Error::from_boxed)?;
    ensure!(
        tokenizer.get_vocab_size(true) == VOCAB_SIZE,
        "the corpus is too small for {VOCAB_SIZE} tokens"
    );
    for (id, token) in (0_u32..).zip(SPECIAL_TOKENS) {
        ensure!(tokenizer.token_to_id(token) == Some(id), "{token} is not token {id}");
    }
    let text = tokenizer.to_string(true).map_err(anyhow::Error::from_boxed)?;
    fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// ChatML; the `generation` tags mark what is trained.
const CHAT_TEMPLATE: &str = r"{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\n' -}}
    {%- if message['role'] == 'assistant' -%}
        {%- generation -%}
            {{- message['content'] + '<|im_end|>' -}}
        {%- endgeneration -%}
        {{- '\n' -}}
    {%- else -%}
        {{- message['content'] + '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
";

fn settings() -> [(&'static str, Value); 4] {
    let [pad, _, end] = SPECIAL_TOKENS;
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "initializer_range": 0.02,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16"
    });
    let tokenizer_config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": pad,
        "eos_token": end,
        "pad_token": pad,
        "add_bos_token": false,
        "clean_up_tokenization_spaces": false,
        "model_max_length": 512
    });
    let generation_config = json!({
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "do_sample": false,
        "max_new_tokens": 64
    });
    let special_tokens = json!({"bos_token": pad, "eos_token": end, "pad_token": pad});
    [
        ("config.json", config),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", generation_config),
        ("special_tokens_map.json", special_tokens),
    ]
}

fn write_jsonl(path: &Path, rows: &[Value]) -> Result<()> {
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(path, lines).with_context(|| format!("cannot write {}", path.display()))
}

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "assets".to_owned());
    let folder = Path::new(&folder);
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let world = World::parse(WORLD)?;
    let rows = corpus(&world, &mut ChaCha8Rng::seed_from_u64(SEED))?;
    write_jsonl(&folder.join("pretrain.jsonl"), &rows)?;
    let (train, held_out) = fine_tune_rows(&world, &mut ChaCha8Rng::seed_from_u64(SEED))?;
    write_jsonl(&folder.join("train.jsonl"), &train)?;
    write_jsonl(&folder.join("heldout.jsonl"), &held_out)?;

    write_tokenizer(&rows, &folder.join("tokenizer.json"))?;
    fs::write(folder.join("chat_template.jinja"), CHAT_TEMPLATE)?;
    let prompts = ("prompts.json", json!(SHOWN));
    for (name, value) in settings().into_iter().chain([prompts]) {
        fs::write(folder.join(name), serde_json::to_string_pretty(&value)? + "\n")?;
    }
    println!(
        "{} rows of corpus, {} of training data, {} of evaluation data -> {}",
        rows.len(),
        train.len(),
        held_out.len(),
        folder.display()
    );
    Ok(())
}

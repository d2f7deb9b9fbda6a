//! Every kind of fault, the order of the sources, and the way back to TOML.

use emberlm_data::{OnError, TemplateChoice, TextBy, TrainOn};
use emberlm_lora::Targets;
use emberlm_quant::QuantFormat;
use emberlm_quant::tensor_file::FloatDtype;

use super::*;
use crate::base::ModelSource;
use crate::settings::SettingKind;
use crate::trainer::backend::Backend;
use crate::trainer::clip::ClipConfig;
use crate::trainer::guard::{GuardConfig, OnNonFinite, OnSpike};
use crate::trainer::optimizer::{Algorithm, SgdConfig};
use crate::trainer::schedule::{Curve, DecayShape, DecaySpan, Warmup};
use crate::trainer::step::Recompute;

mod data;
mod tuning;

fn set(text: &str) -> Override {
    Override::Set { text: text.to_owned() }
}

fn read(text: &str) -> Result<RunConfig, ConfigError> {
    load_str(text, "run.toml", &[])
}

/// The messages of all faults of a text.
fn faults(text: &str) -> Vec<String> {
    faults_with(text, &[])
}

fn faults_with(text: &str, overrides: &[Override]) -> Vec<String> {
    let error = load_str(text, "run.toml", overrides).expect_err(text);
    error.faults.iter().map(Fault::to_string).collect()
}

#[track_caller]
fn one_fault(text: &str, expected: &str) {
    assert_eq!(faults(text), [expected]);
}

const FULL: &str = r#"
[model]
path = "/models/a"
tokenizer = "/models/b"
backend = "ndarray"
dtype = "bf16"
quant = "nf4"
double_quant = false
quant_skip = ["down_proj", "layers.0"]
add_tokens = ["<a>"]
[lora]
r = 4
alpha = 12
dropout = 0.1
target_modules = ["q_proj", "v_proj"]
use_rslora = true
[data]
train = ["/d/a.jsonl", "/d/b.jsonl"]
eval = "/d/c.jsonl"
format = "auto"
template = "none"
train_on = "last"
max_length = 64
packing = true
group_by_length = false
cache_dir = "/c"
shuffle = false
date = "2024-07-26"
prompts = ["a", "b"]
text_by = "paragraph"
on_error = "skip"
max_errors = 5
rejects = "/d/rejects.jsonl"
[data.fields]
question = "q"
[train]
output_dir = "/runs/x"
overwrite = true
steps = 7
micro_batch_size = 2
grad_accumulation = 3
optimizer = "sgd"
momentum = 0.5
nesterov = true
learning_rate = 1e-3
min_learning_rate = 1e-5
schedule = "wsd"
decay_steps = 3
decay_shape = "linear"
warmup_ratio = 0.25
weight_decay = 0.1
clip = "per_tensor"
clip_factor = 3.0
clip_decay = 0.5
lora_plus_ratio = 16.0
embedding_learning_rate = 1e-4
decay_norms_and_biases = true
recompute = "block"
neftune_alpha = 5
seed = 11
eval_every = 5
save_every = 6
keep_last = 4
log_every = 9
tensorboard = true
threads = 1
on_nonfinite = "skip"
max_skipped = 7
on_spike = "stop"
spike_threshold = 4.5
save_best = false
patience = 8
min_improvement = 0.25
debug = true
"#;

fn full() -> RunConfig {
    RunConfig {
        model: ModelSection {
            source: ModelSource::Pretrained {
                path: "/models/a".into(),
                tokenizer: "/models/b".into(),
            },
            backend: Backend::NdArray,
            dtype: FloatDtype::Bf16,
            quant: Some(QuantFormat::Nf4),
            double_quant: false,
            quant_skip: vec!["down_proj".into(), "layers.0".into()],
            add_tokens: vec!["<a>".into()],
        },
        lora: Some(LoraSection {
            start: LoraStart::Fresh {
                r: nonzero(4),
                alpha: 12.0,
                target_modules: Targets::Names(vec!["q_proj".into(), "v_proj".into()]),
                use_rslora: true,
            },
            dropout: 0.1,
        }),
        data: DataSection {
            source: DataSource::Files {
                train: vec!["/d/a.jsonl".into(), "/d/b.jsonl".into()],
                eval: vec!["/d/c.jsonl".into()],
            },
            format: "auto".into(),
            template: TemplateChoice::None,
            train_on: TrainOn::Last,
            max_length: nonzero(64),
            packing: true,
            group_by_length: false,
            shuffle: false,
            date: "2024-07-26".into(),
            prompts: vec!["a".into(), "b".into()],
            cache_dir: Some("/c".into()),
            reading: Reading {
                fields: [("question".to_owned(), "q".to_owned())].into(),
                text_by: TextBy::Paragraph,
                on_error: OnError::Skip { limit: Some(5) },
                rejects: Some("/d/rejects.jsonl".into()),
                ..Reading::default()
            },
        },
        train: TrainSection {
            output_dir: "/runs/x".into(),
            overwrite: true,
            duration: Duration::Steps(NonZeroU64::new(7).unwrap()),
            micro_batch_size: nonzero(2),
            grad_accumulation: nonzero(3),
            optimizer: Algorithm::Sgd(SgdConfig {
                momentum: 0.5,
                nesterov: true,
                weight_decay: 0.1,
            }),
            learning_rate: 1e-3,
            min_learning_rate: 1e-5,
            schedule: Curve::Wsd {
                decay: DecaySpan::Steps(nonzero_u64(3)),
                shape: DecayShape::Linear,
            },
            warmup: Warmup::Ratio(0.25),
            lora_plus_ratio: Some(16.0),
            calibrate_ab: None,
            embedding_learning_rate: Some(1e-4),
            decay_norms_and_biases: true,
            clip: ClipConfig::PerTensor { factor: 3.0, decay: 0.5 },
            recompute: Recompute::Block,
            neftune_alpha: Some(5.0),
            seed: 11,
            eval_every: NonZeroU64::new(5),
            save_every: NonZeroU64::new(6),
            keep_last: NonZeroUsize::new(4),
            log_every: NonZeroU64::new(9).unwrap(),
            tensorboard: true,
            threads: NonZeroUsize::new(1),
            trainable: Vec::new(),
            monitoring: Monitoring {
                guards: GuardConfig {
                    on_nonfinite: OnNonFinite::Skip,
                    max_skipped: 7,
                    on_spike: OnSpike::Stop,
                    spike_threshold: 4.5,
                },
                save_best: false,
                result: ResultWeights::Last,
                patience: NonZeroU64::new(8),
                min_improvement: 0.25,
                debug: true,
            },
        },
    }
}

#[test]
fn every_key_reaches_its_field() {
    assert_eq!(read(FULL).unwrap(), full());
}

#[test]
fn nothing_gives_the_defaults() {
    let config = load(None, &[]).unwrap();
    assert_eq!(config, RunConfig::default());
    assert_eq!(config, from_table(Table::new()).unwrap());
    assert_eq!(config.model.source, ModelSource::Builtin);
    assert_eq!(config.lora, None);
    assert_eq!(config.train.duration, Duration::Epochs(3.0));
    assert_eq!(config.train.clip, ClipConfig::norm(1.0));
    assert_eq!(shown(&config.train.output_dir), Path::new("runs/default"));
}

#[test]
fn alpha_is_twice_the_rank_unless_given() {
    let alpha = |text| match read(text).unwrap().lora.unwrap().start {
        LoraStart::Fresh { r, alpha, .. } => (r.get(), alpha),
        LoraStart::InitFrom { .. } => unreachable!(),
    };
    assert_eq!(alpha("[lora]"), (16, 32.0));
    assert_eq!(alpha("[lora]\nr = 8"), (8, 16.0));
    assert_eq!(alpha("[lora]\nr = 8\nalpha = 5"), (8, 5.0));
}

#[test]
fn targets_are_all_linear_a_pattern_or_names() {
    let targets = |value: &str| match read(&format!("lora.target_modules = {value}"))
        .unwrap()
        .lora
        .unwrap()
        .start
    {
        LoraStart::Fresh { target_modules, .. } => target_modules,
        LoraStart::InitFrom { .. } => unreachable!(),
    };
    assert_eq!(targets("'all-linear'"), Targets::AllLinear);
    assert_eq!(targets(r"'.*\.(q|v)_proj'"), Targets::Regex(r".*\.(q|v)_proj".into()));
    assert_eq!(targets("['o_proj']"), Targets::Names(vec!["o_proj".into()]));
}

#[test]
fn the_tokenizer_lies_with_the_model_unless_given() {
    let source = |text: &str| read(&format!("data.train = '/d'\n{text}")).unwrap().model.source;
    assert_eq!(
        source("model.path = '/m'"),
        ModelSource::Pretrained { path: "/m".into(), tokenizer: "/m".into() }
    );
    assert_eq!(
        source("model.config = '/m/config.json'"),
        ModelSource::Scratch { config: "/m/config.json".into(), tokenizer: "/m".into() }
    );
    assert_eq!(
        source("model.config = '/m/config.json'\nmodel.tokenizer = '/t'"),
        ModelSource::Scratch { config: "/m/config.json".into(), tokenizer: "/t".into() }
    );
}

#[test]
fn the_command_line_takes_precedence_over_the_file_in_order() {
    let flag = Override::Flag {
        flag: "--backend".into(),
        key: "model.backend".into(),
        value: "cuda".into(),
    };
    let overrides = [
        flag,
        set("train.steps=2"),
        set("train.steps=3"),
        set("lora.target_modules=[k_proj]"),
        set("lora.r=6"),
    ];
    let config = load_str(FULL, "run.toml", &overrides).unwrap();
    let mut expected = full();
    expected.model.backend = Backend::Cuda;
    expected.train.duration = Duration::Steps(NonZeroU64::new(3).unwrap());
    expected.lora.as_mut().unwrap().start = LoraStart::Fresh {
        r: nonzero(6),
        alpha: 12.0,
        target_modules: Targets::Names(vec!["k_proj".into()]),
        use_rslora: true,
    };
    assert_eq!(config, expected);
}

#[test]
fn an_exclusive_setting_on_the_command_line_replaces_the_one_in_the_file() {
    let overrides =
        [set("train.epochs=2"), set("train.warmup_steps=4"), set("model.config=/m/config.json")];
    let config = load_str(FULL, "run.toml", &overrides).unwrap();
    assert_eq!(config.train.duration, Duration::Epochs(2.0));
    assert_eq!(config.train.warmup, Warmup::Steps(4));
    let source =
        ModelSource::Scratch { config: "/m/config.json".into(), tokenizer: "/models/b".into() };
    assert_eq!(config.model.source, source);
}

#[test]
fn paths_begin_at_the_file_that_names_them_and_else_at_the_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    std::fs::write(
        &file,
        "[model]\npath = 'm'\n[data]\ntrain = ['a', '/b']\n[train]\noutput_dir = 'out'",
    )
    .unwrap();
    let config = load(Some(&file), &[set("data.eval=[c]")]).unwrap();
    let below = |name: &str| folder.path().join(name);
    assert_eq!(
        config.model.source,
        ModelSource::Pretrained { path: below("m"), tokenizer: below("m") }
    );
    let source = DataSource::Files {
        train: vec![below("a"), "/b".into()],
        eval: vec![std::env::current_dir().unwrap().join("c")],
    };
    assert_eq!(config.data.source, source);
    assert_eq!(config.train.output_dir, below("out"));
    assert_eq!(shown(&below("out")), below("out"));
}

#[test]
fn every_key_that_holds_paths_begins_at_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    let is_path = |kind: &SettingKind| {
        matches!(kind, SettingKind::Path | SettingKind::Paths | SettingKind::Sections)
    };
    let keys = declared().settings.iter().filter(|setting| is_path(&setting.kind));
    let keys: Vec<&str> = keys.map(|setting| setting.key.as_str()).collect();
    assert!(keys.len() > 8, "{keys:?}");
    for key in keys.into_iter().filter(|key| !key.contains("[]")) {
        // Next to model.tokenizer a model has to be named, next to model.* and data.eval the data; rejects are for rows that
        // are skipped.
        let others = [("data.train", "/d"), ("model.config", "/c"), ("data.on_error", "skip")];
        let others = others
            .iter()
            .filter(|(other, _)| *other != key && (*other, key) != ("model.config", "model.path"));
        let mut text: String =
            others.map(|(other, path)| format!("{other} = '{path}'\n")).collect();
        if key.starts_with("lora.") {
            text += "[lora]\n";
            text += &format!("{} = 'sub/x'", key.trim_start_matches("lora."));
        } else if key == "data.source" {
            // A mixture replaces data.train.
            text = text.replace("data.train = '/d'\n", "") + "data.source = [{ path = 'sub/x' }]";
        } else {
            text += &format!("{key} = 'sub/x'");
        }
        std::fs::write(&file, text).unwrap();
        let written = load(Some(&file), &[]).unwrap().to_toml().unwrap();
        let expected = folder.path().join("sub/x");
        assert!(written.contains(expected.to_str().unwrap()), "{key}: {written}");
    }
}

#[test]
fn a_date_is_read_as_its_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    std::fs::write(&file, "train.output_dir = 2026-01-31\ndata.train = [2026-01-30]").unwrap();
    let config = load(Some(&file), &[set("data.format=2026-01-29")]).unwrap();
    assert_eq!(config.train.output_dir, folder.path().join("2026-01-31"));
    let train = vec![folder.path().join("2026-01-30")];
    assert_eq!(config.data.source, DataSource::Files { train, eval: vec![] });
    assert_eq!(config.data.format, "2026-01-29");
}

#[test]
fn the_resolved_configuration_reads_back_as_itself() {
    let texts = [
        "",
        FULL,
        "data.train = 'd.jsonl'\nmodel.config = 'm/config.json'\ntrain.epochs = 0.5\ntrain.warmup_steps = 3",
        "[lora]",
        "[lora]\ninit_from = 'runs/a'\ndropout = 0.25",
        "[lora]\ntarget_modules = '.*\\.q_proj'\nalpha = 0.1",
        data::MIXTURE,
        "[data]\ngroup_by_length = true\ntrain_on = 'marked'",
    ];
    let folder = tempfile::tempdir().unwrap();
    for text in texts {
        let config = read(text).unwrap();
        let written = config.to_toml().unwrap();
        assert_eq!(read(&written).unwrap(), config, "{written}");
        // From another folder too: its paths are absolute.
        let file = folder.path().join("config.toml");
        std::fs::write(&file, &written).unwrap();
        assert_eq!(load(Some(&file), &[]).unwrap(), config, "{written}");
        assert_eq!(from_table(Table::try_from(&config).unwrap()).unwrap(), config, "{written}");
    }
}

#[test]
fn a_configuration_that_toml_cannot_hold_is_refused_in_writing() {
    let mut config = RunConfig::default();
    config.train.seed = u64::MAX;
    assert!(config.to_toml().is_err());
}

#[test]
fn a_misspelt_key_names_its_place_and_the_nearest_key() {
    one_fault(
        "[train]\n  lerning_rate = 1",
        "run.toml:2:3: unknown key `train.lerning_rate`: did you mean `train.learning_rate`?",
    );
    assert_eq!(
        faults_with("", &[set("train.lerning_rate=1")]),
        ["--set: unknown key `train.lerning_rate`: did you mean `train.learning_rate`?"]
    );
    one_fault("lr = 1", "run.toml:1:1: unknown key `lr`: did you mean `train.learning_rate`?");
    one_fault(
        "[lora]\nzzzz = 1",
        "run.toml:2:1: unknown key `lora.zzzz`; the keys are lora.init_from, lora.r, lora.alpha, \
         lora.target_modules, lora.use_rslora, lora.dropout",
    );
    one_fault(
        "[train.stepz]\na = 1",
        "run.toml:1:8: unknown key `train.stepz`: did you mean `train.steps`?",
    );
}

#[test]
fn a_misspelt_section_names_the_nearest_one() {
    one_fault(
        "[trian]\nsteps = 1",
        "run.toml:1:2: unknown section `[trian]`: did you mean `[train]`?",
    );
    one_fault(
        "[zzz]\nsteps = 1",
        "run.toml:1:2: unknown section `[zzz]`; the sections are [model], [lora], [data], [train]",
    );
}

#[test]
fn a_wrong_type_says_what_was_expected_and_found() {
    one_fault(
        "[train]\nlearning_rate = '1e-4'",
        "run.toml:2:1: `train.learning_rate`: expected a number greater than 0, found the string \"1e-4\"; write it without quotes",
    );
    one_fault(
        "train.steps = 1e3",
        "run.toml:1:7: `train.steps`: expected a whole number of at least 1, found the decimal number 1000.0; \
         write it without decimal point and exponent",
    );
    one_fault(
        "data.shuffle = 1",
        "run.toml:1:6: `data.shuffle`: expected true or false, found the whole number 1; \
         change it, or remove it for the default, true",
    );
    assert_eq!(
        faults_with("", &[set("model.path=7"), set("data.train=d")]),
        ["--set: `model.path`: expected a path (a string), found the whole number 7; \
          write it in quotes, \"…\", on the command line '\"…\"'"]
    );
    one_fault(
        "lora = false",
        "run.toml:1:1: `lora`: expected a section of keys, found false; write [lora], or remove it",
    );
    one_fault(
        "train.eval_every = true",
        "run.toml:1:7: `train.eval_every`: expected a whole number of at least 1, or false (off), found true; \
         change it, or remove it for the default, false",
    );
    one_fault(
        "data.train = [1]",
        "run.toml:1:6: `data.train`: expected a path or a list of paths (strings), found the list [1]; \
         change it, or remove it for the default, the built-in example, with the built-in model",
    );
    one_fault(
        "train.betas = [0.9]",
        "run.toml:1:7: `train.betas`: expected a list of two numbers, each of at least 0 and less than 1, found the list [0.9]; \
         change it, or remove it for the default, [0.9, 0.999]",
    );
}

#[test]
fn an_unknown_choice_lists_the_choices() {
    one_fault(
        "[train]\nschedule = 'cosin'",
        "run.toml:2:1: `train.schedule`: expected one of cosine, linear, constant, wsd, polynomial, inverse_sqrt, \
         found \"cosin\"; did you mean `cosine`?",
    );
    for key in [
        "model.backend",
        "model.dtype",
        "model.quant",
        "data.template",
        "data.train_on",
        "train.recompute",
    ] {
        let [fault] = faults(&format!("{key} = '?'")).try_into().unwrap();
        assert!(
            fault.contains(&format!("`{key}`: expected one of ")) && fault.contains("found \"?\""),
            "{fault}"
        );
    }
}

#[test]
fn numbers_outside_their_range_are_refused() {
    let cases = [
        ("lora.r", "0", "16"),
        ("lora.alpha", "0", "twice the rank"),
        ("lora.alpha", "nan", "twice the rank"),
        ("lora.dropout", "1", "0.0"),
        ("lora.dropout", "-0.1", "0.0"),
        ("data.max_length", "1", "2048"),
        ("train.epochs", "0", "3.0"),
        ("train.epochs", "inf", "3.0"),
        ("train.steps", "0", "`epochs`"),
        ("train.micro_batch_size", "0", "4"),
        ("train.grad_accumulation", "-1", "1"),
        ("train.learning_rate", "0", "2e-4"),
        ("train.learning_rate", "inf", "2e-4"),
        ("train.min_learning_rate", "-1", "0.0"),
        ("train.warmup_steps", "-1", "0"),
        ("train.warmup_ratio", "1", "`warmup_steps`"),
        ("train.weight_decay", "-0.5", "0.0"),
        ("train.betas", "[0.9, 1.0]", "[0.9, 0.999]"),
        ("train.eps", "0", "1e-8"),
        ("train.max_grad_norm", "-1", "1.0"),
        ("train.max_grad_norm", "nan", "1.0"),
        ("train.seed", "-1", "0"),
        ("train.eval_every", "0", "false"),
        ("train.save_every", "0", "500"),
        ("train.keep_last", "0", "2"),
        ("train.log_every", "0", "1"),
        ("train.threads", "0", "all cores"),
    ];
    for (key, value, default) in cases {
        let error = read(&format!("{key} = {value}")).expect_err(key);
        let [Fault { origin: Some(_), kind }] = error.faults.as_slice() else {
            panic!("{key}: {error}")
        };
        let FaultKind::Value { key: named, remedy, .. } = kind else { panic!("{key}: {error}") };
        assert_eq!(
            (named.as_str(), remedy),
            (key, &format!("change it, or remove it for the default, {default}"))
        );
    }
    one_fault(
        "[lora]\ndropout = 1.5",
        "run.toml:2:1: `lora.dropout`: expected a number of at least 0 and less than 1, found 1.5; \
         change it, or remove it for the default, 0.0",
    );
}

#[test]
fn empty_texts_and_lists_are_refused_where_something_is_to_be_named() {
    for key in [
        "model.path",
        "model.config",
        "lora.init_from",
        "train.output_dir",
        "data.cache_dir",
        "data.train",
        "data.format",
    ] {
        let error = read(&format!("{key} = ''")).expect_err(key);
        assert!(
            matches!(&error.faults[0].kind, FaultKind::Value { key: named, .. } if named == key),
            "{error}"
        );
    }
    for value in ["''", "[]", "['']"] {
        let error = read(&format!("lora.target_modules = {value}")).expect_err(value);
        assert!(
            matches!(error.faults.as_slice(), [Fault { kind: FaultKind::Value { .. }, .. }]),
            "{error}"
        );
    }
}

#[test]
fn an_invalid_regular_expression_is_refused() {
    let [fault] = faults("[lora]\ntarget_modules = '(q_proj'").try_into().unwrap();
    assert!(
        fault.starts_with("run.toml:2:1: `lora.target_modules`: expected \"all-linear\""),
        "{fault}"
    );
    assert!(
        fault.contains("(not a regular expression: ") && fault.contains("found \"(q_proj\""),
        "{fault}"
    );
}

#[test]
fn settings_that_exclude_each_other_are_refused_side_by_side() {
    one_fault(
        "[train]\nepochs = 1\nsteps = 1",
        "`train.epochs` (run.toml:2:1) and `train.steps` (run.toml:3:1) contradict each other: \
         both set the length of the run; remove one of them",
    );
    one_fault(
        "[train]\nwarmup_steps = 0\nwarmup_ratio = 0.1",
        "`train.warmup_steps` (run.toml:2:1) and `train.warmup_ratio` (run.toml:3:1) contradict each other: \
         both set the length of the warm-up; remove one of them",
    );
    let [fault] = faults("data.train = 'd'\n[model]\npath = 'a'\nconfig = 'b'").try_into().unwrap();
    assert!(
        fault.starts_with(
            "`model.path` (run.toml:3:1) and `model.config` (run.toml:4:1) contradict"
        ),
        "{fault}"
    );
    assert_eq!(
        faults_with("", &[set("train.epochs=1"), set("train.steps=1")]),
        ["`train.epochs` (--set) and `train.steps` (--set) contradict each other: \
          both set the length of the run; remove one of them"]
    );
}

#[test]
fn a_minimum_above_the_learning_rate_is_refused() {
    one_fault(
        "train.min_learning_rate = 1",
        "`train.min_learning_rate` (run.toml:1:7) and `train.learning_rate` contradict each other: \
         expected a minimum of at most the learning rate 0.0002, found 1; \
         lower train.min_learning_rate or raise train.learning_rate",
    );
}

#[test]
fn what_an_adapter_brings_along_cannot_be_set_beside_it() {
    let text = "[lora]\ninit_from = 'a'\nr = 1\nalpha = 1\ntarget_modules = 'all-linear'\nuse_rslora = false";
    let faults = faults(text);
    assert_eq!(faults.len(), 4);
    assert_eq!(
        faults[0],
        "`lora.r` (run.toml:3:1) and `lora.init_from` (run.toml:2:1) contradict each other: \
         lora.r comes from the adapter; remove lora.r"
    );
    assert!(read("[lora]\ninit_from = 'a'\ndropout = 0.1").is_ok());
}

#[test]
fn what_is_needed_and_missing_is_named_with_the_reason() {
    one_fault(
        "model.path = 'm'",
        "`data.train` is missing: expected a file of training data, or a list of files, because the built-in data is \
         for the built-in model only; set data.train in the file, or give --data FILE",
    );
    let [fault] = faults("data.eval = 'e'").try_into().unwrap();
    assert!(fault.contains("because data.eval is given (run.toml:1:6)"), "{fault}");
    let [fault] = faults("model.tokenizer = 't'").try_into().unwrap();
    assert!(
        fault.starts_with("`model.path` is missing") && fault.contains("(run.toml:1:7)"),
        "{fault}"
    );
    one_fault(
        "model.quant = 'int8'",
        "run.toml:1:7: `lora` is missing: expected a section [lora], because weights quantized by \
         model.quant = \"int8\" cannot be trained; add [lora], or remove model.quant",
    );
    assert!(read("model.quant = 'int8'\n[lora]").is_ok());
    for dtype in ["bf16", "f16"] {
        one_fault(
            &format!("model.dtype = '{dtype}'"),
            &format!(
                "run.toml:1:7: `lora` is missing: expected a section [lora], because model.dtype = \"{dtype}\" rounds \
                 weights to 16 bits, too coarse for training them; add [lora], or remove model.dtype"
            ),
        );
        let model = read(&format!("model.dtype = '{dtype}'\n[lora]")).unwrap().model;
        assert_eq!(model.dtype.name(), dtype);
    }
    assert!(read("model.dtype = 'f32'").is_ok());
}

#[test]
fn layers_to_skip_want_a_quantization() {
    one_fault(
        "[model]\nquant_skip = ['down_proj']",
        "run.toml:2:1: `model.quant` is missing: expected nf4, fp4 or int8, because model.quant_skip is given, and \
         nothing is quantized; set model.quant, or remove model.quant_skip",
    );
    one_fault(
        "[lora]\n[model]\nquant = 'nf4'\nquant_skip = ['']",
        "run.toml:4:1: `model.quant_skip`: expected names of modules, found [\"\"]; change it, or remove it",
    );
    let model = read("lora.r = 2\nmodel.quant = 'fp4'\nmodel.quant_skip = ['a']").unwrap().model;
    assert!(model.quantization().unwrap().skips("x.a.y"));
}

#[test]
fn a_day_is_fixed_and_checked() {
    let date = |text: &str| read(text).unwrap().data.date;
    assert_eq!(date("data.date = '2024-02-29'"), "2024-02-29");
    // TOML has dates of its own.
    assert_eq!(date("data.date = 2024-02-29"), "2024-02-29");
    assert!(emberlm_data::date::is_date(&date("")), "today, written out");
    for wrong in ["2023-02-29", "tomorrow", "29.2.2024", ""] {
        one_fault(
            &format!("[data]\ndate = '{wrong}'"),
            &format!(
                "run.toml:2:1: `data.date`: expected a date as YYYY-MM-DD, found {wrong:?}; change it, or remove it \
                 for the default, today"
            ),
        );
    }
}

#[test]
fn text_that_is_no_toml_shows_place_and_line() {
    let [first, second] =
        faults("[train]\nsteps = = 3\nseed = 1\nlog_every = \"x").try_into().unwrap();
    assert!(
        first.starts_with("run.toml:2:9: not TOML: ") && first.ends_with("| steps = = 3"),
        "{first}"
    );
    assert!(second.starts_with("run.toml:4:") && second.ends_with("| log_every = \"x"), "{second}");
    let [twice] = faults("[train]\nsteps = 3\nsteps = 4").try_into().unwrap();
    assert!(
        twice.starts_with("run.toml:3:1: not TOML: ") && twice.contains("duplicate key"),
        "{twice}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = load(Some(Path::new("no/such.toml")), &[set("oops")]).unwrap_err().to_string();
    assert!(error.contains("cannot read `no/such.toml`: "), "{error}");
    assert!(
        error.contains(
            "--set: expected section.key=value, as in --set train.steps=100, found `oops`"
        ),
        "{error}"
    );
}

#[test]
fn all_faults_come_at_once() {
    let text = "[modl]\n[lora]\nr = 0\n[train]\nstep = 3\nlearning_rate = 'x'\nepochs = -1\nschedule = 'x'";
    let error = load_str(text, "run.toml", &[set("train.seed=-4"), set("nothing")]).unwrap_err();
    let shown = error.to_string();
    assert_eq!(error.faults.len(), 8, "{shown}");
    assert!(shown.starts_with("invalid configuration, 8 errors:\n  - --set: "), "{shown}");
}

#[test]
fn settings_of_reading_are_checked_together() {
    let skip = "data.train = '/d'\ndata.on_error = 'skip'\ndata.max_errors = 3\ndata.text_by = 'line'\n\
        data.prompt_template = '{a}'\ndata.completion_template = '{b}'\n[model]\nconfig = '/c'";
    let reading = read(skip).unwrap().data.reading;
    assert_eq!(reading.on_error, OnError::Skip { limit: Some(3) });
    let with_fields = "data.train = '/d'\n[data.fields]\nprompt = 'q'\n[model]\nconfig = '/c'";
    assert_eq!(read(with_fields).unwrap().data.reading.fields["prompt"], "q");
    for text in [skip, with_fields] {
        let config = read(text).unwrap();
        assert_eq!(load_str(&config.to_toml().unwrap(), "again", &[]).unwrap(), config);
    }
    for (text, expected) in [
        ("data.prompt_template = '{a}'", "data.completion_template"),
        ("data.text_template = 'no placeholder'", "at least one placeholder {name}"),
        ("data.fields.promt = 'q'", "Did you mean `prompt`?"),
        ("data.fields.prompt = 3", "a section of names (strings)"),
        ("data.format = 'text'\ndata.text_template = '{a}'", "contradict"),
        ("data.max_errors = 3", "it needs data.on_error = \"skip\""),
        ("data.rejects = 'r'", "it needs data.on_error = \"skip\""),
        ("data.on_error = 'skip'\ndata.max_errors = -1", "a whole number of at least 0"),
        ("data.on_error = 'ignore'", "one of fail, skip"),
        ("data.text_by = 'page'", "one of file, paragraph, line"),
    ] {
        let [fault] = faults(text).try_into().unwrap();
        assert!(fault.contains(expected), "{fault}");
    }
}

#[test]
fn settings_about_evaluations_need_evaluations() {
    for key in ["patience = 3", "result = \"best\""] {
        let found = faults(&format!("[train]\n{key}"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("train.eval_every"), "{found:?}");
        assert!(read(&format!("[train]\neval_every = 5\n{key}")).is_ok());
    }
    let found = faults("[train]\neval_every = 5\nresult = \"best\"\nsave_best = false");
    assert!(found[0].contains("train.save_best"), "{found:?}");
}

#[test]
fn checkpoints_are_saved_unless_they_are_switched_off() {
    let train = read("").unwrap().train;
    assert_eq!((train.save_every, train.keep_last), (NonZeroU64::new(500), NonZeroUsize::new(2)));
    let train = read("[train]\nsave_every = false\nkeep_last = false").unwrap().train;
    assert_eq!((train.save_every, train.keep_last), (None, None));
}

#[test]
fn trainable_weights_are_named_only_without_adapters() {
    let read = |text: &str| read(text).map(|config| config.train.trainable);
    assert_eq!(read("[train]\ntrainable = [\"mlp\"]").unwrap(), ["mlp"]);
    let found = faults("[lora]\n[train]\ntrainable = [\"mlp\"]");
    assert!(found[0].contains("train.trainable") && found[0].contains("lora"), "{found:?}");
    assert!(faults("[train]\ntrainable = []")[0].contains("names of weights"));
    let config = super::load_str("[train]\ntrainable = [\"mlp\"]", "a", &[]).unwrap();
    assert_eq!(super::load_str(&config.to_toml().unwrap(), "b", &[]).unwrap(), config);
}

#[test]
fn every_setting_is_declared_once_and_documented() {
    let declared = declared();
    let mut keys: Vec<&str> =
        declared.settings.iter().map(|setting| setting.key.as_str()).collect();
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count);
    for setting in &declared.settings {
        assert!(!setting.doc.is_empty() && !setting.doc.ends_with('.'), "{}", setting.key);
        assert!(!setting.defaults.is_empty(), "{}", setting.key);
    }
    // Names that other trainers have point to one setting each.
    let mut names: Vec<&str> =
        declared.settings.iter().flat_map(|setting| setting.other_names).copied().collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() + 2 >= count, "{names:?}");
}

#[test]
fn the_nearest_key_is_found_by_spelling_section_and_the_names_of_other_trainers() {
    for (key, nearest) in [
        ("train.lerning_rate", Some("train.learning_rate")),
        ("train.warmup_step", Some("train.warmup_steps")),
        ("train.max_length", Some("data.max_length")),
        ("train.dropout", Some("lora.dropout")),
        ("lora.lora_alpha", Some("lora.alpha")),
        ("train.per_device_train_batch_size", Some("train.micro_batch_size")),
        ("train.zzz", None),
    ] {
        let error = read(&format!("{key} = 1")).unwrap_err();
        let found = error.faults.iter().find_map(|fault| match &fault.kind {
            FaultKind::Unknown { nearest, .. } => Some(nearest.as_deref()),
            _ => None,
        });
        assert_eq!(found, Some(nearest), "{key}");
    }
}

#[test]
fn the_starting_file_is_a_valid_run_and_names_every_setting() {
    let text = starting_file();
    let config = read(&text).unwrap();
    assert!(config.lora.is_some());
    for setting in &declared().settings {
        assert!(text.contains(setting.name()), "{}", setting.key);
    }
    assert_eq!(config.train.duration, Duration::Epochs(3.0));
    // Every line is TOML once its `#` is removed.
    let mut keys = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("# ")) {
        let is_key = |name: &str| declared().settings.iter().any(|known| known.name() == name);
        if line.split_once(" = ").is_some_and(|(name, _)| is_key(name)) {
            toml::from_str::<Table>(line).expect(line);
            keys += 1;
        }
    }
    assert!(keys > 70, "{keys}");
}

#[test]
fn the_schema_has_every_setting() {
    let schema = schema();
    for setting in &declared().settings {
        let properties = match setting.section().strip_suffix("[]") {
            None => &schema["properties"][setting.section()]["properties"],
            Some(_) => &schema["properties"]["data"]["properties"]["source"]["items"]["properties"],
        };
        assert!(properties[setting.name()].is_object(), "{}", setting.key);
    }
    let rate = &schema["properties"]["train"]["properties"]["learning_rate"];
    assert_eq!(rate["exclusiveMinimum"], 0.0);
    assert_eq!(schema["properties"]["stage"]["type"], "array");
}

/// `UPDATE_DOCS=1 cargo test -p emberlm config` writes the reference.
#[test]
fn the_reference_in_the_documentation_is_that_of_the_declarations() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- settings: begin -->\n", "<!-- settings: end -->");
    let (before, rest) = text.split_once(begin).expect("the first mark");
    let (_, after) = rest.split_once(end).expect("the second mark");
    let written = format!("{before}{begin}\n{}{end}{after}", reference::markdown(declared()));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    assert!(
        text == written || std::env::var_os("UPDATE_DOCS").is_some(),
        "run it with UPDATE_DOCS=1"
    );
}

#[test]
fn a_configuration_of_an_earlier_version_is_read() {
    // As version 0.1.0 wrote it: constants of every optimizer, and values that are off.
    let text = "[model]\nbackend = 'flex'\ndtype = 'f32'\nquant = 'none'\ndouble_quant = true\n\
        [lora]\nr = 16\nalpha = 32.0\ntarget_modules = 'all-linear'\nuse_rslora = false\ndropout = 0.0\n\
        [data]\nformat = 'auto'\ntemplate = 'auto'\nmax_length = 2048\ntrain_on = 'all'\npacking = false\n\
        group_by_length = false\nshuffle = true\ndate = '2026-11-29'\ntext_by = 'file'\non_error = 'fail'\n\
        max_errors = false\n\
        [train]\noutput_dir = '/runs/x'\noverwrite = false\nsteps = 9\nmicro_batch_size = 4\n\
        grad_accumulation = 1\noptimizer = 'sgd'\nlearning_rate = 0.002\nmin_learning_rate = 0.0\n\
        schedule = 'cosine'\nwarmup_steps = 0\nweight_decay = 0.0\nbetas = [0.9, 0.999]\neps = 1e-8\n\
        max_grad_norm = false\nrecompute = 'selective'\nseed = 0\neval_every = false\nsave_every = 500\n\
        keep_last = 2\nlog_every = 1\ntensorboard = false\non_nonfinite = 'stop'\nmax_skipped = 3\n\
        on_spike = 'warn'\nspike_threshold = 6.0\nsave_best = true\nresult = 'last'\npatience = false\n\
        min_improvement = 0.0\ndebug = false\nmomentum = 0.9\nnesterov = false\n\
        decay_norms_and_biases = false\nclip = 'per_tensor'\nclip_factor = 2.0\nclip_decay = 0.95\n";
    let train = read(text).unwrap().train;
    assert_eq!(train.optimizer, Algorithm::Sgd(SgdConfig::DEFAULT));
    assert_eq!(train.clip, ClipConfig::PerTensor { factor: 2.0, decay: 0.95 });
}

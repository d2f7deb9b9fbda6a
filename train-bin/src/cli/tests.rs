//! Arguments and the settings that they give.

use std::num::NonZeroU64;

use clap::CommandFactory;
use clap::error::ErrorKind;
use emberlm_quant::QuantFormat;
use emberlm_quant::tensor_file::FloatDtype;

use super::train::TrainArgs;
use super::values::OrWord;
use super::*;
use crate::base::ModelSource;
use crate::config::{self, DataSource, Duration, Override};
use crate::trainer::backend::Backend;

fn parse(line: &str) -> Result<Command, clap::Error> {
    Cli::try_parse_from(std::iter::once("emberlm").chain(line.split(' '))).map(|cli| cli.command)
}

fn train(line: &str) -> TrainArgs {
    match parse(line).unwrap() {
        Command::Train(args) => *args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_command_line_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn flags_of_train_override_set() {
    let args = train(
        "train --set train.steps=3 --data a --data /b --eval c --model m --out o --backend flex \
                      --set model.backend=ndarray",
    );
    let config = config::load(args.run.config.as_deref(), &args.run.overrides()).unwrap();
    let here = |path: &str| std::env::current_dir().unwrap().join(path);
    assert_eq!(
        config.model.source,
        ModelSource::Pretrained { path: here("m"), tokenizer: here("m") }
    );
    assert_eq!(config.model.backend, Backend::Flex);
    let source = DataSource::Files { train: vec![here("a"), "/b".into()], eval: vec![here("c")] };
    assert_eq!(config.data.source, source);
    assert_eq!(config.train.output_dir, here("o"));
    assert_eq!(config.train.duration, Duration::Steps(NonZeroU64::new(3).unwrap()));
}

#[test]
fn dtype_is_a_setting_of_runs_and_a_flag_of_the_other_commands() {
    let args = train("train --dtype bf16");
    let config = config::load_str("[lora]", "run.toml", &args.run.overrides()).unwrap();
    assert_eq!(config.model.dtype, FloatDtype::Bf16);
    let whole = config::load_str("", "run.toml", &args.run.overrides()).unwrap_err().to_string();
    assert!(whole.contains("--dtype: ") && whole.contains("add [lora]"), "{whole}");
    let Command::Generate(args) = parse("generate --model m --dtype f16").unwrap() else {
        panic!()
    };
    assert_eq!(args.model.form(None).dtype, FloatDtype::F16);
    let Command::Bench(args) = parse("bench --model m --dtype bf16").unwrap() else { panic!() };
    assert_eq!(args.dtype, FloatDtype::Bf16);
}

#[test]
fn an_error_in_a_flag_names_the_flag() {
    let args = train("train --model m");
    let error =
        config::load_str("model.config = 'c'\nmodel.path = 3", "run.toml", &args.run.overrides());
    let error = error.unwrap_err().to_string();
    assert!(!error.contains("model.config"), "the flag replaces the file's setting: {error}");
    let args = train("train --model m --set model.config=c --data d");
    let error = config::load(None, &args.run.overrides()).unwrap_err().to_string();
    assert!(
        error.contains("`model.path` (--model) and `model.config` (--set) contradict"),
        "{error}"
    );
}

#[test]
fn train_without_arguments_overrides_nothing() {
    let args = train("train");
    assert_eq!(args, TrainArgs::default());
    assert!(args.run.overrides().is_empty());
}

#[test]
fn resume_takes_a_path_only_after_an_equals_sign() {
    assert_eq!(train("train run.toml").resume, None);
    assert_eq!(
        train("train --resume=runs/a/checkpoint-3").resume,
        Some(Some("runs/a/checkpoint-3".into()))
    );
    let args = train("train --resume run.toml --dry-run");
    assert_eq!(
        (args.resume, args.run.config.as_deref(), args.dry_run),
        (Some(None), Some("run.toml".as_ref()), true)
    );
}

#[test]
fn sampling_is_greedy_by_default_and_checked() {
    let Command::Generate(args) = parse("generate --model m --stop a --stop b").unwrap() else {
        panic!()
    };
    assert_eq!(args.sampling.temperature, 0.0);
    assert_eq!(args.sampling.max_new_tokens.get(), 256);
    assert_eq!(args.sampling.stop, ["a", "b"]);
    for wrong in [
        "--temperature=-1",
        "--temperature=nan",
        "--top-p=0",
        "--top-p=1.1",
        "--repetition-penalty=0",
    ] {
        let error = parse(&format!("generate --model m {wrong}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ValueValidation, "{wrong}");
        assert!(error.to_string().contains("expected a number"), "{error}");
    }
    let error = parse("generate --model m --raw --system s").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ArgumentConflict);
}

#[test]
fn eval_and_merge_have_their_defaults() {
    let Command::Eval(args) = parse("eval --model m --data a --data b --quant nf4").unwrap() else {
        panic!()
    };
    assert_eq!((args.batch_size.get(), args.max_length.get(), args.data.len()), (4, 2048, 2));
    assert_eq!(
        (args.model.quant, args.format.as_str(), args.model.backend),
        (OrWord(Some(QuantFormat::Nf4)), "auto", Backend::Auto)
    );
    assert_eq!(parse("eval --model m").unwrap_err().kind(), ErrorKind::MissingRequiredArgument);
    let dtype = |line: &str| match parse(line).unwrap() {
        Command::Merge(args) => args.dtype,
        other => panic!("{other:?}"),
    };
    assert_eq!(dtype("merge --model m --adapter a --out o"), OrWord(None));
    assert_eq!(
        dtype("merge --model m --adapter a --out o --dtype bf16"),
        OrWord(Some(FloatDtype::Bf16))
    );
}

#[test]
fn an_unknown_choice_lists_the_choices() {
    let error = parse("eval --model m --data d --backend gpu").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    assert!(error.to_string().contains("auto, flex, ndarray, wgpu, cuda"), "{error}");
}

#[test]
fn a_dashboard_conflicts_with_quiet_dry_run_and_verbose() {
    assert!(train("train --tui").tui);
    for other in ["--quiet", "--dry-run", "-v"] {
        let error = parse(&format!("train --tui {other}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{other}");
    }
}

#[test]
fn lr_find_takes_the_arguments_of_a_run_and_at_least_two_steps() {
    let Command::LrFind(args) = parse("lr-find run.toml --set train.seed=1 --from 1e-5").unwrap()
    else {
        panic!("another command")
    };
    assert_eq!((args.from, args.to, args.steps), (1e-5, 1.0, 100));
    assert_eq!(args.run.overrides(), [Override::Set { text: "train.seed=1".into() }]);
    for wrong in ["--steps 1", "--from 0", "--to nan"] {
        assert!(parse(&format!("lr-find {wrong}")).is_err(), "{wrong}");
    }
}

use clap::Parser;
use emberlm_data::{FailOn, Finding};

use super::*;
use crate::cli::{Cli, Command};
use emberlm_data::OnError;

fn parse(line: &str) -> Result<DataCommand, clap::Error> {
    let line = std::iter::once("emberlm").chain(line.split(' '));
    match Cli::try_parse_from(line)?.command {
        Command::Data(args) => Ok(args.command),
        other => panic!("{other:?}"),
    }
}

#[test]
fn fail_on_extends_or_replaces_the_default() {
    let limits = |line: &str| match parse(line).unwrap() {
        DataCommand::Check(args) => args.limits(),
        other => panic!("{other:?}"),
    };
    assert_eq!(limits("data check a --model m"), FailOn::DEFAULT);
    assert!(limits("data check a --model m --fail-on none").is_empty());
    let more = limits("data check a --model m --fail-on default,html=5%,unreadable=3");
    assert_eq!(more.len(), 6);
    assert!(more.iter().any(|limit| limit.to_string() == "unreadable=3"));
    let own = limits("data check a --model m --fail-on truncated");
    assert_eq!(own.iter().map(|limit| limit.finding).collect::<Vec<_>>(), [Finding::Truncated]);
    let error = parse("data check a --model m --fail-on htm").unwrap_err().to_string();
    assert!(error.contains("Did you mean `html`?"), "{error}");
}

#[test]
fn reading_arguments_equal_those_of_a_configuration() {
    let DataCommand::Split(args) = parse(
        "data split a b --out o --field prompt=q --field completion=a.b --on-error skip --max-errors 3 --time t --from 2024-01-01",
    )
    .unwrap() else {
        panic!()
    };
    let reading = args.rows.reading.reading(Some(&args.faults));
    assert_eq!(reading.fields["completion"], "a.b");
    assert_eq!(reading.on_error, OnError::Skip { limit: Some(3) });
    assert!(parse("data split a --out o --from 2024-01-01").is_err());
    assert!(parse("data clean a --out o --max-tokens 3").is_err());
    assert!(parse("data check a --model m --prompt-template {a}").is_err());
}

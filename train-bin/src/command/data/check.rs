//! `emberlm data check`.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use emberlm::cli::data::CheckArgs;
use emberlm::run::prepare::template_choice;
use emberlm_data::{AuditOptions, AuditReport, Example, ExampleOptions, FailOn, audit, preview};
use serde_json::json;

use super::{percent, rows, tokenizer_of};

pub(super) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (files, read) = rows(&args.rows)?;
    let tokenizer = tokenizer_of(&args.model)?;
    let options = AuditOptions {
        example: ExampleOptions {
            max_length: Some(args.max_length),
            template: template_choice(args.template),
            train_on: args.train_on.turns(),
            ..ExampleOptions::default()
        },
        min_supervised: args.min_supervised,
        near: Some(args.near).filter(|_| !args.no_near),
        show: args.show,
        ..AuditOptions::default()
    };
    let report = audit(&files, &read, &tokenizer, &options)?;
    let limits = args.limits();
    let failed = report.failures(&limits);
    if args.json {
        let shown: Vec<String> =
            report.shown.iter().map(|example| preview(example, &tokenizer, false)).collect();
        let mut object = serde_json::to_value(&report)?;
        object["files"] = json!(files);
        object["preview"] = json!(shown);
        object["failed_on"] = json!(failed.iter().map(ToString::to_string).collect::<Vec<_>>());
        object["passed"] = json!(failed.is_empty());
        println!("{object}");
    } else {
        let ansi = std::io::stdout().is_terminal();
        print(&report, &|example| preview(example, &tokenizer, ansi));
        print_verdict(&report, &failed);
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &AuditReport, preview: &dyn Fn(&Example) -> String) {
    for example in &report.shown {
        println!("{}, its trained part marked:", example.source);
        for line in preview(example).lines() {
            println!("  | {line}");
        }
        println!();
    }
    println!(
        "{} rows, {} examples, {} tokens, {} of them supervised ({})",
        report.rows,
        report.examples,
        report.tokens,
        report.supervised_tokens,
        percent(report.supervised_share)
    );
    println!("\n{:<12} {:>10} {:>12} {:>12}", "kind", "rows", "tokens", "supervised");
    for (kind, of) in &report.kinds {
        println!("{kind:<12} {:>10} {:>12} {:>12}", of.rows, of.tokens, of.supervised_tokens);
    }
    let lengths = &report.lengths;
    println!(
        "\ntokens of an example: least {}, mean {:.1}, half up to {}, 90 % {}, 95 % {}, 99 % {}, most {}",
        lengths.min, lengths.mean, lengths.p50, lengths.p90, lengths.p95, lengths.p99, lengths.max
    );
    let most = lengths.histogram.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    for bin in &lengths.histogram {
        let bar = "█".repeat((40 * bin.count).div_ceil(most) as usize);
        println!("{:>8} – {:<8} {:>10} {bar}", bin.from, bin.to, bin.count);
    }
    println!("\n{:<18} {:>10} {:>9}  first", "finding", "rows", "share");
    for count in &report.findings {
        let first = count.first.first().map_or("", String::as_str);
        println!("{:<18} {:>10} {:>9}  {first}", count.finding, count.rows, percent(count.share));
    }
    for fault in report.faults.iter().take(5) {
        println!("  {fault}");
    }
}

fn print_verdict(report: &AuditReport, failed: &[&FailOn]) {
    if failed.is_empty() {
        println!("\npassed");
        return;
    }
    let told: Vec<String> = failed
        .iter()
        .map(|limit| format!("{limit} ({} rows)", report.count(limit.finding)))
        .collect();
    println!("\nfailed on {}", told.join(", "));
}

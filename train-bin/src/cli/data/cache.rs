//! `emberlm data cache`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use emberlm_data::{TokenFileInfo, token_files};
use serde_json::{Value, json};

/// Show or remove the token files of data.cache_dir
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm data cache cache/ --clear --older-than 30")]
pub(crate) struct CacheArgs {
    /// Folder of token files (data.cache_dir)
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) folder: PathBuf,
    /// Remove the token files; other files are kept
    #[arg(long)]
    pub(crate) clear: bool,
    /// List or remove only files not used for this many days
    #[arg(long, value_name = "DAYS")]
    pub(crate) older_than: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const DAY: f64 = 86_400.0;

pub(super) fn run(args: &CacheArgs) -> Result<ExitCode> {
    let now = SystemTime::now();
    let mut files = token_files(&args.folder)?;
    let least = Duration::from_secs(u64::from(args.older_than.unwrap_or(0)) * DAY as u64);
    files.retain(|file| now.duration_since(file.used).unwrap_or_default() >= least);
    if args.clear {
        for file in &files {
            fs::remove_file(&file.path)
                .with_context(|| format!("{}: cannot be removed", file.path.display()))?;
        }
    }
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    if args.json {
        let files: Vec<Value> = files.iter().map(|file| value(file, now)).collect();
        println!("{}", json!({"files": files, "bytes": bytes, "removed": args.clear}));
        return Ok(ExitCode::SUCCESS);
    }
    for file in &files {
        println!(
            "{}  {:>9}  used {:>5.1} days ago  {}",
            file.path.file_name().unwrap_or_default().to_string_lossy(),
            mib(file.bytes),
            days(file, now),
            describe(file)
        );
    }
    let noun = if files.len() == 1 { "file" } else { "files" };
    let done = if args.clear { " removed" } else { "" };
    println!("{} token {noun}, {}{done}", files.len(), mib(bytes));
    Ok(ExitCode::SUCCESS)
}

fn value(file: &TokenFileInfo, now: SystemTime) -> Value {
    let mut value = json!({"path": file.path, "bytes": file.bytes, "days": days(file, now)});
    match &file.content {
        Ok(holds) => {
            value["data_files"] = json!(holds.files);
            value["examples"] = json!(holds.summary.examples);
            value["tokens"] = json!(holds.summary.tokens);
        }
        Err(why) => value["unreadable"] = json!(why),
    }
    value
}

fn describe(file: &TokenFileInfo) -> String {
    match &file.content {
        Ok(holds) => {
            let more = holds.files.len().saturating_sub(1);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let first = holds.files.first().map(|file| file.display().to_string());
            format!(
                "{} examples, {} tokens of {}{more}",
                holds.summary.examples,
                holds.summary.tokens,
                first.unwrap_or_default()
            )
        }
        Err(why) => format!("unusable: {why}"),
    }
}

fn days(file: &TokenFileInfo, now: SystemTime) -> f64 {
    now.duration_since(file.used).unwrap_or_default().as_secs_f64() / DAY
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

//! The arguments of a run: its file, `--set`, and a flag for each setting that declares one.

use std::path::{Path, PathBuf};

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};

use crate::base::builtin;
use crate::config::{self, ConfigError, Override, RunConfig};
use crate::settings::{Setting, SettingKind, flag_value};

/// A run: its file, and what the command line changes in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RunArgs {
    /// The configuration file.
    pub(crate) config: Option<PathBuf>,
    /// `--set` in the order given, then flags.
    overrides: Vec<Override>,
    /// The date if the file has none.
    date: Option<String>,
}

impl RunArgs {
    /// The settings of the command line, in the order in which they are applied: `--set` first, then flags.
    #[must_use]
    pub(crate) fn overrides(&self) -> Vec<Override> {
        let mut overrides = self.overrides.clone();
        if let Some(date) = &self.date {
            let value = date.as_str().into();
            overrides.push(Override::Default { key: "data.date", value });
        }
        overrides
    }

    /// The same with a date for runs that set none.
    #[must_use]
    pub(crate) fn with_date(mut self, date: String) -> Self {
        self.date = Some(date);
        self
    }

    /// Whether a flag gives this setting.
    pub(crate) fn gives(&self, setting: &str) -> bool {
        let is_it =
            |given: &Override| matches!(given, Override::Flag { key, .. } if key == setting);
        self.overrides.iter().any(is_it)
    }

    /// Whether neither file nor model nor data is given.
    pub(crate) fn names_no_run(&self) -> bool {
        self.config.is_none() && !self.gives("model.path") && !self.gives("data.train")
    }

    /// The configuration: file, `--set` and flags. Without a file and without model and data it is the built-in example, with
    /// flags alone LoRA at its defaults.
    ///
    /// # Errors
    /// [`ConfigError`] with all faults.
    pub(crate) fn configuration(&self) -> Result<RunConfig, ConfigError> {
        let overrides = self.overrides();
        match &self.config {
            Some(file) => config::load(Some(file), &overrides),
            None if self.names_no_run() => {
                config::load_str(builtin::RUN, "built-in example.toml", &overrides)
            }
            None => config::load_str("[lora]\n", "defaults", &overrides),
        }
    }
}

/// The settings that have a flag, with its name.
fn flags() -> impl Iterator<Item = (&'static Setting, &'static str)> {
    config::declared().settings.iter().filter_map(|setting| Some((setting, setting.flag?)))
}

fn flag_arg(setting: &'static Setting, name: &'static str) -> Arg {
    let arg = Arg::new(name)
        .long(name)
        .help(format!("{} [{}]", setting.doc, setting.key))
        .allow_negative_numbers(true);
    match &setting.kind {
        SettingKind::Path => {
            arg.value_name("DIR").value_hint(ValueHint::AnyPath).value_parser(text())
        }
        SettingKind::Paths => arg
            .value_name("FILE")
            .value_hint(ValueHint::AnyPath)
            .value_parser(text())
            .action(ArgAction::Append),
        SettingKind::Choice(choices) => {
            let names = choices.iter().map(|(name, _)| name.as_str());
            arg.value_name("NAME").value_parser(PossibleValuesParser::new(names))
        }
        SettingKind::Number(_) => arg.value_name("NUMBER").value_parser(text()),
        SettingKind::Whole(_) => arg.value_name("N").value_parser(text()),
        _ => arg.value_name("VALUE").value_parser(text()),
    }
}

fn text() -> ValueParser {
    NonEmptyStringValueParser::new().into()
}

impl Args for RunArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .value_name("RUN.toml")
            .value_hint(ValueHint::FilePath)
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file; paths in it are relative to its folder");
        let set = Arg::new("set")
            .long("set")
            .value_name("SECTION.KEY=VALUE")
            .action(ArgAction::Append)
            .help("Change any setting, such as `train.steps=100` or `lora.target_modules=[q_proj,v_proj]`; repeatable");
        let command = command.arg(file);
        flags()
            .fold(command, |command, (setting, name)| command.arg(flag_arg(setting, name)))
            .arg(set)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RunArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        let sets = matches.get_many::<String>("set").into_iter().flatten();
        self.overrides = sets.map(|text| Override::Set { text: text.clone() }).collect();
        for (setting, name) in flags() {
            let given: Vec<&String> = matches.get_many(name).into_iter().flatten().collect();
            if given.is_empty() {
                continue;
            }
            let value = flag_value(&setting.kind, &given);
            let (flag, key) = (format!("--{name}"), setting.key.clone());
            self.overrides.push(Override::Flag { flag, key, value });
        }
        Ok(())
    }
}

/// The present folder of a resumed run, as an override.
pub(in crate::cli) fn output_dir(folder: &Path) -> Option<Override> {
    let value = folder.to_str()?.into();
    let (flag, key) = ("--resume".to_owned(), "train.output_dir".to_owned());
    Some(Override::Flag { flag, key, value })
}

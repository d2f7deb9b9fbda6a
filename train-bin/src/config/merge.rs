//! One table out of the layers: a TOML text, then the command line. What comes later wins, key by
//! key.
//!
//! Of two settings that exclude each other (`train.epochs` and `train.steps`), one on the command
//! line takes the place of the other in the file; side by side in one layer they stay, for the
//! check to report.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::error::{Fault, FaultKind, Origin};
use super::keys::{PATH_KEYS, excluded_by};

/// A setting from the command line, which goes before the one in the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Override {
    /// `--set section.key=value`. The value is a TOML value; what is no TOML value is a string,
    /// alone or within `[a, b]`.
    Set {
        /// All of the argument: `train.steps=100`.
        text: String,
    },
    /// A flag with a name of its own.
    Flag {
        /// The flag: `--model`.
        flag: &'static str,
        /// The key it sets: `model.path`.
        key: &'static str,
        /// The value.
        value: Value,
    },
    /// Not from the command line, but what takes the place of a default: the file goes before it.
    Default {
        /// The key it sets: `data.date`.
        key: &'static str,
        /// The value.
        value: Value,
    },
}

/// The layers merged so far.
#[derive(Debug, Default, Clone)]
pub(super) struct Layers {
    /// The merged table. Paths are absolute.
    pub(super) table: Table,
    /// Where each key, in full, comes from.
    pub(super) origins: BTreeMap<String, Origin>,
}

impl Layers {
    /// Adds a TOML text. Its relative paths begin at `folder`.
    pub(super) fn add_text(
        &mut self,
        name: &str,
        text: &str,
        folder: &Path,
    ) -> Result<(), Vec<Fault>> {
        let (document, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            return Err(syntax_faults(name, text, &errors));
        }
        let mut origins = BTreeMap::new();
        collect_origins(document.get_ref(), "", &mut |key, offset| {
            let (line, column) = line_and_column(text, offset);
            origins.insert(key, Origin::File { name: name.to_owned(), line, column });
        });
        let table: Table = toml::from_str(text)
            .map_err(|error| syntax_faults(name, text, std::slice::from_ref(&error)))?;
        self.add_table(table, folder, &|key| origins.get(key).cloned());
        Ok(())
    }

    /// Adds a table. Its relative paths begin at `folder`.
    pub(super) fn add_table(
        &mut self,
        table: Table,
        folder: &Path,
        origin_of: &dyn Fn(&str) -> Option<Origin>,
    ) {
        merge(&mut self.table, &mut self.origins, "", table, folder, origin_of);
    }

    /// Adds what takes the place of defaults, before anything else is added.
    pub(super) fn add_defaults(&mut self, overrides: &[Override]) {
        for setting in overrides {
            if let Override::Default { key, value } = setting {
                self.add_table(nested(key, value.clone()), Path::new(""), &|_| None);
            }
        }
    }

    /// Adds settings of the command line. Their relative paths begin at the working directory.
    pub(super) fn add_overrides(&mut self, overrides: &[Override]) -> Result<(), Vec<Fault>> {
        let mut faults = Vec::new();
        for setting in overrides {
            let (key, value, origin) = match setting {
                Override::Default { .. } => continue,
                Override::Flag { flag, key, value } => {
                    ((*key).to_owned(), value.clone(), Origin::Flag(flag))
                }
                Override::Set { text } => match parse_set(text) {
                    Ok((key, value)) => (key, value, Origin::Set),
                    Err(reason) => {
                        let kind = FaultKind::SetSyntax { text: text.clone(), reason };
                        faults.push(Fault { origin: Some(Origin::Set), kind });
                        continue;
                    }
                },
            };
            self.add_table(nested(&key, value), Path::new(""), &|_| Some(origin.clone()));
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

/// `value` at a full key.
fn nested(key: &str, value: Value) -> Table {
    let (sections, last) = key.rsplit_once('.').unwrap_or(("", key));
    let table = Table::from_iter([(last.to_owned(), value)]);
    sections
        .rsplit('.')
        .filter(|section| !section.is_empty())
        .fold(table, |table, section| Table::from_iter([(section.to_owned(), Value::Table(table))]))
}

fn merge(
    into: &mut Table,
    origins: &mut BTreeMap<String, Origin>,
    section: &str,
    layer: Table,
    folder: &Path,
    origin_of: &dyn Fn(&str) -> Option<Origin>,
) {
    for (name, value) in layer {
        let key = join(section, &name);
        let origin = origin_of(&key);
        if let Value::Table(inner) = value {
            let known = into.entry(name).or_insert_with(|| Value::Table(Table::new()));
            // A value where a section belongs is a fault of the lower layer, which the check
            // reports.
            if let Value::Table(known) = known {
                if let (Some(origin), false) = (&origin, origins.contains_key(&key)) {
                    origins.insert(key.clone(), origin.clone());
                }
                merge(known, origins, &key, inner, folder, origin_of);
            }
            continue;
        }
        if let Some(excluded) = excluded_by(&key)
            && is_command_line(origin.as_ref())
            && !is_command_line(origins.get(excluded))
        {
            origins.remove(excluded);
            into.remove(excluded.rsplit('.').next().unwrap_or(excluded));
        }
        let value = without_dates(value);
        let value = if PATH_KEYS.contains(&key.as_str()) { anchored(value, folder) } else { value };
        into.insert(name, value);
        match origin {
            Some(origin) => origins.insert(key, origin),
            None => origins.remove(&key),
        };
    }
}

fn is_command_line(origin: Option<&Origin>) -> bool {
    matches!(origin, Some(Origin::Set | Origin::Flag(_)))
}

fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// No key takes a date: `output_dir = 2026-01-31` is meant as a text.
fn without_dates(value: Value) -> Value {
    match value {
        Value::Datetime(date) => Value::String(date.to_string()),
        Value::Array(values) => Value::Array(values.into_iter().map(without_dates).collect()),
        other => other,
    }
}

/// The path or the paths in `value`, made absolute. Other types stay, for the check to report.
fn anchored(value: Value, folder: &Path) -> Value {
    match value {
        Value::String(path) if !path.is_empty() => {
            // A working directory that is not UTF-8 has no place in TOML: the path stays relative
            // to it.
            let path = absolute(&folder.join(&path)).into_os_string().into_string().unwrap_or(path);
            Value::String(path)
        }
        Value::Array(paths) => {
            Value::Array(paths.into_iter().map(|path| anchored(path, folder)).collect())
        }
        Value::Table(mut table) => {
            if let Some(path) = table.remove("path") {
                table.insert("path".to_owned(), anchored(path, folder));
            }
            Value::Table(table)
        }
        other => other,
    }
}

/// `path`, from the root; as it is where the working directory is not known.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The key and the value of `section.key=value`, or what is wrong with it.
fn parse_set(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("there is no `=`")?;
    let key = key.trim();
    let parts: Vec<&str> = key.split('.').collect();
    let is_bare = |part: &&str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    if !parts.iter().all(is_bare) {
        return Err(format!("`{key}` is no key"));
    }
    if parts.len() < 2 {
        return Err(format!("`{key}` names no section"));
    }
    Ok((key.to_owned(), parse_value(value.trim())?))
}

/// A TOML value; otherwise a list of such; otherwise the text itself.
fn parse_value(text: &str) -> Result<Value, String> {
    let error = match toml::from_str::<Table>(&format!("value = {text}")) {
        // A line break may smuggle in a second key.
        Ok(table) if table.len() == 1 => match table.into_iter().next() {
            Some((_, value)) => return Ok(value),
            None => String::new(),
        },
        Ok(_) => "it holds more than one value".to_owned(),
        Err(error) => error.message().to_owned(),
    };
    if let Some(items) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let items = split_items(items).into_iter().filter(|item| !item.is_empty());
        return Ok(Value::Array(items.map(parse_value).collect::<Result<_, _>>()?));
    }
    if text.starts_with(['"', '\'', '{']) {
        return Err(format!("`{text}` is no TOML value ({})", error.replace('\n', ", ")));
    }
    Ok(Value::String(text.to_owned()))
}

/// Splits at the commas that stand outside quotes and brackets.
fn split_items(text: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut start, mut depth, mut quote) = (0, 0_usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{' | '(') => depth += 1,
            (None, ']' | '}' | ')') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                items.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(text[start..].trim());
    items
}

fn collect_origins(table: &DeTable<'_>, section: &str, found: &mut impl FnMut(String, usize)) {
    for (name, value) in table {
        let key = join(section, name.get_ref());
        if let DeValue::Table(inner) = value.get_ref() {
            collect_origins(inner, &key, found);
        }
        found(key, name.span().start);
    }
}

fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// One fault a line: the parser's further errors on a line mostly follow from the first.
fn syntax_faults(name: &str, text: &str, errors: &[toml::de::Error]) -> Vec<Fault> {
    let mut faults = BTreeMap::new();
    for error in errors {
        let (line, column) = line_and_column(text, error.span().map_or(0, |span| span.start));
        faults.entry(line).or_insert_with(|| Fault {
            origin: Some(Origin::File { name: name.to_owned(), line, column }),
            kind: FaultKind::Syntax {
                message: error.message().replace('\n', ", "),
                line: text.lines().nth(line - 1).unwrap_or_default().to_owned(),
            },
        });
    }
    faults.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Value {
        parse_set(text).unwrap().1
    }

    #[test]
    fn a_set_value_is_toml_or_a_bare_word_or_a_list_of_them() {
        assert_eq!(set("train.steps=10"), Value::Integer(10));
        assert_eq!(set("train.learning_rate = 1e-4"), Value::Float(1e-4));
        assert_eq!(set("data.shuffle=false"), Value::Boolean(false));
        assert_eq!(set("model.quant=nf4"), Value::String("nf4".into()));
        assert_eq!(set("model.quant=\"nf4\""), Value::String("nf4".into()));
        assert_eq!(set("model.path=a=b/c.d"), Value::String("a=b/c.d".into()));
        assert_eq!(set("lora.target_modules=[qk]_proj"), Value::String("[qk]_proj".into()));
        assert_eq!(
            set(r"lora.target_modules=.*\.(q|v)_proj"),
            Value::String(r".*\.(q|v)_proj".into())
        );
        let names = Value::Array(vec!["q_proj".into(), "v,proj".into(), 3.into()]);
        assert_eq!(set("lora.target_modules=[q_proj, 'v,proj', 3]"), names);
        assert_eq!(set("train.betas=[0.9, 0.95]"), Value::Array(vec![0.9.into(), 0.95.into()]));
        assert_eq!(set("data.train=[]"), Value::Array(vec![]));
        assert_eq!(set("data.train=a\nb=1"), Value::String("a\nb=1".into()));
    }

    #[test]
    fn a_set_that_is_no_assignment_says_why() {
        for (text, reason) in [
            ("train.steps", "there is no `=`"),
            ("steps=3", "`steps` names no section"),
            ("train..steps=3", "`train..steps` is no key"),
            ("train.a b=3", "`train.a b` is no key"),
        ] {
            assert_eq!(parse_set(text), Err(reason.to_owned()));
        }
        assert!(
            parse_set("model.path=\"open").unwrap_err().starts_with("`\"open` is no TOML value")
        );
    }

    #[test]
    fn lines_and_columns_count_characters_from_one() {
        assert_eq!(line_and_column("ab\ncd", 0), (1, 1));
        assert_eq!(line_and_column("ab\ncd", 4), (2, 2));
        assert_eq!(line_and_column("é = ü = 1", 8), (1, 7));
    }

    #[test]
    fn later_layers_win_and_remember_where_they_come_from() {
        let mut layers = Layers::default();
        layers.add_text("a.toml", "[train]\nsteps = 1\nseed = 7", Path::new("")).unwrap();
        let flag = Override::Flag { flag: "--out", key: "train.output_dir", value: "/x".into() };
        layers.add_overrides(&[Override::Set { text: "train.steps=2".into() }, flag]).unwrap();
        let train = layers.table["train"].as_table().unwrap();
        assert_eq!((train["steps"].as_integer(), train["seed"].as_integer()), (Some(2), Some(7)));
        let shown = |key: &str| layers.origins[key].to_string();
        assert_eq!(
            [shown("train.steps"), shown("train.seed"), shown("train.output_dir"), shown("train")],
            ["--set", "a.toml:3:1", "--out", "a.toml:1:2"]
        );
    }

    #[test]
    fn on_the_command_line_a_setting_takes_the_place_of_the_one_it_excludes() {
        let mut layers = Layers::default();
        layers.add_text("a.toml", "train.epochs = 3", Path::new("")).unwrap();
        layers.add_overrides(&[Override::Set { text: "train.steps=2".into() }]).unwrap();
        assert_eq!(layers.table["train"].as_table().unwrap().keys().collect::<Vec<_>>(), ["steps"]);
        assert!(!layers.origins.contains_key("train.epochs"));
        layers.add_overrides(&[Override::Set { text: "train.epochs=2".into() }]).unwrap();
        assert_eq!(
            layers.table["train"].as_table().unwrap().len(),
            2,
            "both from the command line: left to the check"
        );
    }
}

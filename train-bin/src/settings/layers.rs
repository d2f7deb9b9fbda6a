//! Settings from several places in one table: a TOML text, the stage of a file, the command line. The later layer wins,
//! key by key, and each key remembers where its value comes from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::error::{Fault, FaultKind, Origin};
use super::setting::SettingKind;

/// A setting from the command line, which takes precedence over the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Override {
    /// `--set section.key=value`. The value is a TOML value; anything else is a string, alone or within `[a, b]`.
    Set {
        /// The whole argument: `train.steps=100`.
        text: String,
    },
    /// A flag with a name of its own.
    Flag {
        /// The flag: `--model`.
        flag: String,
        /// The key it sets: `model.path`.
        key: String,
        /// The value.
        value: Value,
    },
    /// Not from the command line: it replaces a default, and the file takes precedence over it.
    Default {
        /// The key it sets: `data.date`.
        key: &'static str,
        /// The value.
        value: Value,
    },
}

/// Where a key's value comes from.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    pub(super) origin: Option<Origin>,
    /// Relative paths are relative to this folder; empty: the working directory.
    pub(super) folder: PathBuf,
    /// The number of the layer; a later one wins.
    pub(super) layer: usize,
}

/// The layers merged so far.
#[derive(Debug, Default, Clone)]
pub struct Layers {
    pub(super) table: Table,
    /// By full key.
    pub(super) places: BTreeMap<String, Place>,
    layers: usize,
}

impl Layers {
    /// Adds a TOML text called `name` in messages. Its relative paths begin at `folder`.
    ///
    /// # Errors
    /// Every line that is not TOML.
    pub fn add_text(&mut self, name: &str, text: &str, folder: &Path) -> Result<(), Vec<Fault>> {
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

    /// Adds a table. Its relative paths are relative to `folder`.
    pub fn add_table(
        &mut self,
        table: Table,
        folder: &Path,
        origin_of: &dyn Fn(&str) -> Option<Origin>,
    ) {
        self.layers += 1;
        let place = |key: &str| Place {
            origin: origin_of(key),
            folder: folder.to_owned(),
            layer: self.layers,
        };
        merge(&mut self.table, &mut self.places, "", table, &place);
    }

    /// Adds what replaces defaults, before anything else is added.
    pub fn add_defaults(&mut self, overrides: &[Override]) {
        for setting in overrides {
            if let Override::Default { key, value } = setting {
                self.add_table(nested(key, value.clone()), Path::new(""), &|_| None);
            }
        }
    }

    /// Adds the settings of the command line as one layer. Their relative paths begin at the working directory.
    ///
    /// # Errors
    /// Every `--set` that is not `section.key=value`.
    pub fn add_overrides(&mut self, overrides: &[Override]) -> Result<(), Vec<Fault>> {
        let mut faults = Vec::new();
        let first = self.layers;
        for setting in overrides {
            let (key, value, origin) = match setting {
                Override::Default { .. } => continue,
                Override::Flag { flag, key, value } => {
                    (key.clone(), value.clone(), Origin::Flag(flag.clone()))
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
            self.layers = first;
            self.add_table(nested(&key, value), Path::new(""), &|_| Some(origin.clone()));
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Takes a key of the top level out, with where it comes from.
    pub fn take(&mut self, name: &str) -> Option<(Value, Option<Origin>)> {
        let value = self.table.remove(name)?;
        let origin = self.origin(name);
        self.places.retain(|key, _| key != name && !key.starts_with(&format!("{name}.")));
        Some((value, origin))
    }

    /// Where a key comes from. In a list of sections: `data.source[0].path`.
    pub fn origin(&self, key: &str) -> Option<Origin> {
        self.places.get(key)?.origin.clone()
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
    places: &mut BTreeMap<String, Place>,
    section: &str,
    layer: Table,
    place_of: &dyn Fn(&str) -> Place,
) {
    for (name, value) in layer {
        let key = join(section, &name);
        let place = place_of(&key);
        if let Value::Table(inner) = value {
            let known = into.entry(name).or_insert_with(|| Value::Table(Table::new()));
            // A value where a section belongs is a fault of the lower layer, which the reader reports.
            if let Value::Table(known) = known {
                places.entry(key.clone()).or_insert(place);
                merge(known, places, &key, inner, place_of);
            }
            continue;
        }
        note_elements(&value, &key, places, place_of);
        into.insert(name, without_dates(value));
        places.insert(key, place);
    }
}

/// Notes where the keys in a list of sections come from.
fn note_elements(
    value: &Value,
    key: &str,
    places: &mut BTreeMap<String, Place>,
    place_of: &dyn Fn(&str) -> Place,
) {
    let note = |inner: &Value, key: String, places: &mut BTreeMap<String, Place>| {
        places.insert(key.clone(), place_of(&key));
        note_elements(inner, &key, places, place_of);
    };
    match value {
        Value::Array(values) if values.iter().all(Value::is_table) => {
            for (i, inner) in values.iter().enumerate() {
                note_elements(inner, &format!("{key}[{i}]"), places, place_of);
            }
        }
        Value::Table(table) => {
            for (name, inner) in table {
                note(inner, join(key, name), places);
            }
        }
        _ => {}
    }
}

pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// No key takes a date: `output_dir = 2026-01-31` means the text.
fn without_dates(value: Value) -> Value {
    match value {
        Value::Datetime(date) => Value::String(date.to_string()),
        Value::Array(values) => Value::Array(values.into_iter().map(without_dates).collect()),
        Value::Table(table) => Value::Table(
            table.into_iter().map(|(key, value)| (key, without_dates(value))).collect(),
        ),
        other => other,
    }
}

/// The value of a flag of the command line as TOML. Texts and paths are taken literally.
pub fn flag_value(kind: &SettingKind, given: &[&String]) -> Value {
    match kind {
        SettingKind::Paths => {
            Value::Array(given.iter().map(|text| Value::String((*text).clone())).collect())
        }
        SettingKind::Path | SettingKind::Text | SettingKind::Choice(_) => {
            Value::String(given.last().map(|text| (*text).clone()).unwrap_or_default())
        }
        _ => {
            let text = given.last().map(|text| text.as_str()).unwrap_or_default();
            parse_value(text).unwrap_or_else(|_| Value::String(text.to_owned()))
        }
    }
}

/// The key and the value of `section.key=value`, or what is wrong with it.
fn parse_set(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("missing `=`")?;
    let key = key.trim();
    let parts: Vec<&str> = key.split('.').collect();
    let is_bare = |part: &&str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    if !parts.iter().all(is_bare) {
        return Err(format!("`{key}` is not a key"));
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
        return Err(format!("`{text}` is not a TOML value ({})", error.replace('\n', ", ")));
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

fn collect_origins(table: &DeTable<'_>, section: &str, found: &mut dyn FnMut(String, usize)) {
    for (name, value) in table {
        let key = join(section, name.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) => collect_origins(inner, &key, found),
            DeValue::Array(values) => {
                for (i, value) in values.iter().enumerate() {
                    if let DeValue::Table(inner) = value.get_ref() {
                        collect_origins(inner, &format!("{key}[{i}]"), found);
                    }
                }
            }
            _ => {}
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
            ("train.steps", "missing `=`"),
            ("steps=3", "`steps` names no section"),
            ("train..steps=3", "`train..steps` is not a key"),
            ("train.a b=3", "`train.a b` is not a key"),
        ] {
            assert_eq!(parse_set(text), Err(reason.to_owned()));
        }
        assert!(
            parse_set("model.path=\"open").unwrap_err().starts_with("`\"open` is not a TOML value")
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
        let flag = Override::Flag {
            flag: "--out".into(),
            key: "train.output_dir".into(),
            value: "/x".into(),
        };
        layers.add_overrides(&[Override::Set { text: "train.steps=2".into() }, flag]).unwrap();
        let train = layers.table["train"].as_table().unwrap();
        assert_eq!((train["steps"].as_integer(), train["seed"].as_integer()), (Some(2), Some(7)));
        let shown = |key: &str| layers.origin(key).unwrap().to_string();
        assert_eq!(
            [shown("train.steps"), shown("train.seed"), shown("train.output_dir"), shown("train")],
            ["--set", "a.toml:3:1", "--out", "a.toml:1:2"]
        );
    }
}

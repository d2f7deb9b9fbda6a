//! What is written about settings from their declarations: the reference in the documentation, a JSON Schema, a commented
//! starting file.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::reader::Declared;
use super::setting::{Effect, Setting, SettingKind};

/// The reference of all settings as Markdown: a table a section.
pub fn markdown(declared: &Declared) -> String {
    let mut text = String::new();
    for (section, settings) in by_section(declared) {
        let header = match section.strip_suffix("[]") {
            Some(list) => format!("[[{list}]]"),
            None => format!("[{section}]"),
        };
        let doc = declared.sections.iter().find(|(name, _)| *name == section);
        let _ = write!(text, "### `{header}`\n\n");
        if let Some((_, doc)) = doc {
            let _ = write!(text, "{doc}.\n\n");
        }
        text += "| key | value | default | meaning |\n|---|---|---|---|\n";
        for setting in settings {
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} |",
                setting.name(),
                cell(&value_text(setting)),
                cell(&code(&setting.default_text())),
                cell(&meaning(setting))
            );
        }
        text.push('\n');
    }
    text
}

/// Sections in the order in which their first setting was declared.
fn by_section(declared: &Declared) -> Vec<(&str, Vec<&Setting>)> {
    let mut sections: Vec<(&str, Vec<&Setting>)> = Vec::new();
    for setting in &declared.settings {
        match sections.iter_mut().find(|(section, _)| *section == setting.section()) {
            Some((_, settings)) => settings.push(setting),
            None => sections.push((setting.section(), vec![setting])),
        }
    }
    sections
}

fn value_text(setting: &Setting) -> String {
    let off = if setting.or_off { ", or `false`" } else { "" };
    match &setting.kind {
        SettingKind::Choice(choices) => {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("`{name}`")).collect();
            format!("{}{off}", names.join(", "))
        }
        kind => format!("{kind}{off}"),
    }
}

fn meaning(setting: &Setting) -> String {
    let mut text = format!("{}.", setting.doc.trim_end_matches('.'));
    if let SettingKind::Choice(choices) = &setting.kind {
        let described = choices.iter().filter(|(_, doc)| !doc.is_empty());
        let described: Vec<String> = described
            .map(|(name, doc)| format!("`{name}`: {}", doc.trim_end_matches('.')))
            .collect();
        if !described.is_empty() {
            let _ = write!(text, " {}.", described.join("; "));
        }
    }
    let list = |keys: &[String]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
        keys.join(" or ")
    };
    if !setting.only_with.is_empty() {
        let _ = write!(text, " Only with {}.", list(&setting.only_with));
    }
    if !setting.not_with.is_empty() {
        let _ = write!(text, " Not together with {}.", list(&setting.not_with));
    }
    if let Some(flag) = setting.flag {
        let _ = write!(text, " Flag: `--{flag}`.");
    }
    if !setting.other_names.is_empty() {
        let _ = write!(text, " In other tools: `{}`.", setting.other_names.join("`, `"));
    }
    match setting.effect {
        Effect::None => {}
        Effect::OnSteps => text += " Changed on resume only with `--allow-changes`.",
        Effect::OnWeights => text += " Fixed on resume.",
    }
    text
}

fn code(text: &str) -> String {
    if text.starts_with('`')
        || text.is_empty()
        || text.contains(' ') && !text.starts_with(['"', '['])
    {
        return text.to_owned();
    }
    format!("`{text}`")
}

/// A cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The JSON Schema of a configuration file. `extra`: properties in addition to the sections.
pub fn json_schema(declared: &Declared, extra: Map<String, Value>) -> Value {
    let object = |doc: &str| json!({ "type": "object", "additionalProperties": false, "description": doc, "properties": {} });
    let mut sections = Map::new();
    for (name, doc) in &declared.sections {
        sections.insert(name.clone(), object(doc));
    }
    let (lists, plain): (Vec<&Setting>, Vec<&Setting>) =
        declared.settings.iter().partition(|setting| setting.section().ends_with("[]"));
    for setting in plain {
        sections[setting.section()]["properties"][setting.name()] = setting.schema();
    }
    for setting in lists {
        let list = setting.section().trim_end_matches("[]");
        let Some((section, name)) = list.split_once('.') else { continue };
        let items = &mut sections[section]["properties"][name]["items"];
        if items.is_null() {
            *items = object("");
        }
        items["properties"][setting.name()] = setting.schema();
    }
    sections.extend(extra);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of a training run of emberlm",
        "type": "object",
        "additionalProperties": false,
        "properties": sections,
    })
}

/// A starting file: every setting with its meaning, commented out at its default, but for `given`, the keys that a run needs
/// first with their values.
pub fn starting_file(declared: &Declared, given: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (section, settings) in by_section(declared) {
        if section.ends_with("[]") {
            continue;
        }
        let doc = declared.sections.iter().find(|(name, _)| name == section);
        let doc = doc.map(|(_, doc)| format!("# {doc}\n")).unwrap_or_default();
        let gap = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{gap}{doc}[{section}]");
        for setting in settings {
            let value = given.iter().find(|(key, _)| *key == setting.key).map(|(_, value)| *value);
            for line in wrapped(&comment(setting)) {
                let _ = writeln!(text, "# {line}");
            }
            let _ = match value {
                Some(value) => writeln!(text, "{} = {value}", setting.name()),
                None => writeln!(text, "# {} = {}", setting.name(), example_value(setting)),
            };
        }
    }
    text
}

/// The default where it is TOML, else an example.
fn example_value(setting: &Setting) -> String {
    let default = &setting.defaults.first().map(|(_, value)| value.clone()).unwrap_or_default();
    let is_toml = toml::from_str::<toml::Table>(&format!("value = {default}")).is_ok();
    match setting.example {
        Some(example) => example.to_owned(),
        None if is_toml => default.clone(),
        None => "…".to_owned(),
    }
}

fn comment(setting: &Setting) -> String {
    let mut text = format!("{}: {}.", setting.doc.trim_end_matches('.'), setting.expected());
    if !setting.only_with.is_empty() {
        let _ = write!(text, " Only with {}.", setting.only_with.join(" or "));
    }
    let default = setting.default_text();
    let _ = write!(text, " Default: {default}.");
    text
}

/// Lines of at most 100 characters.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        if line > 0 && line + word.chars().count() > 98 {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            *line += word;
        }
    }
    lines
}

//! Reads sections, setting by setting. Reading is declaring: a reader of nothing gives the defaults and the list of settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;

use toml::{Table, Value};

use super::error::{ConfigError, Fault, FaultKind, Origin};
use super::layers::{Layers, Place, join};
use super::setting::{Effect, Setting, SettingKind};
use super::types::{Choice, Refusal, SettingType};

/// Reads settings out of layers. Every method notes what is wrong and continues as if the default had been given; all faults
/// come at the end, from [`finish`](Self::finish).
#[derive(Debug)]
pub struct Reader {
    sections: BTreeMap<String, Table>,
    places: BTreeMap<String, Place>,
    faults: Vec<Fault>,
    declared: Vec<Setting>,
    docs: Vec<(String, &'static str)>,
    section: String,
    /// What has to be so for the settings that are read now to have an effect.
    conditions: Vec<(String, bool)>,
    /// Given keys that were read where their conditions hold.
    with_effect: BTreeSet<String>,
    /// Given keys that were read where a condition doesn't hold.
    without_effect: Vec<String>,
}

/// Everything that was declared.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    /// The sections with their meaning, in the order of declaration.
    pub sections: Vec<(String, &'static str)>,
    /// The settings, section by section.
    pub settings: Vec<Setting>,
}

impl Declared {
    /// The setting of a full key.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.key == key)
    }
}

impl Reader {
    /// A reader of layers. Values where sections belong are faults.
    pub fn new(layers: Layers) -> Self {
        let mut reader = Self {
            sections: BTreeMap::new(),
            places: layers.places,
            faults: Vec::new(),
            declared: Vec::new(),
            docs: Vec::new(),
            section: String::new(),
            conditions: Vec::new(),
            with_effect: BTreeSet::new(),
            without_effect: Vec::new(),
        };
        for (name, value) in layers.table {
            match value {
                Value::Table(table) => {
                    reader.sections.insert(name, table);
                }
                other => {
                    reader.sections.entry(String::new()).or_default().insert(name, other);
                }
            }
        }
        reader
    }

    /// Reads a section that counts as there even if it isn't given.
    pub fn section<T>(
        &mut self,
        name: &str,
        doc: &'static str,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.docs.push((name.to_owned(), doc));
        if let Some(found) = self.sections.get_mut("").and_then(|top| top.remove(name)) {
            let kind = FaultKind::Value {
                key: name.to_owned(),
                expected: "a section of keys".to_owned(),
                found: described(&found),
                remedy: format!("write [{name}], or remove it"),
            };
            self.push(name, kind);
        }
        let outer = std::mem::replace(&mut self.section, name.to_owned());
        let value = read(self);
        self.section = outer;
        value
    }

    /// Reads a section; `None` if it isn't given.
    pub fn optional_section<T>(
        &mut self,
        name: &str,
        doc: &'static str,
        read: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        let is_given = self.has_section(name);
        let value = self.section(name, doc, read);
        is_given.then_some(value)
    }

    /// Whether a section is given.
    pub fn has_section(&self, name: &str) -> bool {
        self.sections.contains_key(name)
    }

    /// Reads settings that have an effect only if `holds`, which `condition` says as a user would write it:
    /// `train.optimizer = "muon"`. Otherwise they are the defaults, and given ones are faults.
    pub fn only_with<T>(
        &mut self,
        condition: impl Into<String>,
        holds: bool,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.conditions.push((condition.into(), holds));
        let value = read(self);
        self.conditions.pop();
        value
    }

    /// Reads a choice whose alternatives have settings of their own. `read` reads those of one alternative.
    pub fn choice_with_settings<T: Choice + PartialEq>(
        &mut self,
        name: &'static str,
        chosen: T,
        read: impl Fn(T, &mut Self) -> T,
    ) -> T {
        let mut result = chosen.clone();
        let key = join(&self.section, name);
        for alternative in T::value_variants() {
            let name = alternative.choice_name();
            let holds = name == chosen.choice_name();
            let condition = format!("{key} = {name:?}");
            let value = self.only_with(condition, holds, |s| read(alternative.clone(), s));
            if holds {
                result = value;
            }
        }
        let all: Vec<String> = T::value_variants()
            .iter()
            .map(|alternative| format!("{key} = {:?}", alternative.choice_name()))
            .collect();
        // What every alternative has needs no condition.
        for setting in &mut self.declared {
            if all.iter().all(|condition| setting.only_with.contains(condition)) {
                setting.only_with.clear();
            }
        }
        result
    }

    /// Declares that at most one of these keys of the section may be given. One from a later layer (the command line)
    /// replaces the others.
    pub fn at_most_one<const N: usize>(&mut self, names: [&str; N], reason: &str) {
        let keys = names.map(|name| join(&self.section, name));
        for key in &keys {
            let others = keys.iter().filter(|other| *other != key).cloned().collect();
            self.setting_mut(key).not_with = others;
        }
        let given: Vec<&String> = keys.iter().filter(|key| self.is_given(key)).collect();
        let latest = given.iter().map(|key| self.layer(key)).max();
        let (winners, replaced): (Vec<&String>, Vec<&String>) =
            given.into_iter().partition(|key| Some(self.layer(key)) == latest);
        for key in replaced {
            self.remove(key);
        }
        if let [first, second, ..] = winners.as_slice() {
            self.contradiction([first, second], reason, "remove one of them");
        }
    }

    /// Reads a list of sections, `[[section.name]]`; `None` if it isn't given. `read` reads one; `example` is a value of the list.
    pub fn sections<T>(
        &mut self,
        name: &'static str,
        doc: &'static str,
        example: &'static str,
        mut read: impl FnMut(&mut Self) -> T,
    ) -> Option<Vec<T>> {
        let list = |value: &Value, _: &Path| value.as_array().cloned().ok_or(Refusal::Type);
        let spec =
            self.spec::<Vec<Value>>(name, doc, SettingKind::Sections, list, |_| String::new());
        let key = spec.setting.key.clone();
        // The rows themselves are compared on resume.
        let given = spec.changes_nothing().example(example).optional("none");
        // What an element may hold is declared even if there is none.
        let outer = std::mem::replace(&mut self.section, format!("{key}[]"));
        let before = self.faults.len();
        read(self);
        self.faults.truncate(before);
        let place = self.places.get(&key).cloned().unwrap_or_default();
        let mut found = Vec::new();
        for (n, value) in given.iter().flatten().enumerate() {
            let element = format!("{key}[{n}]");
            let Value::Table(table) = value else {
                self.refuse(&key, "a list of sections", &described(value), "write them as [[…]]");
                continue;
            };
            for name in table.keys() {
                self.places.entry(join(&element, name)).or_insert_with(|| place.clone());
            }
            self.places.insert(element.clone(), place.clone());
            self.sections.insert(element.clone(), table.clone());
            self.section = element;
            found.push(read(self));
        }
        self.section = outer;
        if given.as_ref().is_some_and(Vec::is_empty) {
            self.refuse(&key, "at least one section", "[]", "remove it, or add one");
        }
        given.map(|_| found)
    }

    /// A number.
    pub fn number(&mut self, name: &'static str, doc: &'static str) -> Spec<'_, f64> {
        self.setting(name, doc)
    }

    /// A whole number.
    pub fn whole<T: SettingType>(&mut self, name: &'static str, doc: &'static str) -> Spec<'_, T> {
        self.setting(name, doc)
    }

    /// true or false.
    pub fn boolean(&mut self, name: &'static str, doc: &'static str) -> Spec<'_, bool> {
        self.setting(name, doc)
    }

    /// Text.
    pub fn string(&mut self, name: &'static str, doc: &'static str) -> Spec<'_, String> {
        self.setting(name, doc)
    }

    /// A path. It is made absolute: relative ones begin at the file's folder, on the command line at the working directory.
    pub fn path(&mut self, name: &'static str, doc: &'static str) -> Spec<'_, std::path::PathBuf> {
        self.setting(name, doc)
    }

    /// A path or several.
    pub fn paths(
        &mut self,
        name: &'static str,
        doc: &'static str,
    ) -> Spec<'_, Vec<std::path::PathBuf>> {
        self.setting(name, doc)
    }

    /// A value of any type that settings have.
    pub fn setting<T: SettingType>(
        &mut self,
        name: &'static str,
        doc: &'static str,
    ) -> Spec<'_, T> {
        self.spec(name, doc, T::kind(), T::from_toml, T::text)
    }

    /// One of a few names.
    pub fn choice<T: Choice>(&mut self, name: &'static str, doc: &'static str) -> Spec<'_, T> {
        let from_toml = |value: &Value, _: &Path| {
            let name = value.as_str().ok_or(Refusal::Type)?;
            T::from_choice_name(name).ok_or(Refusal::Value(None))
        };
        let text = |choice: &T| format!("{:?}", choice.choice_name());
        self.spec(name, doc, SettingKind::Choice(T::choices()), from_toml, text)
    }

    /// One of a few names, or `"none"`.
    pub fn choice_or_none<T: Choice>(
        &mut self,
        name: &'static str,
        doc: &'static str,
        none: &str,
    ) -> Spec<'_, Option<T>> {
        let mut choices = vec![("none".to_owned(), none.to_owned())];
        choices.extend(T::choices());
        let from_toml = |value: &Value, _: &Path| match value.as_str().ok_or(Refusal::Type)? {
            "none" => Ok(None),
            name => T::from_choice_name(name).map(Some).ok_or(Refusal::Value(None)),
        };
        let text = |choice: &Option<T>| {
            let name = choice.as_ref().map_or("none".to_owned(), Choice::choice_name);
            format!("{name:?}")
        };
        self.spec(name, doc, SettingKind::Choice(choices), from_toml, text)
    }

    /// The full name of a key of the section.
    pub fn key(&self, name: &str) -> String {
        self.full(name)
    }

    /// Whether a key is given. In full, or of the section.
    pub fn is_given(&self, key: &str) -> bool {
        self.value(&self.full(key)).is_some()
    }

    /// Where a key comes from, in parentheses: ` (run.toml:3:1)`.
    pub fn origin_of(&self, key: &str) -> String {
        let origin = self.places.get(&self.full(key)).and_then(|place| place.origin.as_ref());
        origin.map(|origin| format!(" ({origin})")).unwrap_or_default()
    }

    /// Notes that two settings exclude each other. Keys in full, or of the section.
    pub fn contradiction(&mut self, keys: [&str; 2], reason: &str, remedy: &str) {
        let keys = keys.map(|key| {
            let key = self.full(key);
            let origin = self.places.get(&key).and_then(|place| place.origin.clone());
            (key, origin)
        });
        let kind =
            FaultKind::Contradiction { keys, reason: reason.to_owned(), remedy: remedy.to_owned() };
        self.faults.push(Fault { origin: None, kind });
    }

    /// Notes that a value is not allowed. The key in full, or of the section.
    pub fn refuse(&mut self, key: &str, expected: &str, found: &str, remedy: &str) {
        let key = self.full(key);
        let kind = FaultKind::Value {
            key: key.clone(),
            expected: expected.to_owned(),
            found: found.to_owned(),
            remedy: remedy.to_owned(),
        };
        self.push(&key, kind);
    }

    /// Notes something that is wrong with a key, in full or of the section.
    pub fn fault(&mut self, key: &str, kind: FaultKind) {
        let key = self.full(key);
        self.push(&key, kind);
    }

    /// How many faults were noted.
    pub fn fault_count(&self) -> usize {
        self.faults.len()
    }

    /// Everything that was declared.
    pub fn declared(&self) -> Declared {
        Declared { sections: self.docs.clone(), settings: self.declared.clone() }
    }

    /// `value`, or everything that is wrong with what was read.
    ///
    /// # Errors
    /// All faults: those of unknown keys and of keys without effect, and what was noted.
    pub fn finish<T>(mut self, value: T) -> Result<T, ConfigError> {
        self.note_unknown();
        self.note_without_effect();
        if self.faults.is_empty() { Ok(value) } else { Err(ConfigError { faults: self.faults }) }
    }

    fn note_unknown(&mut self) {
        let sections: Vec<String> = self.docs.iter().map(|(name, _)| name.clone()).collect();
        let mut faults = Vec::new();
        for (section, table) in &self.sections {
            let declared = match section.find('[') {
                Some(at) => format!("{}[]", &section[..at]),
                None => section.clone(),
            };
            let is_known = sections.contains(&declared) || declared.ends_with(']');
            if !is_known && !section.is_empty() {
                let nearest = emberlm_data::nearest(section, sections.iter().map(String::as_str));
                let kind = FaultKind::Unknown {
                    what: "section",
                    name: format!("[{section}]"),
                    nearest: nearest.map(|name| format!("[{name}]")),
                    known: sections.iter().map(|name| format!("[{name}]")).collect(),
                };
                faults.push((section.clone(), kind));
                continue;
            }
            for name in table.keys() {
                let of = |setting: &&Setting| setting.section() == declared;
                if self.declared.iter().filter(of).any(|setting| setting.name() == name) {
                    continue;
                }
                let key = join(section, name);
                let known = match section.as_str() {
                    "" => sections.iter().map(|name| format!("{name}.…")).collect(),
                    _ => {
                        let keys = self.declared.iter().filter(of);
                        keys.map(|setting| join(section, setting.name())).collect()
                    }
                };
                let nearest = self.nearest_key(&declared, name);
                let nearest = nearest.map(|key| key.replace(&declared, section));
                let kind = FaultKind::Unknown { what: "key", name: key.clone(), nearest, known };
                faults.push((key, kind));
            }
        }
        for (key, kind) in faults {
            self.push(&key, kind);
        }
    }

    /// The key that was probably meant: by the name that other trainers have for it, or by spelling, where a likeness within
    /// the section counts for more.
    fn nearest_key(&self, section: &str, name: &str) -> Option<String> {
        let is_other_name = |setting: &&Setting| setting.other_names.contains(&name);
        if let Some(setting) = self.declared.iter().find(is_other_name) {
            return Some(setting.key.clone());
        }
        let score = |setting: &Setting| {
            let likeness = emberlm_data::likeness(name, setting.name());
            let (enough, bonus) =
                if setting.section() == section { (0.6, 0.1) } else { (0.8, 0.0) };
            (likeness >= enough).then(|| (likeness + bonus, setting.key.clone()))
        };
        let scored = self.declared.iter().filter_map(score);
        scored.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, key)| key)
    }

    fn note_without_effect(&mut self) {
        for key in std::mem::take(&mut self.without_effect) {
            if self.with_effect.contains(&key) {
                continue;
            }
            let needs = self.setting_mut(&key).only_with.clone();
            let other = needs.first().and_then(|need| need.split_once(" = ")).map(|(key, _)| key);
            let because = other.map(|other| match self.value(other) {
                Some(value) => format!(", and {other}{} is {value}", self.origin_of(other)),
                None => {
                    let setting = self.declared.iter().find(|setting| setting.key == other);
                    let default = setting.map(Setting::default_text).unwrap_or_default();
                    format!(", and {other} is {default} (the default)")
                }
            });
            let because = because.unwrap_or_default();
            let remedy = format!("remove `{}`", key.rsplit('.').next().unwrap_or(&key));
            let kind = FaultKind::NoEffect { key: key.clone(), needs, because, remedy };
            self.push(&key, kind);
        }
    }

    fn spec<T>(
        &mut self,
        name: &'static str,
        doc: &'static str,
        kind: SettingKind,
        from_toml: fn(&Value, &Path) -> Result<T, Refusal>,
        text: fn(&T) -> String,
    ) -> Spec<'_, T> {
        let setting = self.new_setting(name, doc, kind);
        let (zero_is_off, is_tolerated) = (false, false);
        Spec { reader: self, setting, from_toml, text, zero_is_off, is_tolerated }
    }

    fn new_setting(&self, name: &str, doc: &'static str, kind: SettingKind) -> Setting {
        Setting {
            key: join(&self.section, name),
            doc,
            kind,
            or_off: false,
            defaults: Vec::new(),
            other_names: &[],
            effect: Effect::OnSteps,
            flag: None,
            only_with: Vec::new(),
            not_with: Vec::new(),
            example: None,
        }
    }

    /// The declaration of a key, which is made here if it comes later.
    fn setting_mut(&mut self, key: &str) -> &mut Setting {
        let at = self.declared.iter().position(|setting| setting.key == key);
        let at = at.unwrap_or_else(|| {
            let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
            let mut setting = self.new_setting(name, "", SettingKind::Text);
            setting.key = join(section, name);
            self.declared.push(setting);
            self.declared.len() - 1
        });
        &mut self.declared[at]
    }

    /// Adds a declaration, or what it says beyond an earlier one of the same key.
    fn declare(&mut self, mut setting: Setting) {
        if setting.key.contains("[") && !setting.key.contains("[]") {
            return;
        }
        let condition = self.conditions.last().map(|(condition, _)| condition.clone());
        for (case, _) in &mut setting.defaults {
            case.clone_from(&condition);
        }
        setting.only_with.extend(condition);
        let Some(at) = self.declared.iter().position(|other| other.key == setting.key) else {
            self.declared.push(setting);
            return;
        };
        let earlier = &mut self.declared[at];
        if earlier.doc.is_empty() {
            setting.not_with = std::mem::take(&mut earlier.not_with);
            // It stands where its declaration does.
            self.declared.remove(at);
            self.declared.push(setting);
            return;
        }
        earlier.defaults.extend(setting.defaults);
        earlier.only_with.extend(setting.only_with);
    }

    fn value(&self, key: &str) -> Option<&Value> {
        let (section, name) = key.rsplit_once('.')?;
        self.sections.get(section)?.get(name)
    }

    fn remove(&mut self, key: &str) {
        if let Some((section, name)) = key.rsplit_once('.')
            && let Some(table) = self.sections.get_mut(section)
        {
            table.remove(name);
        }
        self.places.remove(key);
    }

    fn full(&self, key: &str) -> String {
        let is_full = key.contains('.') || self.docs.iter().any(|(section, _)| section == key);
        if is_full { key.to_owned() } else { join(&self.section, key) }
    }

    fn layer(&self, key: &str) -> usize {
        self.places.get(key).map_or(0, |place| place.layer)
    }

    fn push(&mut self, key: &str, kind: FaultKind) {
        // What is missing in a list of sections is missing in its section.
        let section = key.rsplit_once('.').map_or(key, |(section, _)| section);
        let place = self
            .places
            .get(key)
            .or_else(|| self.places.get(section).filter(|_| section.contains('[')));
        let origin: Option<Origin> = place.and_then(|place| place.origin.clone());
        self.faults.push(Fault { origin, kind });
    }
}

/// A setting that is being declared.
#[must_use = "a setting is read by its last method"]
pub struct Spec<'r, T> {
    reader: &'r mut Reader,
    setting: Setting,
    from_toml: fn(&Value, &Path) -> Result<T, Refusal>,
    text: fn(&T) -> String,
    zero_is_off: bool,
    is_tolerated: bool,
}

/// What is given for a setting.
enum Given<T> {
    Off,
    Value(T),
}

impl<T> Spec<'_, T> {
    /// At least this.
    pub fn at_least(self, min: f64) -> Self {
        self.range(|range| range.min = Some((min, true)))
    }

    /// Greater than this.
    pub fn above(self, min: f64) -> Self {
        self.range(|range| range.min = Some((min, false)))
    }

    /// At most this.
    pub fn at_most(self, max: f64) -> Self {
        self.range(|range| range.max = Some((max, true)))
    }

    /// Less than this.
    pub fn below(self, max: f64) -> Self {
        self.range(|range| range.max = Some((max, false)))
    }

    fn range(mut self, change: impl FnOnce(&mut super::setting::Range)) -> Self {
        if let Some(range) = self.setting.kind.range_mut() {
            change(range);
        }
        self
    }

    /// 0 means off, as `false` does.
    pub fn zero_is_off(mut self) -> Self {
        self.zero_is_off = true;
        self
    }

    /// Names that other trainers have for it: an unknown key of such a name points here.
    pub fn also_called(mut self, names: &'static [&'static str]) -> Self {
        self.setting.other_names = names;
        self
    }

    /// Changing it changes nothing that a resumed run computes. Without this or [`changes_weights`](Self::changes_weights) it
    /// changes the remaining steps.
    pub fn changes_nothing(mut self) -> Self {
        self.setting.effect = Effect::None;
        self
    }

    /// Changing it makes the weights in a checkpoint unusable.
    pub fn changes_weights(mut self) -> Self {
        self.setting.effect = Effect::OnWeights;
        self
    }

    /// Has a flag on the command line, `--name`.
    pub fn flag(mut self, name: &'static str) -> Self {
        self.setting.flag = Some(name);
        self
    }

    /// A value for examples, as TOML text.
    pub fn example(mut self, value: &'static str) -> Self {
        self.setting.example = Some(value);
        self
    }

    /// Is no fault where it has no effect.
    pub fn tolerated(mut self) -> Self {
        self.is_tolerated = true;
        self
    }

    /// The value, or the default.
    pub fn or(mut self, default: T) -> T {
        let text = (self.text)(&default);
        self.setting.defaults = vec![(None, text)];
        match self.read() {
            Some(Given::Value(value)) => value,
            _ => default,
        }
    }

    /// The value, or the type's default.
    pub fn or_default(self) -> T
    where
        T: Default,
    {
        self.or(T::default())
    }

    /// The value, or `default()`, which `text` says in words.
    pub fn or_else(mut self, text: &str, default: impl FnOnce() -> T) -> T {
        self.setting.defaults = vec![(None, text.to_owned())];
        match self.read() {
            Some(Given::Value(value)) => value,
            _ => default(),
        }
    }

    /// The value if it is given. `text` says in words what holds otherwise.
    pub fn optional(mut self, text: &str) -> Option<T> {
        self.setting.defaults = vec![(None, text.to_owned())];
        match self.read() {
            Some(Given::Value(value)) => Some(value),
            _ => None,
        }
    }

    /// The value, `None` for off, or the default.
    pub fn or_off(mut self, default: Option<T>) -> Option<T> {
        self.setting.or_off = true;
        let text = default.as_ref().map_or_else(|| "false".to_owned(), |value| (self.text)(value));
        self.setting.defaults = vec![(None, text)];
        match self.read() {
            Some(Given::Value(value)) => Some(value),
            Some(Given::Off) => None,
            None => default,
        }
    }

    /// Declares the setting, and gives what is set. What isn't allowed is noted.
    fn read(self) -> Option<Given<T>> {
        let Self { reader, setting, from_toml, zero_is_off, is_tolerated, .. } = self;
        let key = setting.key.clone();
        reader.declare(setting.clone());
        let value = reader.value(&key)?.clone();
        let is_off = (setting.or_off && value == Value::Boolean(false))
            || (zero_is_off && matches!(value, Value::Integer(0)))
            || (zero_is_off && matches!(value, Value::Float(x) if x == 0.0));
        if !reader.conditions.iter().all(|(_, holds)| *holds) {
            // It may have an effect with another condition.
            if !is_tolerated && !is_off && !reader.without_effect.contains(&key) {
                reader.without_effect.push(key);
            }
            return None;
        }
        reader.with_effect.insert(key.clone());
        if is_off {
            return Some(Given::Off);
        }
        let folder = reader.places.get(&key).map(|place| place.folder.clone()).unwrap_or_default();
        let refusal = match from_toml(&value, &folder) {
            Ok(parsed) if is_in_range(&setting.kind, &value) => return Some(Given::Value(parsed)),
            Ok(_) => Refusal::Value(None),
            Err(refusal) => refusal,
        };
        let default = setting.default_text();
        let expected = setting.expected();
        match refusal {
            Refusal::Type => {
                let remedy = type_remedy(&setting.kind, &value, &default);
                reader.refuse(&key, &expected, &described(&value), &remedy);
            }
            Refusal::Value(more) => {
                let expected = more.unwrap_or(expected);
                let remedy = value_remedy(&setting.kind, &value, &default);
                reader.refuse(&key, &expected, &value.to_string(), &remedy);
            }
        }
        None
    }
}

/// Whether numbers are finite and within their bounds.
fn is_in_range(kind: &SettingKind, value: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    };
    match (kind, value) {
        (SettingKind::Pair(range), Value::Array(values)) => {
            values.iter().filter_map(number).all(|x| range.contains(x))
        }
        (SettingKind::Number(range) | SettingKind::Whole(range), value) => {
            number(value).is_none_or(|x| range.contains(x))
        }
        _ => true,
    }
}

/// A value and its type, as messages show it.
fn described(value: &Value) -> String {
    match value {
        Value::String(_) => format!("the string {value}"),
        Value::Integer(_) => format!("the whole number {value}"),
        Value::Float(_) => format!("the decimal number {value}"),
        Value::Boolean(_) | Value::Datetime(_) => value.to_string(),
        Value::Array(_) => format!("the list {value}"),
        Value::Table(_) => "a section of keys".to_owned(),
    }
}

fn type_remedy(kind: &SettingKind, found: &Value, default: &str) -> String {
    use SettingKind as K;
    let remedy = match (kind, found) {
        (K::Number(_) | K::Whole(_) | K::Bool, Value::String(_)) => "write it without quotes",
        (K::Whole(_), Value::Float(_)) => "write it without decimal point and exponent",
        (
            K::Text | K::Choice(_) | K::Path | K::Paths | K::Names | K::Targets,
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_),
        ) => "write it in quotes, \"…\", on the command line '\"…\"'",
        _ => return value_remedy(kind, found, default),
    };
    remedy.to_owned()
}

fn value_remedy(kind: &SettingKind, found: &Value, default: &str) -> String {
    if let (SettingKind::Choice(choices), Value::String(found)) = (kind, found) {
        let names = choices.iter().map(|(name, _)| name.as_str());
        if let Some(nearest) = emberlm_data::nearest(&found.to_lowercase(), names) {
            return format!("did you mean `{nearest}`?");
        }
    }
    change_or_remove(default)
}

fn change_or_remove(default: impl Display) -> String {
    format!("change it, or remove it for the default, {default}")
}

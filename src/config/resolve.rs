//! From text to a resolved deck: read, override, check each key; then apply the rules of the deck.
//!
//! Every fault is collected; a faulty key causes no second fault in keys that depend on it. Must not know:
//! the ranges and defaults of single keys (the tables have them), nor how keys depend on each other.

use super::key::render;
use super::{Key, Origin, Table, suggest};
use crate::error::{Error, Fault, Result};
use crate::human;
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::Value;
use toml::de::{DeTable, DeValue};

/// Longer values are truncated in messages.
const MAX_SHOWN_CHARS: usize = 60;

/// A value from the deck or an override: the text, and its meaning for the key's type (`None` = wrong type).
struct Assignment {
    text: String,
    value: Option<Value>,
}

/// The state of a key.
enum Slot {
    /// Not set, and without a fixed default: to be derived.
    Unset,
    /// Faulty: the fault is listed.
    Bad,
    /// Valid, with its text.
    Set(Value, String),
}

/// One message with line and column (both from 1, columns in characters) and the line itself.
fn syntax_error(text: &str, origin: &str, err: &toml::de::Error) -> Error {
    let message = err.message().trim().replace('\n', ", ");
    let Some(before) = err.span().and_then(|span| text.get(..span.start)) else {
        return Error::Input(format!("{origin} is not TOML: {message}"));
    };
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    let (line, column) =
        (before.matches('\n').count() + 1, text[line_start..before.len()].chars().count() + 1);
    let shown = show(text[line_start..].lines().next().unwrap_or_default());
    Error::Input(format!("{origin} is not TOML: line {line}, column {column}: {message}\n  {line} | {shown}"))
}

/// A text on one line, truncated for messages.
pub(super) fn show(text: &str) -> String {
    let one_line: String = text
        .trim()
        .chars()
        .take(MAX_SHOWN_CHARS + 1)
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    match one_line.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((cut, _)) => format!("{}...", &one_line[..cut]),
        None => one_line,
    }
}

fn show_source(text: &str, span: Range<usize>) -> String {
    show(text.get(span).unwrap_or_default())
}

/// Sorts the content of a deck into known keys and faults, in the deck's order.
fn read_document(
    table: &'static Table,
    text: &str,
    document: &DeTable<'_>,
    written: &mut BTreeMap<&'static str, Assignment>,
    faults: &mut Vec<Fault>,
) {
    let mut found: Vec<(usize, Fault)> = Vec::new();
    for (section, value) in document {
        let (name, at) = (section.get_ref().as_ref(), section.span().start);
        let known = table.sections.iter().any(|s| s.0 == name);
        match value.get_ref() {
            DeValue::Table(fields) if known => {
                for (field, value) in fields {
                    let dotted = format!("{name}.{}", field.get_ref());
                    let shown = show_value(text, value);
                    match table.keys.iter().find(|k| k.name == dotted) {
                        Some(key) => {
                            let value = key.kind.read_toml(value.get_ref());
                            written.insert(key.name, Assignment { text: shown, value });
                        }
                        None => found.push((
                            field.span().start,
                            Fault {
                                key: show(&dotted),
                                value: shown,
                                wants: suggest::for_key(table, &dotted),
                            },
                        )),
                    }
                }
            }
            DeValue::Table(fields) => {
                let value = human::counted(fields.len(), "key");
                let wants = suggest::for_section(table, name);
                found.push((at, Fault { key: format!("[{}]", show(name)), value, wants }));
            }
            _ => {
                let wants = if known {
                    format!("a section, written [{name}]")
                } else {
                    suggest::for_key(table, name)
                };
                found.push((at, Fault { key: show(name), value: show_value(text, value), wants }));
            }
        }
    }
    found.sort_by_key(|(at, _)| *at);
    faults.extend(found.into_iter().map(|(_, fault)| fault));
}

/// A value in the deck's syntax. A table's span may be its header alone, so tables are named, not shown.
fn show_value(text: &str, value: &Spanned<DeValue<'_>>) -> String {
    match value.get_ref() {
        DeValue::Table(_) => "a table".into(),
        DeValue::Array(items) if items.iter().any(|i| i.get_ref().is_table()) => "a list of tables".into(),
        _ => show_source(text, value.span()),
    }
}

/// Overrides take precedence over the deck and over earlier overrides.
fn read_overrides(
    table: &'static Table,
    overrides: &[(String, String)],
    written: &mut BTreeMap<&'static str, Assignment>,
    faults: &mut Vec<Fault>,
) {
    for (name, text) in overrides {
        match table.keys.iter().find(|k| k.name == name.trim()) {
            Some(key) => {
                let value = key.kind.read_override(text);
                let text = if text.trim().is_empty() { "empty".into() } else { show(text) };
                written.insert(key.name, Assignment { text, value });
            }
            None => {
                let wants = suggest::for_key(table, name.trim());
                faults.push(Fault { key: show(name), value: show(text), wants });
            }
        }
    }
}

/// A deck being resolved.
pub(super) struct Resolver {
    table: &'static Table,
    slots: BTreeMap<&'static str, Slot>,
    faults: Vec<Fault>,
}

impl Resolver {
    /// Reads a deck's text and overrides and checks every key. Fails if the text is not TOML.
    pub(super) fn read(
        table: &'static Table,
        text: &str,
        overrides: &[(String, String)],
        origin: &str,
    ) -> Result<Resolver> {
        let (document, syntax_errors) = DeTable::parse_recoverable(text);
        // The first in the text: the others mostly follow from it.
        if let Some(first) = syntax_errors.iter().min_by_key(|err| err.span().map_or(0, |span| span.start)) {
            return Err(syntax_error(text, origin, first));
        }
        let mut faults = Vec::new();
        let mut written = BTreeMap::new();
        read_document(table, text, document.get_ref(), &mut written, &mut faults);
        read_overrides(table, overrides, &mut written, &mut faults);
        let mut resolver = Resolver { table, slots: BTreeMap::new(), faults };
        for key in table.keys {
            resolver.check_key(key, written.remove(key.name));
        }
        Ok(resolver)
    }

    fn check_key(&mut self, key: &'static Key, written: Option<Assignment>) {
        let slot = match (written, key.origin) {
            (Some(written), _) => match key.complaint(written.value.as_ref()) {
                Some(wants) => {
                    self.faults.push(Fault { key: key.name.into(), value: written.text, wants });
                    Slot::Bad
                }
                None => written.value.map_or(Slot::Bad, |value| Slot::Set(value, written.text)),
            },
            (None, Origin::Required) => {
                self.faults.push(Fault {
                    key: key.name.into(),
                    value: "missing".into(),
                    wants: key.kind.wants(),
                });
                Slot::Bad
            }
            (None, Origin::Fixed(text)) => {
                key.fixed_default().map_or(Slot::Bad, |v| Slot::Set(v, text.into()))
            }
            (None, Origin::Derived(_)) => Slot::Unset,
        };
        self.slots.insert(key.name, slot);
    }

    fn value(&self, name: &str) -> Option<&Value> {
        match self.slots.get(name) {
            Some(Slot::Set(value, _)) => Some(value),
            Some(Slot::Unset | Slot::Bad) => None,
            None => panic!("{name} is no key of the table"),
        }
    }

    pub(super) fn integer(&self, name: &str) -> Option<i64> {
        self.value(name)?.as_integer()
    }

    pub(super) fn float(&self, name: &str) -> Option<f64> {
        self.value(name)?.as_float()
    }

    pub(super) fn choice<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        self.value(name)?.clone().try_into().ok()
    }

    pub(super) fn paths(&self, name: &str) -> Option<Vec<String>> {
        self.choice(name)
    }

    pub(super) fn is_unset(&self, name: &str) -> bool {
        matches!(self.slots.get(name), Some(Slot::Unset))
    }

    pub(super) fn set(&mut self, name: &'static str, value: Value) {
        let text = render(&value);
        self.slots.insert(name, Slot::Set(value, text));
    }

    /// Adds a fault of a set key, and marks it bad.
    pub(super) fn refuse(&mut self, name: &'static str, wants: String) {
        let value = match self.slots.insert(name, Slot::Bad) {
            Some(Slot::Set(_, text)) => text,
            _ => "missing".into(),
        };
        self.faults.push(Fault { key: name.into(), value, wants });
    }

    /// Sets an unset key, unless a key that it depends on is faulty.
    pub(super) fn derive(&mut self, name: &'static str, value: Option<Value>) {
        if self.is_unset(name) {
            match value {
                Some(value) => self.set(name, value),
                None => _ = self.slots.insert(name, Slot::Bad),
            }
        }
    }

    /// The deck, or all faults.
    pub(super) fn finish<T: serde::de::DeserializeOwned>(self) -> Result<T> {
        if !self.faults.is_empty() {
            return Err(Error::Deck(self.faults));
        }
        let mut sections = toml::Table::new();
        for key in self.table.keys {
            let value =
                self.value(key.name).unwrap_or_else(|| panic!("{} was never derived", key.name)).clone();
            let section = sections.entry(key.section()).or_insert_with(|| Value::Table(toml::Table::new()));
            if let Value::Table(section) = section {
                section.insert(key.field().into(), value);
            }
        }
        sections
            .try_into()
            .map_err(|err| Error::Internal(format!("the table of keys and the deck disagree: {err}")))
    }
}

/// The divisors of `n` nearest to `near` on both sides, as the end of "wants a divisor, ...".
pub(super) fn near_divisors(n: i64, near: i64) -> String {
    let divides = |d: &i64| n % d == 0;
    let found = [(1..near).rev().find(divides), (near..=n).find(divides)];
    format!("e.g. {}", found.iter().flatten().map(i64::to_string).collect::<Vec<_>>().join(" or "))
}

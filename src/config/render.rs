//! The deck and the table of keys as text. Must not know: how a deck is read.

use super::key::render;
use super::{Key, Origin, Table};
use serde::Serialize;

/// Comments start at most this far to the right; a longer value moves its own comment.
const MAX_COMMENT_COLUMN: usize = 44;

/// Every section of the deck, of values by field.
fn values(deck: &impl Serialize) -> toml::Table {
    match toml::Table::try_from(deck) {
        Ok(values) => values,
        Err(err) => panic!("a deck that TOML cannot hold (an integer of 2^63 or more?): {err}"),
    }
}

/// The keys of a section with their values, in the table's order.
pub(super) fn section(table: &Table, deck: &impl Serialize, section: &str) -> Vec<(&'static Key, String)> {
    let values = values(deck);
    let keys = table.keys.iter().filter(|key| key.section() == section);
    keys.map(|key| (key, render(&values[section][key.field()]))).collect()
}

/// Every key of the deck in the table's order.
pub(super) fn toml(table: &Table, deck: &impl Serialize, commented: bool) -> String {
    let values = values(deck);
    let mut out = String::new();
    for (section, help) in table.sections {
        if !out.is_empty() {
            out.push('\n');
        }
        if commented {
            for line in help.lines() {
                out.push_str(&format!("# {}\n", line.trim()));
            }
        }
        out.push_str(&format!("[{section}]\n"));
        let assignments: Vec<(String, &Key)> = table
            .keys
            .iter()
            .filter(|k| k.section() == *section)
            .map(|k| (format!("{} = {}", k.field(), render(&values[*section][k.field()])), k))
            .collect();
        let column =
            assignments.iter().map(|(a, _)| a.chars().count()).max().unwrap_or(0).min(MAX_COMMENT_COLUMN);
        for (assignment, key) in assignments {
            match commented {
                true => out.push_str(&format!("{assignment:<column$}  # {}\n", key.help)),
                false => out.push_str(&format!("{assignment}\n")),
            }
        }
    }
    out
}

/// The reference of `docs/deck.md`: one Markdown table per section.
pub fn markdown_table(table: &Table) -> String {
    let mut out = String::new();
    for (section, help) in table.sections {
        let help: Vec<&str> = help.lines().map(str::trim).collect();
        out.push_str(&format!("### [{section}]\n\n{}\n\n", help.join("\n")));
        out.push_str("| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
        for key in table.keys.iter().filter(|k| k.section() == *section) {
            out.push_str(&format!(
                "| `{}` | {} | {} | {} |\n",
                key.field(),
                key.kind.wants(),
                default(key),
                key.help
            ));
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn default(key: &Key) -> String {
    match (key.origin, key.fixed_default()) {
        (Origin::Required, _) => "**required**".into(),
        (Origin::Derived(words), _) => words.into(),
        (Origin::Fixed(_), value) => value.map_or_else(String::new, |v| format!("`{}`", render(&v))),
    }
}

//! Suggestions for a key that does not exist.
//!
//! Must not know: values.

use super::Table;

/// Longer words are not compared: nobody misspells a key of that length, and the comparison is quadratic.
const MAX_COMPARED_CHARS: usize = 64;

/// The end of the sentence "no such key; ...", for a dotted or bare key.
pub(super) fn for_key(table: &Table, name: &str) -> String {
    let (section, field) = name.split_once('.').unwrap_or(("", name));
    let in_section = fields_of(table, section);
    if table.sections.iter().any(|s| s.0 == name) {
        return format!("a section, not a key; one of its keys is {name}.{}", fields_of(table, name)[0]);
    }
    let namesakes: Vec<&str> = table.keys.iter().filter(|k| k.field() == field).map(|k| k.name).collect();
    if !namesakes.is_empty() {
        return format!("no such key; did you mean {}?", namesakes.join(" or "));
    }
    // Fields are compared with fields: with the section's name any short field would look near.
    if let Some(near) = nearest(field, in_section.iter().copied()) {
        return format!("no such key; did you mean {section}.{near}?");
    }
    let everywhere = nearest(field, table.keys.iter().map(|k| k.field()));
    if let Some(key) = everywhere.and_then(|near| table.keys.iter().find(|k| k.field() == near)) {
        return format!("no such key; did you mean {}?", key.name);
    }
    if in_section.is_empty() {
        return format!(
            "no such key; keys are written section.key, and the sections are {}",
            section_names(table)
        );
    }
    format!("no such key; [{section}] has {}", in_section.join(", "))
}

/// The end of the sentence for a section that does not exist.
pub(super) fn for_section(table: &Table, name: &str) -> String {
    match nearest(name, table.sections.iter().map(|s| s.0)) {
        Some(near) => format!("no such section; did you mean [{near}]?"),
        None => format!("no such section; there are {}", section_names(table)),
    }
}

fn fields_of(table: &Table, section: &str) -> Vec<&'static str> {
    table.keys.iter().filter(|k| k.section() == section).map(|k| k.field()).collect()
}

fn section_names(table: &Table) -> String {
    table.sections.iter().map(|s| s.0).collect::<Vec<_>>().join(", ")
}

/// The candidate with the fewest edits, if these are at most a third of the longer word and at most three.
fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let n_chars = word.chars().count();
    if n_chars > MAX_COMPARED_CHARS {
        return None;
    }
    let allowed = |c: &str| n_chars.max(c.chars().count()).div_ceil(3).min(3);
    candidates
        .map(|c| (strsim::osa_distance(word, c), c))
        .filter(|(edits, c)| *edits <= allowed(c))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, c)| c)
}

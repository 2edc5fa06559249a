//! What a person probably meant by a key that does not exist.
//!
//! Must not know: values.

use super::{KEYS, SECTIONS};

/// Longer words are not compared: nobody misspells a key at such length, and the comparison is quadratic.
const MAX_COMPARED_CHARS: usize = 64;

/// The end of the sentence "no such key; ...", for a dotted or bare key.
pub(super) fn for_key(name: &str) -> String {
    let field = name.rsplit('.').next().unwrap_or(name);
    let namesakes: Vec<&str> = KEYS.iter().filter(|k| k.field() == field).map(|k| k.name).collect();
    if !namesakes.is_empty() {
        return format!("no such key; did you mean {}?", namesakes.join(" or "));
    }
    if let Some(near) = nearest(name, KEYS.iter().map(|k| k.name)) {
        return format!("no such key; did you mean {near}?");
    }
    let section = name.split('.').next().unwrap_or(name);
    let fields: Vec<&str> = KEYS.iter().filter(|k| k.section() == section).map(|k| k.field()).collect();
    // The section's own name is most of a short key: compare the fields alone too.
    if let Some(near) = nearest(field, KEYS.iter().map(|k| k.field())) {
        let near = KEYS.iter().find(|k| k.field() == near && (fields.is_empty() || k.section() == section));
        if let Some(near) = near {
            return format!("no such key; did you mean {}?", near.name);
        }
    }
    if fields.is_empty() {
        return format!("no such key; keys are written section.key, and the sections are {}", section_names());
    }
    format!("no such key; [{section}] has {}", fields.join(", "))
}

/// The end of the sentence for a section that does not exist.
pub(super) fn for_section(name: &str) -> String {
    match nearest(name, SECTIONS.iter().map(|s| s.0)) {
        Some(near) => format!("no such section; did you mean [{near}]?"),
        None => format!("no such section; there are {}", section_names()),
    }
}

fn section_names() -> String {
    SECTIONS.iter().map(|s| s.0).collect::<Vec<_>>().join(", ")
}

/// The candidate with the fewest edits, if these are at most a third of the word and at most three.
fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let n_chars = word.chars().count();
    if n_chars > MAX_COMPARED_CHARS {
        return None;
    }
    let (edits, near) = candidates.map(|c| (edit_distance(word, c), c)).min_by_key(|(edits, _)| *edits)?;
    (edits <= (n_chars / 3).clamp(1, 3)).then_some(near)
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let substitute = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = substitute.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

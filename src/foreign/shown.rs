//! Displaying external text: characters that control a terminal or reorder a line become escapes.
//!
//! The escapes are those of JSON and TOML strings, so a document of either remains valid, with the same
//! values.

use std::borrow::Cow;
use std::fmt::Write;

/// Controls of C0 and C1, and invisible characters that reorder or break a line: UAX #9's explicit formatting
/// characters, line and paragraph separators.
fn is_escaped(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, is_plain: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |c: char| is_escaped(c) && !is_plain(c);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_escaped(c) {
            true => write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a String"),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Multi-line text: newlines and tabs are preserved.
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

/// Single-line text: newlines and tabs are escaped too.
pub fn on_a_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_becomes_an_escape_and_the_rest_stays() {
        assert_eq!(
            shown("\x1b]0;owned\x07 a\0b\x7f\u{9b}31m"),
            "\\u001b]0;owned\\u0007 a\\u0000b\\u007f\\u009b31m"
        );
        assert_eq!(shown("user\u{202e}gpj.exe \u{2066}x\u{2069}"), "user\\u202egpj.exe \\u2066x\\u2069");
        assert_eq!(shown("one\n\ttwo\r\n"), "one\n\ttwo\\u000d\n");
        assert_eq!(on_a_line("a\n[rank 0] ERROR\tx"), "a\\u000a[rank 0] ERROR\\u0009x");
        for plain in ["", "naïve 語 🦀", "C:\\u0041", "a\u{200d}b"] {
            assert!(matches!(shown(plain), Cow::Borrowed(same) if same == plain), "{plain:?}");
        }
    }

    #[test]
    fn a_json_document_stays_one_with_the_same_values() {
        let text = "\u{9b}31m\u{7f}\u{202e}";
        let document = format!("{{\"name\": \"{text}\"}}");
        let value: serde_json::Value = serde_json::from_str(&shown(&document)).unwrap();
        assert_eq!(value["name"], text);
    }
}

//! Widths of text, so that nothing overlaps: measured with DejaVu Sans, the first choice of font. Verdana,
//! the second choice, has the same widths; other fonts are narrower.

use std::sync::OnceLock;
use ttf_parser::Face;

/// Fonts of the figures, in order of preference.
pub const FAMILY: &str = "DejaVu Sans, Verdana, Geneva, sans-serif";

fn face(bold: bool) -> &'static Face<'static> {
    static FACES: OnceLock<[Face<'static>; 2]> = OnceLock::new();
    let parse = |bytes| Face::parse(bytes, 0).expect("the bundled font");
    &FACES.get_or_init(|| [parse(dejavu::sans::regular()), parse(dejavu::sans::bold())])[usize::from(bold)]
}

/// Width of `text` at a font size of `px`, in px. A missing glyph counts as an M.
pub fn width(text: &str, px: f64, bold: bool) -> f64 {
    let face = face(bold);
    let advance = |c: char| {
        let glyph = face.glyph_index(c).or_else(|| face.glyph_index('M'));
        glyph.and_then(|glyph| face.glyph_hor_advance(glyph)).unwrap_or(0)
    };
    text.chars().map(|c| f64::from(advance(c))).sum::<f64>() * px / f64::from(face.units_per_em())
}

/// `text` if it fits into `room` px, otherwise its beginning and an ellipsis, otherwise nothing.
pub fn fitted(text: &str, px: f64, room: f64) -> String {
    if width(text, px, false) <= room {
        return text.into();
    }
    let mut kept: String = text.into();
    while kept.pop().is_some() && !kept.is_empty() {
        let shown = format!("{}\u{2026}", kept.trim_end());
        if width(&shown, px, false) <= room {
            return shown;
        }
    }
    String::new()
}

/// `text` in lines of at most `room` px, broken at spaces but not at no-break spaces.
pub fn wrapped(text: &str, px: f64, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), px, false) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_to_their_room() {
        let text = "each parameter is flattened, padded and cut into slices";
        for room in [0.0, 5.0, 40.0, 90.0, 1e9] {
            let fitted = fitted(text, 12.0, room);
            assert!(width(&fitted, 12.0, false) <= room);
            assert_eq!(fitted == text, room > 1e6);
        }
        let lines = wrapped(text, 12.0, 120.0);
        assert!(lines.len() > 2 && lines.iter().all(|line| width(line, 12.0, false) <= 120.0), "{lines:?}");
        assert_eq!(lines.join(" "), text);
        assert!(width("rank 0", 12.0, true) > width("rank 0", 12.0, false));
        assert_eq!(width("", 12.0, false), 0.0);
    }
}

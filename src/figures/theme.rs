//! Colors and font sizes of all figures.
//!
//! Series colors are the set of Okabe and Ito ("Color Universal Design", 2008), which are distinguishable
//! with any kind of color vision; essential distinctions also have a label or a pattern.

use plotters::style::RGBColor;

/// A color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Color(pub u8, pub u8, pub u8);

impl Color {
    /// `#rrggbb`.
    pub fn hex(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }

    /// A blend with another color: `share` 0 is this one, 1 the other.
    pub fn towards(self, other: Color, share: f64) -> Color {
        let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
        Color(mix(self.0, other.0), mix(self.1, other.1), mix(self.2, other.2))
    }

    /// Black or white, whichever has more contrast on this color (WCAG 2 relative luminance).
    pub fn ink_on(self) -> Color {
        if self.luminance() > 0.179 { Color(0, 0, 0) } else { Color(255, 255, 255) }
    }

    fn luminance(self) -> f64 {
        let linear = |c: u8| {
            let c = f64::from(c) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(self.0) + 0.7152 * linear(self.1) + 0.0722 * linear(self.2)
    }
}

impl From<Color> for RGBColor {
    fn from(Color(r, g, b): Color) -> Self {
        RGBColor(r, g, b)
    }
}

/// The colors for one kind of page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Theme {
    /// `light` or `dark`.
    pub name: &'static str,
    /// The page background.
    pub page: Color,
    /// Text, and important lines.
    pub ink: Color,
    /// Explanatory text.
    pub muted: Color,
    /// Grid lines and frames.
    pub grid: Color,
    /// Errors.
    pub wrong: Color,
    /// Series, in the order they are used.
    pub series: [Color; 8],
}

/// Font sizes, in px.
pub const TITLE_PX: f64 = 18.0;
/// Labels.
pub const LABEL_PX: f64 = 13.0;
/// Ticks and notes.
pub const NOTE_PX: f64 = 12.0;
/// The smallest text.
pub const SMALL_PX: f64 = 10.5;

impl Theme {
    /// For white paper.
    pub const LIGHT: Theme = Theme {
        name: "light",
        page: Color(255, 255, 255),
        ink: Color(26, 26, 26),
        muted: Color(89, 89, 89),
        grid: Color(217, 217, 217),
        wrong: Color(179, 38, 30),
        series: [
            Color(0, 114, 178),   // blue
            Color(230, 159, 0),   // orange
            Color(0, 158, 115),   // bluish green
            Color(204, 121, 167), // reddish purple
            Color(86, 180, 233),  // sky blue
            Color(213, 94, 0),    // vermillion
            Color(240, 228, 66),  // yellow
            Color(120, 120, 120), // grey
        ],
    };

    /// For dark pages: the same hues, the dark ones slightly lighter.
    pub const DARK: Theme = Theme {
        name: "dark",
        page: Color(20, 23, 28),
        ink: Color(236, 236, 236),
        muted: Color(170, 174, 180),
        grid: Color(62, 67, 75),
        wrong: Color(255, 138, 128),
        series: [
            Color(64, 156, 214),
            Color(230, 159, 0),
            Color(20, 178, 134),
            Color(214, 138, 180),
            Color(112, 192, 240),
            Color(226, 112, 26),
            Color(240, 228, 66),
            Color(150, 150, 150),
        ],
    };

    /// The color of series `i`, repeating after the last one.
    pub fn color(&self, i: usize) -> Color {
        self.series[i % self.series.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WCAG 2 contrast ratio.
    fn contrast(a: Color, b: Color) -> f64 {
        let (a, b) = (a.luminance() + 0.05, b.luminance() + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn words_stand_out_on_every_page_and_on_every_series() {
        for theme in [Theme::LIGHT, Theme::DARK] {
            for ink in [theme.ink, theme.muted, theme.wrong] {
                assert!(contrast(ink, theme.page) >= 4.5, "{ink:?} on {}", theme.name);
            }
            for color in theme.series {
                assert!(contrast(color.ink_on(), color) >= 4.5, "{color:?} of {}", theme.name);
            }
        }
        assert_eq!(Color(0, 114, 178).hex(), "#0072b2");
        assert_eq!(Color(0, 0, 0).towards(Color(255, 255, 255), 0.5), Color(128, 128, 128));
    }
}

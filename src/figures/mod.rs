//! The drawing room: pictures as SVG text, light and dark, from plain data.
//!
//! Each figure has a file: its data as a struct, and a function from those to a [`Figure`]. Numbers in a
//! picture are numbers it was given, and every element that stands for something carries it as a `data-`
//! attribute and a tooltip, so that tests (and people with a mouse) can ask for it. Must not know: run
//! directories, decks, MPI, the clock.

pub mod axis;
pub mod chart;
pub mod compute;
pub mod html;
pub mod loss_curve;
pub mod memory;
pub mod ownership;
pub mod png;
pub mod sheet;
pub mod stages;
pub mod storage;
pub mod text_width;
pub mod theme;
pub mod timeline;

pub use axis::{Axis, Unit};
pub use chart::{Chart, LineFigure, Series};
pub use sheet::Sheet;
pub use theme::Theme;

/// A finished picture in both themes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// File name without an ending, e.g. `storage`.
    pub name: String,
    /// What it shows, in a few words; also stands in the picture.
    pub title: String,
    /// One or two sentences: what to see in it.
    pub caption: String,
    /// An SVG document for a light page.
    pub light: String,
    /// The same for a dark page.
    pub dark: String,
}

impl Figure {
    /// Draws with each theme. `draw` fills a sheet that has the title on it and returns the height it has
    /// used.
    pub fn new(
        name: &str,
        title: &str,
        caption: impl Into<String>,
        draw: impl Fn(&mut Sheet<'_>) -> f64,
    ) -> Self {
        let of = |theme: &Theme| {
            let mut sheet = Sheet::new(theme, name, title);
            let height = draw(&mut sheet);
            sheet.finish(height)
        };
        Figure {
            name: name.into(),
            title: title.into(),
            caption: caption.into(),
            light: of(&Theme::LIGHT),
            dark: of(&Theme::DARK),
        }
    }
}

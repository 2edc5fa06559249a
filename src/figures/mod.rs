//! Figures as SVG text, light and dark, from plain data.
//!
//! Each figure has a file: its data as a struct, and a function from those to a [`Figure`]. Numbers in a
//! figure are inputs, and every data element carries its values as `data-` attributes and a tooltip, so that
//! tests (and users) can read them. Must not know: run directories, decks, MPI, the clock.

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

/// A complete figure in both themes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// File name without an extension, e.g. `storage`.
    pub name: String,
    /// Title; also part of the figure.
    pub title: String,
    /// Caption: one or two sentences.
    pub caption: String,
    /// An SVG document for a light page.
    pub light: String,
    /// The same for a dark page.
    pub dark: String,
}

impl Figure {
    /// Draws with each theme. `draw` fills a sheet that already has the title and returns the height used.
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

//! Figures as SVG text, light and dark, from plain data.
//!
//! Each figure has a file: its data as a struct, and a function from those to a [`Figure`]. Numbers in a
//! figure are inputs, and every data element carries its values as `data-` attributes and a tooltip, so that
//! tests (and users) can read them. Must not know: run directories, decks, MPI, the clock.
//!
//! Without the feature `figures` nothing draws a [`Figure`].

#[cfg(feature = "figures")]
pub mod axis;
#[cfg(feature = "figures")]
pub mod chart;
#[cfg(feature = "figures")]
pub mod compute;
pub mod html;
#[cfg(feature = "figures")]
pub mod loss_curve;
#[cfg(feature = "figures")]
pub mod memory;
#[cfg(feature = "figures")]
pub mod ownership;
#[cfg(feature = "figures")]
pub mod png;
#[cfg(feature = "figures")]
pub mod sheet;
#[cfg(feature = "figures")]
pub mod stages;
#[cfg(feature = "figures")]
pub mod storage;
#[cfg(feature = "figures")]
pub mod text_width;
#[cfg(feature = "figures")]
pub mod theme;
#[cfg(feature = "figures")]
pub mod timeline;

#[cfg(feature = "figures")]
pub use axis::{Axis, Unit};
#[cfg(feature = "figures")]
pub use chart::{Chart, LineFigure, Series};
#[cfg(feature = "figures")]
pub use sheet::Sheet;
#[cfg(feature = "figures")]
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

#[cfg(feature = "figures")]
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

//! Figures as PNG, for slides and papers that do not accept SVG.
//!
//! Text uses the bundled DejaVu Sans, whatever fonts a machine has: a compute node has none, and a figure
//! without text would be useless. The same figure gives the same pixels everywhere.

use super::text_width;
use crate::error::{Error, Result};
use resvg::{tiny_skia, usvg};
use std::sync::Arc;

/// Pixels per px of the drawing: sharp on dense screens and in print.
const SCALE: f32 = 2.0;

/// Rasterizes an SVG document.
///
/// # Errors
/// It is not a valid SVG, or too large for memory.
pub fn of_svg(svg: &str) -> Result<Vec<u8>> {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let options = usvg::Options {
        fontdb: Arc::new(fonts),
        font_family: text_width::FAMILY.into(),
        ..Default::default()
    };
    let failed = |why: String| Error::Internal(format!("a figure cannot be made a PNG: {why}"));
    let tree = usvg::Tree::from_str(svg, &options).map_err(|e| failed(e.to_string()))?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| failed("it has no size".into()))?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height())
        .ok_or_else(|| failed("it is too large".into()))?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figure;

    #[test]
    fn words_are_drawn_without_any_font_of_the_machine() {
        let pixels = |title: &str| {
            let figure = Figure::new("x", title, "", |_| 60.0);
            let png = of_svg(&figure.light).unwrap();
            assert_eq!(png, of_svg(&figure.light).unwrap(), "the same pixels again");
            tiny_skia::Pixmap::decode_png(&png).unwrap()
        };
        let dark = |p: &tiny_skia::Pixmap| p.pixels().iter().filter(|p| p.red() < 100).count();
        let (none, words) = (pixels(""), pixels("Storage of a rank"));
        assert_eq!((none.width(), none.height()), (1920, 120));
        assert_eq!(dark(&none), 0);
        assert!(dark(&words) > 1000, "{} dark pixels", dark(&words));
        assert!(of_svg("no svg").is_err());
    }
}

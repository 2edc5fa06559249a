//! What a report is asked for.

use std::path::PathBuf;

/// The requested output, apart from the answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Directory for figures.
    pub figures: Option<PathBuf>,
    /// Also write PNGs.
    pub png: bool,
    /// Path of the page.
    pub html: Option<PathBuf>,
}

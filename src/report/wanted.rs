//! What a report is asked for.

use std::path::PathBuf;

/// What is asked for besides words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Directory for figures.
    pub figures: Option<PathBuf>,
    /// PNGs beside the SVGs.
    pub png: bool,
    /// The page.
    pub html: Option<PathBuf>,
}

//! temp
pub mod step;

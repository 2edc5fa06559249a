//! The command line: arguments, and nothing that runs.
pub mod args;

//! Log lines with the rank in front, on stderr.

use std::io::Write;

use crate::environment;
use crate::foreign::shown;
use log::LevelFilter;

/// Starts logging. `filter` is the deck's `log.level`: a level, or levels by module, in env_logger's syntax.
///
/// Ranks other than 0 log warnings and errors only. RUST_LOG, if set, overrides the deck on every rank. A
/// second call in the same process has no effect.
pub fn init(filter: &str, rank: usize) {
    let from_environment = environment::variable("RUST_LOG");
    let mut builder = env_logger::Builder::new();
    builder.parse_filters(from_environment.as_deref().unwrap_or(filter));
    builder.format(move |out, record| {
        writeln!(
            out,
            "[rank {rank}] {} {:<5} {}",
            out.timestamp_seconds(),
            record.level(),
            shown(&record.args().to_string())
        )
    });
    // Fails only if a logger is already installed.
    builder.try_init().ok();
    if rank != 0 && from_environment.is_none() {
        log::set_max_level(log::max_level().min(LevelFilter::Warn));
    }
}

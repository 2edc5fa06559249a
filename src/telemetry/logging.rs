//! Log lines with the rank in front, on stderr.

use std::io::Write;

use log::LevelFilter;

use crate::error::{Error, Result};

/// Starts logging. `level` is the deck's `log.level`: `off`, `error`, `warn`, `info`, `debug` or `trace`.
///
/// Ranks other than 0 say warnings and errors only. RUST_LOG, where set, beats the deck on every rank. A second call in
/// the same process changes nothing.
pub fn init(level: &str, rank: usize) -> Result<()> {
    let mut builder = env_logger::Builder::new();
    builder.filter_level(level_of_rank(level, rank)?);
    if let Ok(filters) = std::env::var("RUST_LOG") {
        builder.parse_filters(&filters);
    }
    builder.format(move |out, record| {
        writeln!(out, "[rank {rank}] {} {:<5} {}", out.timestamp_seconds(), record.level(), record.args())
    });
    // The only failure is a logger that is there already.
    builder.try_init().ok();
    Ok(())
}

fn level_of_rank(level: &str, rank: usize) -> Result<LevelFilter> {
    let wanted: LevelFilter = level
        .parse()
        .map_err(|_| Error::Input(format!("log.level = {level}: must be off, error, warn, info, debug or trace")))?;
    Ok(if rank == 0 { wanted } else { wanted.min(LevelFilter::Warn) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_ranks_only_warn_and_never_say_more_than_the_deck_wants() {
        assert_eq!(level_of_rank("debug", 0).unwrap(), LevelFilter::Debug);
        assert_eq!(level_of_rank("debug", 3).unwrap(), LevelFilter::Warn);
        assert_eq!(level_of_rank("error", 3).unwrap(), LevelFilter::Error);
        assert_eq!(level_of_rank("off", 1).unwrap(), LevelFilter::Off);
        assert!(level_of_rank("loud", 0).unwrap_err().to_string().contains("log.level = loud"));
    }
}

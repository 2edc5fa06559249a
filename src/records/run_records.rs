//! The records of a run for later inspection: the resolved deck, and the events of the run: starts, restores,
//! skipped steps, stragglers, ends.
//!
//! `RUN/events.jsonl` is a history: lines are appended and never removed, even if a resume repeats steps.
//! Must not know: decks (it receives text), MPI.

use crate::clock::unix_now;
use crate::error::{Error, Result};
use crate::files;
use crate::liveness::stragglers::Straggler;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The resolved deck of the newest process, as TOML.
pub const DECK_FILE: &str = "deck.toml";
/// One JSON object per line.
pub const EVENTS_FILE: &str = "events.jsonl";

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// A process starts training.
    Start {
        /// Step it starts from.
        step: u64,
        /// Number of attempts before.
        attempts: u64,
        /// Ranks.
        ranks: u64,
        /// `cpu` or `cuda`.
        backend: String,
        /// The checkpoint it resumes from.
        from: Option<String>,
    },
    /// An attempt at a step was non-finite and changed nothing.
    Skip {
        /// The last completed step.
        step: u64,
        /// Attempts made, this one included.
        attempts: u64,
        /// Loss in nats per token; null if not finite.
        loss: Option<f64>,
        /// Norm of the gradient; null if not finite.
        grad_norm: Option<f64>,
        /// Consecutive skipped attempts, this one included.
        in_a_row: u64,
    },
    /// A rank delayed the others.
    Straggler(Straggler),
    /// The process ends; missing if it was killed.
    End {
        /// Step reached.
        step: u64,
        /// Its exit code.
        exit_code: i32,
        /// The reason, as text.
        reason: String,
    },
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Time.
    pub unix: f64,
    /// The event.
    #[serde(flatten)]
    pub event: RunEvent,
}

/// Writer of both files; rank 0 has one.
#[derive(Debug)]
pub struct RunRecords {
    path: PathBuf,
    file: File,
}

impl RunRecords {
    /// Writes the deck, and opens the events file for appending.
    pub fn open(run_dir: &Path, deck: &str) -> Result<Self> {
        files::replace(&run_dir.join(DECK_FILE), |out| out.write_all(deck.as_bytes()))?;
        let path = run_dir.join(EVENTS_FILE);
        let open = || -> std::io::Result<File> {
            let mut file = files::open_to_append(&path)?;
            // A killed run may have left a torn line: it remains, on a line to itself.
            let mut last = [b'\n'];
            if file.seek(SeekFrom::End(0))? > 0 {
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
            }
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
            Ok(file)
        };
        let file = open().map_err(|err| Error::io("open", &path, &err))?;
        Ok(RunRecords { path, file })
    }

    /// Appends an event.
    pub fn add(&mut self, event: &RunEvent) -> Result<()> {
        let mut line =
            serde_json::to_string(&Line { unix: unix_now(), event: event.clone() }).expect("plain data");
        line.push('\n');
        self.file.write_all(line.as_bytes()).map_err(|err| Error::io("write", &self.path, &err))
    }
}

/// The events of a run, oldest first; invalid (torn) lines are skipped. None if the file does not exist.
pub fn read_events(run_dir: &Path) -> Result<Option<Vec<RunEvent>>> {
    let path = run_dir.join(EVENTS_FILE);
    match files::read(&path, files::MAX_LOG_BYTES) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            Ok(Some(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()))
        }
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(Error::Input(format!("{}: {err}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_added_behind_a_torn_line_and_read_back_in_order() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_events(dir.path()).unwrap(), None);
        let start =
            |step| RunEvent::Start { step, attempts: step, ranks: 3, backend: "cpu".into(), from: None };
        let skip = RunEvent::Skip { step: 4, attempts: 5, loss: None, grad_norm: Some(2.5), in_a_row: 1 };
        RunRecords::open(dir.path(), "[run]").unwrap().add(&start(0)).unwrap();
        let path = dir.path().join(EVENTS_FILE);
        let mut text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.ends_with("}\n") && text.contains(r#""event":"start""#) && text.contains(r#""unix":"#),
            "{text}"
        );
        text.push_str(r#"{"unix":1,"event":"sk"#);
        std::fs::write(&path, text).unwrap();
        let mut records = RunRecords::open(dir.path(), "[run]\ndir = 1").unwrap();
        records.add(&start(4)).unwrap();
        records.add(&skip).unwrap();
        assert_eq!(read_events(dir.path()).unwrap().unwrap(), [start(0), start(4), skip]);
        assert_eq!(std::fs::read_to_string(dir.path().join(DECK_FILE)).unwrap(), "[run]\ndir = 1");
    }
}

//! `steps.csv` and `steps.jsonl`: one row per step, in machine-readable form.
//!
//! A row is a single write, so a killed run tears at most its last line; a resume drops that line and every
//! row after the checkpoint. Must not know: the columns, the origin of the numbers.

use crate::files;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::records::step_columns::{Column, columns, push_csv, push_json};
use crate::telemetry::step_row::StepRow;

/// The CSV file, under the run directory.
pub const STEPS_FILE: &str = "steps.csv";

/// Writer of both files; rank 0 has one.
#[derive(Debug)]
pub struct StepLog {
    columns: Vec<Column>,
    csv: LogFile,
    json: LogFile,
    line: String,
}

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
}

impl StepLog {
    /// Opens `steps.csv` and `steps.jsonl` in `dir`, which is created if necessary.
    ///
    /// `resume_after` None starts anew and drops existing rows. Some(checkpoint step) retains the well-formed
    /// rows up to that step, byte for byte, drops the rest, and appends; repeating this changes nothing.
    pub fn open(dir: &Path, resume_after: Option<u64>) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|err| Error::io("create", dir, &err))?;
        let columns = columns();
        let header = columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(",") + "\n";
        let keep_csv = |line: &[u8]| csv_step(line, columns.len());
        let csv = LogFile::open(dir.join(STEPS_FILE), Some(&header), resume_after, keep_csv)?;
        let json = LogFile::open(dir.join("steps.jsonl"), None, resume_after, json_step)?;
        Ok(StepLog { columns, csv, json, line: String::new() })
    }

    /// Appends a row to both files and hands it to the operating system.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&mut self, row: &StepRow) -> Result<()> {
        self.line.clear();
        push_csv(&mut self.line, &self.columns, row);
        self.csv.append(&self.line)?;
        self.line.clear();
        push_json(&mut self.line, &self.columns, row);
        self.json.append(&self.line)
    }

    /// Waits until all rows are on disk. Must be called before a checkpoint is published, so that no
    /// checkpoint is newer than the log even after a power failure.
    pub fn sync(&mut self) -> Result<()> {
        for log in [&self.csv, &self.json] {
            log.check_place()?;
            log.file.sync_data().map_err(|err| Error::io("fsync", &log.path, &err))?;
        }
        Ok(())
    }
}

/// The step of a well-formed CSV row including its newline; None for anything else.
fn csv_step(line: &[u8], n_columns: usize) -> Option<u64> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let step = line.split(',').next()?.parse().ok()?;
    (line.split(',').count() == n_columns).then_some(step)
}

/// The step of a well-formed JSON row including its newline; None for anything else.
fn json_step(line: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Row {
        step: u64,
    }
    serde_json::from_slice::<Row>(line.strip_suffix(b"\n")?).ok().map(|row| row.step)
}

impl LogFile {
    /// See [`StepLog::open`]. `step_of` returns the step of a well-formed line.
    fn open(
        path: PathBuf,
        header: Option<&str>,
        resume_after: Option<u64>,
        step_of: impl Fn(&[u8]) -> Option<u64>,
    ) -> Result<Self> {
        let old = match (resume_after, files::open(&path)) {
            (None, _) => None,
            (Some(_), Ok(file)) => Some(BufReader::new(file)),
            (Some(_), Err(err)) if err.kind() == std::io::ErrorKind::NotFound => None,
            (Some(_), Err(err)) => return Err(Error::io("open", &path, &err)),
        };
        let mut rows = old.into_iter().flat_map(lines);
        if let Some(wanted) = header {
            let found = rows.next().transpose().map_err(|err| Error::io("read", &path, &err))?;
            // A torn header means that the run died before its first row.
            if let Some(found) = found.filter(|found| found.ends_with(b"\n") && found != wanted.as_bytes()) {
                return Err(Error::Input(format!(
                    "{} has different columns from those of this version ({} instead of {}); move it and \
                     steps.jsonl away, then resume",
                    path.display(),
                    String::from_utf8_lossy(&found).split(',').count(),
                    wanted.split(',').count(),
                )));
            }
        }
        files::replace(&path, |out| {
            out.write_all(header.unwrap_or("").as_bytes())?;
            let mut last_kept = None;
            for line in rows {
                let line = line?;
                let Some(step) = step_of(&line) else { continue };
                if Some(step) > last_kept && Some(step) <= resume_after {
                    out.write_all(&line)?;
                    last_kept = Some(step);
                }
            }
            Ok(())
        })?;
        let file = files::open_to_append(&path).map_err(|err| Error::io("open", &path, &err))?;
        Ok(LogFile { path, file })
    }

    /// Checks that the path still refers to this file: rows of a moved or removed file would be lost
    /// silently.
    fn check_place(&self) -> Result<()> {
        let inode = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
        let own = self.file.metadata().map_err(|err| Error::io("stat", &self.path, &err))?;
        let what = match std::fs::metadata(&self.path) {
            Ok(there) if inode(&there) == inode(&own) => return Ok(()),
            Ok(_) => "has been replaced".to_string(),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => "has been moved or removed".into(),
            Err(err) => return Err(Error::io("stat", &self.path, &err)),
        };
        Err(Error::Io(format!(
            "{} {what} while this run was writing it: rows and checkpoints would diverge; make sure that \
             nothing else uses the run directory, and restart, which resumes from the newest checkpoint",
            self.path.display()
        )))
    }

    fn append(&mut self, line: &str) -> Result<()> {
        self.check_place()?;
        self.file.write_all(line.as_bytes()).map_err(|err| Error::io("append to", &self.path, &err))
    }
}

/// Lines including their newlines; the last may lack one.
fn lines(mut reader: BufReader<File>) -> impl Iterator<Item = std::io::Result<Vec<u8>>> {
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(Ok(line)),
            Err(err) => Some(Err(err)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::step_row::{RankStep, combine};
    use std::fs::OpenOptions;

    fn row(step: u64) -> StepRow {
        let rank = |k: u64| RankStep::from_array(std::array::from_fn(|i| (step + k) as f64 * 0.1 + i as f64));
        StepRow {
            step,
            tokens: 1024,
            loss: 5.5 / step as f64,
            val_loss: step.is_multiple_of(2).then_some(3.25),
            grad_norm: 0.1,
            lr: 3e-7,
            mfu: None,
            ranks: combine(&[rank(0), rank(1), rank(3)]),
        }
    }

    fn write_rows(dir: &Path, resume_after: Option<u64>, steps: std::ops::RangeInclusive<u64>) {
        let mut log = StepLog::open(dir, resume_after).unwrap();
        steps.for_each(|step| log.write(&row(step)).unwrap());
        log.sync().unwrap();
    }

    fn both(dir: &Path) -> [Vec<u8>; 2] {
        ["steps.csv", "steps.jsonl"].map(|name| std::fs::read(dir.join(name)).unwrap())
    }

    fn append(dir: &Path, name: &str, bytes: &[u8]) {
        OpenOptions::new().append(true).open(dir.join(name)).unwrap().write_all(bytes).unwrap();
    }

    /// An uninterrupted log of `steps` steps, to compare with.
    fn whole(n_steps: u64) -> [Vec<u8>; 2] {
        let dir = tempfile::tempdir().unwrap();
        write_rows(dir.path(), None, 1..=n_steps);
        both(dir.path())
    }

    #[test]
    fn a_resume_cuts_later_rows_and_a_torn_line_and_then_equals_an_uninterrupted_log() {
        let dir = tempfile::tempdir().unwrap();
        write_rows(dir.path(), None, 1..=7);
        append(dir.path(), "steps.csv", b"8,1024,0.6");
        append(dir.path(), "steps.jsonl", b"{\"step\":8,\"tok");
        for _ in 0..2 {
            drop(StepLog::open(dir.path(), Some(4)).unwrap());
            assert_eq!(both(dir.path()), whole(4));
        }
        write_rows(dir.path(), Some(4), 5..=9);
        assert_eq!(both(dir.path()), whole(9));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn a_line_torn_within_the_kept_rows_or_turned_to_zeros_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        write_rows(dir.path(), None, 1..=2);
        append(dir.path(), "steps.csv", b"3,10\n\0\0\0\n");
        append(dir.path(), "steps.jsonl", b"{\"step\":3\n\0\0\0");
        drop(StepLog::open(dir.path(), Some(100)).unwrap());
        assert_eq!(both(dir.path()), whole(2));
    }

    #[test]
    fn beginning_anew_drops_old_rows_and_a_torn_header_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        write_rows(dir.path(), None, 1..=3);
        write_rows(dir.path(), None, 1..=2);
        assert_eq!(both(dir.path()), whole(2));
        std::fs::write(dir.path().join("steps.csv"), b"step,tok").unwrap();
        std::fs::write(dir.path().join("steps.jsonl"), b"").unwrap();
        write_rows(dir.path(), Some(0), 1..=2);
        assert_eq!(both(dir.path()), whole(2));
    }

    #[test]
    fn a_log_that_is_moved_removed_or_replaced_while_it_is_written_is_an_error_at_the_next_row_or_save() {
        let none = |path: &Path| std::fs::remove_file(path).unwrap();
        let moved =
            |path: &Path| std::fs::rename(path.parent().unwrap(), path.with_file_name("../moved")).unwrap();
        let another = |path: &Path| {
            std::fs::write(path.with_file_name("other"), b"x").unwrap();
            std::fs::rename(path.with_file_name("other"), path).unwrap();
        };
        type Change<'a> = &'a dyn Fn(&Path);
        let cases: [(&str, Change<'_>, &str); 4] = [
            ("steps.csv", &none, "moved or removed"),
            ("steps.jsonl", &none, "moved or removed"),
            ("steps.csv", &moved, "moved or removed"),
            ("steps.csv", &another, "replaced"),
        ];
        for (name, change, word) in cases {
            let dir = tempfile::tempdir().unwrap();
            let run = dir.path().join("run");
            let mut log = StepLog::open(&run, None).unwrap();
            log.write(&row(1)).unwrap();
            change(&run.join(name));
            for error in [log.write(&row(2)).unwrap_err(), log.sync().unwrap_err()] {
                assert!(error.to_string().contains(name) && error.to_string().contains(word), "{error}");
                assert_eq!(error.exit().code(), 5);
            }
        }
    }

    #[test]
    fn a_resume_without_a_log_starts_one() {
        let dir = tempfile::tempdir().unwrap();
        write_rows(&dir.path().join("deep/run"), Some(0), 1..=2);
        assert_eq!(both(&dir.path().join("deep/run")), whole(2));
    }

    #[test]
    fn a_log_of_another_version_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("steps.csv"), b"step,loss\n1,2\n").unwrap();
        let err = StepLog::open(dir.path(), Some(1)).unwrap_err();
        assert!(matches!(&err, Error::Input(text) if text.contains("2 instead of 47")), "{err}");
        assert_eq!(std::fs::read(dir.path().join("steps.csv")).unwrap(), b"step,loss\n1,2\n");
    }

    #[test]
    fn both_files_hold_the_same_numbers_under_the_same_names() {
        let dir = tempfile::tempdir().unwrap();
        write_rows(dir.path(), None, 1..=4);
        let mut csv = csv::Reader::from_path(dir.path().join("steps.csv")).unwrap();
        let names = csv.headers().unwrap().clone();
        let json = std::fs::read_to_string(dir.path().join("steps.jsonl")).unwrap();
        let mut n_rows = 0;
        for (record, line) in csv.records().zip(json.lines()) {
            let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
            assert_eq!(object.len(), names.len());
            for (name, field) in names.iter().zip(record.unwrap().iter()) {
                let from_csv = (!field.is_empty()).then(|| field.parse::<f64>().unwrap());
                assert_eq!(object[name].as_f64(), from_csv, "{name}");
            }
            n_rows += 1;
        }
        assert_eq!(n_rows, 4);
    }
}

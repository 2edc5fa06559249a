//! Reads the records of a run directory, also of a run that was killed.
//!
//! Must not know: figures, pages.

use crate::config::{BackendKind, Deck};
use crate::error::{Error, Result};
use crate::files;
use crate::records::Summary;
use crate::records::run_records::{DECK_FILE, RunEvent, read_events};
use crate::records::step_log::STEPS_FILE;
use crate::records::step_reader::{LoggedStep, StepColumns};
use crate::records::summary::SUMMARY_FILE;
use crate::telemetry::trace::Track;
use serde::Deserialize;
use std::io::ErrorKind;
use std::path::Path;

/// An event of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedEvent {
    /// Rank.
    pub rank: usize,
    /// Its track.
    pub track: Track,
    /// E.g. `forward`.
    pub what: String,
    /// The unit's name, or nothing.
    pub unit: String,
    /// Step.
    pub step: u64,
    /// Start, ms.
    pub start_ms: f64,
    /// Duration, ms.
    pub ms: f64,
    /// Payload of a collective.
    pub bytes: u64,
    /// Bytes of all buffers after it, on the compute track.
    pub live_bytes: Option<u64>,
}

/// All records.
#[derive(Debug)]
pub struct RecordedRun {
    /// At the end of a process; none while the first one runs, or where it was killed.
    pub summary: Option<Summary>,
    /// The resolved deck of the newest process.
    pub deck: Deck,
    /// Ranks of the newest process.
    pub world_size: usize,
    /// Its backend.
    pub backend: BackendKind,
    /// Events other than steps, oldest first.
    pub events: Vec<RunEvent>,
    /// Complete rows of the log.
    pub steps: Vec<LoggedStep>,
    /// Events of traced steps, in the order of the file; none without a trace.
    pub trace: Option<Vec<TracedEvent>>,
}

/// Reads a file; None if it does not exist.
fn text_of(path: &Path) -> Result<Option<String>> {
    match files::read_text(path, files::MAX_LOG_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound && path.parent().is_some_and(Path::is_dir) => Ok(None),
        Err(e) => Err(Error::Input(format!("{}: {e}", path.display()))),
    }
}

/// The summary; None if there is none.
pub fn read_summary(run_dir: &Path) -> Result<Option<Summary>> {
    let path = run_dir.join(SUMMARY_FILE);
    let parse = |text: String| {
        serde_json::from_str(&text)
            .map_err(|e| Error::Input(format!("{}: not a summary of this version: {e}", path.display())))
    };
    text_of(&path)?.map(parse).transpose()
}

impl RecordedRun {
    /// Reads a run directory.
    ///
    /// # Errors
    /// It is not a run directory, or a file is not of this version's format. A torn last row of the log is
    /// not an error.
    pub fn read(run_dir: &Path) -> Result<Self> {
        if !run_dir.is_dir() {
            return Err(Error::Input(format!(
                "{}: no such directory; expected a run directory",
                run_dir.display()
            )));
        }
        let summary = read_summary(run_dir)?;
        let path = run_dir.join(DECK_FILE);
        let events = read_events(run_dir)?.unwrap_or_default();
        let start = events.iter().rev().find_map(|event| match event {
            RunEvent::Start { ranks, backend, .. } => Some((*ranks as usize, backend.clone())),
            RunEvent::Skip { .. } | RunEvent::Straggler(_) | RunEvent::End { .. } => None,
        });
        let (Some(deck), Some((world_size, backend))) = (text_of(&path)?, start) else {
            return Err(Error::Input(format!(
                "{}: not a run directory of this version: {DECK_FILE} or events.jsonl is missing; figures \
                 require the run.dir of a `zero3 train`",
                run_dir.display()
            )));
        };
        let deck = Deck::parse(&deck, &[], &path.display().to_string())?;
        let backend = BackendKind::named(&backend).ok_or_else(|| {
            let path = run_dir.join("events.jsonl");
            Error::Input(format!(
                "{}: backend `{backend}` is unknown to this version of zero3",
                path.display()
            ))
        })?;
        Ok(RecordedRun {
            summary,
            deck,
            world_size,
            backend,
            events,
            steps: text_of(&run_dir.join(STEPS_FILE))?
                .map_or(Ok(Vec::new()), |text| steps_of(&text, run_dir))?,
            trace: text_of(&run_dir.join("trace.json"))?.map(|text| trace_of(&text, run_dir)).transpose()?,
        })
    }
}

/// Rows of `steps.csv`; text after the last newline was torn off and is skipped, as is any line that is not a
/// row.
fn steps_of(text: &str, run_dir: &Path) -> Result<Vec<LoggedStep>> {
    let mut lines = text.rfind('\n').map_or("", |end| &text[..end]).lines();
    let Some(header) = lines.next() else { return Ok(Vec::new()) };
    let columns = StepColumns::of_header(header, &["val_loss", "step_ms_max", "tokens_per_s"])
        .map_err(|why| Error::Input(format!("{}: {why}", run_dir.join(STEPS_FILE).display())))?;
    Ok(lines.filter_map(|line| columns.row(line)).collect())
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "traceEvents")]
    events: Vec<RawEvent>,
}

#[derive(Deserialize)]
struct RawEvent {
    ph: String,
    pid: usize,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    args: RawArgs,
}

#[derive(Deserialize)]
struct RawArgs {
    #[serde(default)]
    unit: String,
    #[serde(default)]
    step: u64,
    #[serde(default)]
    bytes: u64,
}

fn trace_of(text: &str, run_dir: &Path) -> Result<Vec<TracedEvent>> {
    let path = run_dir.join("trace.json");
    let document: Document = serde_json::from_str(text)
        .map_err(|e| Error::Input(format!("{}: not a trace of this version: {e}", path.display())))?;
    let mut events: Vec<TracedEvent> = Vec::new();
    for raw in document.events {
        let track = match raw.cat.as_str() {
            "all_gather" => Track::Gather,
            "reduce_scatter" => Track::Reduce,
            _ => Track::Compute,
        };
        match raw.ph.as_str() {
            "X" | "i" => events.push(TracedEvent {
                rank: raw.pid,
                track,
                what: raw.cat,
                unit: raw.args.unit,
                step: raw.args.step,
                start_ms: raw.ts / 1e3,
                ms: raw.dur / 1e3,
                bytes: raw.args.bytes,
                live_bytes: None,
            }),
            // The counter follows the instruction after which it was read.
            "C" => {
                if let Some(last) =
                    events.last_mut().filter(|e| e.rank == raw.pid && e.track == Track::Compute)
                {
                    last.live_bytes = Some(raw.args.bytes);
                }
            }
            _ => {}
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_row_is_left_out_and_the_rest_is_read() {
        let dir = Path::new("RUN");
        let head = "step,loss,val_loss,step_ms_max,tokens_per_s\n";
        let row = |step, rest: &str| format!("{step},{rest}\n");
        let text = format!("{head}{}{}{}", row(1, "5.5,,2,100"), row(2, "NaN,4.5,2,100"), "3,5.25,,2,10");
        let steps = steps_of(&text, dir).unwrap();
        assert_eq!(steps.iter().map(|s| s.step).collect::<Vec<_>>(), [1, 2], "the last row has no line end");
        assert!(steps[1].loss.is_nan() && steps[1].val_loss == Some(4.5) && steps[0].val_loss.is_none());
        assert_eq!(steps_of(&format!("{head}1,5"), dir).unwrap(), []);
        assert_eq!(steps_of("step,lo", dir).unwrap(), []);
        assert!(steps_of("a,b\n1,2\n", dir).unwrap_err().to_string().contains("no column step"));
    }

    #[test]
    fn a_counter_belongs_to_the_instruction_before_it() {
        let text = r#"{"traceEvents":[
            {"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0"}},
            {"ph":"X","name":"gather h.0","cat":"gather","pid":0,"tid":0,"ts":1000,"dur":500,
             "args":{"unit":"h.0","step":7}},
            {"ph":"C","name":"live bytes","pid":0,"ts":1500,"args":{"bytes":42}},
            {"ph":"X","name":"all_gather h.0","cat":"all_gather","pid":0,"tid":1,"ts":1100,"dur":90,
             "args":{"unit":"h.0","step":7,"bytes":9,"gigabytes_per_s":1.5}}
        ]}"#;
        let events = trace_of(text, Path::new("RUN")).unwrap();
        assert_eq!(events.len(), 2);
        assert_eq!(
            (events[0].live_bytes, events[0].start_ms, events[0].ms, events[0].step),
            (Some(42), 1.0, 0.5, 7)
        );
        assert_eq!((events[1].live_bytes, events[1].track, events[1].bytes), (None, Track::Gather, 9));
        assert!(trace_of("[]", Path::new("RUN")).is_err());
    }

    #[test]
    fn a_directory_that_is_no_run_says_what_would_do() {
        let dir = tempfile::tempdir().unwrap();
        for (path, part) in [(dir.path().join("none"), "no such directory"), (dir.path().into(), "deck.toml")]
        {
            let error = RecordedRun::read(&path).unwrap_err();
            assert!(error.to_string().contains(part) && error.exit().code() == 2, "{error}");
        }
    }
}

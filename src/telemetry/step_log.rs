//! `steps.csv` and `steps.jsonl`: one row per step, for programs to read.
//!
//! One table of columns drives both files and the table in docs/logs.md. Floats are written in the shortest form that reads
//! back to the same bits. A row is one write, so a killed run tears at most its last line; a resume drops that line and
//! every row later than the checkpoint. Must not know: how the numbers came about.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use super::replace_file::replace_file;
use crate::error::{Error, Result};

/// Numbers of one rank and one step that may differ between ranks. f64 throughout, so that one all-gather carries
/// them; bytes are exact up to 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[allow(missing_docs)] // each is a row of MEASURES
pub struct RankStep {
    pub step_ms: f64,
    pub data_ms: f64,
    pub forward_ms: f64,
    pub backward_ms: f64,
    pub optimizer_ms: f64,
    pub checkpoint_ms: f64,
    pub exposed_comm_ms: f64,
    pub all_gather_bytes: f64,
    pub reduce_scatter_bytes: f64,
    pub live_peak_bytes: f64,
    pub resident_bytes: f64,
    pub peak_rss_bytes: f64,
    pub page_faults: f64,
}

/// Numbers in a [`RankStep`].
pub const N_MEASURES: usize = 13;

impl RankStep {
    /// The numbers in a fixed order.
    pub fn to_array(&self) -> [f64; N_MEASURES] {
        [
            self.step_ms,
            self.data_ms,
            self.forward_ms,
            self.backward_ms,
            self.optimizer_ms,
            self.checkpoint_ms,
            self.exposed_comm_ms,
            self.all_gather_bytes,
            self.reduce_scatter_bytes,
            self.live_peak_bytes,
            self.resident_bytes,
            self.peak_rss_bytes,
            self.page_faults,
        ]
    }

    /// The reverse of [`RankStep::to_array`].
    pub fn from_array(numbers: [f64; N_MEASURES]) -> Self {
        let [
            step_ms,
            data_ms,
            forward_ms,
            backward_ms,
            optimizer_ms,
            checkpoint_ms,
            exposed_comm_ms,
            all_gather_bytes,
            reduce_scatter_bytes,
            live_peak_bytes,
            resident_bytes,
            peak_rss_bytes,
            page_faults,
        ] = numbers;
        RankStep {
            step_ms,
            data_ms,
            forward_ms,
            backward_ms,
            optimizer_ms,
            checkpoint_ms,
            exposed_comm_ms,
            all_gather_bytes,
            reduce_scatter_bytes,
            live_peak_bytes,
            resident_bytes,
            peak_rss_bytes,
            page_faults,
        }
    }
}

/// All ranks' [`RankStep`]s in three.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankStats {
    /// Mean over ranks.
    pub mean: RankStep,
    /// Smallest of each.
    pub min: RankStep,
    /// Largest of each.
    pub max: RankStep,
}

/// Mean, smallest and largest of every number, each on its own.
pub fn combine(ranks: &[RankStep]) -> RankStats {
    assert!(!ranks.is_empty(), "numbers of 0 ranks");
    let arrays: Vec<[f64; N_MEASURES]> = ranks.iter().map(RankStep::to_array).collect();
    let fold = |i: usize, f: fn(f64, f64) -> f64| arrays[1..].iter().fold(arrays[0][i], |acc, a| f(acc, a[i]));
    RankStats {
        mean: RankStep::from_array(std::array::from_fn(|i| fold(i, |a, b| a + b) / ranks.len() as f64)),
        min: RankStep::from_array(std::array::from_fn(|i| fold(i, f64::min))),
        max: RankStep::from_array(std::array::from_fn(|i| fold(i, f64::max))),
    }
}

/// One row of the step log.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepRow {
    /// Optimizer step, from 1.
    pub step: u64,
    /// Tokens trained on in this step, over all ranks.
    pub tokens: u64,
    /// Mean training loss in nats per token.
    pub loss: f64,
    /// Validation loss in nats per token after this step, if there was a validation.
    pub val_loss: Option<f64>,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate of this step.
    pub lr: f64,
    /// Model FLOPs utilisation in [0, 1], where the peak is known.
    pub mfu: Option<f64>,
    /// What differs between ranks.
    pub ranks: RankStats,
}

impl StepRow {
    /// All ranks' tokens over the slowest rank's step time.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / (self.ranks.max.step_ms / 1e3)
    }
}

/// One field of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Value {
    Int(u64),
    Float(f64),
    /// Empty in CSV, null in JSON.
    Empty,
}

impl From<Option<f64>> for Value {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Value::Empty, Value::Float)
    }
}

/// Where a column's value comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    Row(fn(&StepRow) -> Value),
    /// Index of a measure.
    Mean(usize),
    Min(usize),
    Max(usize),
}

/// A column of both files.
#[derive(Debug, Clone)]
pub struct Column {
    /// Header in CSV, key in JSON.
    pub name: String,
    /// Unit; `-` for a plain number.
    pub unit: &'static str,
    /// What it means.
    pub definition: String,
    source: Source,
}

/// Name, unit and definition of the numbers of a [`RankStep`], in the order of [`RankStep::to_array`].
const MEASURES: [(&str, &str, &str); N_MEASURES] = [
    ("step_ms", "ms", "time of the step on the host's monotonic clock, evaluation and checkpoint apart"),
    ("data_ms", "ms", "reading token files into micro-batches"),
    ("forward_ms", "ms", "forward compute; waiting for collectives is not in it"),
    ("backward_ms", "ms", "backward compute, recomputation included; waiting for collectives is not in it"),
    (
        "optimizer_ms",
        "ms",
        "gradient norm, clipping and update of the local slices; waiting for collectives is not in it",
    ),
    ("checkpoint_ms", "ms", "writing a checkpoint after this step; 0 where none was written; not part of step_ms"),
    ("exposed_comm_ms", "ms", "waiting for collectives while no compute ran"),
    (
        "all_gather_bytes",
        "bytes",
        "payload a rank received in all-gathers of parameters in this step, evaluation apart",
    ),
    ("reduce_scatter_bytes", "bytes", "payload a rank received in reductions of gradients in this step"),
    ("live_peak_bytes", "bytes", "most bytes of the memory ledger held together at one moment of the step"),
    (
        "resident_bytes",
        "bytes",
        "model state held after the step: slices of parameters, master weights, gradients, moments",
    ),
    ("peak_rss_bytes", "bytes", "most memory the process has had since its start, as the system counts it"),
    ("page_faults", "pages", "pages the system gave the process since the row before"),
];

/// Every column in file order: the only definition of the schema.
pub fn columns() -> Vec<Column> {
    let row = |name: &str, unit, definition: &str, value| Column {
        name: name.into(),
        unit,
        definition: definition.into(),
        source: Source::Row(value),
    };
    let measure = |i: usize| {
        let (name, unit, definition) = MEASURES[i];
        Column {
            name: name.into(),
            unit,
            definition: format!("{definition} (mean over ranks)"),
            source: Source::Mean(i),
        }
    };
    let mut columns = vec![
        row("step", "-", "optimizer step, from 1", |r| Value::Int(r.step)),
        row("tokens", "tokens", "tokens trained on in this step, over all ranks", |r| Value::Int(r.tokens)),
        row("loss", "nats/token", "mean training loss of the step's tokens", |r| Value::Float(r.loss)),
        row("val_loss", "nats/token", "validation loss after this step; empty where none was made", |r| {
            r.val_loss.into()
        }),
        row("grad_norm", "-", "global L2 norm of the gradient before clipping", |r| Value::Float(r.grad_norm)),
        row("lr", "-", "learning rate of the step", |r| Value::Float(r.lr)),
    ];
    columns.extend((0..9).map(measure));
    columns.push(row(
        "tokens_per_s",
        "tokens/s",
        "tokens / step_ms_max: all ranks' tokens over the slowest rank's step",
        |r| Value::Float(r.tokens_per_s()),
    ));
    columns.push(row("mfu", "-", "model FLOPs utilisation, 0 to 1; empty where the peak is unknown", |r| r.mfu.into()));
    columns.extend((9..N_MEASURES).map(measure));
    for (i, (name, unit, _)) in MEASURES.into_iter().enumerate() {
        for (which, word, source) in [("min", "smallest", Source::Min(i)), ("max", "largest", Source::Max(i))] {
            let definition = format!("{word} {name} of any rank");
            columns.push(Column { name: format!("{name}_{which}"), unit, definition, source });
        }
    }
    columns
}

/// The columns as the Markdown table of docs/logs.md.
pub fn markdown_table() -> String {
    let mut table = String::from("| column | unit | definition |\n| --- | --- | --- |\n");
    for Column { name, unit, definition, .. } in columns() {
        writeln!(table, "| `{name}` | {unit} | {definition} |").expect("writing to a String");
    }
    table
}

impl Column {
    fn value(&self, row: &StepRow) -> Value {
        match self.source {
            Source::Row(value) => value(row),
            Source::Mean(i) => Value::Float(row.ranks.mean.to_array()[i]),
            Source::Min(i) => Value::Float(row.ranks.min.to_array()[i]),
            Source::Max(i) => Value::Float(row.ranks.max.to_array()[i]),
        }
    }
}

/// Appends a float in the shortest form that reads back to the same bits, e.g. `0.001`, `1e-7`, `12345`, `NaN`, `inf`.
fn push_float(text: &mut String, x: f64) {
    let plain = x == 0.0 || !x.is_finite() || (1e-5..1e17).contains(&x.abs());
    if plain { write!(text, "{x}") } else { write!(text, "{x:e}") }.expect("writing to a String");
}

/// A row as a line of CSV.
fn push_csv(text: &mut String, columns: &[Column], row: &StepRow) {
    for (i, column) in columns.iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        match column.value(row) {
            Value::Int(n) => write!(text, "{n}").expect("writing to a String"),
            Value::Float(x) => push_float(text, x),
            Value::Empty => {}
        }
    }
    text.push('\n');
}

/// A row as a line of JSON. JSON has no NaN and no infinity: they are null, and the CSV row tells which.
fn push_json(text: &mut String, columns: &[Column], row: &StepRow) {
    for (i, column) in columns.iter().enumerate() {
        let open = if i == 0 { '{' } else { ',' };
        write!(text, "{open}\"{}\":", column.name).expect("writing to a String");
        match column.value(row) {
            Value::Int(n) => write!(text, "{n}").expect("writing to a String"),
            Value::Float(x) if x.is_finite() => push_float(text, x),
            Value::Float(_) | Value::Empty => text.push_str("null"),
        }
    }
    text.push_str("}\n");
}

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
    /// Opens `steps.csv` and `steps.jsonl` in `dir`, which is made if need be.
    ///
    /// `resume_after` None begins anew and drops what is there. Some(checkpoint step) keeps the well-formed rows up to that
    /// step, byte for byte, drops the rest, and goes on behind them; doing it twice changes nothing.
    pub fn open(dir: &Path, resume_after: Option<u64>) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|err| Error::io("create", dir, &err))?;
        let columns = columns();
        let header = columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(",") + "\n";
        let keep_csv = |line: &[u8]| csv_step(line, columns.len());
        let csv = LogFile::open(dir.join("steps.csv"), Some(&header), resume_after, keep_csv)?;
        let json = LogFile::open(dir.join("steps.jsonl"), None, resume_after, json_step)?;
        Ok(StepLog { columns, csv, json, line: String::new() })
    }

    /// Appends a row to both files and hands it to the operating system.
    pub fn write(&mut self, row: &StepRow) -> Result<()> {
        self.line.clear();
        push_csv(&mut self.line, &self.columns, row);
        self.csv.append(&self.line)?;
        self.line.clear();
        push_json(&mut self.line, &self.columns, row);
        self.json.append(&self.line)
    }

    /// Waits until all rows are on the disk. To be called before a checkpoint is published, so that no checkpoint is newer
    /// than the log even after a power failure.
    pub fn sync(&mut self) -> Result<()> {
        for LogFile { path, file } in [&self.csv, &self.json] {
            file.sync_data().map_err(|err| Error::io("fsync", path, &err))?;
        }
        Ok(())
    }
}

/// The step of a well-formed CSV row with its line end; None for anything else.
fn csv_step(line: &[u8], n_columns: usize) -> Option<u64> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let step = line.split(',').next()?.parse().ok()?;
    (line.split(',').count() == n_columns).then_some(step)
}

/// The step of a well-formed JSON row with its line end; None for anything else.
fn json_step(line: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Row {
        step: u64,
    }
    serde_json::from_slice::<Row>(line.strip_suffix(b"\n")?).ok().map(|row| row.step)
}

impl LogFile {
    /// See [`StepLog::open`]. `step_of` gives the step of a well-formed line.
    fn open(
        path: PathBuf,
        header: Option<&str>,
        resume_after: Option<u64>,
        step_of: impl Fn(&[u8]) -> Option<u64>,
    ) -> Result<Self> {
        let old = match (resume_after, File::open(&path)) {
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
                    "{} has other columns than this version writes ({} instead of {}); move it and steps.jsonl away, then resume",
                    path.display(),
                    String::from_utf8_lossy(&found).split(',').count(),
                    wanted.split(',').count(),
                )));
            }
        }
        replace_file(&path, |out| {
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
        let file = OpenOptions::new().append(true).open(&path).map_err(|err| Error::io("open", &path, &err))?;
        Ok(LogFile { path, file })
    }

    fn append(&mut self, line: &str) -> Result<()> {
        self.file.write_all(line.as_bytes()).map_err(|err| Error::io("append to", &self.path, &err))
    }
}

/// Lines with their line ends; the last may lack one.
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
    use proptest::prelude::*;

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

    #[test]
    fn columns_stand_in_the_documented_order() {
        let names: Vec<String> = columns().into_iter().map(|c| c.name).collect();
        let plain = "step tokens loss val_loss grad_norm lr step_ms data_ms forward_ms backward_ms optimizer_ms checkpoint_ms \
                     exposed_comm_ms all_gather_bytes reduce_scatter_bytes tokens_per_s mfu live_peak_bytes resident_bytes \
                     peak_rss_bytes page_faults";
        assert_eq!(names[..21].join(" "), plain);
        assert_eq!(names[21..25], ["step_ms_min", "step_ms_max", "data_ms_min", "data_ms_max"]);
        assert_eq!(names[46], "page_faults_max");
        assert_eq!(names.len(), 47);
    }

    #[test]
    fn measures_and_their_array_agree_in_order() {
        let array: [f64; N_MEASURES] = std::array::from_fn(|i| i as f64);
        assert_eq!(RankStep::from_array(array).to_array(), array);
        let shown = format!("{:?}", RankStep::from_array(array));
        for (i, (name, ..)) in MEASURES.iter().enumerate() {
            assert!(shown.contains(&format!("{name}: {i}.0")), "{name} is not number {i} of {shown}");
        }
    }

    #[test]
    fn non_finite_numbers_show_in_csv_and_are_null_in_json() {
        let columns = columns();
        let mut bad = row(1);
        (bad.loss, bad.grad_norm, bad.lr) = (f64::NAN, f64::INFINITY, f64::NEG_INFINITY);
        let (mut csv, mut json) = (String::new(), String::new());
        push_csv(&mut csv, &columns, &bad);
        push_json(&mut json, &columns, &bad);
        assert!(csv.starts_with("1,1024,NaN,,inf,-inf,"), "{csv}");
        assert!(
            json.starts_with("{\"step\":1,\"tokens\":1024,\"loss\":null,\"val_loss\":null,\"grad_norm\":null,"),
            "{json}"
        );
    }

    #[test]
    fn the_mean_is_in_the_plain_column_and_speed_is_that_of_the_slowest_rank() {
        let fast = RankStep { step_ms: 100.0, all_gather_bytes: 10.0, ..RankStep::default() };
        let slow = RankStep { step_ms: 400.0, all_gather_bytes: 10.0, ..RankStep::default() };
        let ranks = combine(&[slow, fast, fast]);
        assert_eq!((ranks.mean.step_ms, ranks.min.step_ms, ranks.max.step_ms), (200.0, 100.0, 400.0));
        assert_eq!(ranks.mean.all_gather_bytes, 10.0);
        assert_eq!(StepRow { tokens: 1000, ranks, ..StepRow::default() }.tokens_per_s(), 2500.0);
    }

    #[test]
    fn the_document_has_every_column() {
        let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/logs.md")).unwrap();
        let table = markdown_table();
        assert!(document.contains(&table), "docs/logs.md must hold this table:\n{table}");
    }

    proptest! {
        #[test]
        fn floats_read_back_to_the_same_bits_in_both_formats(bits: u64) {
            let x = f64::from_bits(bits);
            prop_assume!(!x.is_nan());
            let mut text = String::new();
            push_float(&mut text, x);
            prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), bits, "{}", text);
            prop_assert!(text.len() <= 24, "{}", text);
            if x.is_finite() {
                prop_assert_eq!(serde_json::from_str::<f64>(&text).unwrap().to_bits(), bits, "{}", text);
            }
        }
    }
}

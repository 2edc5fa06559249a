//! The columns of `steps.csv` and `steps.jsonl`: names, units, definitions, and the formatting of a row.
//!
//! One table drives both files and the table in docs/logs.md. Floats are written in the shortest form that
//! parses to the same bits. Must not know: files.

use std::fmt::Write as _;

use crate::telemetry::step_row::{MEASURES, Measure, StepRow};

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

/// The source of a column's value.
#[derive(Debug, Clone, Copy)]
enum ColumnSource {
    Row(fn(&StepRow) -> Value),
    /// Index into [`MEASURES`].
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
    /// Its definition.
    pub definition: String,
    source: ColumnSource,
}

/// Every column in file order: the only definition of the schema.
pub fn columns() -> Vec<Column> {
    let row = |name: &str, unit, definition: &str, value| Column {
        name: name.into(),
        unit,
        definition: definition.into(),
        source: ColumnSource::Row(value),
    };
    let measure = |i: usize| {
        let Measure { name, unit, definition } = MEASURES[i];
        Column {
            name: name.into(),
            unit,
            definition: format!("{definition} (mean over ranks)"),
            source: ColumnSource::Mean(i),
        }
    };
    let mut columns = vec![
        row("step", "-", "optimizer step, from 1", |r| Value::Int(r.step)),
        row("tokens", "tokens", "tokens trained on in this step, over all ranks", |r| Value::Int(r.tokens)),
        row("loss", "nats/token", "mean training loss of the step's tokens", |r| Value::Float(r.loss)),
        row("val_loss", "nats/token", "validation loss after this step; empty without a validation", |r| {
            r.val_loss.into()
        }),
        row("grad_norm", "-", "global L2 norm of the gradient before clipping", |r| {
            Value::Float(r.grad_norm)
        }),
        row("lr", "-", "learning rate of the step", |r| Value::Float(r.lr)),
    ];
    columns.extend((0..9).map(measure));
    columns.push(row(
        "tokens_per_s",
        "tokens/s",
        "tokens / step_ms_max: all ranks' tokens over the slowest rank's step",
        |r| Value::Float(r.tokens_per_s()),
    ));
    columns.push(row("mfu", "-", "model FLOPs utilization, 0 to 1; empty if the peak is unknown", |r| {
        r.mfu.into()
    }));
    columns.extend((9..MEASURES.len()).map(measure));
    for (i, Measure { name, unit, .. }) in MEASURES.into_iter().enumerate() {
        for (which, word, source) in
            [("min", "smallest", ColumnSource::Min(i)), ("max", "largest", ColumnSource::Max(i))]
        {
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
            ColumnSource::Row(value) => value(row),
            ColumnSource::Mean(i) => Value::Float(row.ranks.mean.to_array()[i]),
            ColumnSource::Min(i) => Value::Float(row.ranks.min.to_array()[i]),
            ColumnSource::Max(i) => Value::Float(row.ranks.max.to_array()[i]),
        }
    }
}

/// Appends a float in the shortest form that parses to the same bits, e.g. `0.001`, `1e-7`, `12345`, `NaN`,
/// `inf`.
fn push_float(text: &mut String, x: f64) {
    let plain = x == 0.0 || !x.is_finite() || (1e-5..1e17).contains(&x.abs());
    if plain { write!(text, "{x}") } else { write!(text, "{x:e}") }.expect("writing to a String");
}

/// A row as a line of CSV.
pub(super) fn push_csv(text: &mut String, columns: &[Column], row: &StepRow) {
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

/// A row as a line of JSON. JSON has neither NaN nor infinity: they are null, and the CSV row distinguishes
/// them.
pub(super) fn push_json(text: &mut String, columns: &[Column], row: &StepRow) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::step_row::{RankStep, combine};
    use proptest::prelude::*;

    #[test]
    fn columns_stand_in_the_documented_order() {
        let names: Vec<String> = columns().into_iter().map(|c| c.name).collect();
        let plain = "step tokens loss val_loss grad_norm lr step_ms data_ms forward_ms backward_ms \
                     optimizer_ms checkpoint_ms exposed_comm_ms all_gather_bytes reduce_scatter_bytes \
                     tokens_per_s mfu live_peak_bytes resident_bytes peak_rss_bytes page_faults";
        assert_eq!(names[..21].join(" "), plain);
        assert_eq!(names[21..25], ["step_ms_min", "step_ms_max", "data_ms_min", "data_ms_max"]);
        assert_eq!(names[46], "page_faults_max");
        assert_eq!(names.len(), 47);
    }

    #[test]
    fn measures_and_their_array_agree_in_order() {
        let array: [f64; MEASURES.len()] = std::array::from_fn(|i| i as f64);
        assert_eq!(RankStep::from_array(array).to_array(), array);
        let shown = format!("{:?}", RankStep::from_array(array));
        for (i, Measure { name, .. }) in MEASURES.iter().enumerate() {
            assert!(shown.contains(&format!("{name}: {i}.0")), "{name} is not number {i} of {shown}");
        }
    }

    #[test]
    fn non_finite_numbers_show_in_csv_and_are_null_in_json() {
        let columns = columns();
        let (loss, grad_norm, lr) = (f64::NAN, f64::INFINITY, f64::NEG_INFINITY);
        let ranks = combine(&[RankStep::default()]);
        let bad = StepRow { step: 1, tokens: 1024, loss, grad_norm, lr, ranks, ..StepRow::default() };
        let (mut csv, mut json) = (String::new(), String::new());
        push_csv(&mut csv, &columns, &bad);
        push_json(&mut json, &columns, &bad);
        assert!(csv.starts_with("1,1024,NaN,,inf,-inf,"), "{csv}");
        assert!(
            json.starts_with(
                "{\"step\":1,\"tokens\":1024,\"loss\":null,\"val_loss\":null,\"grad_norm\":null,"
            ),
            "{json}"
        );
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

//! Five questions about unexpected memory use or time, answered from a run's summary.

use crate::human;
use crate::records::Summary;
use crate::records::summary::Planned;
use crate::telemetry::{MemKind, UnitTimes};

/// A table of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnswerTable {
    /// Column names; the first column holds text.
    pub head: Vec<&'static str>,
    /// Rows, each as long as the head.
    pub rows: Vec<Vec<String>>,
}

/// A question and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredQuestion {
    /// The question.
    pub question: &'static str,
    /// Sentences, each with its numbers.
    pub sentences: Vec<String>,
    /// Their data.
    pub table: Option<AnswerTable>,
}

/// The run, and how it ended.
pub fn heading(s: &Summary) -> String {
    let ranks = human::counted(s.world_size as usize, "rank");
    format!("{}: {} (step {} of {}, {ranks})", s.run_dir, s.exit_reason, s.step, s.total_steps)
}

/// The answers for a finished (or stopped) run.
pub fn five(s: &Summary) -> [AnsweredQuestion; 5] {
    let kind = |kind: MemKind| {
        s.peak_bytes_by_kind.iter().find(|k| k.kind == kind).map_or(Planned::default(), |k| k.bytes)
    };
    let r = &s.resident;
    let at_rest = s.peak_bytes_by_kind.iter().filter(|k| k.kind.is_resident() && k.bytes.measured > 0);
    let (live, ahead) = (kind(MemKind::Gathered), kind(MemKind::Prefetched));
    let full = kind(MemKind::FullGrad);
    let verdict = if full.measured <= full.planned { "they did not accumulate" } else { "they accumulated" };
    let late_byte_ms: f64 = s.units.iter().map(|u| u.times.late_byte_ms).sum();
    let worst = s.units.iter().max_by(|a, b| a.times.late_byte_ms.total_cmp(&b.times.late_byte_ms));
    let worst = worst.map(|w| format!("Most of it by unit {}: {:.0} byte-ms.", w.name, w.times.late_byte_ms));
    let mut late = vec![format!(
        "{late_byte_ms:.0} byte-ms held after the last use, over all steps ({} gathered at peak); the plan \
         releases right after use.",
        human::bytes(live.measured)
    )];
    late.extend(worst);
    let (overlap, units) = overlap(s);
    [
        AnsweredQuestion {
            question: "Which shards are resident at rest?",
            sentences: vec![format!(
                "{} bytes on each rank, planned {}: {}, and {:.1} of padding and persistent parameters.",
                r.bytes.measured,
                r.bytes.planned,
                r.formula_in_words(s.world_size),
                r.padding_bytes
            )],
            table: Some(AnswerTable {
                head: vec!["kind", "bytes"],
                rows: at_rest.map(|k| vec![k.kind.name().into(), k.bytes.measured.to_string()]).collect(),
            }),
        },
        AnsweredQuestion {
            question: "Which full parameters are gathered now?",
            sentences: vec![
                format!("None: the run is over, and the ledger held {} bytes at its end.", r.bytes.measured),
                format!(
                    "During a step at most {} in use and {} in flight. Send SIGUSR2 to a running job to see \
                     them.",
                    human::bytes(live.measured),
                    human::bytes(ahead.measured)
                ),
            ],
            table: None,
        },
        AnsweredQuestion {
            question: "Did prefetches overlap the current unit's compute?",
            sentences: vec![overlap],
            table: Some(units),
        },
        AnsweredQuestion {
            question: "Were old full parameters released in time?",
            sentences: late,
            table: None,
        },
        AnsweredQuestion {
            question: "Were gradients reduced to shards, or did full copies accumulate?",
            sentences: vec![
                format!(
                    "At most {} bytes of full gradients at once, planned {}: {verdict}. {} bytes reduced per \
                     step, planned {}.",
                    full.measured,
                    full.planned,
                    s.reduce_scatter_bytes_per_step.measured,
                    s.reduce_scatter_bytes_per_step.planned
                ),
                format!("Receive staging at most {} bytes.", kind(MemKind::ReduceStaging).measured),
            ],
            table: None,
        },
    ]
}

/// How much of the communication was hidden: in a sentence, and by unit.
fn overlap(s: &Summary) -> (String, AnswerTable) {
    let times = |sum: fn(&UnitTimes) -> f64| s.units.iter().map(|u| sum(&u.times)).sum::<f64>();
    let (comm, wait) = (times(|t| t.gather_ms + t.reduce_ms), times(|t| t.gather_wait_ms + t.reduce_wait_ms));
    let sentence = format!(
        "{} of {comm:.1} ms of communication was hidden; compute waited {wait:.1} ms.",
        share(comm, wait)
    );
    let ms = |ms: f64| format!("{ms:.2}");
    let row = |name: &str, t: &UnitTimes| {
        vec![
            name.into(),
            ms(t.gather_ms),
            ms(t.gather_wait_ms),
            share(t.gather_ms, t.gather_wait_ms),
            ms(t.reduce_ms),
            ms(t.reduce_wait_ms),
            share(t.reduce_ms, t.reduce_wait_ms),
        ]
    };
    let head = vec!["unit", "gather ms", "waited ms", "hidden", "reduce ms", "waited ms", "hidden"];
    (sentence, AnswerTable { head, rows: s.units.iter().map(|u| row(&u.name, &u.times)).collect() })
}

fn share(comm_ms: f64, wait_ms: f64) -> String {
    UnitTimes::hidden(comm_ms, wait_ms).map_or("-".into(), |share| format!("{:.0} %", 100.0 * share))
}

/// The answers as text for a terminal.
pub fn in_words(s: &Summary) -> String {
    let mut lines = vec![heading(s)];
    for (i, AnsweredQuestion { question, sentences, table }) in five(s).into_iter().enumerate() {
        lines.push(format!("\n{}. {question}", i + 1));
        lines.extend(table.iter().filter(|t| !t.rows.is_empty()).flat_map(table_lines));
        lines.extend(sentences.iter().map(|sentence| format!("   {sentence}")));
    }
    lines.join("\n")
}

fn table_lines(table: &AnswerTable) -> Vec<String> {
    let cell = |row: &[String], i: usize| row[i].chars().count();
    let widths: Vec<usize> = (0..table.head.len())
        .map(|i| table.rows.iter().map(|row| cell(row, i)).max().unwrap_or(0).max(table.head[i].len()))
        .collect();
    let line = |cells: Vec<&str>| {
        let mut line = format!("   {:<1$}", cells[0], widths[0]);
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            line += &format!("  {cell:>width$}");
        }
        line
    };
    let head = line(table.head.clone());
    let rows = table.rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    [head].into_iter().chain(rows).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::records::summary::{KindBytes, UnitRow};

    pub fn summary() -> Summary {
        let times =
            UnitTimes { gather_ms: 10.0, gather_wait_ms: 2.5, late_byte_ms: 77.0, ..UnitTimes::default() };
        let kind = |kind, n| KindBytes { kind, bytes: Planned { planned: n, measured: n } };
        Summary {
            run_dir: "runs/<tiny>".into(),
            world_size: 2,
            units: vec![UnitRow { name: "h.0".into(), times }],
            peak_bytes_by_kind: vec![kind(MemKind::FullGrad, 4321), kind(MemKind::ParamShard, 99)],
            ..Summary::default()
        }
    }

    #[test]
    fn each_answer_cites_its_numbers() {
        let text = in_words(&summary());
        for part in [
            "75 %",
            "10.00",
            "4321 bytes of full gradients at once",
            "did not accumulate",
            "77 byte-ms",
            "params at rest",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
        assert!(in_words(&Summary::default()).contains("5. Were"), "a run that did nothing");
    }
}

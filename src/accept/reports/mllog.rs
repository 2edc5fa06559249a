//! `mllog.txt`: lines in the format of MLPerf's logging (mlcommons/logging, mlperf_logging/mllog/README.md),
//! for tools that read it.

use crate::accept::facts::AcceptanceFacts;
use crate::config::acceptance::Section;
use serde_json::{Value, json};

/// The beginning of every line.
const TOKEN: &str = ":::MLLOG ";

/// The file: benchmark, start, a line per metric and loss, stop.
pub fn lines(facts: &AcceptanceFacts) -> String {
    let mut out = Lines { text: String::new(), line: 0 };
    let at = |seconds: f64| ((facts.job.started_unix + seconds) * 1e3) as u64;
    let end = at(facts.seconds);
    out.add(at(0.0), "POINT_IN_TIME", "submission_benchmark", json!("zero3_acceptance"), json!({}));
    out.add(at(0.0), "POINT_IN_TIME", "submission_org", json!("zero3"), json!({}));
    out.add(at(0.0), "INTERVAL_START", "run_start", Value::Null, json!({ "n_ranks": facts.job.n_ranks }));
    for result in &facts.sections {
        let of_section = || json!({ "section": result.section.name() });
        out.add(at(result.began_s), "INTERVAL_START", "block_start", Value::Null, of_section());
        let stop = at(result.began_s + result.took_s);
        for metric in &result.metrics {
            let more =
                json!({ "unit": metric.unit, "status": metric.status.name(), "reason": metric.reason });
            out.add(stop, "POINT_IN_TIME", &metric.name, json!(metric.value), more);
        }
        if let (Section::Training, Some(run)) = (result.section, &facts.reference_run) {
            for (i, loss) in run.losses.iter().enumerate() {
                out.add(stop, "POINT_IN_TIME", "train_loss", json!(loss), json!({ "step_num": i + 1 }));
            }
        }
        out.add(stop, "INTERVAL_END", "block_stop", Value::Null, of_section());
    }
    let status = if facts.verdict.accepted { "success" } else { "aborted" };
    out.add(
        end,
        "INTERVAL_END",
        "run_stop",
        Value::Null,
        json!({ "status": status, "verdict": facts.verdict.line() }),
    );
    out.text
}

struct Lines {
    text: String,
    line: usize,
}

impl Lines {
    fn add(&mut self, time_ms: u64, event_type: &str, key: &str, value: Value, mut metadata: Value) {
        self.line += 1;
        metadata["file"] = json!("zero3");
        metadata["lineno"] = json!(self.line);
        let line = json!({
            "namespace": "",
            "time_ms": time_ms,
            "event_type": event_type,
            "key": key,
            "value": value,
            "metadata": metadata,
        });
        self.text += &format!("{TOKEN}{line}\n");
    }
}

//! Parses rows of `steps.csv`, as written by `step_log.rs`.
//!
//! Must not know: the caller, and how much of the file exists.

/// The parsed part of a row.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LoggedStep {
    /// Optimizer step.
    pub step: u64,
    /// Training loss in nats per token; NaN if it was not finite.
    pub loss: f64,
    /// Validation loss, if any.
    pub val_loss: Option<f64>,
    /// Norm of the gradient.
    pub grad_norm: f64,
    /// Step time of the slowest rank in ms.
    pub step_ms_max: f64,
    /// Mean wait for collectives in ms.
    pub exposed_comm_ms: f64,
    /// Tokens per second of all ranks.
    pub tokens_per_s: f64,
    /// Model FLOPs utilization, if known.
    pub mfu: Option<f64>,
}

/// Positions of the fields of a [`LoggedStep`] in a line of `steps.csv`. A log of another version may lack
/// some: they are NaN.
#[derive(Debug)]
pub struct StepColumns {
    n_columns: usize,
    step: usize,
    loss: usize,
    val_loss: Option<usize>,
    grad_norm: Option<usize>,
    step_ms_max: Option<usize>,
    exposed_comm_ms: Option<usize>,
    tokens_per_s: Option<usize>,
    mfu: Option<usize>,
}

impl StepColumns {
    /// From the file's first line, which must contain `step`, `loss` and all of `needed`; the error names a
    /// missing column.
    pub fn of_header(line: &str, needed: &[&str]) -> Result<Self, String> {
        let names: Vec<&str> = line.split(',').collect();
        let of = |name: &str| names.iter().position(|n| *n == name);
        let must =
            |name: &str| of(name).ok_or_else(|| format!("no column {name}: not a log of this version"));
        let (step, loss) = (must("step")?, must("loss")?);
        needed.iter().try_for_each(|name| must(name).map(drop))?;
        Ok(StepColumns {
            n_columns: names.len(),
            step,
            loss,
            val_loss: of("val_loss"),
            grad_norm: of("grad_norm"),
            step_ms_max: of("step_ms_max"),
            exposed_comm_ms: of("exposed_comm_ms"),
            tokens_per_s: of("tokens_per_s"),
            mfu: of("mfu"),
        })
    }

    /// None for a line that is not a row under this header: torn, or with a non-numeric field.
    pub fn row(&self, line: &str) -> Option<LoggedStep> {
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != self.n_columns {
            return None;
        }
        let number = |column: Option<usize>| column.map_or(Some(f64::NAN), |i| fields[i].parse().ok());
        let optional = |column: Option<usize>| match column.map_or("", |i| fields[i]) {
            "" => Some(None),
            field => field.parse().ok().map(Some),
        };
        Some(LoggedStep {
            step: fields[self.step].parse().ok()?,
            loss: number(Some(self.loss))?,
            val_loss: optional(self.val_loss)?,
            grad_norm: number(self.grad_norm)?,
            step_ms_max: number(self.step_ms_max)?,
            exposed_comm_ms: number(self.exposed_comm_ms)?,
            tokens_per_s: number(self.tokens_per_s)?,
            mfu: optional(self.mfu)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::StepLog;
    use crate::telemetry::{RankStep, StepRow, combine};

    #[test]
    fn a_row_reads_back_as_it_was_logged() {
        let dir = tempfile::tempdir().unwrap();
        let ranks = [20.0, 30.0].map(|step_ms| RankStep {
            step_ms,
            exposed_comm_ms: step_ms / 4.0,
            ..RankStep::default()
        });
        let row = StepRow { step: 7, tokens: 60, loss: f64::NAN, grad_norm: 0.1, ..StepRow::default() };
        let row = StepRow { val_loss: Some(4.5), ranks: combine(&ranks), ..row };
        StepLog::open(dir.path(), None).unwrap().write(&row).unwrap();
        let text = std::fs::read_to_string(dir.path().join("steps.csv")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let columns = StepColumns::of_header(lines[0], &["mfu"]).unwrap();
        let read = columns.row(lines[1]).unwrap();
        assert!(read.loss.is_nan());
        let (val_loss, mfu) = (Some(4.5), None);
        let want = LoggedStep {
            step: 7,
            loss: 0.0,
            val_loss,
            grad_norm: 0.1,
            step_ms_max: 30.0,
            exposed_comm_ms: 6.25,
            tokens_per_s: 2000.0,
            mfu,
        };
        assert_eq!(LoggedStep { loss: 0.0, ..read }, want);
    }

    #[test]
    fn what_is_no_header_and_no_row_is_told_from_what_is() {
        assert_eq!(
            StepColumns::of_header("a,b", &[]).unwrap_err(),
            "no column step: not a log of this version"
        );
        assert!(StepColumns::of_header("step,loss", &["mfu"]).unwrap_err().contains("no column mfu"));
        let columns = StepColumns::of_header("step,loss,val_loss", &[]).unwrap();
        let read = columns.row("1,5.5,").unwrap();
        assert!((read.step, read.val_loss) == (1, None) && read.grad_norm.is_nan() && read.mfu.is_none());
        for line in ["1,5.5", "1,5.5,,", "one,5.5,", "1,,", "1,5.5,x", ""] {
            assert!(columns.row(line).is_none(), "{line:?}");
        }
    }
}

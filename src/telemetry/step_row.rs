//! The numbers of a step: of one rank, aggregated over all ranks, and those common to all.
//!
//! Must not know: the origin of the numbers, their formatting.

/// A number of a [`RankStep`]: its column in the step log.
#[derive(Debug, Clone, Copy)]
pub struct Measure {
    /// Name of the field and of the column.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Its definition.
    pub definition: &'static str,
}

/// The struct, its array and the descriptions of its fields, from one list.
macro_rules! measures {
    ($($name:ident: $unit:literal, $definition:literal;)+) => {
        /// Numbers of one rank and one step that may differ between ranks. f64 throughout, so that one
        /// all-gather carries them; bytes are exact up to 2^53.
        #[derive(Debug, Clone, Copy, PartialEq, Default)]
        pub struct RankStep {
            $(
                #[doc = concat!($definition, " (", $unit, ").")]
                pub $name: f64,
            )+
        }

        /// The numbers of a [`RankStep`], in the order of its array.
        pub const MEASURES: [Measure; [$(stringify!($name)),+].len()] =
            [$(Measure { name: stringify!($name), unit: $unit, definition: $definition }),+];

        impl RankStep {
            /// The numbers in the order of [`MEASURES`].
            pub fn to_array(&self) -> [f64; MEASURES.len()] {
                [$(self.$name),+]
            }

            /// The reverse of [`RankStep::to_array`].
            pub fn from_array([$($name),+]: [f64; MEASURES.len()]) -> Self {
                RankStep { $($name),+ }
            }
        }
    };
}

measures! {
    step_ms: "ms", "time of the step on the host's monotonic clock, without evaluation and checkpoint";
    data_ms: "ms", "reading token files into micro-batches";
    forward_ms: "ms", "forward compute; without waiting for collectives";
    backward_ms: "ms", "backward compute, recomputation included, without waiting for collectives";
    optimizer_ms: "ms",
        "gradient norm, clipping and update of the local slices; without waiting for collectives";
    checkpoint_ms: "ms",
        "writing a checkpoint after this step; 0 if none was written; not part of step_ms";
    exposed_comm_ms: "ms", "waiting for collectives while no compute ran";
    all_gather_bytes: "bytes",
        "payload a rank received in all-gathers of parameters in this step, without evaluation";
    reduce_scatter_bytes: "bytes", "payload a rank received in reductions of gradients in this step";
    live_peak_bytes: "bytes", "peak of the memory ledger's total during the step";
    resident_bytes: "bytes",
        "model state held after the step: slices of parameters, master weights, gradients, optimizer state";
    peak_rss_bytes: "bytes", "peak resident memory of the process since its start";
    page_faults: "pages", "page faults of the process since the previous row";
}

/// [`RankStep`]s aggregated over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankStats {
    /// Mean over ranks.
    pub mean: RankStep,
    /// Minimum of each.
    pub min: RankStep,
    /// Maximum of each.
    pub max: RankStep,
}

/// Mean, minimum and maximum of every number.
pub fn combine(ranks: &[RankStep]) -> RankStats {
    assert!(!ranks.is_empty(), "numbers of 0 ranks");
    let arrays: Vec<[f64; MEASURES.len()]> = ranks.iter().map(RankStep::to_array).collect();
    let fold =
        |i: usize, f: fn(f64, f64) -> f64| arrays[1..].iter().fold(arrays[0][i], |acc, a| f(acc, a[i]));
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
    /// Model FLOPs utilization in [0, 1], if the peak is known.
    pub mfu: Option<f64>,
    /// Numbers that differ between ranks.
    pub ranks: RankStats,
}

impl StepRow {
    /// All ranks' tokens over the slowest rank's step time.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / (self.ranks.max.step_ms / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_in_the_plain_column_and_speed_is_that_of_the_slowest_rank() {
        let fast = RankStep { step_ms: 100.0, all_gather_bytes: 10.0, ..RankStep::default() };
        let slow = RankStep { step_ms: 400.0, all_gather_bytes: 10.0, ..RankStep::default() };
        let ranks = combine(&[slow, fast, fast]);
        assert_eq!((ranks.mean.step_ms, ranks.min.step_ms, ranks.max.step_ms), (200.0, 100.0, 400.0));
        assert_eq!(ranks.mean.all_gather_bytes, 10.0);
        assert_eq!(StepRow { tokens: 1000, ranks, ..StepRow::default() }.tokens_per_s(), 2500.0);
    }
}

//! The numbers of a step: of one rank, of all ranks in three, and with what they have in common.
//!
//! Must not know: how the numbers came about, how they are written.

/// Numbers of one rank and one step that may differ between ranks. f64 throughout, so that one all-gather carries
/// them; bytes are exact up to 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[allow(missing_docs)] // each is a row of MEASURES in step_columns.rs
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

//! Which micro-batch a rank computes when, and the order of sums over micro-batches: the bits of a run depend
//! on nothing else, and not on the rank count.
//!
//! Pure. Must not know: the content of a micro-batch, how a sum is communicated.

/// Micro-batches `0..n_micro` on `n_ranks` ranks: rank `j mod N` computes micro-batch j in micro-step `j div
/// N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatches {
    n_micro: usize,
    n_ranks: usize,
}

impl MicroBatches {
    /// `n_micro` micro-batches on `n_ranks` ranks.
    pub fn new(n_micro: usize, n_ranks: usize) -> Self {
        MicroBatches { n_micro, n_ranks }
    }

    /// Their number.
    pub fn n_micro(self) -> usize {
        self.n_micro
    }

    /// The number of micro-steps.
    pub fn micro_steps(self) -> usize {
        self.n_micro.div_ceil(self.n_ranks)
    }

    /// The micro-batch of `rank` in micro-step `a`; none if the last micro-step has none for it.
    pub fn of(self, a: usize, rank: usize) -> Option<usize> {
        Some(a * self.n_ranks + rank).filter(|&j| j < self.n_micro)
    }

    /// Ranks `0..k` have a micro-batch in micro-step `a`: `k` of them.
    pub fn contributors(self, a: usize) -> usize {
        self.n_micro.saturating_sub(a * self.n_ranks).min(self.n_ranks)
    }

    /// The sum over all micro-batches in the order of j. `value(rank, a)` is the value of `rank` in
    /// micro-step `a`.
    pub fn sum(self, value: impl Fn(usize, usize) -> f64) -> f64 {
        (0..self.n_micro).map(|j| value(j % self.n_ranks, j / self.n_ranks)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_micro_batch_has_one_rank_and_one_micro_step_and_sums_run_over_them_in_order() {
        for n_micro in 0..20 {
            for n_ranks in [1, 2, 3, 5, 7] {
                let order = MicroBatches::new(n_micro, n_ranks);
                let mut seen = Vec::new();
                for a in 0..order.micro_steps() {
                    let own: Vec<usize> = (0..n_ranks).filter_map(|rank| order.of(a, rank)).collect();
                    assert_eq!(own.len(), order.contributors(a), "{n_micro} on {n_ranks}, micro-step {a}");
                    assert!((0..own.len()).all(|rank| order.of(a, rank).is_some()), "ranks 0..k have one");
                    seen.extend(own);
                }
                assert!(seen.into_iter().eq(0..n_micro), "{n_micro} on {n_ranks}");
                // Terms whose sum depends on the order of the additions.
                let term = |j: usize| if j.is_multiple_of(2) { 1e16 } else { 1.0 + j as f64 };
                let gathered =
                    order.sum(|rank, a| term(order.of(a, rank).expect("a term is a micro-batch's")));
                assert_eq!(gathered.to_bits(), (0..n_micro).map(term).sum::<f64>().to_bits());
            }
        }
    }
}

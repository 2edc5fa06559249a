//! Samples of a range of tokens: sample number `g`, and the samples of a micro-batch.
//!
//! Both are arithmetic on indices, so every rank can compute them for every micro-batch (rule 8 of the
//! design). Must not know: files, how the ranges were chosen.

use super::token_stream::TokenStream;
use super::{sample_order, scan};
use std::ops::Range;
use std::sync::Arc;

/// The order of windows within an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Sequential,
    Shuffled {
        seed: u64,
    },
    /// Samples `0..n_samples` are spread evenly over all windows, in order; with as many windows or fewer
    /// they are consecutive.
    Spread {
        n_samples: u64,
    },
}

/// The samples of a range of tokens. Window `w` is the `seq_len + 1` tokens from `w * stride` on; the last
/// tokens that do not fill a window are not used.
#[derive(Debug)]
pub struct SampleSpace {
    pub(super) stream: Arc<TokenStream>,
    /// The part of the stream used for samples.
    pub(super) tokens: Range<u64>,
    pub(super) vocab_size: u64,
    pub(super) seq_len: usize,
    pub(super) stride: u64,
    pub(super) order: Order,
}

impl SampleSpace {
    /// Tokens used for samples.
    pub fn n_tokens(&self) -> u64 {
        self.tokens.end - self.tokens.start
    }

    /// Windows (W): samples of one epoch.
    pub fn n_windows(&self) -> u64 {
        (self.n_tokens() - self.seq_len as u64 - 1) / self.stride + 1
    }

    /// Reads tokens from the `from`-th of the range on; the range must have enough. Overwrites `out`.
    pub fn read(&self, from: u64, out: &mut [u32]) {
        assert!(
            from + out.len() as u64 <= self.n_tokens(),
            "tokens {from} and {} more of {}",
            out.len(),
            self.n_tokens()
        );
        self.stream.read(self.tokens.start + from, out);
    }

    /// The underlying stream.
    pub fn stream(&self) -> &TokenStream {
        &self.stream
    }

    /// Name of the sample order, as checkpoints record it.
    pub fn order_name(&self) -> &'static str {
        match self.order {
            Order::Sequential | Order::Spread { .. } => sample_order::SEQUENTIAL,
            Order::Shuffled { .. } => sample_order::SHUFFLED,
        }
    }

    /// Epoch and window of sample `g`: `g / W`, and the image of `g % W` in that epoch; W is the number of
    /// samples if they are spread over more windows. A pure function of order and `g`.
    pub fn epoch_and_window(&self, g: u64) -> (u64, u64) {
        let n_windows = self.n_windows();
        if let Order::Spread { n_samples } = self.order
            && (1..n_windows).contains(&n_samples)
        {
            let position = u128::from(g % n_samples);
            return (g / n_samples, (position * u128::from(n_windows) / u128::from(n_samples)) as u64);
        }
        let (epoch, position) = (g / n_windows, g % n_windows);
        let window = match self.order {
            Order::Sequential | Order::Spread { .. } => position,
            Order::Shuffled { seed } => sample_order::shuffled(position, n_windows, seed, epoch),
        };
        (epoch, window)
    }

    /// Overwrites `tokens` and `targets`, both (B, T), with the samples of `samples` (B of them): row b holds
    /// the first T and the last T tokens of sample `samples.start + b`.
    pub fn fill(&self, samples: Range<u64>, tokens: &mut [u32], targets: &mut [u32]) {
        let numel = (samples.end - samples.start) as usize * self.seq_len;
        assert!(
            tokens.len() == numel && targets.len() == numel,
            "{} and {} for {numel}",
            tokens.len(),
            targets.len()
        );
        let rows = tokens.chunks_exact_mut(self.seq_len).zip(targets.chunks_exact_mut(self.seq_len));
        for (g, (tokens, targets)) in samples.zip(rows) {
            let start = self.tokens.start + self.epoch_and_window(g).1 * self.stride;
            self.stream.read(start, tokens);
            self.stream.read(start + 1, targets);
        }
    }

    /// Entropy in nats of the token frequencies of `range`, relative to this split's first token and cut at
    /// its end (`0..u64::MAX` is all of it). A trained model's validation loss must be below it.
    pub fn unigram_entropy_nats(&self, range: Range<u64>) -> f64 {
        let clamp = |at: u64| self.tokens.start + at.min(self.n_tokens());
        let (from, to) = (clamp(range.start), clamp(range.end));
        scan::entropy_nats(&scan::histogram(&self.stream, from..to.max(from), self.vocab_size))
    }
}

/// Samples of micro-batch `j` of the step whose first sample is `step_base_sample`: the same for the same
/// `j`, whichever rank computes it.
pub fn micro_batch_samples(step_base_sample: u64, j: usize, micro_batch_size: usize) -> Range<u64> {
    let start = step_base_sample + j as u64 * micro_batch_size as u64;
    start..start + micro_batch_size as u64
}

//! The loss of a file of tokens, by a sliding window: every token but the first is predicted once, from as
//! many preceding tokens as the stride leaves.
//!
//! Micro-batches are distributed and summed like those of a training step: the same bits on any number of
//! ranks.

use super::finite::refuse_non_finite;
use crate::backend::{Backend, Comm, Device};
use crate::data::SampleSpace;
use crate::error::Result;
use crate::plan::MicroBatches;
use crate::plan::schedule::{Pass, Visit};
use crate::text::tokenizer::TextTokenizer;
use crate::train::pass::{PassState, Purpose, Visitor};
use crate::train::scratch::get;
use crate::train::stepper::Stepper;
use std::ops::Range;

/// Result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluated {
    /// Number of predicted tokens.
    pub n_tokens: u64,
    /// Windows.
    pub n_windows: u64,
    /// Mean cross-entropy in nats per token.
    pub loss: f64,
    /// Bytes of text the tokens decode to, if known.
    pub n_bytes: Option<u64>,
}

impl Evaluated {
    /// `e^loss`.
    pub fn perplexity(&self) -> f64 {
        libm::exp(self.loss)
    }

    /// Loss in bits per byte of text.
    pub fn bits_per_byte(&self) -> Option<f64> {
        self.n_bytes.map(|n| self.loss * self.n_tokens as f64 / std::f64::consts::LN_2 / n as f64)
    }
}

/// Windows of `t` tokens and the token after each, `stride` apart, the last one at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Windows {
    n_tokens: u64,
    t: u64,
    stride: u64,
}

impl Windows {
    fn n(self) -> u64 {
        (self.n_tokens - 1 - self.t).div_ceil(self.stride) + 1
    }

    /// The start of window `w`, and the targets in it that no earlier window has.
    fn of(self, w: u64) -> (u64, Range<usize>) {
        let begin = |w: u64| (w * self.stride).min(self.n_tokens - 1 - self.t);
        let new = if w == 0 { self.t } else { begin(w) - begin(w - 1) };
        (begin(w), (self.t - new) as usize..self.t as usize)
    }
}

/// Evaluates all tokens of `space` with windows `stride` apart; `stride` is at most the window length.
/// Collective.
pub fn evaluate<B: Backend>(
    stepper: &mut Stepper<'_, B>,
    space: &SampleSpace,
    stride: usize,
    tokenizer: Option<&TextTokenizer>,
) -> Result<Evaluated> {
    let (b, t) = (stepper.model.dims.b, stepper.model.dims.t);
    let windows = Windows { n_tokens: space.n_tokens(), t: t as u64, stride: stride as u64 };
    let order = MicroBatches::new(windows.n().div_ceil(b as u64) as usize, stepper.comm.size());
    let plan = stepper.plan;
    let mut own = Vec::new();
    for a in 0..order.micro_steps() {
        let mut batch = order.of(a, stepper.comm.rank()).map(|i| {
            let own = (i * b) as u64..windows.n().min(((i + 1) * b) as u64);
            WindowBatch::read(space, windows, own, b * t)
        });
        stepper.execute(&plan.eval, Purpose::Evaluate, batch.as_mut())?;
        stepper.settle()?;
        own.push(batch.map_or(0.0, |batch| batch.sum));
    }
    let all = stepper.comm.control().all_gather_f64(&own)?;
    let total = order.sum(|rank, a| all[rank * own.len() + a]);
    refuse_non_finite("the loss", Some(total).filter(|x| !x.is_finite()))?;
    let n_tokens = space.n_tokens() - 1;
    let n_bytes = tokenizer.map(|tokenizer| bytes_of(space, tokenizer));
    Ok(Evaluated { n_tokens, n_windows: windows.n(), loss: total / n_tokens as f64, n_bytes })
}

/// A micro-batch of windows, which of its losses count, and their sum after the head.
struct WindowBatch {
    tokens: Vec<u32>,
    targets: Vec<u32>,
    scored: Vec<Range<usize>>,
    sum: f64,
}

impl WindowBatch {
    /// The windows `of`, in rows of a micro-batch of `numel` tokens; rows without a window are zero and do
    /// not count.
    fn read(space: &SampleSpace, windows: Windows, of: Range<u64>, numel: usize) -> Self {
        let t = windows.t as usize;
        let mut batch =
            WindowBatch { tokens: vec![0; numel], targets: vec![0; numel], scored: Vec::new(), sum: 0.0 };
        let mut window = vec![0; t + 1];
        for (row, w) in of.enumerate() {
            let (begin, new) = windows.of(w);
            space.read(begin, &mut window);
            batch.tokens[row * t..][..t].copy_from_slice(&window[..t]);
            batch.targets[row * t..][..t].copy_from_slice(&window[1..]);
            batch.scored.push(row * t + new.start..row * t + new.end);
        }
        batch
    }
}

impl<B: Backend> Visitor<B> for WindowBatch {
    fn upload(&mut self, stepper: &Stepper<'_, B>, pass: &mut PassState<'_, B>) -> Result<()> {
        pass.upload(stepper.device, &self.tokens, &self.targets)
    }

    fn visit(&mut self, stepper: &Stepper<'_, B>, visit: Visit, pass: &mut PassState<'_, B>) -> Result<()> {
        stepper.compute(stepper.model, visit, None, pass);
        if visit.pass == Pass::Loss {
            let losses = stepper.device.read(get(&pass.lists.live, pass.program.losses).view())?;
            self.sum =
                self.scored.iter().flat_map(|range| &losses[range.clone()]).map(|&x| f64::from(x)).sum();
        }
        Ok(())
    }
}

/// Bytes of text that all tokens but the first decode to, piece by piece.
fn bytes_of(space: &SampleSpace, tokenizer: &TextTokenizer) -> u64 {
    const PIECE: u64 = 1 << 16;
    let n = space.n_tokens();
    let mut buffer = Vec::new();
    let pieces = (1..n).step_by(PIECE as usize);
    pieces
        .map(|from| {
            buffer.resize(PIECE.min(n - from) as usize, 0);
            space.read(from, &mut buffer);
            tokenizer.decode(&buffer).len() as u64
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::Windows;

    #[test]
    fn every_token_but_the_first_is_predicted_once_and_the_last_window_ends_with_the_last() {
        for n_tokens in 5..40 {
            for t in 1..=4 {
                for stride in 1..=t {
                    let windows = Windows { n_tokens, t, stride };
                    let mut seen = vec![0; n_tokens as usize];
                    for w in 0..windows.n() {
                        let (begin, new) = windows.of(w);
                        assert!(begin + t < n_tokens);
                        new.for_each(|i| seen[begin as usize + 1 + i] += 1);
                    }
                    assert_eq!(seen[0], 0);
                    assert!(seen[1..].iter().all(|&n| n == 1), "{n_tokens} {t} {stride}: {seen:?}");
                }
            }
        }
    }
}

//! Text generation, token by token: every rank computes the same, unit by unit as in training, so no token
//! has to be communicated.
//!
//! Blocks cache the projections of the preceding rows, so a token costs one row of compute, and one gather of
//! every unit. When the context is full, it restarts with its last half.

use super::finite::refuse_non_finite;
use crate::backend::ops::{AttentionShape, CachedWork};
use crate::backend::{Backend, Buf, Device, Ops, Queue};
use crate::config::Deck;
use crate::error::Result;
use crate::model::{Cached, Model};
use crate::plan::Plan;
use crate::plan::generation::{Feed, KeptSizes, PerFeed, Ran};
use crate::plan::schedule::{Pass, Visit};
use crate::plan::slots::Slot;
use crate::train::pass::{PassState, Purpose, Visitor};
use crate::train::scratch::get;
use crate::train::stepper::Stepper;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Rows of a prompt per pass.
const PROMPT_ROWS: usize = 32;

/// How the next token is sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Divides the logits; 0 selects the largest.
    pub temperature: f64,
    /// Number of most probable tokens to sample from; 0 = all.
    pub top_k: usize,
    /// Draw i is a function of (seed, i).
    pub seed: u64,
}

/// The model for several rows of a prompt, and for one row.
pub struct Decoders {
    models: PerFeed<Model>,
    t_max: usize,
}

/// Result of a generation.
pub struct Generated {
    /// The tokens after the prompt.
    pub tokens: Vec<u32>,
    /// The programs of the plan that ran.
    pub ran: Ran,
}

impl Decoders {
    /// For the model of a deck.
    pub fn of_deck<D: Ops>(deck: &Deck) -> Self {
        let t_max = deck.model.seq_len;
        let of_rows = |rows| Model::of_rows::<D>(deck, 1, rows);
        Decoders { models: PerFeed { prompt: of_rows(PROMPT_ROWS.min(t_max)), row: of_rows(1) }, t_max }
    }

    /// Adds their programs to a plan.
    pub fn plan<D: Ops>(&self, plan: &mut Plan) -> Result<()> {
        let PerFeed { prompt, row: one } = &self.models;
        let whole = AttentionShape { t: self.t_max, ..one.attention_shape() };
        let sizes = KeptSizes {
            n_blocks: one.dims.n_layer,
            qkv: whole.t * whole.qkv_row(),
            out: whole.t * whole.out_row(),
            lse: whole.t * whole.n_heads,
            work: D::attention_forward_work_numel(whole, one.spec.activation_dtype),
        };
        plan.add_generation(PerFeed { prompt: &prompt.spec, row: &one.spec }, sizes)
    }
}

/// Up to `max_tokens` tokens after `prompt` (at least one token); `end` ends the text. Collective.
pub fn generate<B: Backend>(
    stepper: &mut Stepper<'_, B>,
    decoders: &Decoders,
    prompt: &[u32],
    max_tokens: usize,
    choice: Choice,
    end: Option<u32>,
) -> Result<Generated> {
    assert!(!prompt.is_empty(), "there is a first token");
    let generation = stepper.plan.generation.as_ref().expect("generation was planned");
    let Stepper { memory, device, .. } = stepper;
    let mut hold = |slot: &Slot| memory.take(*device, slot, slot.kind, Queue::Compute);
    let mut cache = Cache {
        projections: generation.kept.iter().map(&mut hold).collect(),
        scratch: generation.scratch.iter().map(&mut hold).collect(),
    };
    let mut text = prompt.to_vec();
    let (mut begin, mut done, mut ran) = (0, 0, Ran::default());
    while text.len() - prompt.len() < max_tokens {
        if text.len() - begin > decoders.t_max {
            begin = text.len() - decoders.t_max.div_ceil(2);
            done = 0;
        }
        let context = &text[begin..];
        let mut logits = Vec::new();
        while done < context.len() {
            // The last row is computed separately: its logits are needed.
            let is_prompt = context.len() - 1 - done >= decoders.models.prompt.dims.t;
            let by = if is_prompt { Feed::Prompt } else { Feed::Row };
            let model = &decoders.models[by];
            let rows = &context[done..done + model.dims.t];
            let mut some_rows =
                Rows { model, tokens: rows, first: done, cache: &mut cache, logits: Vec::new() };
            stepper.execute(&generation.programs[by], Purpose::Evaluate, Some(&mut some_rows))?;
            logits = some_rows.logits;
            stepper.settle()?;
            ran.note(by);
            done += rows.len();
        }
        refuse_non_finite("a logit", logits.iter().find(|x| !x.is_finite()).map(|&x| f64::from(x)))?;
        let token = choose(&logits, choice, text.len() - prompt.len());
        if Some(token) == end {
            break;
        }
        text.push(token);
    }
    let slots = generation.kept.iter().chain(&generation.scratch);
    for (buf, slot) in cache.projections.into_iter().chain(cache.scratch).zip(slots) {
        stepper.memory.give(stepper.device, buf, slot.kind);
    }
    Ok(Generated { tokens: text.split_off(prompt.len()), ran })
}

/// The state that generation carries from one pass to the next.
struct Cache {
    /// Projections of the preceding rows, by block.
    projections: Vec<Buf>,
    /// Output, log-sum-exps and scratch of attention over them.
    scratch: Vec<Buf>,
}

/// Some rows of a text, from position `first` on, computed by a model with as many rows.
struct Rows<'r> {
    model: &'r Model,
    tokens: &'r [u32],
    first: usize,
    cache: &'r mut Cache,
    /// The logits of a single row, after the head.
    logits: Vec<f32>,
}

impl<B: Backend> Visitor<B> for Rows<'_> {
    fn upload(&mut self, stepper: &Stepper<'_, B>, pass: &mut PassState<'_, B>) -> Result<()> {
        // The losses are not read: targets are arbitrary.
        pass.upload(stepper.device, self.tokens, self.tokens)
    }

    fn visit(&mut self, stepper: &Stepper<'_, B>, visit: Visit, pass: &mut PassState<'_, B>) -> Result<()> {
        let Cache { projections, scratch } = &mut *self.cache;
        let [out, lse, work] = &mut scratch[..] else { panic!("cached attention has 3 buffers") };
        let cached = Cached {
            first: self.first,
            qkv: visit.unit.checked_sub(1).and_then(|block| projections.get_mut(block)),
            work: CachedWork { out: out.view_mut(), lse: lse.view_mut(), work: work.view_mut() },
        };
        stepper.compute(self.model, visit, Some(cached), pass);
        if visit.pass == Pass::Loss && self.tokens.len() == 1 {
            let at = self.model.spec.units[visit.unit].backward_work.iter().position(|t| t.name == "logits");
            let id = pass.program.backward_work[visit.unit][at.expect("a head has logits")];
            self.logits = stepper.device.read(get(&pass.lists.live, id).view())?.into_owned();
        }
        Ok(())
    }
}

/// Samples token number `i`. Sums are f64, in the order of the vocabulary; the exponential is that of a
/// crate.
fn choose(logits: &[f32], choice: Choice, i: usize) -> u32 {
    let by_size = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let mut candidates: Vec<usize> = (0..logits.len()).collect();
    let n = match (choice.temperature, choice.top_k) {
        (0.0, _) => 1,
        (_, 0) => candidates.len(),
        (_, k) => k.min(candidates.len()),
    };
    if n < candidates.len() {
        candidates.select_nth_unstable_by(n - 1, by_size);
        candidates.truncate(n);
        candidates.sort_unstable();
    }
    let most = candidates.iter().map(|&c| logits[c]).fold(f32::NEG_INFINITY, f32::max);
    let weight =
        |c: usize| libm::exp(f64::from(logits[c] - most) / choice.temperature.max(f64::MIN_POSITIVE));
    let total: f64 = candidates.iter().map(|&c| weight(c)).sum();
    let mut rng = ChaCha8Rng::seed_from_u64(choice.seed);
    rng.set_word_pos(2 * i as u128); // a draw uses two 32-bit words
    let mut left = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
    for &c in &candidates {
        left -= weight(c);
        if left < 0.0 {
            return c as u32;
        }
    }
    // Rounding at the very end, or logits that are NaN.
    candidates.last().map_or(0, |&c| c as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_probabilities_and_top_k_and_temperature_narrow_them() {
        let logits = [1.0, 3.0, 2.0, 3.0, -50.0];
        let of = |temperature, top_k, seed| Choice { temperature, top_k, seed };
        assert!((0..9).all(|i| choose(&logits, of(0.0, 0, i as u64), i) == 1), "the first of the largest");
        let counts = |choice: Choice| {
            let mut counts = [0usize; 5];
            (0..4000).for_each(|i| counts[choose(&logits, choice, i) as usize] += 1);
            counts
        };
        let two = counts(of(1.0, 2, 1));
        assert_eq!((two[0], two[2], two[4]), (0, 0, 0));
        // A half of 4000 has a standard deviation of 32.
        assert!(two[1].abs_diff(2000) < 160, "{two:?}");
        let all = counts(of(1.0, 0, 1));
        let total: f64 = logits.iter().map(|&x| (x as f64).exp()).sum();
        for (n, x) in all.iter().zip(logits) {
            let want = 4000.0 * (x as f64).exp() / total;
            assert!((*n as f64 - want).abs() < 5.0 * want.sqrt() + 1.0, "{all:?}");
        }
        assert!(counts(of(0.2, 0, 1))[0] < all[0]);
        let draws = |seed| (0..50).map(|i| choose(&logits, of(1.0, 0, seed), i)).collect::<Vec<_>>();
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }
}

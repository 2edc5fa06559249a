//! A device-memory budget: a plan that needs more is refused before start, with the smallest change that would fit.
//!
//! Pure: it plans the deck again with one knob turned at a time.

use crate::backend::Ops;
use crate::config::{ActivationCheckpointing, Deck};
use crate::error::{Error, Fault, Result};
use crate::model::gpt2;
use crate::plan::{Knobs, Plan};

/// A change of the deck that saves memory, and how a person writes it.
type Change = (String, Deck);

/// Fails where `plan`, made from `deck`, needs more than `run.memory_budget_bytes`.
pub fn check<D: Ops>(deck: &Deck, plan: &Plan) -> Result<()> {
    let budget = deck.run.memory_budget_bytes;
    let needed = plan.arena_bytes as u64;
    if budget == 0 || needed <= budget {
        return Ok(());
    }
    let n = plan.world_size;
    let remedy = remedy(deck, n, budget, &|deck, n| {
        let spec = gpt2::model::<D>(deck).spec;
        Plan::new(&spec, n, &Knobs::from_deck(&deck.zero)).ok().map(|plan| plan.arena_bytes as u64)
    });
    Err(Error::Deck(vec![Fault {
        key: "run.memory_budget_bytes".into(),
        value: budget.to_string(),
        wants: format!("the plan needs {needed} bytes on each of {n} ranks; {remedy}"),
    }]))
}

/// The first single change that fits, else the shortest sequence of them, else more ranks.
fn remedy(deck: &Deck, n: usize, budget: u64, needs: &dyn Fn(&Deck, usize) -> Option<u64>) -> String {
    let fits = |deck: &Deck, n: usize| needs(deck, n).filter(|&bytes| bytes <= budget);
    for (change, changed) in changes(deck) {
        if let Some(bytes) = fits(&changed, n) {
            return format!("{change} would fit, with {bytes}");
        }
    }
    let (mut all, mut words) = (deck.clone(), Vec::new());
    while let Some((change, changed)) = changes(&all).into_iter().next() {
        // A later value of the same key replaces the earlier one.
        let key = change.split(' ').next().map(str::to_owned);
        words.retain(|w: &String| w.split(' ').next().map(str::to_owned) != key);
        words.push(change);
        all = changed;
        if let Some(bytes) = fits(&all, n) {
            return format!("{} together would fit, with {bytes}", words.join(", "));
        }
    }
    let more = std::iter::successors(Some(2 * n), |m| m.checked_mul(2)).take_while(|&m| m <= 1 << 16);
    for m in more {
        if let Some(bytes) = fits(&all, m) {
            let with = if words.is_empty() { String::new() } else { format!(" with {}", words.join(", ")) };
            return format!("{m} ranks{with} would fit, with {bytes} on each");
        }
    }
    "no knob makes it fit: a smaller model or sequence would".into()
}

/// What can still be changed, the cheapest first: staging, then what costs communication, then compute, then another
/// micro-batch size.
fn changes(deck: &Deck) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut change = |possible: bool, words: String, apply: &dyn Fn(&mut Deck)| {
        if possible {
            let mut changed = deck.clone();
            apply(&mut changed);
            changes.push((words, changed));
        }
    };
    let (zero, train) = (&deck.zero, &deck.train);
    let small_bucket = 1 << 20;
    change(zero.reduce_bucket_bytes > small_bucket, format!("zero.reduce_bucket_bytes = {small_bucket}"), &|d| {
        d.zero.reduce_bucket_bytes = small_bucket;
    });
    change(zero.prefetch_units > 0, "zero.prefetch_units = 0".into(), &|d| d.zero.prefetch_units = 0);
    change(!zero.release_after_forward, "zero.release_after_forward = true".into(), &|d| {
        d.zero.release_after_forward = true
    });
    change(zero.persistence_threshold_bytes > 0, "zero.persistence_threshold_bytes = 0".into(), &|d| {
        d.zero.persistence_threshold_bytes = 0;
    });
    change(zero.stage < 3, "zero.stage = 3".into(), &|d| d.zero.stage = 3);
    let all = ActivationCheckpointing::All;
    change(zero.activation_checkpointing != all, "zero.activation_checkpointing = \"all\"".into(), &|d| {
        d.zero.activation_checkpointing = all;
    });
    let smaller = (1..train.micro_batch_size).rev().find(|b| train.global_batch_size.is_multiple_of(*b));
    change(smaller.is_some(), format!("train.micro_batch_size = {}", smaller.unwrap_or(0)), &|d| {
        d.train.micro_batch_size = smaller.expect("checked");
    });
    changes
}

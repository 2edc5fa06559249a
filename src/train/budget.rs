//! The device-memory budget: a plan that exceeds it is rejected before the start, with the smallest change
//! that would fit.
//!
//! Pure: plans the deck again with one setting changed at a time.

use super::node_memory::NodeMemory;
use super::planning;
use crate::backend::Device;
use crate::config::{ActivationCheckpointing, Deck};
use crate::error::{Error, Fault, Result};
use crate::human;
use crate::plan::Plan;
use crate::telemetry::MemKind;

/// A change of the deck that saves memory.
struct Change {
    key: &'static str,
    value: String,
    apply: Box<dyn Fn(&mut Deck)>,
}

impl Change {
    /// In the deck's syntax.
    fn words(&self) -> String {
        format!("{} = {}", self.key, self.value)
    }
}

/// Whether `plan`, made from `deck`, fits `run.memory_budget_bytes`.
pub fn fits(deck: &Deck, plan: &Plan) -> bool {
    let budget = deck.run.memory_budget_bytes;
    budget == 0 || plan.arena_bytes as u64 <= budget
}

/// Fails where `plan`, made from `deck`, needs more than `run.memory_budget_bytes`.
pub fn check<D: Device>(deck: &Deck, plan: &Plan) -> Result<()> {
    if fits(deck, plan) {
        return Ok(());
    }
    let (budget, needed, n) = (deck.run.memory_budget_bytes, plan.arena_bytes, plan.world_size);
    let remedy = remedy(deck, n, budget, &arena_bytes::<D>);
    Err(Error::Deck(vec![Fault {
        key: "run.memory_budget_bytes".into(),
        value: budget.to_string(),
        wants: format!("the plan requires {needed} bytes on each of {}; {remedy}", human::counted(n, "rank")),
    }]))
}

/// What would fit `budget` bytes on each of `n` ranks: one change of the deck, several, or more ranks.
pub fn what_fits<D: Device>(deck: &Deck, n: usize, budget: u64) -> String {
    remedy(deck, n, budget, &needs::<D>)
}

/// Whether `n_here` ranks of a node with memory `node` can hold `plan`, made from `deck`: an error if they
/// cannot, a warning if other processes currently use part of it.
pub fn check_node<D: Device>(
    deck: &Deck,
    plan: &Plan,
    node: NodeMemory,
    n_here: usize,
) -> Result<Option<String>> {
    let each = plan.arena_bytes as u64 + plan.outside_bytes();
    let together = each.saturating_mul(n_here as u64);
    let ranks = human::counted(n_here, "rank");
    let needed = format!(
        "the plan requires {each} bytes for model and activations on each rank, {together} for the {ranks} \
         of this node"
    );
    if together > node.limit_bytes {
        let has = node.limit_bytes;
        let remedy = remedy(deck, plan.world_size, has / n_here as u64, &needs::<D>);
        return Err(Error::Input(format!(
            "{needed}, which has {has}; {remedy}, as would fewer ranks per node (`zero3 plan` shows the \
             memory of a rank)"
        )));
    }
    let free = node.available_bytes;
    Ok((together > free)
        .then(|| format!("{needed}; only {free} are free now, so the system may kill the job")))
}

/// Bytes of a deck's plan on each of `n` ranks.
fn needs<D: Device>(deck: &Deck, n: usize) -> Option<u64> {
    planning::of_deck::<D>(deck, n).ok().map(|(_, plan)| plan.arena_bytes as u64 + plan.outside_bytes())
}

/// Fails if the device of this rank has less free memory than `plan`, made from `deck`, requires; lists the
/// requirement by kind.
pub fn check_free<D: Device>(deck: &Deck, plan: &Plan, free_bytes: Option<u64>) -> Result<()> {
    let (needed, n) = (plan.arena_bytes as u64, plan.world_size);
    let Some(free) = free_bytes.filter(|&free| free < needed) else { return Ok(()) };
    let by_kind = plan.training_peaks().by_kind;
    // Pinned memory and the copy for asynchronous saves are in host memory.
    let rows = by_kind.iter().filter(|(kind, bytes)| *bytes > 0 && *kind != MemKind::Staging);
    let rows: Vec<String> = rows.map(|(kind, bytes)| format!("  {kind:<20} {bytes:>16}")).collect();
    Err(Error::Comm(format!(
        "the plan requires {needed} bytes on each of {}, {free} are free on the device; peaks by kind, in \
         bytes:\n{}\n{}",
        human::counted(n, "rank"),
        rows.join("\n"),
        remedy(deck, n, free, &arena_bytes::<D>)
    )))
}

/// Arena bytes on each of `n` ranks; none if the deck cannot be planned.
fn arena_bytes<D: Device>(deck: &Deck, n: usize) -> Option<u64> {
    planning::of_deck::<D>(deck, n).ok().map(|(_, plan)| plan.arena_bytes as u64)
}

/// The first single change that fits, otherwise several that are all required, otherwise more ranks.
fn remedy(deck: &Deck, n: usize, budget: u64, needs: &dyn Fn(&Deck, usize) -> Option<u64>) -> String {
    let fits = |changes: &[Change], n: usize| needs(&with(deck, changes), n).filter(|&bytes| bytes <= budget);
    for change in changes(deck) {
        let change = [change];
        if let Some(bytes) = fits(&change, n) {
            return format!("{} would fit, with {bytes}", change[0].words());
        }
    }
    let mut applied: Vec<Change> = Vec::new();
    while let Some(next) = changes(&with(deck, &applied)).into_iter().next() {
        applied.retain(|earlier| earlier.key != next.key);
        applied.push(next);
        if fits(&applied, n).is_some() {
            break;
        }
    }
    let more = std::iter::successors(Some(n), |m| m.checked_mul(2)).take_while(|&m| m <= n.max(1 << 16));
    for m in more {
        if fits(&applied, m).is_none() {
            continue;
        }
        // Changes that are not required are dropped again, the most expensive first.
        for i in (0..applied.len()).rev() {
            let change = applied.remove(i);
            if fits(&applied, m).is_none() {
                applied.insert(i, change);
            }
        }
        let bytes = fits(&applied, m).expect("checked");
        let words = applied.iter().map(Change::words).collect::<Vec<_>>().join(", ");
        return match (m == n, applied.is_empty()) {
            (true, _) => format!("{words} together would fit, with {bytes}"),
            (false, true) => format!("{m} ranks would fit, with {bytes} on each"),
            (false, false) => format!("{m} ranks with {words} would fit, with {bytes} on each"),
        };
    }
    "no setting makes it fit: reduce the model or the sequence length".into()
}

fn with(deck: &Deck, changes: &[Change]) -> Deck {
    let mut deck = deck.clone();
    changes.iter().for_each(|change| (change.apply)(&mut deck));
    deck
}

/// The remaining changes, the cheapest first: staging, then those that cost communication, then
/// recomputation, then the micro-batch size.
fn changes(deck: &Deck) -> Vec<Change> {
    let (zero, train) = (&deck.zero, &deck.train);
    let mut changes = Vec::new();
    let mut add = |possible: bool, key: &'static str, value: String, apply: Box<dyn Fn(&mut Deck)>| {
        if possible {
            changes.push(Change { key, value, apply });
        }
    };
    let bucket = 1 << 20;
    let key = "zero.reduce_bucket_bytes";
    add(
        zero.reduce_bucket_bytes > bucket,
        key,
        bucket.to_string(),
        Box::new(move |d| d.zero.reduce_bucket_bytes = bucket),
    );
    let key = "zero.prefetch_units";
    add(zero.prefetch_units > 0, key, "0".into(), Box::new(|d| d.zero.prefetch_units = 0));
    let key = "zero.release_after_forward";
    add(!zero.release_after_forward, key, "true".into(), Box::new(|d| d.zero.release_after_forward = true));
    let key = "zero.persistence_threshold_bytes";
    add(
        zero.persistence_threshold_bytes > 0,
        key,
        "0".into(),
        Box::new(|d| d.zero.persistence_threshold_bytes = 0),
    );
    add(zero.stage < 3, "zero.stage", "3".into(), Box::new(|d| d.zero.stage = 3));
    let (key, all) = ("zero.activation_checkpointing", ActivationCheckpointing::All);
    let recompute: Box<dyn Fn(&mut Deck)> = Box::new(move |d| d.zero.activation_checkpointing = all);
    add(zero.activation_checkpointing != all, key, "\"all\"".into(), recompute);
    let smaller = (1..train.micro_batch_size).rev().find(|b| train.global_batch_size.is_multiple_of(*b));
    if let Some(b) = smaller {
        add(true, "train.micro_batch_size", b.to_string(), Box::new(move |d| d.train.micro_batch_size = b));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deck of which only recomputation and a micro-batch of 2 save anything: 30 bytes and 5 bytes of 100,
    /// 40 on 2 ranks.
    fn needs(deck: &Deck, n: usize) -> Option<u64> {
        let recomputed =
            if deck.zero.activation_checkpointing == ActivationCheckpointing::All { 30 } else { 0 };
        let smaller = if deck.train.micro_batch_size <= 2 { 5 } else { 0 };
        Some((100 - recomputed - smaller) / n as u64)
    }

    #[test]
    fn a_node_that_is_too_small_is_refused_and_a_busy_one_gets_a_warning() {
        use crate::backend::cpu::CpuDevice;
        let mut deck = Deck::default();
        (deck.model.n_layer, deck.model.n_head, deck.model.d_model) = (4, 2, 64);
        (deck.model.seq_len, deck.model.vocab_size) = (64, 256);
        (deck.train.micro_batch_size, deck.train.global_batch_size) = (4, 4);
        let (_, plan) = planning::of_deck::<CpuDevice>(&deck, 2).unwrap();
        let both = 2 * plan.arena_bytes as u64;
        let check = |limit_bytes, available_bytes| {
            check_node::<CpuDevice>(&deck, &plan, NodeMemory { limit_bytes, available_bytes }, 2)
        };
        assert_eq!(check(both, both).unwrap(), None);
        assert!(check(both, both - 1).unwrap().expect("a warning").contains("are free now"));
        let error = check(both - 1, 0).unwrap_err();
        assert!(error.to_string().contains("would fit") && error.exit().code() == 2, "{error}");
    }

    #[test]
    fn the_remedy_is_one_change_or_those_that_help_or_more_ranks() {
        let mut deck = Deck::default();
        deck.train.micro_batch_size = 4;
        deck.train.global_batch_size = 8;
        deck.zero.persistence_threshold_bytes = 1000;
        let remedy = |budget| remedy(&deck, 1, budget, &needs);
        let recompute = "zero.activation_checkpointing = \"all\"";
        assert_eq!(remedy(99), format!("{recompute} would fit, with 70"));
        let both = format!("{recompute}, train.micro_batch_size = 2 together would fit, with 65");
        assert_eq!(remedy(69), both);
        assert_eq!(remedy(50), "2 ranks would fit, with 50 on each");
        assert_eq!(
            remedy(33),
            format!("2 ranks with {recompute}, train.micro_batch_size = 1 would fit, with 32 on each")
        );
        assert!(
            needs(&deck, 1) == Some(100)
                && self::remedy(&deck, 1, 0, &|_, _| Some(1)).starts_with("no setting")
        );
    }
}

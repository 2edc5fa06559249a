//! The effect on a resume of a deck that differs from the checkpoint's: a key may change freely, changes the
//! course of the run, or does not fit the checkpoint.
//!
//! Must not know: checkpoint files. It compares two decks.

use crate::config::{Deck, KEYS};
use std::fmt;

/// The effect of a changed key on a resumed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// None: the same bits (paths, logs, checkpoints, threads, memory).
    Free,
    /// The run continues from the same state to different results (learning rate, batch, length, validation).
    Course,
    /// A different sequence of samples, so that the position in it has no meaning. `data.allow_changed`
    /// permits it.
    Data,
    /// A different model: rejected.
    Model,
}

/// A key whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Dotted key.
    pub key: String,
    /// The value in the checkpoint, in the deck's syntax.
    pub before: String,
    /// The new value.
    pub now: String,
    /// Its effect.
    pub verdict: Verdict,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.key, self.before, self.now)
    }
}

/// The effect of a change of `key`. A key that is not listed changes the course.
fn verdict(key: &str) -> Verdict {
    match key {
        // The weights come from the checkpoint; the size keys hold what a preset stands for.
        "model.init_seed" | "model.init_from" | "model.preset" => Verdict::Free,
        _ if key.starts_with("model.") => Verdict::Model,
        // The contents of the files have a digest; their paths do not matter.
        "data.train" | "data.allow_changed" => Verdict::Free,
        // Determines how tokens are printed; the files contain the tokens.
        "data.tokenizer" => Verdict::Free,
        "data.val" => Verdict::Course,
        "data.val_stride" => Verdict::Free,
        _ if key.starts_with("data.") => Verdict::Data,
        "train.eval_every" | "train.eval_batches" => Verdict::Free,
        "train.sample_every" | "train.sample_prompt" | "train.sample_tokens" => Verdict::Free,
        "zero.param_dtype" | "zero.grad_dtype" | "zero.reduce_dtype" | "zero.reduce"
        | "zero.deterministic" => Verdict::Course,
        "run.backend" | "run.tf32" => Verdict::Course,
        _ if ["run.", "zero.", "checkpoint.", "log."].iter().any(|section| key.starts_with(section)) => {
            Verdict::Free
        }
        _ => Verdict::Course,
    }
}

/// The keys whose values differ between a checkpoint's deck (TOML text) and the deck of this run, in the
/// deck's order. A key unknown to the checkpoint's program counts as its default, or as derived from the
/// others.
pub fn changes(saved: &str, deck: &Deck) -> Vec<Change> {
    let parse = |text: &str| text.parse::<toml::Table>().unwrap_or_default();
    let (old, new) = (parse(saved), parse(&deck.to_toml()));
    let derived =
        Deck::parse(saved, &[], "the deck of a checkpoint").map(|old| old.to_toml()).unwrap_or_default();
    let derived = parse(&derived);
    let value = |table: &toml::Table, section: &str, field: &str| table.get(section)?.get(field).cloned();
    let mut found = Vec::new();
    for key in KEYS {
        let Some(now) = value(&new, key.section(), key.field()) else { continue };
        let saved = value(&old, key.section(), key.field());
        let verdict = if saved.is_some() { verdict(key.name) } else { Verdict::Free };
        let before =
            saved.or_else(|| value(&derived, key.section(), key.field())).or_else(|| key.fixed_default());
        if before.as_ref() != Some(&now) {
            let before = before.map_or("(absent)".to_string(), |v| v.to_string());
            found.push(Change { key: key.name.to_string(), before, now: now.to_string(), verdict });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deck(overrides: &[(&str, &str)]) -> Deck {
        let text = "
            run.dir = 'runs/a'
            data.train = ['a.txt']
            train.steps = 10
            [model]
            n_layer = 2
            n_head = 2
            d_model = 8
            seq_len = 8
        ";
        let overrides: Vec<(String, String)> =
            overrides.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Deck::parse(text, &overrides, "a test").unwrap()
    }

    #[test]
    fn each_kind_of_change_gets_its_verdict() {
        let saved = deck(&[]).to_toml();
        assert_eq!(changes(&saved, &deck(&[])), []);
        let cases = [
            ("run.dir", "runs/b", Verdict::Free),
            ("run.threads_per_rank", "3", Verdict::Free),
            ("log.every", "1", Verdict::Free),
            ("checkpoint.every", "7", Verdict::Free),
            ("zero.prefetch_units", "3", Verdict::Free),
            ("data.train", "b.txt", Verdict::Free),
            ("model.init_seed", "9", Verdict::Free),
            ("train.eval_batches", "3", Verdict::Free),
            ("optim.lr", "1e-2", Verdict::Course),
            ("train.global_batch_size", "8", Verdict::Course),
            ("train.micro_batch_size", "2", Verdict::Course),
            ("data.seed", "9", Verdict::Data),
            ("data.shuffle", "false", Verdict::Data),
            ("data.stride", "4", Verdict::Data),
            ("data.val_stride", "4", Verdict::Free),
            ("data.val_fraction", "0.5", Verdict::Data),
            ("model.n_head", "4", Verdict::Model),
            ("model.d_model", "16", Verdict::Model),
        ];
        for (key, value, expected) in cases {
            let found = changes(&saved, &deck(&[(key, value)]));
            let own =
                found.iter().find(|c| c.key == key).unwrap_or_else(|| panic!("{key} is not in {found:?}"));
            assert_eq!(own.verdict, expected, "{own}");
        }
    }

    #[test]
    fn a_key_that_the_old_program_did_not_know_is_no_change_at_its_default() {
        let saved = deck(&[]).to_toml();
        let old: String =
            saved.lines().filter(|line| !line.starts_with("keep_every")).collect::<Vec<_>>().join("\n");
        assert!(old.len() < saved.len());
        assert_eq!(changes(&old, &deck(&[])), []);
        let found = changes(&old, &deck(&[("checkpoint.keep_every", "5")]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "checkpoint.keep_every: 0 -> 5");
    }
}

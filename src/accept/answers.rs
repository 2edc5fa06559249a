//! Losses that the reference run must come to: stored with the kind of processor that computed them. On the same kind the bits
//! must be the same (rule 8); elsewhere the final loss must lie in a band.

use crate::config::acceptance::Deck;
use crate::error::{Error, Result};
use crate::files::{self, MAX_RECORD_BYTES};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Those that come with the program.
const BUILT_IN: &str = include_str!("answers.json");

/// A run and what it came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// [`reference_name`].
    pub reference: String,
    /// Processor and instruction set, as the device describes itself.
    pub computed_on: String,
    /// Loss of each step, in nats per token; the decimals stand for these bits and no others.
    pub losses: Vec<f64>,
    /// Gradient norm of each step, likewise.
    pub grad_norms: Vec<f64>,
}

/// Everything of the deck that the losses depend on, in a line.
pub fn reference_name(deck: &Deck) -> String {
    let t = &deck.training;
    format!(
        "gpt2 preset={} L={} H={} C={} T={} V={} micro_batch={} batch={} steps={} dtype={} seed={} tokens=1",
        t.preset,
        t.n_layer,
        t.n_head,
        t.d_model,
        t.seq_len,
        t.vocab_size,
        t.micro_batch_size,
        t.global_batch_size,
        t.steps,
        t.param_dtype.name(),
        t.seed
    )
}

/// All answers of a file, or those that come with the program.
///
/// # Errors
/// The file cannot be read, or is no list of answers.
pub fn read(path: &str) -> Result<Vec<Answer>> {
    let no =
        |why: String| Error::Input(format!("training.known_answers = {path}: {why}; --record-answers FILE writes one"));
    let text = match path {
        "" => BUILT_IN.to_string(),
        path => files::read_text(Path::new(path), MAX_RECORD_BYTES).map_err(|e| no(e.to_string()))?,
    };
    serde_json::from_str(&text).map_err(|e| no(e.to_string()))
}

/// Puts an answer into a file, in place of one to the same question.
///
/// # Errors
/// The file is there and is no list of answers, or cannot be written.
pub fn record(path: &Path, answer: Answer) -> Result<()> {
    let mut answers = if path.exists() { read(&path.display().to_string())? } else { Vec::new() };
    answers.retain(|a| (&a.reference, &a.computed_on) != (&answer.reference, &answer.computed_on));
    answers.push(answer);
    let text = serde_json::to_string_pretty(&answers).expect("plain data") + "\n";
    files::write_output(path, text.as_bytes())
}

/// The stored answer to hold a run against, and whether its bits can be asked for.
pub fn find<'a>(answers: &'a [Answer], reference: &str, computed_on: &str) -> Option<(&'a Answer, bool)> {
    let mut of_reference = answers.iter().filter(|a| a.reference == reference);
    let same = of_reference.clone().find(|a| a.computed_on == computed_on);
    same.map(|a| (a, true)).or_else(|| of_reference.next().map(|a| (a, false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_to_the_bit_and_the_same_processor_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let answer = |on: &str, loss: f64| Answer {
            reference: "r".into(),
            computed_on: on.into(),
            losses: vec![loss],
            grad_norms: vec![],
        };
        for (on, loss) in [("x", 0.1), ("y", 1.0 / 3.0), ("x", 0.1 + 0.2)] {
            record(&path, answer(on, loss)).unwrap();
        }
        let answers = read(path.to_str().unwrap()).unwrap();
        assert_eq!(answers, [answer("y", 1.0 / 3.0), answer("x", 0.1 + 0.2)]);
        assert_eq!(find(&answers, "r", "x").map(|(a, bits)| (a.losses[0], bits)), Some((0.1 + 0.2, true)));
        assert_eq!(find(&answers, "r", "z").map(|(_, bits)| bits), Some(false));
        assert_eq!(find(&answers, "q", "x"), None);
        assert!(read("/not/there").unwrap_err().to_string().contains("--record-answers"));
    }

    #[test]
    fn the_answers_that_come_with_the_program_are_to_its_own_decks() {
        let answers = read("").unwrap();
        for name in ["acceptance.toml", "acceptance_quick.toml"] {
            let deck = Deck::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs").join(name), &[]).unwrap();
            let found = find(&answers, &reference_name(&deck), "another processor");
            let (answer, _) = found.unwrap_or_else(|| panic!("no answer for inputs/{name}: {}", reference_name(&deck)));
            assert_eq!(answer.losses.len() as u64, deck.training.steps);
            assert!(answer.losses.last() < answer.losses.first(), "{name} learns something");
        }
    }
}

//! Golden losses of the reference run, stored with the kind of processor that computed them. On the same kind
//! the bits must be the same; on another the final loss must lie within a band.

use crate::config::acceptance::Deck;
use crate::error::{Error, Result};
use crate::files::{self, MAX_RECORD_BYTES};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Those that ship with the program.
const BUILT_IN: &str = include_str!("golden_losses.json");

/// The losses of one reference run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GoldenLosses {
    /// [`reference_name`].
    pub reference: String,
    /// Processor and instruction set, as the device describes itself.
    pub computed_on: String,
    /// Loss of each step, in nats per token, as decimals that read back to the same bits.
    pub losses: Vec<f64>,
    /// Gradient norm of each step, as such decimals.
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

/// Reads the file `path`, or those that ship with the program where it is empty.
///
/// # Errors
/// The file cannot be read, or does not contain golden losses.
pub fn read(path: &Path) -> Result<Vec<GoldenLosses>> {
    let invalid = |why: String| {
        Error::Input(format!(
            "training.known_answers = {}: {why}; --record-answers FILE writes such a file",
            path.display()
        ))
    };
    let text = match path.as_os_str().is_empty() {
        true => BUILT_IN.to_string(),
        false => files::read_text(path, MAX_RECORD_BYTES).map_err(|e| invalid(e.to_string()))?,
    };
    serde_json::from_str(&text).map_err(|e| invalid(e.to_string()))
}

/// Adds `losses` to a file, in place of those of the same run on the same kind of processor.
///
/// # Errors
/// The file exists and does not contain golden losses, or cannot be written.
pub fn record(path: &Path, losses: GoldenLosses) -> Result<()> {
    let mut stored = if path.exists() { read(path)? } else { Vec::new() };
    stored.retain(|s| (&s.reference, &s.computed_on) != (&losses.reference, &losses.computed_on));
    stored.push(losses);
    let text = serde_json::to_string_pretty(&stored).expect("plain data") + "\n";
    files::write_output(path, text.as_bytes())
}

/// The stored losses to compare a run with, and whether its bits must be the same.
pub fn find<'a>(
    stored: &'a [GoldenLosses],
    reference: &str,
    computed_on: &str,
) -> Option<(&'a GoldenLosses, bool)> {
    let mut of_reference = stored.iter().filter(|a| a.reference == reference);
    let same = of_reference.clone().find(|a| a.computed_on == computed_on);
    same.map(|a| (a, true)).or_else(|| of_reference.next().map(|a| (a, false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_losses_come_back_to_the_bit_and_the_same_processor_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let losses = |on: &str, loss: f64| GoldenLosses {
            reference: "r".into(),
            computed_on: on.into(),
            losses: vec![loss],
            grad_norms: vec![],
        };
        for (on, loss) in [("x", 0.1), ("y", 1.0 / 3.0), ("x", 0.1 + 0.2)] {
            record(&path, losses(on, loss)).unwrap();
        }
        let stored = read(&path).unwrap();
        assert_eq!(stored, [losses("y", 1.0 / 3.0), losses("x", 0.1 + 0.2)]);
        assert_eq!(find(&stored, "r", "x").map(|(a, bits)| (a.losses[0], bits)), Some((0.1 + 0.2, true)));
        assert_eq!(find(&stored, "r", "z").map(|(_, bits)| bits), Some(false));
        assert_eq!(find(&stored, "q", "x"), None);
        assert!(read(Path::new("/not/there")).unwrap_err().to_string().contains("--record-answers"));
    }

    #[test]
    fn the_golden_losses_that_ship_with_the_program_are_of_its_own_decks() {
        let stored = read(Path::new("")).unwrap();
        for name in ["acceptance.toml", "acceptance_quick.toml"] {
            let deck =
                Deck::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs").join(name), &[]).unwrap();
            let found = find(&stored, &reference_name(&deck), "another processor");
            let (losses, _) = found
                .unwrap_or_else(|| panic!("no golden losses for inputs/{name}: {}", reference_name(&deck)));
            assert_eq!(losses.losses.len() as u64, deck.training.steps);
            assert!(losses.losses.last() < losses.losses.first(), "{name} learns something");
        }
    }
}

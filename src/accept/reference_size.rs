//! The size of the reference model where the deck does not give it: what the weakest rank of the job can
//! train in a short time.
//!
//! The rule is pure and coarse, so that nodes of one kind get one model, whose losses can be stored and
//! compared. It depends on memory and cores alone: a measured speed would give another model on another day.

use crate::backend::agree::all_or_none;
use crate::backend::{Comm, Device};
use crate::config::acceptance::{Deck, ReferenceSize};
use crate::error::Result;
use crate::train::node_memory::NodeMemory;
use crate::train::planning;
use serde::{Deserialize, Serialize};

/// The sizes to choose from, ascending: from 3 million parameters to GPT-2's published widths and beyond.
pub const SIZES: [ReferenceSize; 7] = [
    ReferenceSize { n_layer: 4, n_head: 4, d_model: 256 },
    ReferenceSize { n_layer: 6, n_head: 6, d_model: 384 },
    ReferenceSize { n_layer: 12, n_head: 12, d_model: 768 },
    ReferenceSize { n_layer: 24, n_head: 16, d_model: 1024 },
    ReferenceSize { n_layer: 36, n_head: 20, d_model: 1280 },
    ReferenceSize { n_layer: 48, n_head: 25, d_model: 1600 },
    ReferenceSize { n_layer: 32, n_head: 32, d_model: 4096 },
];
/// Assumed speed of a core: a quarter of the f32 peak of two 256-bit FMA units at 2.5 GHz (8 lanes * 2 FLOPs
/// * 2 units). It only chooses among [`SIZES`]; no number of a report depends on it.
const GFLOPS_PER_CORE: f64 = 20.0;
/// Cores that a GPU counts as: 20 TFLOP/s, below the dense bf16 peak of every file of inputs/hardware/.
const DEVICE_CORES: usize = 1000;
/// Longest time of one micro-batch at the assumed speed.
const MICRO_BATCH_SECONDS: f64 = 1.0;
/// Largest share of a rank's memory for the whole model: `scaling` trains it on a single rank.
const MEMORY_SHARE: f64 = 0.5;

/// Resources of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Its share of the node's memory, or the free memory of its GPU.
    pub memory_bytes: u64,
    /// Compute threads, or [`DEVICE_CORES`].
    pub cores: usize,
}

/// The deck with the largest of [`SIZES`] whose training on one rank fits into its share of `weakest`'s
/// memory and whose micro-batch is computed in time, or with the smallest where none does. A deck that gives
/// a size stays as it is.
///
/// # Errors
/// The deck's other keys do not make a valid training deck.
pub fn fitted<D: Device>(deck: &Deck, weakest: Resources) -> Result<Deck> {
    if !deck.training.is_unsized() {
        return Ok(deck.clone());
    }
    for size in SIZES.into_iter().rev() {
        let sized = deck.with_size(size);
        let reference = sized.reference("tokens.u16", "reference", sized.training.steps)?;
        let (model, plan) = planning::of_deck::<D>(&reference, 1)?;
        let flops = model.spec.flops_per_token * model.spec.tokens_per_micro_batch as f64;
        let seconds = flops / (GFLOPS_PER_CORE * 1e9 * weakest.cores as f64);
        let budget = MEMORY_SHARE * weakest.memory_bytes as f64;
        if seconds <= MICRO_BATCH_SECONDS && plan.arena_bytes as f64 <= budget {
            return Ok(sized);
        }
    }
    Ok(deck.with_size(SIZES[0]))
}

/// The minimum over all ranks of each resource; ranks of a node share its memory. Collective.
pub fn weakest<C: Comm, D: Device>(comm: &C, host: &str, device: &D, threads: usize) -> Result<Resources> {
    let hosts = all_or_none(comm, Ok(host.to_string()))?;
    let n_here = hosts.iter().filter(|h| *h == host).count().max(1) as u64;
    let own = match device.free_bytes() {
        Some(free) => Resources { memory_bytes: free, cores: DEVICE_CORES },
        None => {
            let memory_bytes = NodeMemory::here().map_or(u64::MAX, |node| node.limit_bytes / n_here);
            Resources { memory_bytes, cores: threads }
        }
    };
    let all = all_or_none(comm, Ok(own))?;
    let least = |a: Resources, b: &Resources| Resources {
        memory_bytes: a.memory_bytes.min(b.memory_bytes),
        cores: a.cores.min(b.cores),
    };
    Ok(all.iter().fold(all[0], least))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::CpuDevice;

    fn d_model(text: &str, memory_gib: f64, cores: usize) -> usize {
        let deck = Deck::parse(&format!("run.dir = \"r\"\n{text}"), &[], "test.toml").unwrap();
        let memory_bytes = (memory_gib * f64::from(1 << 30)) as u64;
        fitted::<CpuDevice>(&deck, Resources { memory_bytes, cores }).unwrap().training.d_model
    }

    #[test]
    fn the_model_grows_with_cores_until_memory_ends_it() {
        let by_cores = [1, 2, 16, 64, 256].map(|cores| d_model("", 512.0, cores));
        assert!(by_cores.is_sorted() && by_cores[0] == 256 && by_cores[4] >= 1024, "{by_cores:?}");
        let by_memory = [0.001, 0.5, 4.0, 64.0].map(|gib| d_model("", gib, 64));
        assert!(by_memory.is_sorted() && by_memory[0] == 256 && by_memory[3] == by_cores[3], "{by_memory:?}");
        assert!(
            by_memory[1] < by_memory[3],
            "half a GiB is not enough for what 64 cores could train: {by_memory:?}"
        );
        // A little more memory, as firmware leaves it, does not change the model.
        assert_eq!(d_model("", 250.0, 64), d_model("", 251.3, 64));
    }

    #[test]
    fn longer_micro_batches_make_the_model_smaller() {
        assert!(d_model("training.seq_len = 2048", 512.0, 64) < d_model("", 512.0, 64));
    }

    #[test]
    fn a_named_model_is_left_alone() {
        assert_eq!(
            d_model("training.n_layer = 2\ntraining.n_head = 2\ntraining.d_model = 64", 512.0, 256),
            64
        );
        assert_eq!(d_model("training.preset = \"gpt2-124m\"", 0.001, 1), 0);
    }
}

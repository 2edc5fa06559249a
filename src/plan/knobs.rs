//! The settings of a plan, with caps of 0 converted to "none".

use crate::config::{ActivationCheckpointing, Deck, OptimSection, ReduceWhen, ZeroSection};
use crate::dtype::DType;
use crate::optimizers::{OptimState, OptimizerKind};
use crate::params::{ModelSpec, UnitId, UnitRole};

/// The settings of a plan, with caps of 0 converted to "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knobs {
    /// Whether gradients, masters and optimizer states exist; otherwise only parameters.
    pub trains: bool,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Its states per parameter.
    pub optim_states: &'static [OptimState],
    /// ZeRO stage, 0 to 3.
    pub stage: u8,
    /// Number of visits to prefetch.
    pub prefetch_units: usize,
    /// Cap on prefetched bytes; `u64::MAX` = none.
    pub prefetch_max_bytes: u64,
    /// Cap on gathered bytes live at once; `u64::MAX` = none.
    pub max_live_bytes: u64,
    /// Parameters of at most this size remain whole.
    pub persistence_threshold_bytes: u64,
    /// Parameters gathered in one call, in bytes; `u64::MAX` = a unit.
    pub gather_bucket_bytes: u64,
    /// Receive staging of one exchange, in bytes.
    pub reduce_bucket_bytes: u64,
    /// Release parameters between forward and backward.
    pub release_after_forward: bool,
    /// Overlap collectives with compute.
    pub overlap: bool,
    /// Type of gathered and compute parameters.
    pub param_dtype: DType,
    /// Type of stored gradients.
    pub grad_dtype: DType,
    /// Type of communicated gradients.
    pub reduce_dtype: DType,
    /// Which blocks are recomputed in backward.
    pub activation_checkpointing: ActivationCheckpointing,
    /// When gradients are reduced.
    pub reduce: ReduceWhen,
    /// Whether gradients are exchanged and added in a fixed order; otherwise a reduce-scatter adds on the
    /// way.
    pub deterministic: bool,
}

impl Default for Knobs {
    fn default() -> Self {
        Knobs { deterministic: true, ..Knobs::new(&ZeroSection::default(), &OptimSection::default()) }
    }
}

impl Knobs {
    /// Reads the deck's `[zero]` section, where 0 means no cap, and the optimizer's states.
    pub fn from_deck(deck: &Deck) -> Self {
        Knobs::new(&deck.zero, &deck.optim)
    }

    fn new(zero: &ZeroSection, optim: &OptimSection) -> Self {
        let cap = |bytes: u64| if bytes == 0 { u64::MAX } else { bytes };
        Knobs {
            trains: true,
            optimizer: optim.kind,
            optim_states: optim.kind.states(&optim.hyper()),
            stage: zero.stage,
            prefetch_units: zero.prefetch_units,
            prefetch_max_bytes: cap(zero.prefetch_max_bytes),
            max_live_bytes: cap(zero.max_live_bytes),
            persistence_threshold_bytes: zero.persistence_threshold_bytes,
            gather_bucket_bytes: cap(zero.gather_bucket_bytes),
            reduce_bucket_bytes: zero.reduce_bucket_bytes,
            release_after_forward: zero.release_after_forward,
            overlap: zero.overlap,
            param_dtype: zero.param_dtype,
            grad_dtype: zero.grad_dtype,
            reduce_dtype: zero.reduce_dtype,
            activation_checkpointing: zero.activation_checkpointing,
            reduce: zero.reduce,
            deterministic: zero.deterministic,
        }
    }

    /// The same to compute with parameters alone, all of them cut and none needed after its forward. The
    /// deck's cap on gathered bytes was chosen for the parameters that it cuts itself: where that is not all
    /// of them, it does not hold here.
    pub fn of_inference(deck: &Deck) -> Self {
        let knobs = Knobs::from_deck(deck);
        let cuts_all = knobs.stage == 3 && knobs.persistence_threshold_bytes == 0;
        Knobs {
            trains: false,
            stage: 3,
            persistence_threshold_bytes: 0,
            release_after_forward: true,
            max_live_bytes: if cuts_all { knobs.max_live_bytes } else { u64::MAX },
            ..knobs
        }
    }

    /// Number of values received per element of a rank's gradient slices when all ranks contribute: the
    /// others' contributions, or one sum.
    pub fn arrivals(&self, world_size: usize) -> usize {
        if self.deterministic { world_size - 1 } else { 1.min(world_size - 1) }
    }

    /// Whether a unit's saved tensors are dropped after forward and recomputed in backward. For `every:K` it
    /// is each K-th block, the first one included.
    pub fn recomputes(&self, spec: &ModelSpec, unit: UnitId) -> bool {
        let block = unit.wrapping_sub(1); // unit 0 is the embedding
        spec.units[unit].role == UnitRole::Block
            && match self.activation_checkpointing {
                ActivationCheckpointing::None => false,
                ActivationCheckpointing::All => true,
                ActivationCheckpointing::Every(k) => block.is_multiple_of(k as usize),
            }
    }
}

//! Which states are sharded and which every rank holds whole: the ZeRO stages and the persistence threshold,
//! per parameter.

use super::knobs::Knobs;
use super::partition::Partition;
use crate::dtype::DType;
use crate::optimizers::OptimState;
use crate::telemetry::ledger::MemKind;

/// How a rank holds one state of one parameter between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Its slice.
    Sharded,
    /// All of it, on every rank.
    Whole,
}

/// The states of one parameter. The optimizer's states and master weights are held alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The compute parameter.
    pub param: Hold,
    /// Its reduced gradient.
    pub grad: Hold,
    /// Master weights and the optimizer's states.
    pub optim: Hold,
}

/// The slices (or whole tensors) of one parameter that a rank holds between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The parameter, in `param_dtype`; in fp32 it is its own master.
    Param,
    /// Fp32 master weights of a low-precision parameter.
    Master,
    /// The reduced gradient, in `grad_dtype`.
    Grad,
    /// A state of the optimizer, fp32.
    Optim(OptimState),
}

impl Placement {
    /// Stage 0 holds everything whole, 1 shards the optimizer, 2 also the gradients, 3 also the parameters,
    /// except those of at most the persistence threshold.
    pub fn of(numel: usize, knobs: &Knobs) -> Self {
        let cut_from = |stage| if knobs.stage >= stage { Hold::Sharded } else { Hold::Whole };
        let persistent = (numel * knobs.param_dtype.bytes()) as u64 <= knobs.persistence_threshold_bytes;
        let param = if persistent { Hold::Whole } else { cut_from(3) };
        Placement { param, grad: cut_from(2), optim: cut_from(1) }
    }

    /// How `state` is held.
    pub fn hold(&self, state: State) -> Hold {
        match state {
            State::Param => self.param,
            State::Grad => self.grad,
            State::Master | State::Optim(_) => self.optim,
        }
    }
}

impl State {
    /// Their number.
    pub const COUNT: usize = 3 + OptimState::ALL.len();
    /// All of them, in memory order.
    pub const ALL: [State; State::COUNT] = {
        let mut all = [State::Grad; State::COUNT];
        (all[0], all[1]) = (State::Param, State::Master);
        let mut i = 0;
        while i < OptimState::ALL.len() {
            all[3 + i] = State::Optim(OptimState::ALL[i]);
            i += 1;
        }
        all
    };

    /// Its position in [`State::ALL`].
    pub const fn index(self) -> usize {
        match self {
            State::Param => 0,
            State::Master => 1,
            State::Grad => 2,
            State::Optim(state) => 3 + state as usize,
        }
    }

    /// The name in plans and checkpoints.
    pub const fn name(self) -> &'static str {
        match self {
            State::Param => "param",
            State::Master => "master",
            State::Grad => "grad",
            State::Optim(state) => state.name(),
        }
    }

    /// Its element type; None if it does not exist.
    pub fn dtype(self, knobs: &Knobs) -> Option<DType> {
        match self {
            State::Param => Some(knobs.param_dtype),
            _ if !knobs.trains => None,
            State::Master => (knobs.param_dtype != DType::F32).then_some(DType::F32),
            State::Grad => Some(knobs.grad_dtype),
            State::Optim(state) => knobs.optim_states.contains(&state).then_some(DType::F32),
        }
    }

    /// Its kind in the ledger.
    pub fn kind(self) -> MemKind {
        match self {
            State::Param => MemKind::ParamShard,
            State::Master => MemKind::Master,
            State::Grad => MemKind::GradShard,
            State::Optim(_) => MemKind::OptimState,
        }
    }

    /// Elements a rank holds, padding included.
    pub fn numel(self, partition: &Partition, placement: &Placement) -> usize {
        match placement.hold(self) {
            Hold::Sharded => partition.shard_numel(),
            Hold::Whole => partition.padded_numel(),
        }
    }
}

/// Bytes per parameter that the stage holds whole on each rank, and that it divides by N: resident state is
/// `whole * Psi + cut * Psi / N`, plus padding and the persistent parameters.
pub fn bytes_per_param(knobs: &Knobs) -> (usize, usize) {
    // A parameter too large for any threshold.
    let placement = Placement::of(usize::MAX / 8, &Knobs { persistence_threshold_bytes: 0, ..*knobs });
    let mut sums = (0, 0);
    for state in State::ALL {
        let bytes = state.dtype(knobs).map_or(0, DType::bytes);
        match placement.hold(state) {
            Hold::Whole => sums.0 += bytes,
            Hold::Sharded => sums.1 += bytes,
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizers::{Hyper, OptimizerKind};

    fn knobs(stage: u8, param: DType, grad: DType) -> Knobs {
        Knobs { stage, param_dtype: param, grad_dtype: grad, ..Knobs::default() }
    }

    #[test]
    fn the_stages_keep_the_published_bytes() {
        use DType::{Bf16, F32};
        let mixed = [(16, 0), (4, 12), (2, 14), (0, 16)]; // arXiv:1910.02054, figure 1, K = 12
        for (stage, want) in mixed.into_iter().enumerate() {
            assert_eq!(bytes_per_param(&knobs(stage as u8, Bf16, Bf16)), want, "stage {stage}");
        }
        assert_eq!(bytes_per_param(&knobs(3, Bf16, F32)), (0, 18));
        assert_eq!(bytes_per_param(&knobs(3, F32, F32)), (0, 16));
        assert_eq!(bytes_per_param(&knobs(1, F32, F32)), (8, 8));
    }

    #[test]
    fn an_optimizer_of_fewer_states_keeps_fewer_bytes() {
        let of = |kind: OptimizerKind, hyper: Hyper, stage| {
            let optim_states = kind.states(&hyper);
            bytes_per_param(&Knobs {
                optimizer: kind,
                optim_states,
                ..knobs(stage, DType::Bf16, DType::Bf16)
            })
        };
        let by_default = |kind: OptimizerKind, stage| of(kind, kind.default_hyper(0.0), stage);
        for kind in [OptimizerKind::Lion, OptimizerKind::Sgd] {
            assert_eq!(
                [0, 1, 2, 3].map(|stage| by_default(kind, stage)),
                [(12, 0), (4, 8), (2, 10), (0, 12)],
                "{kind}"
            );
        }
        assert_eq!(of(OptimizerKind::Sgd, Hyper::default(), 3), (0, 8), "without momentum");
    }

    #[test]
    fn small_parameters_stay_whole_at_or_under_the_threshold() {
        let knobs = Knobs { persistence_threshold_bytes: 40, ..Knobs::default() };
        assert_eq!(Placement::of(10, &knobs).param, Hold::Whole);
        assert_eq!(Placement::of(11, &knobs).param, Hold::Sharded);
        assert_eq!(
            Placement::of(10, &knobs).grad,
            Hold::Sharded,
            "gradient and moments are cut all the same"
        );
    }
}

//! The optimizers as data, one file each: what it keeps of a parameter between steps, the deck keys it reads
//! with their defaults, the numbers its kernel is given, and its update as a formula in f64.
//!
//! Planned and counted memory, checkpoints, the forecast, calibration and kernel launches follow from these
//! rows. To add an optimizer: a file here and a line in the table below, a CPU kernel in
//! `backend/cpu/ops/update/`, a CUDA kernel in `backend/cuda/kernels/` (docs/architecture.md). Must not know:
//! decks, devices, files.

pub mod adamw;
pub mod lion;
mod row;
pub mod sgd;

pub use row::{BYTES_PER_STATE, Hyper, OptimState, OptimStates, Optimizer, Scalars, UpdateNow};

use serde::{Deserialize, Serialize};
use std::fmt;

/// Makes [`OptimizerKind`] and [`UpdateStep`] from the table: `Variant = "name", module::Row;`.
macro_rules! optimizers {
    ($($(#[$doc:meta])* $Variant:ident = $name:literal, $Row:path;)+) => {
        /// The optimizer of a run: `optim.kind`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum OptimizerKind { $($(#[$doc])* #[serde(rename = $name)] $Variant,)+ }

        impl OptimizerKind {
            /// All of them.
            pub const ALL: &'static [OptimizerKind] = &[$(OptimizerKind::$Variant),+];
            /// The names in decks, checkpoints, hardware files, and of kernels.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name in decks, checkpoints, hardware files, and of its kernels.
            pub const fn name(self) -> &'static str {
                match self { $(OptimizerKind::$Variant => $name,)+ }
            }

            /// [`Optimizer::STATES`]
            pub const fn all_states(self) -> &'static [OptimState] {
                match self { $(OptimizerKind::$Variant => <$Row as Optimizer>::STATES,)+ }
            }

            /// [`Optimizer::states`]
            pub fn states(self, hyper: &Hyper) -> &'static [OptimState] {
                match self { $(OptimizerKind::$Variant => <$Row as Optimizer>::states(hyper),)+ }
            }

            /// [`Optimizer::KEYS`]
            pub const fn keys(self) -> &'static [(&'static str, f64)] {
                match self { $(OptimizerKind::$Variant => <$Row as Optimizer>::KEYS,)+ }
            }
        }

        /// One update of a slice: which optimizer, and its numbers.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum UpdateStep { $($(#[$doc])* $Variant($Row),)+ }

        impl UpdateStep {
            /// The numbers of an update by `kind`.
            pub fn new(kind: OptimizerKind, hyper: &Hyper, now: &UpdateNow) -> Self {
                match kind {
                    $(OptimizerKind::$Variant => UpdateStep::$Variant(Optimizer::new(hyper, now)),)+
                }
            }

            /// Whose update it is.
            pub const fn kind(&self) -> OptimizerKind {
                match self { $(UpdateStep::$Variant(_) => OptimizerKind::$Variant,)+ }
            }

            /// [`Optimizer::scalars`]
            pub fn scalars(&self) -> Scalars {
                match self { $(UpdateStep::$Variant(step) => step.scalars(),)+ }
            }

            /// [`Optimizer::element`]
            pub fn element(&self, weight: &mut f64, states: &mut OptimStates<f64>, grad: f64) {
                match self { $(UpdateStep::$Variant(step) => step.element(weight, states, grad),)+ }
            }
        }
    };
}

optimizers! {
    /// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101).
    Adamw = "adamw", adamw::AdamwStep;
    /// Lion (Chen et al. 2023, arXiv:2302.06675).
    Lion = "lion", lion::LionStep;
    /// Stochastic gradient descent with momentum (Sutskever et al. 2013).
    Sgd = "sgd", sgd::SgdStep;
}

impl OptimizerKind {
    /// Its position in [`OptimizerKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The hyperparameters that a deck has which says nothing but `optim.kind`, with this weight decay.
    pub fn default_hyper(self, weight_decay: f64) -> Hyper {
        let of = |key: &str| {
            self.keys().iter().find(|(name, _)| *name == key).map_or(0.0, |(_, default)| *default)
        };
        let (beta1, beta2, eps, momentum) = (of("beta1"), of("beta2"), of("eps"), of("momentum"));
        Hyper { beta1, beta2, eps, momentum, nesterov: of("nesterov") != 0.0, weight_decay }
    }
}

impl Default for OptimizerKind {
    fn default() -> Self {
        OptimizerKind::ALL[0]
    }
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl UpdateStep {
    /// The definition on a whole slice: the naive sibling of the backends' `update`.
    pub fn reference(&self, weights: &mut [f64], states: &mut OptimStates<Vec<f64>>, grads: &[f64]) {
        for (i, (weight, &grad)) in weights.iter_mut().zip(grads).enumerate() {
            let mut own = states.each_ref().map(|values| values[i]);
            self.element(weight, &mut own, grad);
            for (state, &value) in own.iter() {
                states[state][i] = value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_optimizer_reads_keys_that_there_are_and_keeps_states_in_order() {
        for &kind in OptimizerKind::ALL {
            assert_eq!(OptimizerKind::NAMES[kind.index()], kind.name());
            assert!(kind.all_states().is_sorted(), "{kind}");
            let hyper = kind.default_hyper(0.0);
            assert!(kind.states(&hyper).iter().all(|state| kind.all_states().contains(state)), "{kind}");
            for (key, default) in kind.keys() {
                assert!(["beta1", "beta2", "eps", "momentum", "nesterov"].contains(key), "{kind}: {key}");
                assert!(*default > 0.0 || *key == "nesterov", "{kind}: {key}");
            }
        }
    }
}

//! What a row of the table of optimizers is made of: states, hyperparameters, the numbers of an update.
//!
//! Must not know: which optimizers there are.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::ops::{Index, IndexMut};

/// Bytes of an element of an optimizer state, and of a saved weight: all are fp32.
pub const BYTES_PER_STATE: usize = 4;

/// An fp32 value that an optimizer keeps of each weight between steps. Named as PyTorch names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimState {
    /// Running average of the gradient.
    ExpAvg,
    /// Running average of the squared gradient.
    ExpAvgSq,
    /// Decaying sum of the gradient.
    MomentumBuffer,
}

impl OptimState {
    /// All of them, in the order they lie in memory and in files.
    pub const ALL: [OptimState; 3] = [OptimState::ExpAvg, OptimState::ExpAvgSq, OptimState::MomentumBuffer];

    /// The name in checkpoints.
    pub const fn name(self) -> &'static str {
        match self {
            OptimState::ExpAvg => "exp_avg",
            OptimState::ExpAvgSq => "exp_avg_sq",
            OptimState::MomentumBuffer => "momentum_buffer",
        }
    }
}

/// A value for each state that exists, by the state's name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimStates<T>([Option<T>; OptimState::ALL.len()]);

impl<T> Default for OptimStates<T> {
    fn default() -> Self {
        OptimStates(OptimState::ALL.map(|_| None))
    }
}

impl<T> OptimStates<T> {
    /// One value for each of `states`.
    pub fn of(states: &[OptimState], mut make: impl FnMut(OptimState) -> T) -> Self {
        OptimStates(OptimState::ALL.map(|state| states.contains(&state).then(|| make(state))))
    }

    /// The value of `state`, moved out; None where the state does not exist.
    pub fn take(&mut self, state: OptimState) -> Option<T> {
        self.0[state as usize].take()
    }

    /// The values of the named states.
    ///
    /// # Panics
    /// Where one does not exist.
    pub fn named<const N: usize>(mut self, names: [OptimState; N]) -> [T; N] {
        names.map(|name| self.take(name).unwrap_or_else(|| panic!("there is no {}", name.name())))
    }

    /// The same states with other values.
    pub fn map<U>(self, mut make: impl FnMut(T) -> U) -> OptimStates<U> {
        OptimStates(self.0.map(|value| value.map(&mut make)))
    }

    /// The value of `state`; None where the state does not exist.
    pub fn get(&self, state: OptimState) -> Option<&T> {
        self.0[state as usize].as_ref()
    }

    /// Sets the value of `state`.
    pub fn set(&mut self, state: OptimState, value: T) {
        self.0[state as usize] = Some(value);
    }

    /// References to the values.
    pub fn each_ref(&self) -> OptimStates<&T> {
        OptimStates(self.0.each_ref().map(Option::as_ref))
    }

    /// Exclusive references to the values.
    pub fn each_mut(&mut self) -> OptimStates<&mut T> {
        OptimStates(self.0.each_mut().map(Option::as_mut))
    }

    /// States and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (OptimState, &T)> {
        OptimState::ALL
            .into_iter()
            .zip(&self.0)
            .filter_map(|(state, value)| value.as_ref().map(|value| (state, value)))
    }
}

impl<T, E> OptimStates<Result<T, E>> {
    /// The values, or the first error.
    pub fn transposed(self) -> Result<OptimStates<T>, E> {
        let mut values = OptimStates::default();
        for (state, value) in OptimState::ALL.into_iter().zip(self.0) {
            values.0[state as usize] = value.transpose()?;
        }
        Ok(values)
    }
}

impl<T> Index<OptimState> for OptimStates<T> {
    type Output = T;

    fn index(&self, state: OptimState) -> &T {
        self.0[state as usize].as_ref().unwrap_or_else(|| panic!("there is no {}", state.name()))
    }
}

impl<T> IndexMut<OptimState> for OptimStates<T> {
    fn index_mut(&mut self, state: OptimState) -> &mut T {
        self.0[state as usize].as_mut().unwrap_or_else(|| panic!("there is no {}", state.name()))
    }
}

/// What a deck says of an update: the keys of `[optim]` in which optimizers differ, and the weight decay.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Hyper {
    /// `optim.beta1`
    pub beta1: f64,
    /// `optim.beta2`
    pub beta2: f64,
    /// `optim.eps`
    pub eps: f64,
    /// `optim.momentum`
    pub momentum: f64,
    /// `optim.nesterov`
    pub nesterov: bool,
    /// `optim.weight_decay`
    pub weight_decay: f64,
}

/// What one update has of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateNow {
    /// Updates so far, this one included.
    pub step: u64,
    /// Learning rate.
    pub lr: f64,
    /// Factor of the gradient (clipping).
    pub grad_scale: f32,
    /// Weight decay applies to the parameter.
    pub decays: bool,
}

/// Numbers that a device kernel is given, in the order of its parameters.
pub type Scalars = SmallVec<[f32; 8]>;

/// A row of the table: one optimizer. Its values are the numbers of one update, all decided on the host in
/// f32.
pub trait Optimizer: Copy {
    /// The states it may keep.
    const STATES: &'static [OptimState];
    /// The keys of `[optim]` that it reads beside those of every optimizer (`lr` to `decay_steps`,
    /// `weight_decay`, `grad_clip`), with their defaults.
    const KEYS: &'static [(&'static str, f64)];

    /// The states it keeps with these hyperparameters.
    fn states(_: &Hyper) -> &'static [OptimState] {
        Self::STATES
    }

    /// The numbers of an update.
    fn new(hyper: &Hyper, now: &UpdateNow) -> Self;

    /// The same as the kernel in `backend/cuda/kernels/` takes them, after its pointers and the number of
    /// elements.
    fn scalars(&self) -> Scalars;

    /// The definition: updates one weight and its states by its gradient.
    fn element(&self, weight: &mut f64, states: &mut OptimStates<f64>, grad: f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_found_by_their_name() {
        let mut both =
            OptimStates::of(&[OptimState::ExpAvg, OptimState::ExpAvgSq], |state| state.name().len());
        assert_eq!((both[OptimState::ExpAvg], both[OptimState::ExpAvgSq]), (7, 10));
        assert_eq!(both.named([OptimState::ExpAvgSq, OptimState::ExpAvg]), [10, 7]);
        assert_eq!(both.take(OptimState::ExpAvg), Some(7));
        assert_eq!(both.iter().collect::<Vec<_>>(), [(OptimState::ExpAvgSq, &10)]);
        assert_eq!(OptimStates::of(&[OptimState::ExpAvgSq], |_| 1).take(OptimState::ExpAvg), None);
    }
}

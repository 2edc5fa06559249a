//! What is stored of each parameter element: the fp32 weight and the states of the optimizer.
//!
//! Must not know: files, manifests.

use crate::optimizers::{OptimState, OptimStates};

/// What is stored of each parameter element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Fp32 master weight.
    Weight,
    /// A state of the optimizer, fp32.
    Optim(OptimState),
}

impl Kind {
    /// Those of an optimizer that keeps `states`, in file order.
    pub fn all(states: &[OptimState]) -> Vec<Kind> {
        std::iter::once(Kind::Weight).chain(states.iter().map(|&state| Kind::Optim(state))).collect()
    }

    /// Name of the HDF5 group that holds it, which is also its name in messages and in the manifest.
    pub fn group(self) -> &'static str {
        match self {
            Kind::Weight => "weight",
            Kind::Optim(state) => state.name(),
        }
    }

    /// The one of this name, if this program knows it.
    pub fn named(group: &str) -> Option<Kind> {
        let states = OptimState::ALL.into_iter().map(Kind::Optim);
        std::iter::once(Kind::Weight).chain(states).find(|kind| kind.group() == group)
    }
}

/// A value for each [`Kind`] that is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored<T> {
    /// That of the weights.
    pub weight: T,
    /// Those of the optimizer's states.
    pub states: OptimStates<T>,
}

impl<T> Stored<T> {
    /// One for each of `kinds`.
    pub fn of(kinds: &[Kind], mut make: impl FnMut(Kind) -> T) -> Self {
        let weight = make(Kind::Weight);
        let mut states = OptimStates::default();
        for &kind in kinds {
            if let Kind::Optim(state) = kind {
                states.set(state, make(kind));
            }
        }
        Stored { weight, states }
    }

    /// The value of `kind`; None where it is not stored.
    pub fn get(&self, kind: Kind) -> Option<&T> {
        match kind {
            Kind::Weight => Some(&self.weight),
            Kind::Optim(state) => self.states.get(state),
        }
    }

    /// The kinds it has a value for, in file order.
    pub fn kinds(&self) -> Vec<Kind> {
        let states: Vec<OptimState> = self.states.iter().map(|(state, _)| state).collect();
        Kind::all(&states)
    }

    /// The same kinds with other values.
    pub fn map<U>(self, mut make: impl FnMut(T) -> U) -> Stored<U> {
        Stored { weight: make(self.weight), states: self.states.map(make) }
    }

    /// References to the values.
    pub fn each_ref(&self) -> Stored<&T> {
        Stored { weight: &self.weight, states: self.states.each_ref() }
    }
}

impl<T, E> Stored<std::result::Result<T, E>> {
    /// The values, or the first error.
    pub fn transposed(self) -> std::result::Result<Stored<T>, E> {
        Ok(Stored { weight: self.weight?, states: self.states.transposed()? })
    }
}

impl serde::Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.group())
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.group())
    }
}

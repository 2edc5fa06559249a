//! Checkpoints: one HDF5 file per rank, one manifest, one atomic rename.
//!
//! ```text
//! RUN/checkpoints/step_00000100/manifest.json            the contents, and where each slice is
//!                               model.h5                 every parameter whole, for standard HDF5 tools
//!                               rank_0000_of_0004.h5     /weight/<param>, and a group per optimizer state
//! RUN/checkpoints/step_00000200.partial/                 being written: never read
//! ```
//!
//! | file | lives there |
//! | --- | --- |
//! | `validate` | the checks of a manifest |
//! | [`placed`] | where the slices of a parameter are stored; from a range to pieces of them |
//! | [`placed`] | where the slices of a parameter lie; from a range to pieces of them |
//! | [`write`](mod@write) | a rank's file: datasets, digests, fsync |
//! | [`find`] | the checkpoints of a run directory; the meaning of a user's PATH |
//! | [`find`] | which checkpoints a run directory holds; what a person's PATH means |
//! | [`weights_file`], `written` | initial weights from a foreign HDF5 file; whether all of its values were written |
//! | [`master`] | `model.h5`, which maps each parameter whole for standard HDF5 tools |
//! | [`inspect`](mod@inspect), [`diff`](mod@diff) | contents of a checkpoint; comparison of two |
//! | [`verify`](mod@verify), [`reshard`](mod@reshard) | damage to one; conversion to another rank count |
//! | [`verify`](mod@verify), [`reshard`](mod@reshard) | where one is damaged; the same one for another rank count |
//!
//! The format and the commit protocol are specified in `docs/checkpoint_format.md`.
//! Must not know: MPI, devices, plans; of decks only how files are locked. Its interface is host slices, and
//! the deck is an opaque string.
//! and the deck is an opaque string.

pub mod aside;
pub mod commit;
pub mod diff;
pub mod find;
mod h5;
pub mod inspect;
mod lock;
pub mod manifest;
pub mod master;
pub mod placed;
pub mod read;
pub mod reshard;
mod validate;
pub mod verify;
pub mod weights_file;
pub mod write;
mod written;

#[cfg(test)]
mod tests;

pub use aside::set_aside;
pub use commit::{check_free_space, clean_up, commit, prepare, retain};
pub use diff::{Diff, diff};
pub use find::{complete_checkpoints, newest, refuse_used, resolve};
pub use inspect::{Inspection, inspect};
pub use manifest::{Manifest, Slice};
pub use placed::Part;
pub use read::Reader;
pub use reshard::{Resharded, reshard};
pub use verify::{Verified, verify};
pub use weights_file::WeightsFile;
pub use write::{ParamSlice, SliceShape, Target, estimate_bytes, write_rank_file, write_slices};

use crate::optimizers::{OptimState, OptimStates};
use std::path::{Path, PathBuf};

/// Directory under the run directory that contains the step directories.
pub const CHECKPOINTS_DIR: &str = "checkpoints";
/// File name of the manifest in a step directory.
pub const MANIFEST_FILE: &str = "manifest.json";
/// File name of the master file in a step directory.
pub const MASTER_FILE: &str = "model.h5";
/// Link to the newest step directory, in the same directory.
pub const LATEST: &str = "latest";

/// The kinds of values stored per parameter element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Fp32 master weight.
    Weight,
    /// A state of the optimizer, fp32.
    Optim(OptimState),
}

impl Kind {
    /// Those of an optimizer with these `states`, in file order.
    pub fn all(states: &[OptimState]) -> Vec<Kind> {
        std::iter::once(Kind::Weight).chain(states.iter().map(|&state| Kind::Optim(state))).collect()
    }

    /// Name of its HDF5 group, also used in messages and in the manifest.
    pub fn group(self) -> &'static str {
        match self {
            Kind::Weight => "weight",
            Kind::Optim(state) => state.name(),
        }
    }

    /// The kind of this name, if known.
    pub fn named(group: &str) -> Option<Kind> {
        let states = OptimState::ALL.into_iter().map(Kind::Optim);
        std::iter::once(Kind::Weight).chain(states).find(|kind| kind.group() == group)
    }
}

/// A value for each [`Kind`] that is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored<T> {
    /// For the weights.
    pub weight: T,
    /// For the optimizer's states.
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

    /// The value of `kind`; None if it is not stored.
    pub fn get(&self, kind: Kind) -> Option<&T> {
        match kind {
            Kind::Weight => Some(&self.weight),
            Kind::Optim(state) => self.states.get(state),
        }
    }

    /// The kinds with a value, in file order.
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

/// `RUN/checkpoints`.
pub fn checkpoints_dir(run_dir: &Path) -> PathBuf {
    run_dir.join(CHECKPOINTS_DIR)
}

/// Final name of a step's directory, e.g. `step_00000100`.
pub fn step_dir_name(step: u64) -> String {
    format!("step_{step:08}")
}

/// Path of a committed step.
pub fn step_dir(run_dir: &Path, step: u64) -> PathBuf {
    checkpoints_dir(run_dir).join(step_dir_name(step))
}

/// Directory of a step's files before the commit.
pub fn partial_dir(run_dir: &Path, step: u64) -> PathBuf {
    checkpoints_dir(run_dir).join(format!("{}.partial", step_dir_name(step)))
}

/// Name of a rank's file, ranks counted from 0, e.g. `rank_0001_of_0004.h5`. Used by writers; readers follow
/// the manifest.
pub fn rank_file_name(rank: usize, world_size: usize) -> String {
    format!("rank_{rank:04}_of_{world_size:04}.h5")
}

//! Checkpoints: one HDF5 file per rank, one manifest, one atomic rename.
//!
//! ```text
//! RUN/checkpoints/step_00000100/manifest.json            what is here, and where
//!                               model.h5                 the same, each parameter whole, for people's tools
//!                               rank_0000_of_0004.h5     /weight/<param>, and a group for each state of the optimizer
//! RUN/checkpoints/step_00000200.partial/                 being written: nobody reads it
//! ```
//!
//! | file | lives there |
//! | --- | --- |
//! | `kind`, `layout` | weights and the optimizer's states; names of directories and files |
//! | [`manifest`] | the manifest: fields, bytes, digest |
//! | `validate` | everything that makes a manifest unacceptable |
//! | [`slice_map`] | where the slices of a parameter lie; from a range to pieces of them |
//! | [`write`](mod@write) | a rank's file: datasets, digests, fsync |
//! | [`commit`](mod@commit) | prepare, commit, retain: which names exist on disk at every instant |
//! | [`find`] | which checkpoints a run directory holds; what a person's PATH means |
//! | [`read`] | from a parameter's range to file ranges, and the verified bytes |
//! | [`weights_file`], `written` | initial weights from somebody else's HDF5 file; whether all of its values are there |
//! | [`master`] | `model.h5`, which shows each parameter whole to people's tools |
//! | [`inspect`](mod@inspect), [`diff`](mod@diff) | what a checkpoint holds; where two differ |
//! | [`verify`](mod@verify), [`reshard`](mod@reshard) | where one is damaged; the same one for another rank count |
//!
//! The format and the commit protocol are specified in `docs/checkpoint_format.md`.
//!
//! Must not know: MPI, devices; of plans only which slice of a parameter a rank owns, of decks only how files
//! are locked. It takes and gives host slices, and the deck is an opaque string.

pub mod aside;
pub mod commit;
pub mod diff;
pub mod find;
mod h5;
pub mod inspect;
mod layout;
mod lock;
pub mod manifest;
pub mod master;
pub mod read;
pub mod reshard;
pub mod slice_map;
mod stored;
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
pub use layout::{
    CHECKPOINTS_DIR, LATEST, MANIFEST_FILE, MASTER_FILE, checkpoints_dir, partial_dir, rank_file_name,
    step_dir, step_dir_name,
};
pub use manifest::{Manifest, SliceRecord};
pub use read::Reader;
pub use reshard::{Resharded, reshard};
pub use slice_map::Part;
pub use stored::{Kind, Stored};
pub use verify::{Verified, verify};
pub use weights_file::WeightsFile;
pub use write::{SliceValues, Target, estimate_bytes, write_rank_file, write_slices};

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
//! | `kind`, `layout` | weights and the optimizer's states; names of directories and files |
//! | [`manifest`] | the manifest: fields, bytes, digest |
//! | `validate` | the checks of a manifest |
//! | [`slice_map`] | where the slices of a parameter are stored; from a range to pieces of them |
//! | [`write`](mod@write) | a rank's file: datasets, digests, fsync |
//! | [`commit`](mod@commit) | prepare, commit, retain: which names exist on disk at every instant |
//! | [`find`] | the checkpoints of a run directory; the meaning of a user's PATH |
//! | [`read`] | from a parameter's range to file ranges, and the verified bytes |
//! | [`weights_file`], `written` | initial weights from a foreign HDF5 file; whether all of its values were written |
//! | [`master`] | `model.h5`, which maps each parameter whole for standard HDF5 tools |
//! | [`inspect`](mod@inspect), [`diff`](mod@diff) | contents of a checkpoint; comparison of two |
//! | [`verify`](mod@verify), [`reshard`](mod@reshard) | damage to one; conversion to another rank count |
//!
//! The format and the commit protocol are specified in `docs/checkpoint_format.md`.
//!
//! Must not know: MPI, devices; of plans only which slice of a parameter a rank owns, of decks only how files
//! are locked. Its interface is host slices, and the deck is an opaque string.

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

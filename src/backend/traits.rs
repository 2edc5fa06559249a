//! A backend: a device and the communicator that goes with it.

use super::comm::Comm;
use super::device::Device;
use super::mpi;
use crate::config::BackendKind;
use crate::error::Result;

/// A device and the communicator that goes with it; chosen once in `cli`.
pub trait Backend {
    /// Its name in decks.
    const KIND: BackendKind;
    /// The same in records of a run: `cpu` or `cuda`.
    const NAME: &'static str = Self::KIND.name();
    /// Where kernels run.
    type Device: Device;
    /// How slices travel.
    type Comm: Comm<Event = <Self::Device as Device>::Event, Mark = <Self::Device as Device>::Mark>;

    /// Connects the ranks of `members`, some of those of `comm`, to move slices among themselves. Collective
    /// over the members.
    ///
    /// # Errors
    /// The same on every member: one of them has not connected, or the library fails.
    fn group(comm: &Self::Comm, members: mpi::Group) -> Result<Self::Comm>;

    /// Versions of the libraries it loads at run time, by name; with those that connect ranks where there are
    /// several.
    fn library_versions(_has_peers: bool) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// A point on a queue of a backend's device, with its time.
pub type MarkOf<B> = <<B as Backend>::Device as Device>::Mark;

/// A sum that a backend's device may not have finished.
pub type SumOf<B> = <<B as Backend>::Device as Device>::Sum;

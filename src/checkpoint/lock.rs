//! Advisory locks on rank files, as the deck's `checkpoint.locking` says.
//!
//! \[Note: locks\] A rank file has one writer, is read only after the commit, and is never changed
//! afterwards, so a lock guards against nothing that the commit protocol leaves open; and some network file
//! systems refuse locks. HDF5's own are therefore always off, and ours are there for sites that want them.
//!
//! Must not know: HDF5.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::config::Locking;
use crate::error::{Error, Result};

/// What a file is locked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Locks an open file until it is closed. Errors: another process holds it; or, where locks are demanded, the
/// file system has none.
pub(super) fn hold(file: &File, path: &Path, locking: Locking, access: Access) -> Result<()> {
    if locking == Locking::Off {
        return Ok(());
    }
    let outcome = match access {
        Access::Read => file.try_lock_shared(),
        Access::Write => file.try_lock(),
    };
    match outcome {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::Io(format!(
            "{} is locked by another process; wait for it, or set checkpoint.locking=off",
            path.display()
        ))),
        Err(TryLockError::Error(_)) if locking == Locking::BestEffort => Ok(()),
        Err(TryLockError::Error(e)) => Err(Error::Io(format!(
            "{} cannot be locked: {e}; on a file system without locks set checkpoint.locking=best_effort or \
             off",
            path.display()
        ))),
    }
}

//! Advisory locks on rank files, controlled by the deck's `checkpoint.locking`.
//!
//! \[Note: locks\] A rank file has one writer, is read only after the commit, and never changes afterwards,
//! so a lock adds nothing to the commit protocol, and some network file systems do not support locks. HDF5's
//! own are therefore always disabled; these exist for sites that want them.
//!
//! Must not know: HDF5.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::config::Locking;
use crate::error::{Error, Result};

/// The purpose of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Locks an open file until it is closed. Errors: another process holds the lock; or locks are required, and
/// the file system does not support them.
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

//! Errors and exit codes. The text of every user-facing error is here or where it is raised, once.
//!
//! Must not know: MPI, HDF5, decks. It is at the bottom of the layer table.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The exit code, for the scheduler. Documented in README and `zero3 --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Finished = 0,
    /// A comparison found a difference (`ckpt diff`).
    Differs = 1,
    /// Bad deck, input or checkpoint.
    BadInput = 2,
    /// Acceptance criteria not met.
    NotAccepted = 3,
    /// Training became non-finite.
    NonFinite = 4,
    /// Communication, device or I/O failure.
    CommFailure = 5,
    /// A broken invariant of the program itself.
    Internal = 70,
    /// Stopped early with a checkpoint saved: to be requeued.
    StoppedEarly = 75,
}

impl Exit {
    /// The number, for `MPI_Abort` and `std::process::exit`.
    pub fn code(self) -> i32 {
        self as i32
    }
}

/// A wrong key of a deck: its value, and what would be valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Dotted key, e.g. `train.micro_batch_size`.
    pub key: String,
    /// The value as the user wrote it.
    pub value: String,
    /// What would be valid, e.g. `an integer of at least 1`.
    pub wants: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.key, self.value, self.wants)
    }
}

/// All faults of a file, one per line, after `the deck has 2 faults:`.
pub fn all_faults(file: &str, faults: &[Fault]) -> String {
    let lines: Vec<String> = faults.iter().map(|fault| format!("  {fault}")).collect();
    format!(
        "{file} has {} fault{}:\n{}",
        faults.len(),
        if faults.len() == 1 { "" } else { "s" },
        lines.join("\n")
    )
}

/// Every way the program can fail; the variant determines the exit code. Errors are sent between ranks, so
/// that all learn the verdict of one.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// All faults of a deck at once. Exit code 2.
    #[error("{}", all_faults("the deck", .0))]
    Deck(Vec<Fault>),
    /// A data file, path or argument that cannot be used. Exit code 2.
    #[error("{0}")]
    Input(String),
    /// A checkpoint that is missing, damaged or does not fit. Exit code 2.
    #[error("{0}")]
    Checkpoint(String),
    /// Training became non-finite. Exit code 4.
    #[error("{0}")]
    NonFinite(String),
    /// MPI, NCCL or a device failed. Exit code 5.
    #[error("{0}")]
    Comm(String),
    /// Writing logs or checkpoints failed in the operating system. Exit code 5.
    #[error("{0}")]
    Io(String),
    /// Stopped before there was anything to save: run the same command again. Exit code 75.
    #[error("{0}")]
    Stopped(String),
    /// A broken invariant of the program. Exit code 70.
    #[error("internal error: {0}")]
    Internal(String),
    /// An error of one rank that all ranks know: that rank prints it, and all exit together with its code.
    #[error("{error}")]
    Agreed {
        /// The rank that had it.
        rank: usize,
        /// The error.
        error: Box<Error>,
    },
}

impl Error {
    /// The exit code of a process that ends with this error.
    pub fn exit(&self) -> Exit {
        match self {
            Error::Deck(_) | Error::Input(_) | Error::Checkpoint(_) => Exit::BadInput,
            Error::NonFinite(_) => Exit::NonFinite,
            Error::Comm(_) | Error::Io(_) => Exit::CommFailure,
            Error::Stopped(_) => Exit::StoppedEarly,
            Error::Internal(_) => Exit::Internal,
            Error::Agreed { error, .. } => error.exit(),
        }
    }

    /// Raises an error where none can be returned, such as the launch of a kernel on a failed device: by a
    /// panic that carries the error. `cli` reports it like any other error, with its exit code.
    pub fn raise(self) -> ! {
        std::panic::panic_any(self)
    }

    /// An operating-system error with the call and the path.
    pub fn io(call: &str, path: &std::path::Path, err: &std::io::Error) -> Self {
        Error::Io(format!("{call} {}: {err}", path.display()))
    }
}

/// The result type of the whole library.
pub type Result<T> = std::result::Result<T, Error>;

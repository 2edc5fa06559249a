//! Errors and exit codes. Every fault a person can meet is worded here or where it is raised, once.
//!
//! Must not know: MPI, HDF5, decks. It is the bottom of the layer table.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What the process tells the scheduler. Documented in README and `zero3 --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The work asked for is done.
    Finished = 0,
    /// Two things that were compared differ (`ckpt diff`).
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
    /// Stopped early with a checkpoint saved: requeue me.
    StoppedEarly = 75,
}

impl Exit {
    /// The number itself, as `MPI_Abort` and `std::process::exit` want it.
    pub fn code(self) -> i32 {
        self as i32
    }
}

/// One wrong key of a deck: what was written, and what would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Dotted key, e.g. `train.micro_batch_size`.
    pub key: String,
    /// The value as the person wrote it.
    pub value: String,
    /// What would do instead, e.g. `an integer of at least 1`.
    pub wants: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.key, self.value, self.wants)
    }
}

/// All faults of a file, one a line: `the deck has 2 faults:` and what they are.
pub fn all_faults(file: &str, faults: &[Fault]) -> String {
    let lines: Vec<String> = faults.iter().map(|fault| format!("  {fault}")).collect();
    format!(
        "{file} has {} fault{}:\n{}",
        faults.len(),
        if faults.len() == 1 { "" } else { "s" },
        lines.join("\n")
    )
}

/// Every way the program can fail; the variant decides the exit code. It travels between ranks, so that all
/// learn the verdict of one.
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
    /// Told to stop before there was anything to save: the same command goes on. Exit code 75.
    #[error("{0}")]
    Stopped(String),
    /// The program broke its own rule. Exit code 70.
    #[error("internal error: {0}")]
    Internal(String),
    /// One rank met it and all ranks know: that rank says it, and all leave together with its exit code.
    #[error("{error}")]
    Agreed {
        /// The rank that met it.
        rank: usize,
        /// What it met.
        error: Box<Error>,
    },
}

impl Error {
    /// The exit code this error ends the process with.
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

    /// Ends the work at a place that returns nothing, such as the launch of a kernel on a device that has
    /// failed: by a panic that carries the error. `cli` says it as any other error, with its exit code.
    pub fn raise(self) -> ! {
        std::panic::panic_any(self)
    }

    /// An operating-system error with the call and the path it happened on.
    pub fn io(call: &str, path: &std::path::Path, err: &std::io::Error) -> Self {
        Error::Io(format!("{call} {}: {err}", path.display()))
    }
}

/// The result type of the whole library.
pub type Result<T> = std::result::Result<T, Error>;

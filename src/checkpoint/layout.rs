//! The names of directories and files under `RUN/checkpoints`.
//!
//! Must not know: what is in them, which of them exist.

use std::path::{Path, PathBuf};

/// Directory under the run directory that holds the step directories.
pub const CHECKPOINTS_DIR: &str = "checkpoints";
/// File name of the manifest in a step directory.
pub const MANIFEST_FILE: &str = "manifest.json";
/// File name of the master file in a step directory.
pub const MASTER_FILE: &str = "model.h5";
/// Link to the newest step directory, beside the step directories.
pub const LATEST: &str = "latest";

/// `RUN/checkpoints`.
pub fn checkpoints_dir(run_dir: &Path) -> PathBuf {
    run_dir.join(CHECKPOINTS_DIR)
}

/// Final name of a step's directory, e.g. `step_00000100`.
pub fn step_dir_name(step: u64) -> String {
    format!("step_{step:08}")
}

/// Where a step lies once committed.
pub fn step_dir(run_dir: &Path, step: u64) -> PathBuf {
    checkpoints_dir(run_dir).join(step_dir_name(step))
}

/// Where every rank writes its file of this step before the commit.
pub fn partial_dir(run_dir: &Path, step: u64) -> PathBuf {
    checkpoints_dir(run_dir).join(format!("{}.partial", step_dir_name(step)))
}

/// Name of a rank's file, ranks counted from 0, e.g. `rank_0001_of_0004.h5`. Writers use it; readers follow
/// the manifest.
pub fn rank_file_name(rank: usize, world_size: usize) -> String {
    format!("rank_{rank:04}_of_{world_size:04}.h5")
}

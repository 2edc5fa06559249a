//! `zero3 ckpt ...`: inspecting, verifying, comparing and resharding checkpoints. One process, no MPI.

use super::args::{
    CkptCommand, CkptDiffArgs, CkptExportArgs, CkptImportArgs, CkptInspectArgs, CkptReshardArgs,
    CkptVerifyArgs,
};
use super::logging;
use super::said::Said;
use crate::backend::cpu::CpuDevice;
use crate::checkpoint;
use crate::config::Locking;
use crate::error::{Error, Exit, Result};
use crate::hf;
use crate::records::progress::BytesBar;
use crate::train::run_lock::{Holder, RunLock};
use std::cell::OnceCell;
use std::io::IsTerminal;
use std::path::Path;

pub(super) fn run(command: &CkptCommand) -> Result<Said> {
    match command {
        CkptCommand::Inspect(args) => inspect(args),
        CkptCommand::Verify(args) => verify(args),
        CkptCommand::Diff(args) => diff(args),
        CkptCommand::Reshard(args) => reshard(args),
        CkptCommand::Export(args) => export(args),
        CkptCommand::Import(args) => import(args),
    }
}

fn inspect(args: &CkptInspectArgs) -> Result<Said> {
    let found = checkpoint::inspect(&args.path)?;
    Ok(said(&found, args.json, Exit::Finished))
}

fn verify(args: &CkptVerifyArgs) -> Result<Said> {
    let n_bytes = checkpoint::verify::bytes_to_verify(&args.path)?;
    let bar = BytesBar::new("verifying", n_bytes, std::io::stderr().is_terminal());
    let found = checkpoint::verify(&args.path, &|done| bar.set(done));
    bar.finish();
    let found = found?;
    let exit = if found.damage.is_empty() { Exit::Finished } else { Exit::BadInput };
    Ok(said(&found, args.json, exit))
}

fn diff(args: &CkptDiffArgs) -> Result<Said> {
    let found = checkpoint::diff(&args.a, &args.b)?;
    let exit = if found.is_equal() { Exit::Finished } else { Exit::Differs };
    Ok(said(&found, args.json, exit))
}

fn reshard(args: &CkptReshardArgs) -> Result<Said> {
    let values = checkpoint::inspect(&args.source)?.psi as u64 * 12;
    let bar = BytesBar::new("resharding", values, std::io::stderr().is_terminal());
    let done = in_held_dir(&args.run_dir, || {
        checkpoint::reshard(&args.source, &args.run_dir, args.n_ranks, |done| bar.set(done))
    });
    bar.finish();
    Ok(said(&done?, false, Exit::Finished))
}

fn export(args: &CkptExportArgs) -> Result<Said> {
    let n_bytes = (checkpoint::inspect(&args.source)?.psi * args.dtype.bytes()) as u64;
    let bar = BytesBar::new("exporting", n_bytes, std::io::stderr().is_terminal());
    let CkptExportArgs { source, out_dir, dtype, max_shard_bytes, .. } = args;
    let done = hf::export::<CpuDevice>(source, out_dir, *dtype, *max_shard_bytes, &|done| bar.set(done));
    bar.finish();
    Ok(Said { text: done?.to_string(), exit: Exit::Finished })
}

fn import(args: &CkptImportArgs) -> Result<Said> {
    // The amount of work is known once the files are matched.
    let bar = OnceCell::new();
    let begun = |total| BytesBar::new("importing", total, std::io::stderr().is_terminal());
    let progress = |done, total| bar.get_or_init(|| begun(total)).set(done);
    let done = in_held_dir(&args.run_dir, || {
        hf::import::<CpuDevice>(&args.source, &args.run_dir, args.n_ranks, &progress)
    });
    if let Some(bar) = bar.get() {
        bar.finish();
    }
    Ok(Said { text: done?.to_string(), exit: Exit::Finished })
}

/// Works on a run directory that no run uses meanwhile, nor another such command: the lock is that of runs.
/// A directory that was made for the work goes again where that fails.
fn in_held_dir<T>(run_dir: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    logging::init("warn", 0);
    let is_new = !run_dir.exists();
    std::fs::create_dir_all(run_dir).map_err(|e| Error::io("mkdir", run_dir, &e))?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let lock = RunLock::hold(run_dir, Locking::BestEffort, &Holder::this(host.trim()));
    let lock = lock.map_err(|error| match error {
        Error::Input(words) => Error::Input(
            words.replace("run.dir = ", "").replace("set a different run.dir", "name a different directory"),
        ),
        other => other,
    })?;
    let done = work();
    drop(lock);
    if is_new && done.is_err() {
        // Removed only where it is empty.
        std::fs::remove_dir(run_dir).ok();
    }
    done
}

fn said<T: serde::Serialize + std::fmt::Display>(found: &T, json: bool, exit: Exit) -> Said {
    let as_json = || serde_json::to_string_pretty(found).expect("plain data");
    Said { text: if json { as_json() } else { found.to_string() }, exit }
}

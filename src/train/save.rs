//! Saving: synchronously, or asynchronously from a copy.
//!
//! A save has three stages: every rank writes its file; the log row of its step reaches the disk; rank 0
//! commits. With `checkpoint.async_save` the first and the last run on a thread, and the ranks agree after
//! each step whether all are done, so every rank enters each stage at the same step boundary. Training then
//! stalls only for the copy. A save that starts before the previous one is done waits for it.
//!
//! Must not know: HDF5, what a step computes.

use super::batches::Batches;
use super::state::{self, Position};
use super::stepper::Stepper;
use crate::backend::agree::{all_or_none, all_to_rank_0, decided_by_rank_0};
use crate::backend::{Backend, Comm};
use crate::checkpoint::manifest::FileRecord;
use crate::checkpoint::{self, Manifest, SliceValues, Stored, Target};
use crate::config::{Deck, OnSaveError};
use crate::data::mapped::Change;
use crate::error::{Error, Result};
use crate::human;
use crate::plan::slice::owned_slices;
use crate::plan::{Plan, Slice};
use crate::records::StepLog;
use crate::telemetry::{MemKind, Phase};
use crate::test_hooks::fault_point;
use crate::threads::Work;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Plans the host memory of asynchronous saves, if the deck enables them.
pub fn plan_staging(plan: &mut Plan, deck: &Deck) {
    if deck.checkpoint.async_save && deck.checkpoint.every > 0 {
        plan.stage_saves();
    }
}

/// The saves of a run.
pub struct Saver<'a> {
    deck: &'a Deck,
    batches: &'a Batches,
    /// Buffer for a copy of this rank's state; empty without asynchronous saves, and while a writer uses it.
    staging: Vec<f32>,
    pending: Option<(Position, Stage)>,
    began: Instant,
    /// Duration of the save that ended since the last query.
    took: Option<Duration>,
    last: Option<PathBuf>,
    newest_failure: Option<String>,
    data_look: DataLook,
}

/// Data files that change while they are read are looked for whenever a step saves.
#[derive(Default)]
struct DataLook {
    has_warned: bool,
    /// Number of the file to begin with.
    next: usize,
}

/// Files looked at whenever a step saves, in turn: a look takes a round trip to a file server.
const MAX_LOOKS: usize = 256;

impl DataLook {
    /// Warns of a data file that was written to, replaced or removed since it was opened; once.
    fn take(&mut self, batches: &Batches) {
        if self.has_warned {
            return;
        }
        let n_files = batches.files().count();
        let in_turn = batches.files().chain(batches.files()).skip(self.next).take(n_files.min(MAX_LOOKS));
        let changed = in_turn.map(|file| (file, file.change())).find(|(_, change)| change.is_some());
        self.next = (self.next + MAX_LOOKS) % n_files.max(1);
        if let Some((file, Some(change))) = changed {
            self.has_warned = true;
            let what = match change {
                Change::Written => {
                    "was written to while this run reads it: later steps may read the new bytes"
                }
                Change::Replaced => {
                    "was removed or replaced since this run opened it, which still reads the old one"
                }
            };
            log::warn!(
                "{} {what}; a resume compares the data with what the checkpoint was trained on and refuses \
                 others, unless data.allow_changed=true",
                file.path().display()
            );
        }
    }
}

/// Stage of a save, the same on every rank.
enum Stage {
    /// The files are being written from the copies, which are returned with the record.
    Writing(Work<(Vec<f32>, Result<FileRecord>)>),
    /// All files are written and durable; rank 0 has their records.
    Written(Vec<FileRecord>),
    /// Rank 0 is committing; the other ranks have nothing to do.
    Committing(Option<Work<Result<PathBuf>>>),
}

impl Stage {
    /// As text, for ranks that wait.
    fn name(&self) -> &'static str {
        match self {
            Stage::Writing(_) => "files of the save",
            Stage::Written(_) => "commit",
            Stage::Committing(_) => "end of the commit",
        }
    }
}

impl<'a> Saver<'a> {
    /// Ready to save; asynchronous saves allocate their memory here, once.
    pub fn new<B: Backend>(stepper: &Stepper<'_, B>, deck: &'a Deck, batches: &'a Batches) -> Self {
        let mut staging = Vec::new();
        let bytes = stepper.plan.host_staging_bytes;
        if bytes > 0 {
            stepper.memory.count_outside(MemKind::Staging, bytes);
            if stepper.comm.rank() == 0 {
                log::info!(
                    "checkpoints are written asynchronously, from {} of host staging",
                    human::bytes(bytes)
                );
            }
            // Not zeros: the pages must be resident before the first save.
            staging = vec![1.0; bytes as usize / size_of::<f32>()];
        }
        Saver {
            deck,
            batches,
            staging,
            pending: None,
            began: Instant::now(),
            took: None,
            last: None,
            newest_failure: None,
            data_look: DataLook::default(),
        }
    }

    /// The newest checkpoint of this process.
    pub fn into_last(self) -> Option<PathBuf> {
        self.last
    }

    /// Why the newest save produced no checkpoint, if it failed.
    pub fn newest_failure(&self) -> Option<&str> {
        self.newest_failure.as_deref()
    }

    /// Duration from start to commit of a save that has ended since the last call.
    pub fn take_seconds(&mut self) -> Option<f64> {
        self.took.take().map(|took| took.as_secs_f64())
    }

    /// Starts the save of the current state; the log row of this step comes next. Collective.
    pub fn begin<B: Backend>(
        &mut self,
        stepper: &Stepper<'_, B>,
        at: Position,
        log: Option<&mut StepLog>,
    ) -> Result<()> {
        self.drain(stepper, log)?;
        let outer = stepper.timer.switch(Phase::Checkpoint);
        stepper.flight.at(at.step, "save", None);
        self.began = Instant::now();
        if stepper.comm.rank() == 0 {
            self.data_look.take(self.batches);
        }
        let started = self.start(stepper, at);
        let outcome = match started {
            Ok(stage) => {
                self.pending = Some((at, stage));
                Ok(())
            }
            Err(error) => self.failed(stepper, at, error),
        };
        stepper.timer.switch(outer);
        outcome
    }

    /// Advances a save as far as possible without waiting for a thread, after each step. Collective.
    pub fn advance<B: Backend>(&mut self, stepper: &Stepper<'_, B>, log: Option<&mut StepLog>) -> Result<()> {
        self.proceed(stepper, log, false)
    }

    /// Completes a save in progress. Collective.
    pub fn drain<B: Backend>(&mut self, stepper: &Stepper<'_, B>, log: Option<&mut StepLog>) -> Result<()> {
        self.proceed(stepper, log, true)
    }

    fn start<B: Backend>(&mut self, stepper: &Stepper<'_, B>, at: Position) -> Result<Stage> {
        let (rank, world_size) = (stepper.comm.rank(), stepper.comm.size());
        let run_dir = Path::new(&self.deck.run.dir);
        let (spec, kinds) = (&stepper.model.spec, state::stored(stepper.plan));
        let slices = owned_slices(spec.names_and_shapes(), world_size, rank);
        let own_bytes = checkpoint::estimate_bytes(&slices, kinds.len());
        let needed: u64 = all_or_none(stepper.comm, Ok(own_bytes))?.iter().sum();
        let partial = decided_by_rank_0(stepper.comm, || {
            std::fs::create_dir_all(run_dir).map_err(|e| Error::io("mkdir", run_dir, &e))?;
            let partial = checkpoint::prepare(run_dir, at.step)?; // frees what dead saves left
            checkpoint::check_free_space(&partial, needed)?;
            Ok(partial)
        })?;
        fault_point("save.begin", rank, at.step);

        let owned = state::owned(stepper)?;
        let locking = self.deck.checkpoint.locking;
        // A run that saves only when stopped has planned no staging.
        if stepper.plan.host_staging_bytes == 0 {
            let values: Vec<Stored<&[f32]>> =
                owned.iter().map(|stored| stored.each_ref().map(|v| &**v)).collect();
            let target = Target { dir: &partial, rank, world_size, step: at.step, kinds: &kinds, locking };
            let own = write(&target, &slices, &values);
            return Ok(Stage::Written(all_to_rank_0(stepper.comm, own)?));
        }

        let mut staging = std::mem::take(&mut self.staging);
        let mut places: Vec<Stored<Range<usize>>> = Vec::with_capacity(owned.len());
        let mut end = 0;
        for stored in &owned {
            places.push(stored.each_ref().map(|values| {
                let place = end..end + values.len();
                staging[place.clone()].copy_from_slice(values);
                end = place.end;
                place
            }));
        }
        // The staging buffer includes padding; the last ranks' slices are smaller, or empty.
        assert!(end <= staging.len(), "{end} values of this rank, staging for {}", staging.len());
        let (step, params) = (at.step, spec.params.clone());
        let writer = Work::start("checkpoint writer", move || {
            let values: Vec<Stored<&[f32]>> =
                places.iter().map(|p| p.each_ref().map(|r| &staging[r.clone()])).collect();
            let target = Target { dir: &partial, rank, world_size, step, kinds: &kinds, locking };
            let params = params.iter().map(|p| (p.name.as_str(), p.shape.as_slice()));
            let own = write(&target, &owned_slices(params, world_size, rank), &values);
            (staging, own)
        });
        Ok(Stage::Writing(writer))
    }

    fn proceed<B: Backend>(
        &mut self,
        stepper: &Stepper<'_, B>,
        mut log: Option<&mut StepLog>,
        wait: bool,
    ) -> Result<()> {
        let outer = stepper.timer.switch(Phase::Checkpoint);
        let wait = wait || !self.deck.checkpoint.async_save;
        let mut outcome = Ok(());
        while outcome.is_ok() {
            let Some((at, stage)) = self.pending.take() else { break };
            stepper.flight.at(at.step, stage.name(), None);
            let ready = match &stage {
                Stage::Writing(writer) => wait || all_ready(stepper, writer.is_finished())?,
                Stage::Written(_) => true,
                Stage::Committing(commit) => {
                    wait || all_ready(stepper, commit.as_ref().is_none_or(Work::is_finished))?
                }
            };
            if !ready {
                self.pending = Some((at, stage));
                break;
            }
            let next = match stage {
                Stage::Writing(writer) => {
                    let (staging, own) = writer.join();
                    self.staging = staging;
                    all_to_rank_0(stepper.comm, own).map(|files| Some(Stage::Written(files)))
                }
                Stage::Written(files) => self.begin_commit(stepper, at, log.as_deref_mut(), files),
                Stage::Committing(commit) => {
                    let dir = decided_by_rank_0(stepper.comm, || commit.expect("rank 0 commits").join());
                    dir.map(|dir| {
                        fault_point("save.done", stepper.comm.rank(), at.step);
                        self.took = Some(self.began.elapsed());
                        self.last = Some(dir);
                        self.newest_failure = None;
                        None
                    })
                }
            };
            match next {
                Ok(next) => self.pending = next.map(|stage| (at, stage)),
                Err(error) => outcome = self.failed(stepper, at, error),
            }
        }
        stepper.timer.switch(outer);
        outcome
    }

    /// Flushes the rows so far, then rank 0 commits: here, or on a thread.
    fn begin_commit<B: Backend>(
        &mut self,
        stepper: &Stepper<'_, B>,
        at: Position,
        log: Option<&mut StepLog>,
        files: Vec<FileRecord>,
    ) -> Result<Option<Stage>> {
        let comm = stepper.comm;
        all_or_none(comm, log.map_or(Ok(()), |log| log.sync()))?;
        fault_point("save.commit", comm.rank(), at.step);
        if comm.rank() != 0 {
            return Ok(Some(Stage::Committing(None)));
        }
        let manifest = state::manifest(&stepper.model.spec, comm.size(), self.deck, self.batches, at, files);
        let (run_dir, c) = (PathBuf::from(&self.deck.run.dir), &self.deck.checkpoint);
        let (keep_last, keep_every) = (c.keep_last, c.keep_every);
        let commit = move || commit(&run_dir, manifest, keep_last, keep_every);
        Ok(Some(Stage::Committing(Some(Work::start("checkpoint commit", commit)))))
    }

    /// A failed save: it is cleaned up, and the deck decides whether the run ends. Collective.
    fn failed<B: Backend>(&mut self, stepper: &Stepper<'_, B>, at: Position, error: Error) -> Result<()> {
        // Every rank knows of it; an error of a single rank is not necessarily one of the disk.
        let (rank, error) = match error {
            Error::Agreed { rank, error } if matches!(*error, Error::Io(_) | Error::Checkpoint(_)) => {
                (rank, error)
            }
            other => return Err(other),
        };
        // No rank is still writing, and none ends the job before the space is free again.
        let cleared = decided_by_rank_0(stepper.comm, || {
            Ok(checkpoint::clean_up(Path::new(&self.deck.run.dir)).is_ok_and(|left| left.is_empty()))
        })?;
        let why = format!("the checkpoint of step {} failed: {error}", at.step);
        if self.deck.checkpoint.on_error == OnSaveError::Stop {
            let why = format!(
                "{why}; earlier checkpoints are intact (with checkpoint.on_error=continue the run would \
                 continue)"
            );
            return Err(Error::Agreed { rank, error: Box::new(Error::Io(why)) });
        }
        if stepper.comm.rank() == 0 {
            let left = if cleared { "" } else { "; its files could not be removed yet" };
            log::error!("{why}; the run continues, and earlier checkpoints are intact{left}");
        }
        self.newest_failure = Some(error.to_string());
        Ok(())
    }
}

/// This rank's file; `values` by parameter.
fn write(target: &Target<'_>, slices: &[Slice<'_>], values: &[Stored<&[f32]>]) -> Result<FileRecord> {
    let slices: Vec<SliceValues<'_>> =
        slices.iter().zip(values).map(|(&slice, &values)| SliceValues { slice, values }).collect();
    let record = checkpoint::write_slices(target, &slices);
    fault_point("save.written", target.rank, target.step);
    record
}

/// Rank 0's part: the master file, the commit, and the removal of old checkpoints, whose failure does not
/// fail the save.
fn commit(run_dir: &Path, manifest: Manifest, keep_last: usize, keep_every: u64) -> Result<PathBuf> {
    let dir = checkpoint::master::finish(run_dir, manifest)?;
    let left = match checkpoint::retain(run_dir, keep_last, keep_every) {
        Ok((_, left)) => left,
        Err(why) => vec![why.to_string()],
    };
    for why in left {
        log::warn!("an old checkpoint cannot be removed yet; the next save will try again: {why}");
    }
    Ok(dir)
}

/// All ranks are ready; every rank receives the same answer. Collective.
fn all_ready<B: Backend>(stepper: &Stepper<'_, B>, own: bool) -> Result<bool> {
    Ok(stepper.comm.control().all_gather_f64(&[f64::from(u8::from(own))])?.iter().all(|&ready| ready == 1.0))
}

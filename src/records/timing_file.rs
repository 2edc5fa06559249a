//! `timing.json`: timing of a run for a scheduler and for sizing time limits, updated during the run.
//!
//! It outlives the process: a resumed run reads and continues its predecessor's file. It also decides when
//! there is no time for another step. Must not know: MPI, checkpoints, the contents of steps.

use crate::batch::job_clock::JobClock;
use crate::batch::job_comment::JobComment;
use crate::batch::signals;
use crate::batch::signals::{Limit, Stop};
use crate::clock::unix_now;
use crate::files;
use crate::liveness::stragglers::StepShares;
use crate::quantile::quantile;
use crate::telemetry::step_row::RankStep;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Step times stored for median and p95.
const N_KEPT: usize = 1024;
/// Minimum interval between writes of the file, except at saves and the end.
const EVERY: Duration = Duration::from_secs(10);
/// Margin for a save that takes longer than any before.
const SAVE_FACTOR: f64 = 2.0;
/// Margin for closing files and leaving MPI.
const LEAVE_SECONDS: f64 = 3.0;
/// Slurm sends a signal up to a minute early or late.
const SIGNAL_SLACK_SECONDS: f64 = 60.0;
/// Upper limit of all times, dates since 1970 included: a thousand years.
const LONGEST_SECONDS: f64 = 3.2e10;
/// Assumed write speed of a disk before a save has been measured.
const ASSUMED_BYTES_PER_SECOND: f64 = 100e6;

/// The file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Unix time of this state of the file.
    pub updated_unix: f64,
    /// Unix time at which the first job of this run was submitted, or its process started.
    pub since_unix: f64,
    /// Job id, if run by a batch system.
    pub job_id: Option<String>,
    /// How often the job was requeued.
    pub n_restarts: u64,
    /// Optimizer step reached.
    pub step: u64,
    /// Optimizer steps of the whole run.
    pub total_steps: u64,
    /// From the start of the job to the first step of this process, without the restore.
    pub startup_seconds: f64,
    /// Reading the checkpoint this process started from.
    pub restore_seconds: f64,
    /// The first step of this process.
    pub first_step_seconds: f64,
    /// Median of the last 1024 steps, the slowest rank's time each.
    pub step_seconds_median: f64,
    /// 95th percentile of the same.
    pub step_seconds_p95: f64,
    /// The last save.
    pub save_seconds: f64,
    /// The longest save of this process.
    pub save_seconds_max: f64,
    /// Unix time at which this job will be ended, if known.
    pub job_ends_unix: Option<f64>,
    /// The source of that time.
    pub job_ends_from: String,
    /// Time to the last step at the current pace, including evaluation and saves.
    pub seconds_to_finish: f64,
    /// Unix time of the last step, if the rest fits into this job.
    pub projected_end_unix: f64,
    /// `sbatch --time` for the rest of the run as one job.
    pub recommended_time: String,
    /// `sbatch --signal` that leaves enough time to save.
    pub recommended_signal: String,
    /// Wall time since `since_unix`, in all jobs and between them, by monotonic clocks.
    pub wall_seconds: f64,
    /// Mean compute over ranks in completed steps.
    pub useful_step_seconds: f64,
    /// Useful step time divided by wall time.
    pub goodput: f64,
    /// Breakdown of the rest.
    pub lost_seconds: Lost,
}

/// Wall time that was not useful, by class.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lost {
    /// In the queue, and between jobs.
    pub queue: f64,
    /// From a job's start to its first step.
    pub startup: f64,
    /// Reading checkpoints.
    pub restore: f64,
    /// Steps repeated because a job ended without saving them (their number times the median step).
    pub recomputed_steps: f64,
    /// Non-finite steps.
    pub skipped_steps: f64,
    /// Stalls for saves.
    pub checkpoint_stall: f64,
    /// Validation.
    pub evaluation: f64,
    /// Time even the slowest rank waited for a collective.
    pub exposed_communication: f64,
    /// Compute of the slowest rank beyond the mean.
    pub stragglers: f64,
    /// Everything else.
    pub rest: f64,
}

impl Record {
    /// The same with invalid (negative or infinite) times removed, so that sums remain valid whatever a file
    /// contains.
    fn within_range(mut self) -> Self {
        let l = &mut self.lost_seconds;
        let lost =
            [&mut l.queue, &mut l.startup, &mut l.restore, &mut l.recomputed_steps, &mut l.skipped_steps];
        let more =
            [&mut l.checkpoint_stall, &mut l.evaluation, &mut l.exposed_communication, &mut l.stragglers];
        let own = [&mut self.useful_step_seconds, &mut self.step_seconds_median, &mut self.wall_seconds];
        let times = own.into_iter().chain([&mut self.since_unix, &mut self.updated_unix]);
        for time in lost.into_iter().chain(more).chain(times) {
            *time = if (0.0..=LONGEST_SECONDS).contains(time) { *time } else { 0.0 };
        }
        self.wall_seconds = self.wall_seconds.max(self.useful_step_seconds);
        self
    }
}

impl Lost {
    fn known(&self) -> f64 {
        self.queue
            + self.startup
            + self.restore
            + self.recomputed_steps
            + self.skipped_steps
            + self.checkpoint_stall
            + self.evaluation
            + self.exposed_communication
            + self.stragglers
    }
}

/// Measures a run and writes the file; only rank 0 writes.
#[derive(Debug)]
pub struct Timing {
    /// None on the other ranks.
    path: Option<PathBuf>,
    clock: JobClock,
    record: Record,
    /// When this record was opened, and the age of the job, and of the run with all its jobs, at that time,
    /// in seconds.
    opened: Instant,
    job_seconds: f64,
    run_seconds: f64,
    comment: Option<JobComment>,
    step_seconds: VecDeque<f64>,
    /// Full iterations of the loop without their saves: steps, evaluation, logging.
    rounds: VecDeque<f64>,
    round_began: Option<Instant>,
    /// Time for saves in the current iteration.
    stalled_seconds: f64,
    steps_began: Instant,
    start_step: u64,
    written: Option<Instant>,
    /// Assumed duration of a save before one has been measured.
    assumed_save_seconds: f64,
}

impl Timing {
    /// For a rank that does not write.
    pub fn silent() -> Self {
        Timing::new(None, JobClock::default(), Record::default(), [0.0; 3])
    }

    /// For rank 0. `state_bytes` is the size of a rank's save; `resumed` means that an existing file belongs
    /// to this run.
    pub fn open(run_dir: &Path, clock: JobClock, resumed: Option<u64>, state_bytes: u64) -> Self {
        let path = run_dir.join("timing.json");
        let before = resumed.and_then(|_| files::read_text(&path, files::MAX_RECORD_BYTES).ok());
        let before: Option<Record> = before.and_then(|text| serde_json::from_str(&text).ok());
        let now = unix_now();
        let job_started = clock.started.unwrap_or(now).min(now);
        let mut run_seconds = 0.0;
        let mut began_unix = job_started;
        let mut record = Record::default();
        match before {
            Some(before) => {
                let before = before.within_range();
                record.since_unix = if before.since_unix > 0.0 { before.since_unix } else { job_started };
                record.useful_step_seconds = before.useful_step_seconds;
                record.lost_seconds = before.lost_seconds;
                // With several runs in one job, the job's start is not this run's.
                began_unix = job_started.max(before.updated_unix);
                let lost = &mut record.lost_seconds;
                let between_jobs =
                    if before.updated_unix > 0.0 { job_started - before.updated_unix } else { 0.0 }.max(0.0);
                lost.queue += between_jobs;
                run_seconds = before.wall_seconds + between_jobs;
                let again =
                    before.step.saturating_sub(resumed.unwrap_or(0)) as f64 * before.step_seconds_median;
                let again = again.min(record.useful_step_seconds);
                record.useful_step_seconds -= again;
                lost.recomputed_steps += again;
            }
            None => {
                record.since_unix = job_started - clock.queued_seconds;
                record.lost_seconds.queue = clock.queued_seconds;
                run_seconds += clock.queued_seconds;
            }
        }
        // Dates of two nodes, or from before and after a clock change, may be in any order.
        let job_seconds = (now - began_unix).max(0.0);
        let assumed_save_seconds = 2.0 + state_bytes as f64 / ASSUMED_BYTES_PER_SECOND;
        Timing::new(Some(path), clock, record, [job_seconds, run_seconds + job_seconds, assumed_save_seconds])
    }

    fn new(
        path: Option<PathBuf>,
        clock: JobClock,
        record: Record,
        [job_seconds, run_seconds, assumed_save_seconds]: [f64; 3],
    ) -> Self {
        Timing {
            path,
            clock,
            record,
            opened: Instant::now(),
            job_seconds,
            run_seconds,
            comment: None,
            step_seconds: VecDeque::new(),
            rounds: VecDeque::new(),
            round_began: None,
            stalled_seconds: 0.0,
            steps_began: Instant::now(),
            start_step: 0,
            written: None,
            assumed_save_seconds,
        }
    }

    /// From now on the job's comment shows the progress of the run, if run by Slurm.
    pub fn comment_in_job(&mut self) {
        self.comment = self.path.as_ref().and_then(|_| JobComment::of_this_job());
    }

    /// The first step comes next. `process_seconds` have passed since the start of the process,
    /// `restore_seconds` of them in a restore.
    pub fn begin_steps(
        &mut self,
        at_step: u64,
        total_steps: u64,
        process_seconds: f64,
        restore_seconds: f64,
    ) {
        let since_job = self.job_seconds + self.opened.elapsed().as_secs_f64();
        self.record.startup_seconds = (since_job.max(process_seconds) - restore_seconds).max(0.0);
        self.record.restore_seconds = restore_seconds;
        self.record.lost_seconds.startup += self.record.startup_seconds;
        self.record.lost_seconds.restore += restore_seconds;
        (self.record.step, self.record.total_steps, self.start_step) = (at_step, total_steps, at_step);
        self.steps_began = Instant::now();
    }

    /// An iteration starts: requests a stop at its end if there is no time for another one and a save.
    pub fn begin_round(&mut self) {
        let now = Instant::now();
        if let Some(began) = self.round_began.replace(now) {
            let seconds = now.duration_since(began).as_secs_f64() - std::mem::take(&mut self.stalled_seconds);
            push(&mut self.rounds, seconds);
        }
        if self.path.is_some() && self.clock.seconds_left() < self.seconds_needed() {
            signals::ask_to_stop(Stop::TimeLimit(self.clock.end_from.unwrap_or(Limit::Deck)));
        }
    }

    /// Upper estimate of the current iteration, another one, a save and the exit.
    fn seconds_needed(&self) -> f64 {
        let round = self.rounds.iter().copied().fold(0.0, f64::max);
        let save = match self.record.save_seconds_max {
            0.0 => self.assumed_save_seconds,
            measured => measured,
        };
        2.0 * round + SAVE_FACTOR * save + LEAVE_SECONDS
    }

    /// A step is done; `evaluation_seconds` and `stall_seconds` were spent on validation and saves since the
    /// last one.
    pub fn step(&mut self, step: u64, ranks: &[RankStep], evaluation_seconds: f64, stall_seconds: f64) {
        let shares = StepShares::of(ranks);
        let seconds = ranks.iter().map(|r| r.step_ms).fold(0.0, f64::max) / 1e3;
        if self.step_seconds.is_empty() && self.record.first_step_seconds == 0.0 {
            self.record.first_step_seconds = seconds;
        }
        push(&mut self.step_seconds, seconds);
        self.record.step = step;
        self.record.useful_step_seconds += shares.useful_ms / 1e3;
        let lost = &mut self.record.lost_seconds;
        lost.stragglers += shares.straggler_ms / 1e3;
        lost.exposed_communication += shares.exposed_ms / 1e3;
        lost.evaluation += evaluation_seconds;
        lost.checkpoint_stall += stall_seconds;
    }

    /// The time between SIGTERM and SIGKILL from the launcher, if a step and a save take longer: reported
    /// once, after the third step, when warm-up is over.
    pub fn warn_of_grace(&mut self, grace_seconds: Option<f64>) {
        let Some(grace) = grace_seconds.filter(|_| self.step_seconds.len() == 3 && self.path.is_some())
        else {
            return;
        };
        let steps: Vec<f64> = self.step_seconds.iter().copied().collect();
        let needed = quantile(&steps, 0.5) + self.record.save_seconds_max;
        if needed > grace {
            log::warn!(
                "a step takes {needed:.1} s, but mpirun kills its ranks {grace:.0} s after receiving \
                 SIGTERM, before a checkpoint could be saved; send SIGUSR1 instead, pass `--mca \
                 odls_base_sigkill_timeout 60` to mpirun, or start with srun"
            );
        }
    }

    /// A step was non-finite.
    pub fn skipped(&mut self, seconds: f64) {
        self.record.lost_seconds.skipped_steps += seconds;
    }

    /// Training stalled for a save for this long in this iteration.
    pub fn stalled(&mut self, seconds: f64) {
        self.stalled_seconds += seconds;
    }

    /// A save is done, this long after its start, whether training stalled for it or not.
    pub fn saved(&mut self, seconds: f64) {
        self.record.save_seconds = seconds;
        self.record.save_seconds_max = self.record.save_seconds_max.max(seconds);
    }

    /// Writes the file if due, or `now`. An error does not end the run: it is a warning.
    pub fn write(&mut self, now: bool) {
        let Some(path) = &self.path else { return };
        if !now && self.written.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.written = Some(Instant::now());
        let record = self.current();
        let written = files::replace(path, |out| {
            serde_json::to_writer_pretty(&mut *out, &record)?;
            out.write_all(b"\n")
        });
        if let Err(error) = written {
            log::warn!("{error}");
        }
        if let Some(comment) = &mut self.comment {
            comment.post(&in_words(&record));
        }
    }

    /// Writes the file for the last time; `ending` is the reason for the end.
    pub fn finish(&mut self, ending: &str) {
        let comment = self.comment.take();
        self.write(true);
        if let Some(mut comment) = comment {
            comment.post_last(&format!(
                "zero3: step {} of {}, {ending}",
                self.record.step, self.record.total_steps
            ));
        }
    }

    /// The current record.
    fn current(&self) -> Record {
        let mut record = self.record.clone();
        let now = unix_now();
        let steps: Vec<f64> = self.step_seconds.iter().copied().collect();
        let share = |q: f64| if steps.is_empty() { 0.0 } else { quantile(&steps, q) };
        (record.step_seconds_median, record.step_seconds_p95) = (share(0.5), share(0.95));
        let n_done = record.step.saturating_sub(self.start_step);
        let n_left = record.total_steps.saturating_sub(record.step);
        let pace = if n_done == 0 { 0.0 } else { self.steps_began.elapsed().as_secs_f64() / n_done as f64 };
        record.seconds_to_finish = pace * n_left as f64;
        record.projected_end_unix = now + record.seconds_to_finish;
        let again = record.startup_seconds + record.restore_seconds + SAVE_FACTOR * record.save_seconds_max;
        record.recommended_time = slurm_time(again + 1.1 * record.seconds_to_finish + SIGNAL_SLACK_SECONDS);
        record.recommended_signal =
            format!("USR1@{}", (self.seconds_needed() + SIGNAL_SLACK_SECONDS).ceil() as u64);
        (record.updated_unix, record.job_ends_unix) = (now, self.clock.end);
        record.job_ends_from = self.clock.end_from.map_or("", Limit::name).into();
        (record.job_id, record.n_restarts) = (self.clock.job_id.clone(), self.clock.n_restarts);
        let wall_seconds = self.run_seconds + self.opened.elapsed().as_secs_f64();
        record.wall_seconds = wall_seconds.max(record.useful_step_seconds).max(f64::MIN_POSITIVE);
        record.goodput = record.useful_step_seconds / record.wall_seconds;
        record.lost_seconds.rest =
            (record.wall_seconds - record.useful_step_seconds - record.lost_seconds.known()).max(0.0);
        record
    }
}

fn push(values: &mut VecDeque<f64>, value: f64) {
    if values.len() == N_KEPT {
        values.pop_front();
    }
    values.push_back(value);
}

/// A run in progress, for the job's comment.
fn in_words(record: &Record) -> String {
    let end = jiff::Timestamp::from_second(record.projected_end_unix as i64)
        .map_or(String::new(), |t| format!(", done {t}"));
    format!(
        "zero3: step {} of {}, {:.3} s a step{end}",
        record.step, record.total_steps, record.step_seconds_median
    )
}

/// Seconds in the syntax of `--time`, rounded up to a minute.
fn slurm_time(seconds: f64) -> String {
    let minutes = (seconds / 60.0).ceil() as u64;
    let (days, hours, minutes) = (minutes / 1440, minutes / 60 % 24, minutes % 60);
    match days {
        0 => format!("{hours:02}:{minutes:02}:00"),
        _ => format!("{days}-{hours:02}:{minutes:02}:00"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(compute_ms: f64, wait_ms: f64) -> RankStep {
        RankStep { step_ms: compute_ms + wait_ms, exposed_comm_ms: wait_ms, ..RankStep::default() }
    }

    #[test]
    fn a_resumed_run_goes_on_adding_and_counts_what_it_does_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Timing::open(dir.path(), JobClock::default(), None, 0);
        first.begin_steps(0, 10, 1.5, 0.0);
        for step in 1..=4 {
            first.step(step, &[rank(1000.0, 0.0), rank(800.0, 200.0)], 0.0, 0.0);
        }
        first.saved(0.5);
        first.write(true);
        let text = std::fs::read_to_string(dir.path().join("timing.json")).unwrap();
        let written: Record = serde_json::from_str(&text).unwrap();
        assert_eq!((written.step, written.step_seconds_median, written.save_seconds), (4, 1.0, 0.5));
        assert!((written.useful_step_seconds - 3.6).abs() < 1e-9, "{written:?}");
        assert!((written.lost_seconds.stragglers - 0.4).abs() < 1e-9, "{written:?}");

        // Killed after step 4; the checkpoint is of step 2.
        let second = Timing::open(dir.path(), JobClock::default(), Some(2), 0);
        assert!((second.record.lost_seconds.recomputed_steps - 2.0).abs() < 1e-9, "{second:?}");
        assert!((second.record.useful_step_seconds - 1.6).abs() < 1e-9, "{second:?}");
        assert_eq!(second.record.since_unix, written.since_unix);
        // Another node's clock, or this one's after it was set, may be far off, and a file may say anything.
        for (name, value) in
            [("updated_unix", 1e12), ("updated_unix", -5.0), ("wall_seconds", -1.0), ("since_unix", 1e300)]
        {
            let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
            file[name] = value.into();
            std::fs::write(dir.path().join("timing.json"), file.to_string()).unwrap();
            let mut timing = Timing::open(dir.path(), JobClock::default(), Some(4), 0);
            timing.begin_steps(4, 10, 0.1, 0.0);
            let now = timing.current();
            assert!(
                (0.0..=1.0).contains(&now.goodput) && now.wall_seconds >= now.useful_step_seconds,
                "{name}: {now:?}"
            );
            assert!(now.lost_seconds.queue >= 0.0 && now.startup_seconds < 3600.0, "{name}: {now:?}");
        }
        // A fresh start in the same directory does not.
        let fresh = Timing::open(dir.path(), JobClock::default(), None, 0);
        assert_eq!(fresh.record.useful_step_seconds, 0.0);
    }

    #[test]
    fn the_time_for_a_step_and_a_save_comes_from_what_was_measured() {
        let mut timing = Timing::open(Path::new("/nowhere"), JobClock::default(), None, 300_000_000);
        assert_eq!(timing.seconds_needed(), 2.0 * (2.0 + 3.0) + 3.0, "assumed: 300 MB at 100 MB/s and 2 s");
        push(&mut timing.rounds, 4.0);
        push(&mut timing.rounds, 6.0);
        timing.saved(10.0);
        assert_eq!(timing.seconds_needed(), 12.0 + 20.0 + 3.0);
        assert_eq!([59.0, 3600.0, 90_061.0].map(slurm_time), ["00:01:00", "01:00:00", "1-01:02:00"]);
    }
}

//! Progress of a run in its Slurm job's comment: `squeue -o '%i %k'` shows it to anyone waiting for the
//! nodes.
//!
//! A controller serves a whole cluster, so it is called at most once a minute, from a thread that the run
//! never waits for, except at the end.

use crate::batch::scontrol::scontrol;
use crate::{environment, threads};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Minimum time between two updates.
const EVERY: Duration = Duration::from_secs(60);

/// The comment of one job.
#[derive(Debug)]
pub struct JobComment {
    job_id: String,
    posted: Option<Instant>,
    update: Option<JoinHandle<Result<String, String>>>,
    has_complained: bool,
}

impl JobComment {
    /// For the Slurm job of this process; none elsewhere.
    pub fn of_this_job() -> Option<Self> {
        // With a variable left over from another job, that job's comment would be changed.
        let job_id = environment::variable("SLURM_JOB_ID").filter(|_| environment::descends_from_slurm())?;
        Some(JobComment { job_id, posted: None, update: None, has_complained: false })
    }

    /// Sets the comment, unless it was set recently. A failure is logged once and has no other effect.
    pub fn post(&mut self, text: &str) {
        if self.posted.is_none_or(|at| at.elapsed() >= EVERY) {
            self.start(text);
        }
    }

    /// Sets the last comment and waits for the controller, because the end of the job would end the update.
    pub fn post_last(&mut self, text: &str) {
        self.start(text);
        self.join();
    }

    fn start(&mut self, text: &str) {
        self.join();
        self.posted = Some(Instant::now());
        let words = ["update".to_string(), format!("JobId={}", self.job_id), format!("Comment={text}")];
        let update = move || scontrol(&words.each_ref().map(String::as_str));
        self.update = threads::spawn("job comment", update).ok();
    }

    /// The previous update ended long ago, except at the end of a run.
    fn join(&mut self) {
        let Some(update) = self.update.take() else { return };
        let outcome = update.join().unwrap_or_else(|_| Err("its thread panicked".into()));
        if let Err(why) = outcome.as_ref().map(|_| ())
            && !self.has_complained
        {
            self.has_complained = true;
            log::warn!("run.job_comment: the comment of job {} was not updated: {why}", self.job_id);
        }
    }
}

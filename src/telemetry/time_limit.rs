//! When this job will be ended by others: from the deck, from Slurm's environment, or from `scontrol show job`.
//!
//! Must not know: steps, checkpoints.

use super::scontrol::scontrol;
use crate::config::values::clock_seconds;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is known about the end of this job, and about its past in the queue.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobClock {
    /// Unix time at which it will be ended.
    pub end: Option<f64>,
    /// Who says so.
    pub end_from: &'static str,
    /// Unix time of its start: earlier than this process's where a batch script ran before.
    pub started: Option<f64>,
    /// Time it waited in the queue, where known.
    pub queued_seconds: f64,
    /// Job id, where a batch system runs this.
    pub job_id: Option<String>,
    /// How often the job was requeued.
    pub n_restarts: u64,
}

impl JobClock {
    /// Asks the environment, and Slurm where there is a job. `limit` is the deck's, counted from `process_start` (unix time).
    /// The earliest end counts.
    pub fn find(limit: Option<Duration>, process_start: f64) -> Self {
        let env = |name: &str| std::env::var(name).ok();
        let shown = env("SLURM_JOB_ID").and_then(|id| scontrol(&["--oneliner", "show", "job", &id]).ok());
        JobClock::read(limit, process_start, unix_now(), &env, shown.as_deref())
    }

    /// [`JobClock::find`] from recorded answers.
    pub fn read(
        limit: Option<Duration>,
        process_start: f64,
        now: f64,
        env: &dyn Fn(&str) -> Option<String>,
        scontrol: Option<&str>,
    ) -> Self {
        let field = |name: &str| {
            let all = scontrol.unwrap_or("").split_whitespace();
            all.filter_map(|word| word.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let number = |name: &str| env(name).and_then(|text| text.trim().parse::<f64>().ok());
        // Durations rather than dates: those come in the controller's time zone.
        let seconds = |name: &str| field(name).and_then(clock_seconds).map(|seconds| seconds as f64);
        let (ran, slurm_limit) = (seconds("RunTime"), seconds("TimeLimit"));
        // The wait in the queue lies between two dates of the same zone.
        let date = |name: &str| field(name).and_then(|text| text.parse::<jiff::civil::DateTime>().ok());
        let from_deck = limit.map(|limit| (process_start + limit.as_secs_f64(), "run.time_limit"));
        // A limit that an operator has changed is in scontrol alone.
        let from_slurm = match (slurm_limit, ran) {
            (Some(limit), Some(ran)) => Some((now - ran + limit, "scontrol show job")),
            _ => number("SLURM_JOB_END_TIME").map(|end| (end, "SLURM_JOB_END_TIME")),
        };
        let end = [from_deck, from_slurm].into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0));
        JobClock {
            end: end.map(|e| e.0),
            end_from: end.map_or("", |e| e.1),
            started: ran.map(|ran| now - ran).or_else(|| number("SLURM_JOB_START_TIME")).or(Some(process_start)),
            queued_seconds: match (date("SubmitTime"), date("StartTime")) {
                (Some(submitted), Some(started)) => started.duration_since(submitted).as_secs_f64().max(0.0),
                _ => 0.0,
            },
            job_id: job_id(env),
            n_restarts: number("SLURM_RESTART_COUNT").unwrap_or(0.0) as u64,
        }
    }

    /// Seconds until the end; infinite where none is known.
    pub fn seconds_left(&self) -> f64 {
        self.end.map_or(f64::INFINITY, |end| end - unix_now())
    }
}

/// The id of the job that this process is part of, where a batch system runs it.
pub fn job_id(env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"].iter().find_map(|name| env(name))
}

/// Seconds since 1970.
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_end_counts_and_scontrol_beats_the_environment() {
        let env = |name: &str| match name {
            "SLURM_JOB_ID" => Some("17".to_string()),
            "SLURM_JOB_END_TIME" => Some("5000".to_string()),
            "SLURM_RESTART_COUNT" => Some("2".to_string()),
            _ => None,
        };
        let clock = JobClock::read(None, 1000.0, 1010.0, &env, None);
        assert_eq!((clock.end, clock.end_from), (Some(5000.0), "SLURM_JOB_END_TIME"));
        assert_eq!((clock.job_id.as_deref(), clock.n_restarts), (Some("17"), 2));
        let job = "JobId=17 JobName=zero3 RunTime=00:01:40 TimeLimit=00:30:00 EndTime=2026-01-01T00:00:00";
        let clock = JobClock::read(None, 1000.0, 1010.0, &env, Some(job));
        assert_eq!((clock.end, clock.end_from), (Some(1010.0 - 100.0 + 1800.0), "scontrol show job"));
        assert_eq!(clock.started, Some(910.0));
        let dates = "SubmitTime=2026-02-28T23:59:50 StartTime=2026-03-01T00:00:10";
        assert_eq!(JobClock::read(None, 0.0, 0.0, &env, Some(dates)).queued_seconds, 20.0);
        let clock = JobClock::read(Some(Duration::from_secs(60)), 1000.0, 1010.0, &env, Some(job));
        assert_eq!((clock.end, clock.end_from), (Some(1060.0), "run.time_limit"));
        let unlimited = JobClock::read(None, 0.0, 0.0, &|_| None, Some("RunTime=00:00:01 TimeLimit=UNLIMITED"));
        assert_eq!(unlimited.end, None);
        assert!(unlimited.seconds_left().is_infinite());
    }
}

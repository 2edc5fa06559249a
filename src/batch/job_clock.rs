//! When this job will be ended: from the deck, from Slurm's environment, or from `scontrol show job`.
//!
//! Must not know: steps, checkpoints.

use crate::batch::scontrol::scontrol;
use crate::batch::signals::Limit;
use crate::clock::unix_now;
use crate::config::values::clock_seconds;
use crate::environment;
use std::time::Duration;

/// The end of this job, and its history in the queue, as far as known.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobClock {
    /// Unix time at which it will be ended.
    pub end: Option<f64>,
    /// The source of that time.
    pub end_from: Option<Limit>,
    /// Unix time of its start: before this process's if a batch script ran first.
    pub started: Option<f64>,
    /// Time it waited in the queue, if known.
    pub queued_seconds: f64,
    /// Job id, if run by a batch system.
    pub job_id: Option<String>,
    /// How often the job was requeued.
    pub n_restarts: u64,
}

impl JobClock {
    /// Queries the environment, and Slurm if there is a job. `limit` is the deck's, counted from
    /// `process_start` (unix time). The earliest end counts.
    pub fn find(limit: Option<Duration>, process_start: f64) -> Self {
        let env = environment::variable;
        let shown = env("SLURM_JOB_ID").and_then(|id| scontrol(&["--oneliner", "show", "job", &id]).ok());
        let (clock, stale) = JobClock::read(limit, process_start, unix_now(), &env, shown.as_deref());
        if let Some(stale) = stale {
            log::warn!("{stale}");
        }
        clock
    }

    /// [`JobClock::find`] from recorded answers, with warnings about them: an end before this process's start
    /// is another job's.
    pub fn read(
        limit: Option<Duration>,
        process_start: f64,
        now: f64,
        env: &dyn Fn(&str) -> Option<String>,
        scontrol: Option<&str>,
    ) -> (Self, Option<String>) {
        let field = |name: &str| {
            let all = scontrol.unwrap_or("").split_whitespace();
            all.filter_map(|word| word.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let number = |name: &str| env(name).and_then(|text| text.trim().parse::<f64>().ok());
        // Durations rather than dates: those come in the controller's time zone.
        let seconds = |name: &str| field(name).and_then(clock_seconds).map(|seconds| seconds as f64);
        let (ran, slurm_limit) = (seconds("RunTime"), seconds("TimeLimit"));
        // Both dates of the wait in the queue have the same time zone.
        let date = |name: &str| field(name).and_then(|text| text.parse::<jiff::civil::DateTime>().ok());
        let from_deck = limit.map(|limit| (process_start + limit.as_secs_f64(), Limit::Deck));
        // Only scontrol knows a limit that an operator has changed.
        let from_slurm = match (slurm_limit, ran) {
            (Some(limit), Some(ran)) => Some((now - ran + limit, Limit::Scontrol)),
            _ => number("SLURM_JOB_END_TIME").map(|end| (end, Limit::SlurmEndTime)),
        };
        let (from_slurm, stale) = match from_slurm {
            Some((end, from)) if !end.is_finite() || end <= process_start => {
                let of = env("SLURM_JOB_ID").map_or(String::new(), |id| format!(" of job {id}"));
                (
                    None,
                    Some(format!(
                        "the end{of} according to {}, {end:.0} s since 1970, is before the start of this \
                         process: it belongs to another job and is ignored (unset the SLURM_* variables, or \
                         set run.time_limit)",
                        from.name()
                    )),
                )
            }
            believed => (believed, None),
        };
        let end = [from_deck, from_slurm].into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0));
        // A start time is ignored as well if the end is another job's.
        let from_env =
            number("SLURM_JOB_START_TIME").filter(|_| matches!(from_slurm, Some((_, Limit::SlurmEndTime))));
        let started = ran.filter(|_| stale.is_none()).map(|ran| now - ran).or(from_env);
        let clock = JobClock {
            end: end.map(|e| e.0),
            end_from: end.map(|e| e.1),
            started: started.filter(|at| (0.0..=process_start).contains(at)).or(Some(process_start)),
            queued_seconds: match (date("SubmitTime"), date("StartTime")) {
                (Some(submitted), Some(started)) => started.duration_since(submitted).as_secs_f64().max(0.0),
                _ => 0.0,
            },
            job_id: job_id(env),
            n_restarts: number("SLURM_RESTART_COUNT").unwrap_or(0.0) as u64,
        };
        (clock, stale)
    }

    /// Seconds until the end; infinite if unknown.
    pub fn seconds_left(&self) -> f64 {
        self.end.map_or(f64::INFINITY, |end| end - unix_now())
    }
}

/// The id of this process's job, if run by a batch system.
pub fn job_id(env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"].iter().find_map(|name| env(name))
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
        let read = |limit, start, now, env: &dyn Fn(&str) -> Option<String>, job: Option<&str>| {
            let (clock, stale) = JobClock::read(limit, start, now, env, job);
            assert_eq!(stale, None);
            clock
        };
        let clock = read(None, 1000.0, 1010.0, &env, None);
        assert_eq!((clock.end, clock.end_from), (Some(5000.0), Some(Limit::SlurmEndTime)));
        assert_eq!((clock.job_id.as_deref(), clock.n_restarts), (Some("17"), 2));
        let job = "JobId=17 JobName=zero3 RunTime=00:01:40 TimeLimit=00:30:00 EndTime=2026-01-01T00:00:00";
        let clock = read(None, 1000.0, 1010.0, &env, Some(job));
        assert_eq!((clock.end, clock.end_from), (Some(1010.0 - 100.0 + 1800.0), Some(Limit::Scontrol)));
        assert_eq!(clock.started, Some(910.0));
        let dates = "SubmitTime=2026-02-28T23:59:50 StartTime=2026-03-01T00:00:10";
        assert_eq!(read(None, 0.0, 0.0, &env, Some(dates)).queued_seconds, 20.0);
        let clock = read(Some(Duration::from_secs(60)), 1000.0, 1010.0, &env, Some(job));
        assert_eq!((clock.end, clock.end_from), (Some(1060.0), Some(Limit::Deck)));
        let unlimited = read(None, 0.0, 0.0, &|_| None, Some("RunTime=00:00:01 TimeLimit=UNLIMITED"));
        assert_eq!(unlimited.end, None);
        assert!(unlimited.seconds_left().is_infinite());
    }

    #[test]
    fn an_end_before_the_process_began_is_another_job_s() {
        let env = |end: &'static str, start: &'static str| {
            move |name: &str| match name {
                "SLURM_JOB_ID" => Some("77".to_string()),
                "SLURM_JOB_END_TIME" => Some(end.to_string()),
                "SLURM_JOB_START_TIME" => Some(start.to_string()),
                _ => None,
            }
        };
        for (end, job) in [
            ("1700000000", None),
            ("-1", None),
            ("inf", None),
            ("2e9", Some("RunTime=2-00:00:00 TimeLimit=1-00:00:00")),
        ] {
            let (clock, stale) =
                JobClock::read(Some(Duration::from_secs(60)), 1.8e9, 1.8e9 + 2.0, &env(end, "5"), job);
            let stale = stale.expect("said once");
            assert!(stale.contains("of job 77") && stale.contains("another job"), "{stale}");
            assert_eq!((clock.end, clock.end_from), (Some(1.8e9 + 60.0), Some(Limit::Deck)), "{end}");
            assert_eq!(clock.started, Some(1.8e9), "its start is not this job's either");
        }
        // A start is believed with an end, and never after the process's own.
        for (start, started) in [("1799999000", 1.799999e9), ("1900000000", 1.8e9), ("-3", 1.8e9)] {
            let (clock, stale) = JobClock::read(None, 1.8e9, 1.8e9 + 2.0, &env("2000000000", start), None);
            assert_eq!((clock.started, stale), (Some(started), None), "{start}");
        }
    }
}

//! When this job will be ended by others: from the deck, from Slurm's environment, or from `scontrol show job`.
//!
//! Must not know: steps, checkpoints.

use super::scontrol::scontrol;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds of a duration as people write it: `5400`, `90m`, `1h30m`, `2d`, `1:30:00`, `2-12:00:00`; empty = 0.
pub fn parse_seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    if text.is_empty() {
        return Some(0.0);
    }
    if text.contains(':') || text.contains('-') {
        return clock_seconds(text);
    }
    let mut seconds = 0.0;
    let mut digits = String::new();
    let mut smallest = f64::INFINITY;
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                digits.push(c);
                continue;
            }
            'd' => 86_400.0,
            'h' => 3600.0,
            'm' => 60.0,
            's' => 1.0,
            _ => return None,
        };
        // Larger units first, each once.
        if unit >= smallest {
            return None;
        }
        smallest = unit;
        seconds += std::mem::take(&mut digits).parse::<u32>().ok()? as f64 * unit;
    }
    match digits.as_str() {
        "" => Some(seconds),
        bare if smallest.is_infinite() => bare.parse::<u32>().ok().map(f64::from),
        _ => None,
    }
}

/// Slurm's `[days-]hours:minutes[:seconds]`; two fields without days are minutes and seconds.
fn clock_seconds(text: &str) -> Option<f64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u32>().ok()?), clock),
        None => (None, text),
    };
    let fields: Vec<f64> = clock.split(':').map(|f| f.parse::<u32>().ok().map(f64::from)).collect::<Option<_>>()?;
    let (h, m, s) = match (days, fields.as_slice()) {
        (_, &[h, m, s]) => (h, m, s),
        (Some(_), &[h, m]) => (h, m, 0.0),
        (Some(_), &[h]) => (h, 0.0, 0.0),
        (None, &[m, s]) => (0.0, m, s),
        _ => return None,
    };
    Some(days.unwrap_or(0) as f64 * 86_400.0 + h * 3600.0 + m * 60.0 + s)
}

/// Seconds since some day of a date as Slurm writes it, `2026-01-31T23:59:59`, in an unknown time zone: for differences.
fn date_seconds(text: &str) -> Option<f64> {
    let (date, clock) = text.split_once('T')?;
    let numbers: Vec<i64> = date.split('-').map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let &[year, month, day] = numbers.as_slice() else { return None };
    // Days since March 1 of year 0 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day;
    Some(days as f64 * 86_400.0 + clock_seconds(clock)?)
}

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
    /// Asks the environment, and Slurm where there is a job. `limit_seconds` is the deck's, counted from `process_start`
    /// (unix time); 0 = none. The earliest end counts.
    pub fn find(limit_seconds: f64, process_start: f64) -> Self {
        let env = |name: &str| std::env::var(name).ok();
        let shown = env("SLURM_JOB_ID").and_then(|id| scontrol(&["--oneliner", "show", "job", &id]).ok());
        JobClock::read(limit_seconds, process_start, unix_now(), &env, shown.as_deref())
    }

    /// [`JobClock::find`] from recorded answers.
    pub fn read(
        limit_seconds: f64,
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
        let ran = field("RunTime").and_then(clock_seconds);
        let limit = field("TimeLimit").and_then(clock_seconds);
        let from_deck = (limit_seconds > 0.0).then_some((process_start + limit_seconds, "run.time_limit"));
        // A limit that an operator has changed is in scontrol alone.
        let from_slurm = match (limit, ran) {
            (Some(limit), Some(ran)) => Some((now - ran + limit, "scontrol show job")),
            _ => number("SLURM_JOB_END_TIME").map(|end| (end, "SLURM_JOB_END_TIME")),
        };
        let end = [from_deck, from_slurm].into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0));
        JobClock {
            end: end.map(|e| e.0),
            end_from: end.map_or("", |e| e.1),
            started: ran.map(|ran| now - ran).or_else(|| number("SLURM_JOB_START_TIME")).or(Some(process_start)),
            queued_seconds: match (
                field("SubmitTime").and_then(date_seconds),
                field("StartTime").and_then(date_seconds),
            ) {
                (Some(submitted), Some(started)) => (started - submitted).max(0.0),
                _ => 0.0,
            },
            job_id: ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"].iter().find_map(|name| env(name)),
            n_restarts: number("SLURM_RESTART_COUNT").unwrap_or(0.0) as u64,
        }
    }

    /// Seconds until the end; infinite where none is known.
    pub fn seconds_left(&self) -> f64 {
        self.end.map_or(f64::INFINITY, |end| end - unix_now())
    }
}

/// Seconds since 1970.
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_and_slurm_write_them() {
        for (text, seconds) in [
            ("", 0.0),
            ("90", 90.0),
            ("1h30m", 5400.0),
            ("2d", 172_800.0),
            ("45s", 45.0),
            ("1:30:00", 5400.0),
            ("30:00", 1800.0),
            ("1-12:00:00", 129_600.0),
            ("1-12", 129_600.0),
        ] {
            assert_eq!(parse_seconds(text), Some(seconds), "{text}");
        }
        for bad in ["soon", "1h30", "30m1h", "h", "-5", "1:2:3:4", "1.5h", "UNLIMITED"] {
            assert_eq!(parse_seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_earliest_end_counts_and_scontrol_beats_the_environment() {
        let env = |name: &str| match name {
            "SLURM_JOB_ID" => Some("17".to_string()),
            "SLURM_JOB_END_TIME" => Some("5000".to_string()),
            "SLURM_RESTART_COUNT" => Some("2".to_string()),
            _ => None,
        };
        let clock = JobClock::read(0.0, 1000.0, 1010.0, &env, None);
        assert_eq!((clock.end, clock.end_from), (Some(5000.0), "SLURM_JOB_END_TIME"));
        assert_eq!((clock.job_id.as_deref(), clock.n_restarts), (Some("17"), 2));
        let job = "JobId=17 JobName=zero3 RunTime=00:01:40 TimeLimit=00:30:00 EndTime=2026-01-01T00:00:00";
        let clock = JobClock::read(0.0, 1000.0, 1010.0, &env, Some(job));
        assert_eq!((clock.end, clock.end_from), (Some(1010.0 - 100.0 + 1800.0), "scontrol show job"));
        assert_eq!(clock.started, Some(910.0));
        let dates = "SubmitTime=2026-02-28T23:59:50 StartTime=2026-03-01T00:00:10";
        assert_eq!(JobClock::read(0.0, 0.0, 0.0, &env, Some(dates)).queued_seconds, 20.0);
        let clock = JobClock::read(60.0, 1000.0, 1010.0, &env, Some(job));
        assert_eq!((clock.end, clock.end_from), (Some(1060.0), "run.time_limit"));
        let unlimited = JobClock::read(0.0, 0.0, 0.0, &|_| None, Some("RunTime=00:00:01 TimeLimit=UNLIMITED"));
        assert_eq!(unlimited.end, None);
        assert!(unlimited.seconds_left().is_infinite());
    }
}

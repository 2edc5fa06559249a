//! The view of a run at one moment: its status and figures, from its records alone.
//!
//! Must not know: files, terminals.

use super::run_files::{RunFiles, Sign};
use crate::error::Exit;
use crate::human;
use crate::liveness::heartbeat::Held;
use crate::liveness::stragglers::Class;
use crate::quantile::quantile;
use crate::records::run_records::{Line, RunEvent};
use crate::records::step_reader::LoggedStep;
use crate::telemetry::ledger::MemKind;

/// Number of steps for median and p95.
const N_RECENT: usize = 100;
/// A rank that is at one operation for this long counts as not progressing: heartbeats of the same moment
/// differ by a few seconds.
const STANDS_SECONDS: f64 = 5.0;

/// Status of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    /// There are no records.
    Nothing,
    /// Ranks are alive but have not completed a step.
    Starting,
    /// Ranks are alive and training.
    Running,
    /// Some ranks are alive, and this number has no heartbeat.
    Silent(usize),
    /// No rank has a heartbeat; seconds since the last one.
    Dead(f64),
    /// It recorded why it ended.
    Ended {
        /// Its exit code.
        exit_code: i32,
        /// The reason, as text.
        reason: String,
    },
    /// It has records, no live rank, and no record of its end.
    Lost,
}

/// How good or bad news is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Nothing to do.
    Good,
    /// Worth attention.
    Odd,
    /// Action is required.
    Bad,
}

/// One rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankLine {
    /// The rank.
    pub rank: usize,
    /// Its node.
    pub host: String,
    /// Whether it is alive; None if it has never been seen.
    pub is_live: Option<bool>,
    /// The current step.
    pub step: u64,
    /// Its last operation ...
    pub what: String,
    /// ... and its duration at the last heartbeat.
    pub seconds: f64,
    /// Seconds since its last heartbeat.
    pub age: f64,
    /// Gathered units.
    pub gathered: Vec<String>,
    /// Units in flight.
    pub gathering: Vec<String>,
}

/// Bytes by kind, the maximum over ranks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Memory {
    /// Kinds in use.
    pub kinds: Vec<(MemKind, Held)>,
    /// Total.
    pub total: Held,
    /// Whether `now` is known: a finished run holds nothing.
    pub is_live: bool,
}

/// Counts of events, over all jobs of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Restores.
    pub restores: usize,
    /// Non-finite attempts.
    pub skipped: usize,
    /// Chronic stragglers.
    pub chronic: usize,
    /// One-off stragglers.
    pub one_off: usize,
}

/// Everything shown.
#[derive(Debug)]
pub struct View<'a> {
    /// The run directory.
    pub run: String,
    /// Its status.
    pub status: Status,
    /// Ranks, 0 if unknown.
    pub world_size: usize,
    /// Step reached.
    pub step: u64,
    /// Steps of the whole run, if known.
    pub total_steps: Option<u64>,
    /// Rows of the step log.
    pub rows: &'a [LoggedStep],
    /// The newest validation: step and loss.
    pub val_loss: Option<(u64, f64)>,
    /// Step time of the slowest rank in ms, of recent steps: median and p95.
    pub step_ms: Option<(f64, f64)>,
    /// Fraction of recent step time spent waiting for collectives, mean over ranks.
    pub exposed: Option<f64>,
    /// Seconds to the end of the job, and the source of that limit.
    pub limit: Option<(f64, &'a str)>,
    /// Seconds to the last step.
    pub eta_seconds: Option<f64>,
    /// Goodput: useful fraction of wall time, over all jobs of the run.
    pub goodput: Option<f64>,
    /// The batch system's job id.
    pub job_id: Option<&'a str>,
    /// Memory and plan.
    pub memory: Memory,
    /// Every rank, the worst news first.
    pub ranks: Vec<RankLine>,
    /// Counts of events.
    pub counts: Counts,
    /// Events, newest first: seconds ago, text.
    pub happened: Vec<(f64, String)>,
    /// Unreadable records.
    pub faults: &'a [String],
}

impl<'a> View<'a> {
    /// From the records at `now_unix`.
    pub fn of(records: &'a RunFiles, now_unix: f64) -> Self {
        let newest =
            records.signs.values().max_by(|a, b| a.said.started_unix.total_cmp(&b.said.started_unix));
        let world_size = newest.map(|sign| sign.said.world_size);
        let started = records.happened.iter().rev().find_map(|line| match line.event {
            RunEvent::Start { ranks, .. } => Some(ranks as usize),
            _ => None,
        });
        // Files of ranks beyond the size of a smaller job are obsolete.
        let signs: Vec<&Sign> =
            records.signs.values().filter(|sign| Some(sign.said.rank) < world_size).collect();
        let summary = records.summary();
        let world_size = world_size.or(started).or(summary.map(|s| s.world_size as usize));
        let world_size = world_size.unwrap_or(0);
        let status = status(records, &signs, world_size, now_unix);
        let goes_on = matches!(status, Status::Starting | Status::Running | Status::Silent(_));
        // The time limit of an earlier job does not apply to this one.
        let began = newest.map_or(f64::INFINITY, |sign| sign.said.started_unix);
        let timing = records.timing();
        let current = timing.filter(|t| goes_on && t.updated_unix >= began);
        let last_step = records.rows.last().map(|row| row.step);
        let recent = &records.rows[records.rows.len().saturating_sub(N_RECENT)..];
        let ms: Vec<f64> = recent.iter().map(|r| r.step_ms_max).filter(|ms| ms.is_finite()).collect();
        let sum = |f: fn(&LoggedStep) -> f64| recent.iter().map(f).filter(|x| x.is_finite()).sum::<f64>();
        let all_ms = sum(|r| r.step_ms_max);
        View {
            run: records.run_dir().display().to_string(),
            step: last_step.or(timing.map(|t| t.step)).unwrap_or(0),
            total_steps: current
                .map(|t| t.total_steps)
                .or(summary.map(|s| s.total_steps))
                .or(timing.map(|t| t.total_steps))
                .filter(|&n| n > 0),
            world_size,
            rows: &records.rows,
            val_loss: records.rows.iter().rev().find_map(|r| r.val_loss.map(|loss| (r.step, loss))),
            step_ms: (!ms.is_empty()).then(|| (quantile(&ms, 0.5), quantile(&ms, 0.95))),
            exposed: (all_ms > 0.0).then(|| sum(|r| r.exposed_comm_ms) / all_ms),
            limit: current
                .and_then(|t| t.job_ends_unix.map(|end| (end - now_unix, t.job_ends_from.as_str()))),
            eta_seconds: current
                .filter(|t| t.seconds_to_finish > 0.0)
                .map(|t| (t.seconds_to_finish - (now_unix - t.updated_unix)).max(0.0)),
            goodput: timing.map(|t| t.goodput).filter(|&g| g > 0.0),
            job_id: timing.and_then(|t| t.job_id.as_deref()),
            memory: memory(records, &signs),
            ranks: rank_lines(&signs, world_size, now_unix),
            counts: counts(&records.happened),
            happened: records
                .happened
                .iter()
                .rev()
                .map(|line| (now_unix - line.unix, in_words(&line.event)))
                .collect(),
            faults: &records.faults,
            status,
        }
    }

    /// The status of the run as text, and how good it is.
    pub fn status_in_words(&self) -> (String, Mood) {
        let steps = self.total_steps.map_or(String::new(), |n| format!(" of {n}"));
        match &self.status {
            Status::Nothing => ("waiting for a run: there are no records yet".into(), Mood::Odd),
            Status::Starting => ("starting".into(), Mood::Good),
            Status::Running => (format!("running, step {}{steps}", self.step), Mood::Good),
            Status::Silent(n) => {
                let have = if *n == 1 { "has" } else { "have" };
                let world_size = self.world_size;
                (
                    format!("{n} of {world_size} ranks {have} no heartbeat; step {}{steps}", self.step),
                    Mood::Bad,
                )
            }
            Status::Dead(seconds) => {
                let since = human::seconds(*seconds);
                (
                    format!("dead: no rank has had a heartbeat for {since}; step {}{steps}", self.step),
                    Mood::Bad,
                )
            }
            Status::Ended { exit_code, reason } => {
                let mood = match *exit_code {
                    code if code == Exit::Finished.code() => Mood::Good,
                    code if code == Exit::StoppedEarly.code() => Mood::Odd,
                    _ => Mood::Bad,
                };
                (format!("{reason} (exit code {exit_code})"), mood)
            }
            Status::Lost => (
                format!(
                    "over at step {}{steps} without a record of the end: killed, or its node is \
                         down",
                    self.step
                ),
                Mood::Bad,
            ),
        }
    }

    /// Time to the end of the job and the estimated time remaining; None if neither is known.
    pub fn time_in_words(&self) -> Option<(String, Mood)> {
        let eta = self.eta_seconds.map(|eta| format!("{} to the last step", human::seconds(eta)));
        let limit = self.limit.map(|(left, from)| match left > 0.0 {
            true => format!("{} to the time limit ({from})", human::seconds(left)),
            false => format!("the time limit has passed ({from})"),
        });
        let fits = match (self.eta_seconds, self.limit) {
            (Some(eta), Some((left, _))) => eta <= left,
            _ => true,
        };
        let words = [eta, limit].into_iter().flatten().collect::<Vec<_>>().join(", ");
        match (words.is_empty(), fits) {
            (true, _) => None,
            (false, true) => Some((words, Mood::Good)),
            (false, false) => Some((words + ": it will stop early and resume in another job", Mood::Odd)),
        }
    }

    /// Restores, skipped steps and stragglers as text.
    pub fn counts_in_words(&self) -> String {
        let Counts { restores, skipped, chronic, one_off } = self.counts;
        let (restores, skipped) =
            (human::counted(restores, "restore"), human::counted(skipped, "skipped step"));
        format!("{restores}, {skipped}, stragglers: {chronic} chronic, {one_off} one-off")
    }
}

fn status(records: &RunFiles, signs: &[&Sign], world_size: usize, now_unix: f64) -> Status {
    let n_live = signs.iter().filter(|sign| sign.is_live).count();
    let last = records.happened.last();
    let began = signs.iter().map(|sign| sign.said.started_unix).fold(0.0, f64::max);
    let ended = match last {
        Some(Line { unix, event: RunEvent::End { exit_code, reason, .. } }) if *unix >= began => {
            Some(Status::Ended { exit_code: *exit_code, reason: reason.clone() })
        }
        _ => None,
    };
    if n_live > 0 {
        let has_begun = last.is_some_and(|line| line.unix >= began);
        // Ranks appear one after another at the start.
        return match world_size.saturating_sub(n_live) {
            _ if !has_begun => Status::Starting,
            0 => Status::Running,
            // Ranks leave one after another at the end.
            n => ended.unwrap_or(Status::Silent(n)),
        };
    }
    if let Some(ended) = ended {
        return ended;
    }
    if !signs.is_empty() {
        let newest = signs.iter().map(|sign| sign.said.updated_unix).fold(0.0, f64::max);
        return Status::Dead((now_unix - newest).max(0.0));
    }
    match (last, records.summary()) {
        // A run without events, of an earlier version.
        (None, Some(s)) => Status::Ended { exit_code: s.exit_code, reason: s.exit_reason.clone() },
        (None, None)
            if records.rows.is_empty() && records.timing().is_none() && records.faults.is_empty() =>
        {
            Status::Nothing
        }
        _ => Status::Lost,
    }
}

/// The maximum over ranks for each kind; for a finished run from its summary.
fn memory(records: &RunFiles, signs: &[&Sign]) -> Memory {
    let fullest = |a: Held, b: Held| Held {
        now: a.now.max(b.now),
        peak: a.peak.max(b.peak),
        planned: a.planned.max(b.planned),
    };
    if let Some(sign) = signs.iter().find(|sign| !sign.said.memory.is_empty()) {
        let kinds = sign.said.memory.iter().map(|k| k.kind);
        let all_of = |kind| signs.iter().flat_map(|s| &s.said.memory).filter(move |k| k.kind == kind);
        let kinds =
            kinds.map(|kind| (kind, all_of(kind).map(|k| k.held).fold(Held::default(), fullest))).collect();
        let total = signs.iter().map(|s| s.said.memory_total).fold(Held::default(), fullest);
        return Memory { kinds, total, is_live: signs.iter().any(|s| s.is_live) };
    }
    let Some(summary) = records.summary() else { return Memory::default() };
    let held = |planned, measured| Held { now: 0, peak: measured, planned };
    let kinds = summary.peak_bytes_by_kind.iter().map(|k| (k.kind, held(k.bytes.planned, k.bytes.measured)));
    Memory {
        kinds: kinds.filter(|(_, held)| *held != Held::default()).collect(),
        total: held(summary.peak_bytes.planned, summary.peak_bytes.measured),
        is_live: false,
    }
}

/// Unseen and silent ranks first, then those behind the others; otherwise in rank order.
fn rank_lines(signs: &[&Sign], world_size: usize, now_unix: f64) -> Vec<RankLine> {
    if signs.is_empty() {
        return Vec::new();
    }
    let line = |rank: usize| match signs.iter().find(|sign| sign.said.rank == rank) {
        Some(Sign { said, is_live, .. }) => (
            said.ordinal,
            RankLine {
                rank,
                host: said.host.clone(),
                is_live: Some(*is_live),
                step: said.step,
                what: said.what.clone(),
                seconds: (said.updated_unix - said.since_unix).max(0.0),
                age: (now_unix - said.updated_unix).max(0.0),
                gathered: said.gathered.clone(),
                gathering: said.gathering.clone(),
            },
        ),
        None => (
            0,
            RankLine {
                rank,
                host: String::new(),
                is_live: None,
                step: 0,
                what: "not seen yet".into(),
                seconds: 0.0,
                age: 0.0,
                gathered: Vec::new(),
                gathering: Vec::new(),
            },
        ),
    };
    // All ranks run the same list of operations: a rank at a later one is ahead.
    let mut lines: Vec<(u64, RankLine)> = (0..world_size).map(line).collect();
    let furthest = lines.iter().map(|(ordinal, _)| *ordinal).max().unwrap_or(0);
    let lags = |ordinal: u64, line: &RankLine| line.seconds > STANDS_SECONDS && ordinal < furthest;
    lines.sort_by_key(|(ordinal, line)| (line.is_live == Some(true), !lags(*ordinal, line), line.rank));
    lines.into_iter().map(|(_, line)| line).collect()
}

fn counts(happened: &[Line]) -> Counts {
    let mut counts = Counts::default();
    for line in happened {
        match &line.event {
            RunEvent::Start { from: Some(_), .. } => counts.restores += 1,
            RunEvent::Skip { .. } => counts.skipped += 1,
            RunEvent::Straggler(s) if s.class == Class::Chronic => counts.chronic += 1,
            RunEvent::Straggler(_) => counts.one_off += 1,
            RunEvent::Start { .. } | RunEvent::End { .. } => {}
        }
    }
    counts
}

fn in_words(event: &RunEvent) -> String {
    match event {
        RunEvent::Start { step, ranks, from, .. } => {
            let ranks = human::counted(*ranks as usize, "rank");
            match from {
                Some(from) => format!("restored step {step} on {ranks}, from {from}"),
                None => format!("started on {ranks}"),
            }
        }
        RunEvent::Skip { step, attempts, loss, grad_norm, in_a_row } => {
            let number = |x: &Option<f64>| x.map_or("not finite".into(), |x| format!("{x:.4}"));
            let (loss, norm) = (number(loss), number(grad_norm));
            format!(
                "attempt {attempts} skipped: loss {loss}, gradient norm {norm}; the state is that of step \
                 {step}, {in_a_row} skipped in a row"
            )
        }
        RunEvent::Straggler(straggler) => straggler.to_string(),
        RunEvent::End { exit_code, reason, .. } => format!("{reason} (exit code {exit_code})"),
    }
}

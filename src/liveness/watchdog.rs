//! The second thread of a recorder: this rank's heartbeats, and a report of late ranks when this rank hangs.
//!
//! When the main thread has not progressed for `timeout`, this thread reads the files of all ranks (the stuck
//! communicator cannot be used), and the lowest live rank reports which ranks have not arrived where. Then
//! the job ends.
//!
//! Must not know: MPI. The caller supplies the way to end the job.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::clock::{self, unix_now};
use crate::liveness::heartbeat::{Heartbeat, Place};
use crate::liveness::recording::{Recording, SLOWEST_BEAT};

/// Beats between two looks at the other ranks, after which a file that has not changed belongs to a dead
/// rank.
const BEATS_TO_LIVE: u32 = 3;
/// Time for the lowest live rank to report before another one ends the job in its place.
const TIME_TO_SAY: Duration = Duration::from_secs(10);

/// Interval at which this rank's progress is checked.
pub(super) fn look_every(timeout: Duration) -> Duration {
    (timeout / 60).clamp(Duration::from_millis(200), SLOWEST_BEAT)
}

/// Writes heartbeats, and with a `timeout` also checks whether this rank has hung.
pub(super) fn watch(recording: &Recording, timeout: Option<Duration>, abort: impl Fn()) {
    let mut dumped_at = None;
    let mut awake = clock::Awake::now();
    loop {
        if let Some(gap) = awake.look(Instant::now(), recording.beat) {
            log::warn!(
                "this rank did not run for {:.0} s (stopped, or its node is overloaded)",
                gap.as_secs_f64()
            );
        }
        let (place, waited) = recording.standing();
        let waited = awake.part_of(waited);
        let has_run_dir = recording.dir.parent().is_some_and(Path::exists);
        let waits_long = timeout.is_some_and(|timeout| waited > timeout / 2);
        if has_run_dir || waits_long {
            recording.make_dir();
        }
        recording.publish();
        // Before the end, which another rank may cause.
        if waits_long && dumped_at != Some(place.ordinal) {
            dumped_at = Some(place.ordinal);
            recording.dump();
        }
        if timeout.is_some_and(|timeout| waited > timeout && judge(recording, look_every(timeout), place)) {
            abort();
            return;
        }
        if recording.rest(recording.beat) {
            return;
        }
    }
}

/// Looks twice at all ranks; the lowest live one reports the late ones. False if this rank, or one it may be
/// waiting for, progresses after all.
fn judge(recording: &Recording, beat: Duration, place: Place) -> bool {
    let mut awake = clock::Awake::now();
    let before = read_all(recording);
    let moves_on = |beats: u32| {
        (0..beats).any(|_| {
            let closed = recording.rest(beat);
            recording.publish();
            closed || recording.place() != place
        })
    };
    if moves_on(BEATS_TO_LIVE) {
        return false;
    }
    // If it was stopped in between, this rank has missed the others' heartbeats.
    if awake.look(Instant::now(), beat * BEATS_TO_LIVE).is_some() {
        return false;
    }
    let after = read_all(recording);
    let place_of = |sign: &Option<Heartbeat>| sign.as_ref().map(Heartbeat::place);
    if before.iter().zip(&after).any(|(b, a)| b.is_some() && place_of(b) != place_of(a)) {
        return false;
    }
    let lives = |rank: usize| {
        let beat_of = |all: &[Option<Heartbeat>]| all[rank].as_ref().map(|p| p.beat);
        rank == recording.rank || beat_of(&before) != beat_of(&after)
    };
    let lowest = (0..recording.hosts.len()).find(|&r| lives(r)).expect("this one lives");
    if lowest != recording.rank && moves_on((TIME_TO_SAY.as_secs_f64() / beat.as_secs_f64()).ceil() as u32) {
        return false;
    }
    let live: Vec<bool> = (0..recording.hosts.len()).map(lives).collect();
    let own = recording.now();
    for line in verdict(
        &after,
        &live,
        &recording.hosts,
        recording.rank,
        &recording.words(&own),
        own.step,
        own.began.elapsed(),
    ) {
        log::error!("{line}");
    }
    log::error!(
        "the last events of each rank are in {}; the job ends with exit code \
                 5",
        recording.dir.display()
    );
    true
}

/// The newest heartbeat of every rank.
fn read_all(recording: &Recording) -> Vec<Option<Heartbeat>> {
    (0..recording.hosts.len()).map(|rank| Heartbeat::read(&recording.dir, rank)).collect()
}

/// A line per late rank: those without a heartbeat; if there are none, those furthest behind.
fn verdict(
    all: &[Option<Heartbeat>],
    live: &[bool],
    hosts: &[String],
    own_rank: usize,
    own_words: &str,
    own_step: u64,
    waited: Duration,
) -> Vec<String> {
    let ordinals = all.iter().map(|p| p.as_ref().map_or(0, |p| p.ordinal));
    let (first, last) = (ordinals.clone().min().unwrap_or(0), ordinals.max().unwrap_or(0));
    let any_dead = live.contains(&false);
    // Where the others wait, for a rank that is behind itself.
    let ahead = all.iter().flatten().find(|p| p.ordinal == last);
    let own_is_behind = all[own_rank].as_ref().is_some_and(|p| p.ordinal < last);
    let (meeting, meeting_step) = match ahead {
        Some(p) if own_is_behind => (p.what.as_str(), p.step),
        _ => (own_words, own_step),
    };
    let mut lines = vec![format!(
        "rank {own_rank} has {} {:.0} s at `{own_words}` of step {own_step} (run.timeout)",
        if own_is_behind { "made no progress for" } else { "waited" },
        waited.as_secs_f64()
    )];
    for (rank, progress) in all.iter().enumerate() {
        let is_late = if any_dead {
            !live[rank]
        } else {
            first < last && progress.as_ref().map_or(0, |p| p.ordinal) == first
        };
        if !is_late {
            continue;
        }
        lines.push(match progress {
            None => format!(
                "rank {rank} on {} has not arrived at `{meeting}` of step {meeting_step}: it was never seen",
                hosts[rank]
            ),
            Some(p) => {
                let sign = if live[rank] {
                    "it is alive"
                } else {
                    "it has no heartbeat (stopped, or its node is down)"
                };
                format!(
                    "rank {rank} on {} (process {}) has not arrived at `{meeting}` of step {meeting_step}: \
                     last seen at `{}` of step {}, started {:.0} s ago; {sign}",
                    p.host,
                    p.pid,
                    p.what,
                    p.step,
                    (unix_now() - p.since_unix).max(0.0)
                )
            }
        });
    }
    if lines.len() == 1 {
        lines.push(
            "every rank has arrived and is alive: the collective itself hangs (network, or MPI)".into(),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liveness::FlightRecorder;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn progress(rank: usize, ordinal: u64) -> Option<Heartbeat> {
        let (host, what) = (format!("n{rank}"), "forward h.0".to_string());
        let since_unix = unix_now();
        Some(Heartbeat {
            rank,
            host,
            pid: 7,
            beat: 1,
            ordinal,
            step: 3,
            what,
            since_unix,
            ..Heartbeat::default()
        })
    }

    #[test]
    fn the_late_rank_is_the_one_without_a_sign_of_life_else_the_one_behind() {
        let late = |all: &[Option<Heartbeat>], live: &[bool]| {
            let hosts: Vec<String> = (0..all.len()).map(|rank| format!("n{rank}")).collect();
            verdict(all, live, &hosts, 0, "wait h.1", 3, Duration::from_secs(9))[1..].join("\n")
        };
        let dead = late(&[progress(0, 9), progress(1, 9), progress(2, 9)], &[true, true, false]);
        assert!(
            dead.starts_with("rank 2 on n2 (process 7) has not arrived at `wait h.1` of step 3"),
            "{dead}"
        );
        assert!(dead.contains("no heartbeat") && !dead.contains("rank 1"), "{dead}");
        let behind = late(&[progress(0, 9), progress(1, 4), progress(2, 8)], &[true; 3]);
        assert!(
            behind.starts_with("rank 1 on n1") && behind.contains("last seen at `forward h.0`"),
            "{behind}"
        );
        assert!(behind.contains("it is alive") && !behind.contains("rank 2"), "{behind}");
        // The rank that looks is the one behind.
        let own = late(&[progress(0, 4), progress(1, 9)], &[true; 2]);
        assert!(
            own.starts_with("rank 0 on n0 (process 7) has not arrived at `forward h.0` of step 3"),
            "{own}"
        );
        let none = late(&[progress(0, 9), progress(1, 9)], &[true; 2]);
        assert!(none.contains("every rank has arrived"), "{none}");
        let unseen = late(&[progress(0, 9), None], &[true, false]);
        assert!(
            unseen.starts_with("rank 1 on n1 has not arrived") && unseen.contains("never seen"),
            "{unseen}"
        );
    }

    #[test]
    fn a_rank_that_does_not_move_is_found_and_one_that_does_leaves_nothing() {
        static ABORTED: AtomicBool = AtomicBool::new(false);
        let dir = tempfile::tempdir().unwrap();
        let start = |timeout| {
            let abort = || ABORTED.store(true, Ordering::SeqCst);
            FlightRecorder::start(dir.path(), 0, vec!["here".into(); 2], vec!["embed".into()], timeout, abort)
                .unwrap()
        };
        let flight = start(Duration::from_secs(60));
        flight.at(1, "gather", Some(0));
        drop(flight);
        assert!(!dir.path().join("flight").exists(), "a run that ends well leaves nothing");

        let flight = start(Duration::from_millis(300));
        flight.at(1, "gather", Some(0));
        let began = Instant::now();
        while !ABORTED.load(Ordering::SeqCst) {
            assert!(began.elapsed() < Duration::from_secs(30), "the watchdog does not bark");
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = std::fs::read_to_string(dir.path().join("flight/rank_0.jsonl")).unwrap();
        assert!(text.lines().last().unwrap().contains("gather embed"), "{text}");
    }

    #[test]
    fn a_rank_that_gets_on_is_waited_for_until_it_no_longer_does() {
        static ABORTED: AtomicBool = AtomicBool::new(false);
        let dir = tempfile::tempdir().unwrap();
        let abort = || ABORTED.store(true, Ordering::SeqCst);
        let start = |rank, timeout| {
            let flight = FlightRecorder::start(
                dir.path(),
                rank,
                vec!["here".into(); 2],
                vec![],
                Duration::from_millis(timeout),
                abort,
            )
            .unwrap();
            flight.at(0, "data", None);
            flight
        };
        // The reader ticks; only the one that waits has a short timeout.
        let (reads, waits) = (start(0, 600_000), start(1, 300));
        waits.at(0, "wait", None);
        reads.appear();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            reads.tick();
            reads.appear();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!ABORTED.load(Ordering::SeqCst), "the reader was getting on");
        while !ABORTED.load(Ordering::SeqCst) {
            assert!(began.elapsed() < Duration::from_secs(40), "the reader stands still and nobody says so");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop((reads, waits));
        assert!(!dir.path().join("flight").exists(), "a run that ends by itself leaves nothing");
    }
}

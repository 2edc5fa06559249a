//! Time. A duration is a difference of the monotonic clock; a date is the calendar time of the process's
//! first query plus the elapsed time. Setting a node's clock during a run changes neither.
//!
//! Waiting is here too: every sleep of the program that does not wait for an event.
//!
//! Must not know: what is timed or waited for.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One moment on both clocks: the calendar is queried once.
fn anchor() -> (Instant, Duration) {
    static ANCHOR: OnceLock<(Instant, Duration)> = OnceLock::new();
    *ANCHOR.get_or_init(|| (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

/// The process's first query of the time: `main` makes it before anything else.
pub fn process_start() -> Instant {
    anchor().0
}

/// A moment as time since 1970.
pub fn since_1970(at: Instant) -> Duration {
    let (instant, calendar) = anchor();
    match at.checked_duration_since(instant) {
        Some(later) => calendar + later,
        None => calendar.saturating_sub(instant.duration_since(at)),
    }
}

/// Seconds from 1970 to a moment.
pub fn unix(at: Instant) -> f64 {
    since_1970(at).as_secs_f64()
}

/// Seconds since 1970.
pub fn unix_now() -> f64 {
    unix(Instant::now())
}

/// Whether a polling thread has been running all the time: a process that was stopped, or whose node was
/// overloaded, knows nothing of the others' progress in between.
#[derive(Debug)]
pub struct Awake {
    looked: Instant,
    since: Instant,
}

/// A poll this much later than scheduled was not merely waiting for a processor.
const STOOD_STILL: Duration = Duration::from_secs(3);

impl Awake {
    /// Starts now.
    pub fn now() -> Self {
        let now = Instant::now();
        Awake { looked: now, since: now }
    }

    /// A poll at `now`, at most `rest` after the last one. Returns how long this process did not run, if it
    /// did not.
    pub fn look(&mut self, now: Instant, rest: Duration) -> Option<Duration> {
        let gap = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        let stood_still = gap > rest + STOOD_STILL;
        if stood_still {
            self.since = now;
        }
        stood_still.then_some(gap)
    }

    /// A wait that only counts the time this process was running.
    pub fn part_of(&self, waited: Duration) -> Duration {
        waited.min(self.looked.saturating_duration_since(self.since))
    }
}

/// Sleeps.
pub fn rest(time: Duration) {
    std::thread::sleep(time);
}

/// Polls at once and then after each rest until there is a result; None after `limit`.
///
/// # Errors
/// An error of a poll ends the wait.
pub fn wait_for<T, E>(
    limit: Duration,
    rest_between: Duration,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let began = Instant::now();
    loop {
        if let Some(seen) = look()? {
            return Ok(Some(seen));
        }
        if began.elapsed() >= limit {
            return Ok(None);
        }
        rest(rest_between);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_monotonic_clock_both_ways() {
        let (instant, calendar) = anchor();
        assert_eq!(since_1970(instant + Duration::from_secs(5)), calendar + Duration::from_secs(5));
        if let Some(before) = instant.checked_sub(Duration::from_millis(1)) {
            assert_eq!(since_1970(before), calendar - Duration::from_millis(1));
        }
        assert!(unix_now() >= unix(process_start()) && unix_now() > 1.7e9);
    }

    #[test]
    fn a_rank_that_did_not_run_blames_nobody() {
        let mut awake = Awake::now();
        let (began, beat) = (awake.since, Duration::from_millis(200));
        let at = |ms| began + Duration::from_millis(ms);
        assert_eq!(awake.look(at(200), beat), None);
        assert_eq!(awake.look(at(3300), beat), None, "a busy node");
        assert_eq!(awake.part_of(Duration::from_secs(60)), Duration::from_millis(3300));
        assert_eq!(awake.look(at(63_300), beat), Some(Duration::from_secs(60)), "stopped for a minute");
        assert_eq!(awake.part_of(Duration::from_secs(60)), Duration::ZERO, "its wait begins anew");
        assert_eq!(awake.look(at(63_500), beat), None);
        assert_eq!(awake.part_of(Duration::from_secs(60)), beat);
        assert_eq!(awake.part_of(Duration::from_millis(50)), Duration::from_millis(50));
    }

    #[test]
    fn a_wait_looks_once_whatever_its_limit_and_ends_with_what_it_sees() {
        let mut looks = 0;
        let mut look = |until| {
            looks += 1;
            Ok::<_, ()>((looks >= until).then_some(looks))
        };
        assert_eq!(wait_for(Duration::ZERO, Duration::ZERO, || look(1)), Ok(Some(1)));
        assert_eq!(wait_for(Duration::MAX, Duration::ZERO, || look(4)), Ok(Some(4)));
        assert_eq!(wait_for(Duration::ZERO, Duration::ZERO, || look(9)), Ok(None));
        assert_eq!(wait_for(Duration::MAX, Duration::ZERO, || Err::<Option<()>, _>("no")), Err("no"));
    }
}

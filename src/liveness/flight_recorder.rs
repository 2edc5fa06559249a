//! The flight recorder of a rank, as used by its main thread: the current operation, held in memory and
//! written to files periodically.
//!
//! Every rank runs the same list of operations, so their ordinal shows which rank is behind; within a long
//! operation a rank ticks as it progresses, and the others wait for it however long it takes. A rank's main
//! thread records each operation in memory (`recording.rs`); a second thread (`watchdog.rs`) periodically
//! writes the newest to `RUN/flight/rank_N.progress`, with the rank's memory, and after a long wait its last
//! events to `RUN/flight/rank_N.jsonl`.
//!
//! Must not know: MPI, how the other ranks are judged.

use crate::error::Result;
use crate::threads;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::liveness::recording::{Memory, Recording, SLOWEST_BEAT, beat};
use crate::liveness::start_watch;
use crate::liveness::watchdog::{look_every, watch};
use crate::telemetry::ledger::{Ledger, MemKind};

/// The recorder of this rank. Dropping it ends its second thread.
pub struct FlightRecorder {
    recording: Arc<Recording>,
    watchdog: Option<JoinHandle<()>>,
}

impl FlightRecorder {
    /// Starts recording for `rank`, one of `hosts.len()`, into `RUN/flight`; writes nothing without a
    /// directory. With a nonzero `timeout` it also monitors the other ranks, and `abort` ends the job. A run
    /// directory that does not exist yet is not created, unless this rank starts to wait for long: bad data
    /// leave none behind.
    pub fn start(
        run_dir: &Path,
        rank: usize,
        hosts: Vec<String>,
        units: Vec<String>,
        timeout: Duration,
        abort: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        start_watch::end();
        let watches = !timeout.is_zero() && hosts.len() > 1;
        let beat = beat(hosts.len(), if watches { look_every(timeout) } else { SLOWEST_BEAT });
        let recording = Arc::new(Recording::new(run_dir, rank, hosts, units, beat));
        let mut watchdog = None;
        if !recording.hosts.is_empty() {
            // Files of an earlier job are not heartbeats of this rank.
            recording.remove_files();
            let watched = Arc::clone(&recording);
            let run = move || watch(&watched, watches.then_some(timeout), abort);
            watchdog = Some(threads::spawn("watchdog", run)?);
        }
        Ok(FlightRecorder { recording, watchdog })
    }

    /// The run directory exists: this rank appears before the first step.
    pub fn appear(&self) {
        if self.watchdog.is_some() {
            self.recording.make_dir();
            self.recording.publish();
        }
    }

    /// Memory is allocated: heartbeats report the bytes held, and the plan's maximum of each kind and in
    /// total.
    pub fn show_memory(&self, ledger: Arc<Ledger>, planned: Vec<(MemKind, u64)>, planned_total: u64) {
        self.recording.show_memory(Memory { ledger, planned, planned_total });
    }

    /// The gather of `unit` has started.
    pub fn gathering(&self, unit: usize) {
        self.recording.count_gathers(unit, 1, 0);
    }

    /// Parameters of `unit` are whole.
    pub fn gathered(&self, unit: usize) {
        self.recording.count_gathers(unit, -1, 1);
    }

    /// Parameters of `unit` have been released.
    pub fn released(&self, unit: usize) {
        self.recording.count_gathers(unit, 0, -1);
    }

    /// The main thread starts an operation that every rank starts in the same order.
    pub fn at(&self, step: u64, what: &'static str, unit: Option<usize>) {
        self.recording.begin(step, what, unit);
    }

    /// The main thread progresses within a long operation.
    pub fn tick(&self) {
        self.recording.tick();
    }

    /// The run is over; the ranks leave MPI together.
    pub fn leave(&self) {
        self.at(self.recording.now().step, "leave MPI", None);
    }
}

impl Drop for FlightRecorder {
    fn drop(&mut self) {
        self.recording.close();
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.join().ok();
            // Also the events of a long operation that has ended.
            self.recording.remove_files();
            // The last rank removes the empty directory.
            std::fs::remove_dir(&self.recording.dir).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liveness::heartbeat::{FLIGHT_DIR, Heartbeat, Held, KindNow};

    #[test]
    fn a_sign_of_life_says_what_is_gathered_and_held_beside_the_plan() {
        let dir = tempfile::tempdir().unwrap();
        let units = ["embed", "h.0", "h.1"].map(String::from).into();
        let flight =
            FlightRecorder::start(dir.path(), 0, vec!["here".into()], units, Duration::ZERO, || {}).unwrap();
        let ledger = Arc::new(Ledger::new());
        flight.show_memory(Arc::clone(&ledger), vec![(MemKind::Gathered, 50), (MemKind::Master, 0)], 70);
        ledger.take(MemKind::Gathered, 40);
        ledger.reset_peaks();
        ledger.give(MemKind::Gathered, 30);
        ledger.reset_peaks();
        flight.gathering(0);
        flight.gathered(0);
        flight.gathering(2);
        flight.at(7, "forward", Some(0));
        flight.appear();
        let read = || Heartbeat::read(&dir.path().join(FLIGHT_DIR), 0).unwrap();
        let sign = read();
        assert_eq!((sign.step, sign.what.as_str(), sign.world_size), (7, "forward embed", 1));
        assert_eq!((sign.gathered, sign.gathering), (vec!["embed".to_string()], vec!["h.1".to_string()]));
        let held = Held { now: 10, peak: 40, planned: 50 };
        assert_eq!(sign.memory, [KindNow { kind: MemKind::Gathered, held }], "the peak outlives the step");
        assert_eq!(sign.memory_total, Held { now: 10, peak: 40, planned: 70 });
        flight.released(0);
        flight.gathered(2);
        flight.recording.publish();
        assert_eq!((read().gathered, read().gathering), (vec!["h.1".to_string()], vec![]));
    }

    #[test]
    fn few_ranks_beat_every_second_and_many_as_slowly_as_the_watchdog_looks() {
        let seconds = |n, timeout| beat(n, look_every(Duration::from_secs(timeout))).as_secs_f64();
        assert_eq!([seconds(2, 600), seconds(50, 600), seconds(4096, 600)], [1.0, 5.0, 10.0]);
        assert_eq!([seconds(2, 12), seconds(4096, 60)], [0.2, 1.0], "a short timeout");
    }
}

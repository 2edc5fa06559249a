//! Views of runs that tests make up with the writers of real ones, drawn on terminals of all sizes.

use super::plain_view::snapshot;
use super::run_files::RunFiles;
use super::terminal_view::{Colors, draw};
use super::view::{Status, View};
use crate::clock::unix_now;
use crate::liveness::heartbeat::{FLIGHT_DIR, Heartbeat, Held, KindNow};
use crate::liveness::stragglers::{Class, Straggler};
use crate::records::run_records::{RunEvent, RunRecords};
use crate::records::{StepLog, timing_file};
use crate::telemetry::ledger::MemKind;
use crate::telemetry::step_row::combine;
use crate::telemetry::{RankStep, StepRow};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::path::Path;

/// A run directory that grows as a test says.
struct Made {
    dir: tempfile::TempDir,
    began: f64,
}

impl Made {
    fn new() -> Self {
        Made { dir: tempfile::tempdir().unwrap(), began: unix_now() - 100.0 }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn rows(self, steps: impl Iterator<Item = u64>) -> Self {
        let mut log = StepLog::open(self.path(), None).unwrap();
        for step in steps {
            let rank =
                RankStep { step_ms: 20.0 + (step % 7) as f64, exposed_comm_ms: 5.0, ..RankStep::default() };
            let row = StepRow {
                step,
                tokens: 2048,
                loss: 2.0 + 3.0 / step as f64,
                val_loss: step.is_multiple_of(50).then_some(2.25),
                grad_norm: 1.5,
                ranks: combine(&[rank]),
                ..StepRow::default()
            };
            log.write(&row).unwrap();
        }
        self
    }

    fn started(self, ranks: u64, from: Option<&str>) -> Self {
        let from = from.map(String::from);
        self.happens(RunEvent::Start { step: 40, attempts: 40, ranks, backend: "cpu".into(), from })
    }

    fn happens(self, event: RunEvent) -> Self {
        RunRecords::open(self.path(), "").unwrap().add(&event).unwrap();
        self
    }

    /// A sign of `rank`, so many seconds ago.
    fn sign(self, rank: usize, world_size: usize, age: f64) -> Self {
        let flight = self.path().join(FLIGHT_DIR);
        std::fs::create_dir_all(&flight).unwrap();
        let held = |now, peak| Held { now, peak, planned: 3 << 20 };
        let updated_unix = unix_now() - age;
        let sign = Heartbeat {
            rank,
            world_size,
            host: format!("node{rank}"),
            pid: 7,
            started_unix: self.began,
            beat: 4,
            beat_seconds: 1.0,
            updated_unix,
            ordinal: 100,
            step: 121,
            what: "forward h.1".into(),
            since_unix: updated_unix - 0.5,
            gathered: vec!["h.1".into()],
            gathering: vec!["h.2".into()],
            memory: vec![
                KindNow { kind: MemKind::ParamShard, held: held(1 << 20, 1 << 20) },
                KindNow {
                    kind: MemKind::Activation,
                    held: held((1 + rank as u64) << 20, (1 + rank as u64) << 20),
                },
            ],
            memory_total: held(2 << 20, 3 << 20),
            ..Heartbeat::default()
        };
        sign.write(&flight).unwrap();
        self
    }

    fn timing(self, record: timing_file::Record) -> Self {
        std::fs::write(self.path().join("timing.json"), serde_json::to_string(&record).unwrap()).unwrap();
        self
    }

    fn see<T>(&self, look: impl FnOnce(&View<'_>) -> T) -> T {
        let mut records = RunFiles::new(self.path());
        records.look(unix_now());
        look(&View::of(&records, unix_now()))
    }

    fn status(&self) -> Status {
        self.see(|view| view.status.clone())
    }

    /// The screen as lines.
    fn screen(&self, width: u16, height: u16) -> Vec<String> {
        self.see(|view| {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, view, Colors(true))).unwrap();
            let buffer = terminal.backend().buffer();
            let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
            (0..height).map(line).collect()
        })
    }
}

fn skipped() -> RunEvent {
    RunEvent::Skip { step: 59, attempts: 60, loss: None, grad_norm: Some(1.0), in_a_row: 1 }
}

fn straggler(class: Class) -> RunEvent {
    RunEvent::Straggler(Straggler {
        class,
        step: 100,
        rank: 1,
        host: "node1".into(),
        n_slow: 40,
        n_steps: 50,
        compute_ms: 80.0,
        wait_ms: 0.0,
        others_compute_ms: 50.0,
        others_wait_ms: 30.0,
    })
}

fn running() -> Made {
    Made::new()
        .started(2, Some("runs/a/checkpoints/step_00000040"))
        .happens(skipped())
        .happens(straggler(Class::Chronic))
        .rows(1..=120)
        .sign(0, 2, 0.2)
        .sign(1, 2, 0.3)
        .timing(timing_file::Record {
            updated_unix: unix_now(),
            total_steps: 400,
            seconds_to_finish: 300.0,
            job_ends_unix: Some(unix_now() + 120.0),
            job_ends_from: "run.time_limit".into(),
            goodput: 0.875,
            ..timing_file::Record::default()
        })
}

#[test]
fn a_screen_of_usual_size_shows_everything() {
    let screen = running().screen(80, 24).join("\n");
    for part in [
        "running, step 120 of 400",
        "2 ranks",
        "30.0 %",
        "loss in nats/token: 2.0250",
        "tokens/s",
        "97.5k",
        "ms/step",
        "5m00s to the last step, 2m00s to the time limit",
        "params at rest",
        "activations",
        "planned",
        "gathered: h.1; in flight: h.2",
        "1 restore, 1 skipped step, stragglers: 1 chronic, 0 one-off",
        "straggler, chronic: rank 1 on node1",
    ] {
        assert!(screen.contains(part), "{part:?} is not in\n{screen}");
    }
    let wide = running().screen(132, 40).join("\n");
    for part in [
        "goodput 88 %",
        "it will stop early",
        "restored step 40 on 2 ranks",
        "attempt 60 skipped: loss not finite",
        "peak",
    ] {
        assert!(wide.contains(part), "{part:?} is not in\n{wide}");
    }
}

#[test]
fn a_small_screen_shows_what_counts_and_no_size_is_too_small() {
    let screen = running().screen(40, 10);
    for (part, line) in
        [("running, step 120 of 400", 0), ("loss 2.0250", 1), ("97.5k tokens/s", 2), ("5m00s", 3)]
    {
        assert!(screen[line].contains(part), "{part:?} is not in line {line} of\n{}", screen.join("\n"));
    }
    let made = running();
    for (width, height) in [(1, 1), (3, 2), (72, 19), (71, 20), (72, 20), (300, 5), (20, 80), (250, 90)] {
        made.screen(width, height);
    }
}

#[test]
fn odd_records_are_drawn_too() {
    let nothing = Made::new();
    assert!(nothing.screen(80, 24)[0].contains("waiting for a run"));
    let one = Made::new().rows(1..=1).started(1, None).sign(0, 1, 0.0);
    assert!(one.screen(80, 24).join("\n").contains("loss in nats/token: 5.0000"));
    let many = Made::new().rows(1..=5000);
    let many = (0..300).fold(many, |made, rank| made.sign(rank, 300, 0.0)).started(300, None);
    let mut records = RunFiles::new(many.path());
    while records.signs.len() < 300 {
        records.look(unix_now());
    }
    let view = View::of(&records, unix_now());
    assert_eq!((view.rows.len(), view.ranks.len(), view.status.clone()), (5000, 300, Status::Running));
    assert!(snapshot(&view).contains("and 292 more ranks"), "{}", snapshot(&view));
    let mut log = StepLog::open(many.path(), None).unwrap();
    let not_finite = StepRow { step: 1, loss: f64::NAN, grad_norm: f64::INFINITY, ..StepRow::default() };
    log.write(&not_finite).unwrap();
    assert!(many.screen(100, 30).join("\n").contains("NaN"));
}

#[test]
fn the_status_follows_the_signs_of_life_and_the_last_word() {
    let ended = |code: i32| RunEvent::End { step: 9, exit_code: code, reason: "because".into() };
    let is_ended = |status: Status, code: i32| {
        assert_eq!(status, Status::Ended { exit_code: code, reason: "because".into() });
    };
    assert_eq!(Made::new().status(), Status::Nothing);
    assert_eq!(Made::new().sign(0, 2, 0.0).status(), Status::Starting);
    assert_eq!(Made::new().started(2, None).sign(0, 2, 0.0).sign(1, 2, 7.0).status(), Status::Running);
    assert_eq!(Made::new().started(2, None).sign(0, 2, 0.0).sign(1, 2, 9.0).status(), Status::Silent(1));
    assert_eq!(
        Made::new().started(3, None).sign(0, 3, 0.0).sign(1, 3, 0.0).status(),
        Status::Silent(1),
        "never seen"
    );
    let dead = Made::new().started(2, None).sign(0, 2, 70.0).sign(1, 2, 60.0);
    assert!(matches!(dead.status(), Status::Dead(s) if (60.0..61.0).contains(&s)), "{:?}", dead.status());
    is_ended(Made::new().started(1, None).happens(ended(0)).status(), 0);
    is_ended(Made::new().started(2, None).happens(ended(75)).sign(0, 2, 90.0).status(), 75);
    // The word of an earlier job is none of the one that died since.
    let mut later = Made::new().started(2, None).happens(ended(75)).started(2, None);
    assert_eq!(later.status(), Status::Lost);
    later.began = unix_now() + 1.0;
    assert_eq!(
        later.sign(0, 2, 0.0).status(),
        Status::Starting,
        "a resumed job that has not begun its steps"
    );
    assert_eq!(Made::new().rows(1..=3).status(), Status::Lost);
}

#[test]
fn files_of_ranks_that_a_smaller_job_no_longer_has_say_nothing() {
    let mut made = Made::new().sign(2, 3, 50.0);
    made.began = unix_now() - 10.0;
    let made = made.started(2, None).sign(0, 2, 0.0).sign(1, 2, 0.0);
    assert_eq!(made.status(), Status::Running);
    assert_eq!(made.see(|view| view.ranks.len()), 2);
}

#[test]
fn the_limit_of_an_earlier_job_is_not_shown() {
    let old = timing_file::Record {
        updated_unix: unix_now() - 1000.0,
        job_ends_unix: Some(unix_now() - 500.0),
        seconds_to_finish: 9.0,
        ..timing_file::Record::default()
    };
    let made = Made::new().started(2, None).sign(0, 2, 0.0).sign(1, 2, 0.0).timing(old);
    assert_eq!(made.see(|view| view.time_in_words()), None);
}

#[test]
fn a_snapshot_names_silent_ranks_first_and_memory_over_plan() {
    let made = Made::new().started(3, None).rows(1..=3).sign(0, 3, 0.0).sign(1, 3, 0.0).sign(2, 3, 40.0);
    let text = made.see(snapshot);
    let ranks = text.lines().find(|line| line.starts_with("ranks")).unwrap();
    assert!(ranks.contains("2  no heartbeat for 40s: on node2, last at `forward h.1` of step 121"), "{text}");
    assert!(text.contains("1 of 3 ranks has no heartbeat; step 3"), "{text}");
    let made = Made::new().started(4, None).rows(1..=3);
    let over = (0..4).fold(made, |made, rank| made.sign(rank, 4, 0.0)).see(snapshot);
    let line = over.lines().find(|line| line.contains("activations")).unwrap();
    assert!(line.contains("4.0 MiB") && line.ends_with("3.0 MiB OVER"), "the fullest rank's: {line}");
}

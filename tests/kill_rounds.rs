//! Fifty random kills of a run that saves at every step. Minutes long, so it is asked for by name: `cargo
//! test --release --test kill_rounds -- --ignored --nocapture`. `ZERO3_KILL_ROUNDS` sets the number of kills,
//! `ZERO3_KILL_SEED` their times and ranks.

mod common;

use common::{Case, Running, Steps, assert_same_curve};
use std::time::{Duration, Instant};
use zero3::checkpoint;

/// Steps of the whole run: many more than the kills leave time for at once.
const STEPS: &str = "train.steps=400";

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().expect("a whole number"))
}

#[test]
#[ignore = "takes minutes: make test-slow runs it"]
fn fifty_kills_at_random_moments_never_cost_the_last_checkpoint() {
    let (rounds, mut state) =
        (number("ZERO3_KILL_ROUNDS", 50), number("ZERO3_KILL_SEED", 0x2545_f491_4f6c_dd1d));
    let mut draw = |below: u64| {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % below
    };
    let case = Case::tiny();
    let run_dir = case.path("run");
    let common = [
        STEPS,
        "optim.decay_steps=400",
        "checkpoint.every=1",
        "checkpoint.keep_every=50",
        "train.eval_every=0",
        "log.every=0",
    ];
    let mut newest_step = 0;
    for round in 0..rounds {
        let n_ranks = 1 + draw(3) as usize;
        let async_save = format!("checkpoint.async_save={}", draw(2) == 0);
        let mut words = common.to_vec();
        words.push(&async_save);
        let run = case.train(n_ranks, "run", &words).start();
        // From before the restore to some tens of saves later. Not before MPI has started: Open MPI 4.1's
        // launcher waits for ever for a rank that dies while it reports to it. Rank 0 signs the lock when all
        // have met.
        let signed = format!("\"pid\":{},", run.pid_of_rank(0));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !std::fs::read_to_string(run_dir.join("job.lock")).is_ok_and(|text| text.contains(&signed)) {
            assert!(Instant::now() < deadline, "round {round}: the ranks have not met");
            std::thread::sleep(Duration::from_millis(1));
        }
        let victim = draw(n_ranks as u64 + 1) as usize;
        let victims: Vec<usize> = (0..n_ranks).filter(|&rank| victim == n_ranks || rank == victim).collect();
        let pids: Vec<u32> = victims.iter().map(|&rank| run.pid_of_rank(rank)).collect();
        std::thread::sleep(Duration::from_millis(draw(1500)));
        pids.iter().for_each(|&pid| Running::signal_pid(pid, "KILL"));
        let output = run.output();
        let newest = checkpoint::newest(&run_dir).unwrap_or_else(|e| panic!("round {round}: {e}\n{output}"));
        let step = newest.as_ref().map_or(0, |found| found.0);
        assert!(step >= newest_step, "round {round}: step {step} after step {newest_step}\n{output}");
        if let Some((_, dir)) = newest {
            let verified = checkpoint::verify(&dir, &|_| ()).unwrap();
            assert!(verified.damage.is_empty(), "round {round}: {verified}\n{output}");
        }
        println!(
            "round {round}: {n_ranks} ranks, {async_save}, killed {victims:?}: step {newest_step} -> {step}, \
             code {}",
            output.code
        );
        newest_step = step;
    }
    assert!(newest_step > 0, "no round came to a checkpoint");
    // The rest of the way, and all of it in one go: the same bits.
    let end = format!("train.steps={}", newest_step + 2);
    let fixed = [
        "optim.decay_steps=400",
        "checkpoint.every=1",
        "checkpoint.keep_every=50",
        "train.eval_every=0",
        "log.every=0",
        &end,
    ];
    case.train(2, "run", &fixed).output().expect_success();
    case.train(1, "whole", &fixed).output().expect_success();
    assert_same_curve(&Steps::read(&run_dir), &Steps::read(&case.path("whole")));
    let same = checkpoint::diff(&run_dir, &case.path("whole")).unwrap();
    assert!(same.is_equal(), "{same}");
    for step in (50..newest_step).step_by(50) {
        assert!(checkpoint::step_dir(&run_dir, step).is_dir(), "step {step} is kept for ever");
    }
}

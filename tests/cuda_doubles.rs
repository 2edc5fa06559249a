//! The real binary on doubles of NVIDIA's libraries (tests/cuda/doubles): what runs on CUDA streams and NCCL communicators, on a
//! machine that has neither.
//!
//! This proves orchestration: which operation waits for which, what is sent to whom, what is said when something fails. It proves
//! nothing about speed, about NCCL and cuBLASLt themselves, or about a GPU's memory.

mod common;

use common::cuda;
use std::process::{Command, Output};

/// Runs one case of the doubles' own test.
fn self_test(case: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(cuda::doubles().join("self_test")).arg(case).envs(env.iter().copied());
    command.output().expect("coreutils has timeout")
}

#[test]
fn the_doubles_do_what_the_tests_rely_on() {
    let cases = [
        "memory_is_apart",
        "host_memory_is_no_argument",
        "copies_happen_in_their_time",
        "events_tell_the_time_of_execution",
        "kernels_run",
        "sources_are_known",
        "products_are_right",
        "careless_products_are_refused",
        "collectives_give_the_right_numbers",
        "two_communicators_move_apart",
        "differing_calls_are_named",
        "a_missing_call_is_named",
        "a_dead_rank_is_an_error",
        "an_aborted_communicator_lets_go",
        "one_device_for_two_ranks_is_refused",
    ];
    for case in cases {
        let output = self_test(case, &[]);
        assert!(output.status.success(), "{case}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_host_that_touches_device_memory_dies() {
    let output = self_test("host_touches_device_memory", &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("host code touched device memory"), "{text}");
}

#[test]
fn a_missing_wait_is_a_wrong_number_in_some_order_and_a_wait_a_right_one_in_every() {
    // 0 where the number is right, 3 where it is wrong.
    let outcomes = |case: &str| {
        let run = |order: String| self_test(case, &[("CUDA_DOUBLE_ORDER", &order)]).status.code();
        cuda::orders(20).into_iter().map(run).collect::<Vec<_>>()
    };
    for case in ["reader_waits", "writer_waits"] {
        assert_eq!(outcomes(case), vec![Some(0); 22], "{case}");
    }
    for case in ["reader_does_not_wait", "writer_does_not_wait", "a_collective_reads_late"] {
        let outcomes = outcomes(case);
        assert!(outcomes.iter().all(|code| matches!(code, Some(0 | 3))), "{case}: {outcomes:?}");
        // One of the two extremes, and seeds of both kinds.
        assert_ne!(outcomes[0], outcomes[1], "{case}: {outcomes:?}");
        assert!(outcomes[2..].contains(&Some(0)) && outcomes[2..].contains(&Some(3)), "{case}: {outcomes:?}");
    }
}

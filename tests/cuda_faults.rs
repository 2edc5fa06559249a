//! What CUDA lacks or does wrong is said in a sentence, with an exit code, on every rank and without a hang.
//! On doubles of NVIDIA's libraries (tests/cuda/doubles), and on the real ones as far as they go without a
//! GPU.

mod common;

use common::{Case, Output, Run, cuda};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// What a failure may take. Most take a second; a hang takes for ever.
const SOON: Duration = Duration::from_secs(60);

const CUDA: &str = "run.backend=cuda";

/// The run fails with this code, and says each part in one line, once for all ranks.
#[track_caller]
fn expect_refusal(run: Run, code: i32, parts: &[&str]) -> Output {
    let output = run.timeout(SOON).output().expect_code(code);
    let text = output.text();
    let lines: Vec<&str> = text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).collect();
    assert_eq!(lines.len(), 1, "lines with {parts:?}: {lines:?}\n{output}");
    output
}

#[test]
fn each_missing_library_is_named_with_what_brings_it() {
    let case = Case::tiny();
    let names = ["libcuda.so.1", "libnccl.so", "libcublasLt.so", "libnvrtc.so"];
    for (library, name) in cuda::LIBRARIES.into_iter().zip(names) {
        let dir = cuda::doubles_without(library);
        let run = case.train(2, library, &[CUDA]).on_libraries(dir.path(), 2);
        expect_refusal(run, 5, &["ranks 0-1", "cannot be loaded", name]);
    }
}

#[test]
fn each_missing_function_is_named() {
    let case = Case::tiny();
    let functions = ["cuMemHostAlloc", "ncclCommRegister", "cublasLtMatmul", "nvrtcGetCUBIN"];
    for (library, function) in cuda::LIBRARIES.into_iter().zip(functions) {
        let dir = cuda::doubles_without_symbol(library, function);
        let run = case.train(2, function, &[CUDA]).on_libraries(dir.path(), 2);
        expect_refusal(run, 5, &["ranks 0-1", &format!("has no {function},")]);
    }
}

#[test]
fn what_is_too_old_is_named_with_the_version_that_would_do() {
    let case = Case::tiny();
    let old = [
        ("CUDA_DOUBLE_DRIVER_VERSION", "12040", "the NVIDIA driver is for CUDA 12.4"),
        ("CUDA_DOUBLE_NCCL_VERSION", "21803", "NCCL is version 2.18.3"),
        ("CUDA_DOUBLE_COMPUTE", "75", "compute capability 7.5"),
    ];
    for (variable, value, words) in old {
        let run = case.train(2, variable, &[CUDA]).on_doubles(2, "demand").env(variable, value);
        expect_refusal(run, 5, &["ranks 0-1", words, "newer"]);
    }
}

#[test]
fn one_rank_alone_that_lacks_something_is_named_on_three_and_five_ranks() {
    let case = Case::tiny();
    for (n_ranks, library) in
        [(3, "libcuda.so.1"), (5, "libnvrtc.so.13"), (3, "libcublasLt.so.13"), (5, "libnccl.so.2")]
    {
        let (lacking, odd) = (cuda::doubles_without(library), n_ranks - 2);
        let program = case.path("on_other_libraries.sh");
        let text = format!(
            "#!/bin/bash\n[ \"$OMPI_COMM_WORLD_RANK\" = {odd} ] && export \
             LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH\nexec {} \"$@\"\n",
            lacking.path().display(),
            env!("CARGO_BIN_EXE_zero3")
        );
        std::fs::write(&program, text).expect("a temporary file");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("a mode");
        let run = case.train(n_ranks, library, &[CUDA]).program(&program).on_doubles(n_ranks, "demand");
        let name = library.split(".so").next().expect("a name");
        expect_refusal(run, 5, &[&format!("rank {odd} cannot compute on a GPU"), "cannot be loaded", name]);
    }
}

#[test]
fn a_device_without_the_shared_memory_of_attention_is_refused_before_the_first_step() {
    let case = Case::tiny();
    let run =
        case.train(2, "shared", &[CUDA]).on_doubles(2, "demand").env("CUDA_DOUBLE_SHARED_MEMORY", "65536");
    expect_refusal(run, 5, &["gives a block 65536 bytes of shared memory, and attention needs"]);
}

#[test]
fn libraries_of_a_newer_cuda_than_the_drivers_are_named() {
    let case = Case::tiny();
    let run =
        case.train(2, "newer", &[CUDA]).on_doubles(2, "demand").env("CUDA_DOUBLE_DRIVER_VERSION", "12080");
    expect_refusal(
        run,
        5,
        &["ranks 0-1", "CUDA's run-time compiler is of CUDA 13, and the NVIDIA driver is for CUDA 12.8"],
    );
    let run = case.train(2, "newer products", &[CUDA]).on_doubles(2, "demand");
    let run = run.env("CUDA_DOUBLE_DRIVER_VERSION", "12080").env("CUDA_DOUBLE_NVRTC_VERSION", "12080");
    expect_refusal(run, 5, &["ranks 0-1", "cuBLASLt is of CUDA 13"]);
}

#[test]
fn too_few_devices_are_refused() {
    let case = Case::tiny();
    for (n_devices, words) in [(0, " see no GPU"), (1, "GPU")] {
        let run = case.train(2, &n_devices.to_string(), &[CUDA]).on_doubles(n_devices, "demand");
        run.timeout(SOON).output().expect_code(5).expect_text(words);
    }
}

#[test]
fn auto_takes_the_cpu_where_no_rank_has_a_gpu_and_refuses_where_some_have() {
    let case = Case::tiny();
    let auto = "run.backend=auto";
    let dir = cuda::doubles_without("libcuda.so.1");
    case.train(2, "none", &[auto, "train.steps=1"]).on_libraries(dir.path(), 2).output().expect_success();
    let run =
        case.train(2, "some", &[auto]).on_doubles(2, "demand").env("CUDA_DOUBLE_FAIL", "cuInit:1:999@1");
    expect_refusal(run, 5, &["rank 1 cannot compute on a GPU", "rank 0 could", "cuInit"]);
    let run = case.train(2, "all", &[auto, "train.steps=1"]).on_doubles(2, "demand");
    run.output().expect_success().expect_text("CPU double of an sm_90 GPU");
}

#[test]
fn a_device_that_is_too_small_is_answered_with_the_kinds_of_memory_and_a_knob() {
    let case = Case::tiny();
    let plan = Run::new(0)
        .arg("plan")
        .arg(case.deck())
        .args([CUDA, "--ranks", "2", "--json"])
        .output()
        .expect_success();
    let plan: serde_json::Value = serde_json::from_str(&plan.stdout).expect("a plan");
    let needed = plan["arena_bytes"].as_u64().unwrap_or_else(|| panic!("no arena_bytes in {plan:#}"));
    // A little less than needed, which a knob can mend, and much less, which none can. The norm's bins take
    // 4096 bytes more.
    for (n_bytes, remedy) in [(needed + 4096 - 5000, "would fit"), (200_000, "reduce the model")] {
        let run = case.train(2, &n_bytes.to_string(), &[CUDA]).on_doubles(2, "demand");
        let output = run.env("CUDA_DOUBLE_MEMORY", n_bytes.to_string()).timeout(SOON).output().expect_code(5);
        let left = format!("{} are free on the device", n_bytes - 4096);
        for words in [&left[..], "peaks by kind", "optimizer state", "gathered params", "activations", remedy]
        {
            assert!(output.text().contains(words), "{words:?} is nowhere in\n{output}");
        }
    }
}

#[test]
fn memory_that_another_process_took_meanwhile_is_an_error_and_not_a_panic() {
    let case = Case::tiny();
    let run = case.train(2, "taken", &[CUDA]).on_doubles(2, "demand");
    // The first is of the bins of the gradient norm, the second is the arena.
    let output = run.env("CUDA_DOUBLE_FAIL", "cuMemAlloc_v2:2:2@1").timeout(SOON).output().expect_code(5);
    output.expect_text("bytes of device memory are required");
}

#[test]
fn a_rank_that_does_not_come_to_connect_is_named_within_the_timeout() {
    let case = Case::tiny();
    let run = case.train(3, "late", &[CUDA, "run.timeout=3"]).on_doubles(3, "demand");
    let run = run.env("CUDA_DOUBLE_FAIL", "ncclCommInitRankConfig:1:hang@1");
    run.timeout(SOON).output().expect_code(5).expect_text("rank 1 has not called to connect over NCCL");
}

#[test]
fn a_rank_that_fails_to_connect_ends_the_others_at_once() {
    let case = Case::tiny();
    // Of either communicator; run.timeout is ten minutes.
    for (n_ranks, nth) in [(3, 1), (3, 2), (5, 2)] {
        let run = case.train(n_ranks, &format!("{n_ranks} {nth}"), &[CUDA]).on_doubles(n_ranks, "demand");
        let run = run.env("CUDA_DOUBLE_FAIL", format!("ncclCommInitRankConfig:{nth}:3@{}", n_ranks - 2));
        let rank = format!("rank {} on", n_ranks - 2);
        expect_refusal(run, 5, &["zero3:", &rank, "ncclCommInitRankConfig failed with code 3"]);
    }
}

#[test]
fn an_error_of_nccl_behind_the_scenes_ends_every_rank() {
    let case = Case::tiny();
    for nth in [3, 40, 60] {
        let run = case.train(3, &nth.to_string(), &[CUDA]).on_doubles(3, "demand");
        let run = run.env("CUDA_DOUBLE_FAIL", format!("ncclCommGetAsyncError:{nth}:6@1"));
        run.timeout(SOON).output().expect_code(5).expect_text("rank 1");
    }
}

#[test]
fn failing_calls_of_the_driver_end_the_job() {
    let case = Case::tiny();
    for (call, says) in [
        ("cuStreamCreateWithPriority:1:999", "cuStreamCreateWithPriority failed"),
        ("cuMemHostAlloc:1:2", "cuMemHostAlloc of"),
        ("cuLaunchKernel:300:700", "launch of"),
        ("cuMemsetD8Async:20:700", "cuMemsetD8Async failed"),
        ("cublasLtMatmulAlgoGetHeuristic:3:15", "cuBLASLt has no algorithm for"),
        ("cublasLtMatmul:5:13", "cuBLASLt fails at"),
    ] {
        let run =
            case.train(3, call, &[CUDA]).on_doubles(3, "demand").env("CUDA_DOUBLE_FAIL", format!("{call}@1"));
        let output =
            run.timeout(SOON).output().expect_code(5).expect_text(says).expect_text("zero3: rank 1 on ");
        assert!(!output.stderr.contains("internal error") && !output.stderr.contains("panicked"), "{output}");
    }
}

#[test]
fn a_rank_that_dies_or_hangs_in_a_step_ends_the_others() {
    let case = Case::tiny();
    for fault in ["kill", "hang"] {
        let run = case.train(3, fault, &[CUDA, "run.timeout=4"]).on_doubles(3, "demand");
        let output = run.env("ZERO3_TEST_FAULT", format!("{fault}@step:1:2")).timeout(SOON).output();
        assert_ne!(output.code, 0, "{output}");
        if fault == "hang" {
            output.expect_code(5).expect_text("rank 1");
        }
    }
}

#[track_caller]
fn path_of(dirs: &[&Path]) -> std::ffi::OsString {
    std::env::join_paths(dirs).expect("paths without colons")
}

#[test]
fn nvidias_nccl_makes_ids_that_reach_three_ranks_whole() {
    let case = Case::tiny();
    // It needs no GPU to be loaded.
    let (dir, nccl) = (cuda::doubles_beside("libnccl.so.2"), cuda::fetched("scripts/nccl_library.sh"));
    let run = case.train(3, "real", &[CUDA]).on_doubles(3, "demand").env("RUST_LOG", "debug");
    let run = run.env("LD_LIBRARY_PATH", path_of(&[dir.path(), &nccl]));
    // It goes on to look for what only a real device has.
    let output = run.timeout(SOON).output().expect_code(5).expect_text("ncclCommInitRankConfig failed");
    let text = output.text();
    let ids: Vec<&str> =
        text.lines().filter_map(|line| line.split_once("NCCL ids of ").map(|(_, ids)| ids)).collect();
    assert_eq!(ids.len(), 3, "one line of each rank\n{output}");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 1, "{ids:?}");
    let digests: Vec<&str> = ids[0].split([' ', ',']).filter(|word| word.len() == 16).collect();
    assert!(digests.len() == 2 && digests[0] != digests[1], "two ids: {ids:?}");
}

#[test]
fn nvidias_compiler_takes_the_embedded_kernels_with_the_options_of_the_program() {
    let case = Case::tiny();
    let toolkit = cuda::fetched("scripts/cuda_compiler.sh");
    let (dir, lib) = (cuda::doubles_beside("libnvrtc.so.13"), toolkit.join("lib"));
    // The double of the driver knows machine code when it sees it, and cannot run it.
    let run = case
        .train(1, "real", &[CUDA])
        .on_doubles(1, "demand")
        .env("LD_LIBRARY_PATH", path_of(&[dir.path(), &lib]));
    let output = run.output().expect_code(5).expect_text("real machine code cannot run here");
    output.expect_text("cuModuleLoadData");
}

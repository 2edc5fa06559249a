//! Compiled kernels are kept from one run to the next, on doubles of NVIDIA's libraries: the double of the
//! compiler can be told to fail, which shows who calls it.

mod common;

use common::{Case, Output, Run};
use std::fs;
use std::path::{Path, PathBuf};

/// The compiler fails, on every rank.
const NO_COMPILER: &str = "nvrtcCompileProgram:1:6";

/// One step of the tiny deck with this cache.
fn train(case: &Case, n_ranks: usize, name: &str, cache: &Path) -> Run {
    let cache = format!("run.kernel_cache={}", cache.display());
    let words = ["run.backend=cuda", "train.steps=1", "train.eval_every=0", "checkpoint.every=0", &cache];
    case.train(n_ranks, name, &words).on_doubles(n_ranks, "demand")
}

/// The only file of a directory.
#[track_caller]
fn only_file(dir: &Path) -> PathBuf {
    let files: Vec<PathBuf> =
        fs::read_dir(dir).expect("a cache").map(|entry| entry.expect("a file").path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().expect("one")
}

/// Says this once, whatever the number of ranks.
#[track_caller]
fn expect_once(output: &Output, part: &str) {
    assert_eq!(output.text().matches(part).count(), 1, "{part:?} in\n{output}");
}

#[test]
fn what_one_run_compiles_later_ones_read() {
    let case = Case::tiny();
    let cache = case.path("some/cache");
    let first = train(&case, 3, "first", &cache).output().expect_success();
    expect_once(&first, "kernels for sm_90: compiled in ");
    expect_once(&first, &format!("cached in {}", cache.display()));
    let name = only_file(&cache).file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("kernels-sm_90-") && name.len() == "kernels-sm_90-".len() + 32, "{name}");
    let second =
        train(&case, 3, "second", &cache).env("CUDA_DOUBLE_FAIL", NO_COMPILER).output().expect_success();
    expect_once(&second, &format!("kernels for sm_90: read from {} in ", cache.display()));
    // Another architecture, or version of the compiler, is another file.
    for (variable, value) in [("CUDA_DOUBLE_COMPUTE", "80"), ("CUDA_DOUBLE_NVRTC_VERSION", "12090")] {
        let other = train(&case, 1, variable, &cache).env(variable, value);
        expect_once(&other.output().expect_success(), "compiled in ");
    }
    assert_eq!(fs::read_dir(&cache).expect("a cache").count(), 3);
}

#[test]
fn without_a_cache_every_run_compiles_and_the_users_is_the_default() {
    let case = Case::tiny();
    for name in ["one", "two"] {
        let output = train(&case, 2, name, Path::new("")).output().expect_success();
        expect_once(&output, "compiled in ");
        assert!(!output.text().contains("cached in"), "{output}");
    }
    let user = case.path("user");
    let run = train(&case, 2, "auto", Path::new("auto")).env("XDG_CACHE_HOME", &user);
    run.output().expect_success();
    only_file(&user.join("zero3"));
}

#[test]
fn rank_0_compiles_for_all_and_its_failure_is_everybodys() {
    let case = Case::tiny();
    let only_rank_0 = format!("{NO_COMPILER}@1,{NO_COMPILER}@2");
    let run = train(&case, 3, "others", Path::new("")).env("CUDA_DOUBLE_FAIL", only_rank_0);
    run.output().expect_success();
    let run = train(&case, 3, "rank 0", Path::new("")).env("CUDA_DOUBLE_FAIL", format!("{NO_COMPILER}@0"));
    expect_once(&run.output().expect_code(5), "libnvrtc cannot compile the kernels for sm_90");
}

#[test]
fn a_rank_on_a_device_of_another_architecture_compiles_for_itself() {
    let case = Case::tiny();
    let (cache, program) = (case.path("cache"), case.path("on_another_device.sh"));
    let text = format!(
        "#!/bin/bash\n[ \"$OMPI_COMM_WORLD_RANK\" = 1 ] && export CUDA_DOUBLE_COMPUTE=80\nexec {} \"$@\"\n",
        env!("CARGO_BIN_EXE_zero3")
    );
    fs::write(&program, text).expect("a temporary file");
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    train(&case, 3, "mixed", &cache).program(&program).output().expect_success();
    let names = fs::read_dir(&cache).expect("a cache").map(|entry| entry.expect("a file").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    assert!(
        names.len() == 2 && names[0].starts_with("kernels-sm_80-") && names[1].starts_with("kernels-sm_90-"),
        "{names:?}"
    );
}

#[test]
fn a_damaged_file_is_said_once_and_made_anew() {
    let case = Case::tiny();
    let cache = case.path("cache");
    train(&case, 2, "first", &cache).output().expect_success();
    let path = only_file(&cache);
    let whole = fs::read(&path).expect("it was written");
    let mut flipped = whole.clone();
    *flipped.last_mut().expect("not empty") ^= 1;
    for (name, bytes) in [("cut", &whole[..whole.len() - 1]), ("empty", &[]), ("flipped", &flipped)] {
        fs::write(&path, bytes).expect("it can be written");
        let output = train(&case, 2, name, &cache).output().expect_success();
        expect_once(&output, "is damaged, the kernels are compiled again");
        expect_once(&output, "compiled in ");
        assert_eq!(fs::read(only_file(&cache)).expect("a file"), whole, "{name}");
    }
}

#[test]
fn a_place_that_cannot_be_written_is_said_once_and_stops_nobody() {
    let case = Case::tiny();
    let file = case.path("file");
    fs::write(&file, "no directory").expect("a temporary file");
    let output = train(&case, 3, "run", &file.join("below")).output().expect_success();
    expect_once(&output, "cannot cache compiled kernels in ");
    expect_once(&output, "compiled in ");
}

#[test]
fn two_jobs_at_once_fill_one_cache() {
    let case = Case::tiny();
    let cache = case.path("cache");
    let jobs: Vec<_> = ["a", "b", "c"].map(|name| train(&case, 2, name, &cache).start()).into();
    jobs.into_iter().for_each(|job| _ = job.output().expect_success());
    only_file(&cache);
    train(&case, 1, "after", &cache).env("CUDA_DOUBLE_FAIL", NO_COMPILER).output().expect_success();
}

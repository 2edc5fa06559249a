//! Bad decks, data and checkpoints: one message that names key, file and remedy, exit code 2 on every rank,
//! soon, and nothing started.

mod common;

use common::{Case, Output, Run, text};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A bad input is found in a second; a hang lasts for ever. The limit is for a machine on which much else
/// runs.
const SOON: Duration = Duration::from_secs(90);

/// The run was refused: code 2, each of `parts` said once by all ranks together, no run directory.
#[track_caller]
fn expect_refusal(output: Output, parts: &[&str]) {
    let output = output.expect_code(2);
    let said = output.text();
    for part in parts {
        assert_eq!(said.matches(part).count(), 1, "{part:?} is not said once in\n{output}");
    }
    for part in ["panicked", "backtrace", "internal error"] {
        assert!(!said.contains(part), "{part:?} is in\n{output}");
    }
    assert!(output.elapsed < SOON, "{output}");
}

/// `zero3 train` with `words` on `n_ranks` is refused, and leaves no run directory.
#[track_caller]
fn refuse(case: &Case, n_ranks: usize, words: &[&str], parts: &[&str]) {
    expect_refusal(case.train(n_ranks, "refused", words).output(), parts);
    assert!(!case.path("refused").exists(), "{words:?} left a run directory");
}

#[test]
fn all_faults_of_a_deck_are_said_at_once_on_three_ranks() {
    let words = [
        "train.stepss=3",
        "foo.bar=1",
        "model.n_head=3",
        "model.d_model=20",
        "optim.lr=nan",
        "optim.beta1=-0.5",
        "optim.beta2=inf",
        "optim.eps=1e400",
        "train.steps=99999999999999999999",
        "train.micro_batch_size=4",
        "train.max_skipped_steps=0",
        "data.train=",
        "zero.stage=4",
        "checkpoint.every=sometimes",
        "log.level=loud",
        "run.backend=gpu",
    ];
    let parts = [
        "the deck has 15 faults:",
        "train.stepss = 3: no such key; did you mean train.steps?",
        "foo.bar = 1: no such key",
        "model.n_head = 3: a divisor of model.d_model = 20, e.g. 2 or 4",
        "optim.lr = nan: a number from 0 to 1000",
        "optim.beta1 = -0.5: a number from 0 to below 1",
        "optim.beta2 = inf: a number from 0 to below 1",
        "optim.eps = 1e400: a number from 0 to 1",
        "train.steps = 99999999999999999999: an integer from 1 to 1000000000",
        "train.global_batch_size = 6: a multiple of train.micro_batch_size = 4, e.g. 4 or 8",
        "train.max_skipped_steps = 0: an integer from 1",
        "data.train = empty: a list of at least one path",
        "zero.stage = 4: an integer from 0 to 3",
        "checkpoint.every = sometimes: an integer from 0",
        "log.level = loud: \"off\"",
        "run.backend = gpu: one of \"auto\"",
    ];
    refuse(&Case::tiny(), 3, &words, &parts);
}

#[test]
fn a_knob_of_the_other_backend_is_refused_with_the_backend_that_has_it() {
    refuse(
        &Case::tiny(),
        2,
        &["zero.deterministic=false"],
        &["zero.deterministic = false", "run.backend = \"cuda\""],
    );
}

#[test]
fn sizes_that_overflow_are_refused_before_anything_is_reckoned() {
    let case = Case::tiny();
    let huge = ["model.n_layer=4096", "model.d_model=1048576", "model.n_head=1"];
    refuse(&case, 2, &huge, &["model.d_model = 1048576: smaller", "at most 2^44 are supported"]);
    let wide = ["model.seq_len=1048576", "train.micro_batch_size=1048576", "train.global_batch_size=1048576"];
    refuse(&case, 0, &wide, &["train.micro_batch_size = 1048576: smaller"]);
    refuse(
        &case,
        0,
        &["train.eval_batches=9223372036854775807"],
        &["train.eval_batches = 9223372036854775807"],
    );
    let steps = ["train.steps=1000000000", "train.global_batch_size=1073741824", "model.seq_len=1048576"];
    refuse(&case, 0, &steps, &["train.steps = 1000000000: a number that keeps"]);
}

#[test]
fn a_file_that_is_no_deck_is_refused() {
    let case = Case::tiny();
    let deck = fs::read_to_string(case.deck()).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(case.path(name), bytes).unwrap();
    write("torn.toml", b"[run\ndir = 1");
    write("twice.toml", format!("{deck}\nevery = 1").as_bytes());
    write("latin1.toml", b"[run]\ndir = \"caf\xe9\"");
    write("zeros.toml", &[0; 100_000]);
    write("deep.toml", format!("x = {}", "[".repeat(100_000)).as_bytes());
    fs::create_dir(case.path("dir.toml")).unwrap();
    let refused = [
        (2, "torn.toml", "is not TOML: line 1, column 5"),
        (3, "twice.toml", "duplicate key"),
        (0, "latin1.toml", "valid UTF-8"),
        (0, "zeros.toml", "is not TOML: line 1, column 1"),
        (0, "deep.toml", "max recursion depth"),
        (2, "dir.toml", "a deck is a TOML file"),
        (3, "missing.toml", "No such file or directory (os error 2); a deck is a TOML file"),
    ];
    for (n_ranks, name, part) in refused {
        expect_refusal(Run::new(n_ranks).arg("train").arg(case.path(name)).output(), &[name, part]);
    }
    expect_refusal(Run::new(0).args(["train", "/dev/zero"]).output(), &["it exceeds 16777216 bytes"]);
    write("empty.toml", b"");
    let missing =
        ["the deck has 7 faults", "run.dir = missing", "data.train = missing", "train.steps = missing"];
    expect_refusal(Run::new(2).arg("train").arg(case.path("empty.toml")).output(), &missing);
}

#[test]
fn odd_but_right_decks_are_read() {
    let case = Case::tiny();
    let deck = fs::read_to_string(case.deck()).unwrap();
    let decks = [
        ("bom.toml", format!("\u{feff}{deck}")),
        ("crlf.toml", deck.replace('\n', "\r\n")),
        ("long.toml", format!("{deck}\n# {}", "so long ".repeat(125_000))),
        ("ünïcödé 字.toml", deck.clone()),
    ];
    for (name, text) in decks {
        fs::write(case.path(name), text).unwrap();
        Run::new(0).args(["train", "--dry-run"]).arg(case.path(name)).output().expect_success();
    }
    // The last one of a key counts.
    let words = ["optim.lr=7", "optim.lr=0.5", "train.steps=4", "--dry-run"];
    case.train(0, "run", &words).output().expect_success().expect_text("lr = 0.5 ");
}

#[test]
fn wrong_words_on_the_command_line_are_refused_once_for_all_ranks() {
    let case = Case::tiny();
    refuse(&case, 3, &["--bogus"], &["unexpected argument '--bogus'"]);
    refuse(&case, 0, &["other.toml"], &["more than one deck"]);
    refuse(&case, 0, &["=3"], &["section.key=value"]);
    refuse(&case, 0, &["--resume", ""], &["expected auto, none or a directory"]);
    expect_refusal(Run::new(2).arg("train").output(), &["required arguments were not provided"]);
    expect_refusal(
        Run::new(0).arg("plan").arg(case.deck()).args(["--ranks", "0"]).output(),
        &["0 is not in 1..="],
    );
    expect_refusal(
        Run::new(0).arg("plan").arg(case.deck()).args(["--ranks", "5000000000"]).output(),
        &["5000000000 is not in 1..="],
    );
}

/// Megatron-LM #2459: a token id beyond the vocabulary becomes a device assert.
#[test]
fn bad_data_is_found_before_step_0_with_file_offset_and_value() {
    let case = Case::tiny();
    let u16s = |tokens: &[u16]| tokens.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<u8>>();
    let u32s = |tokens: &[u32]| tokens.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<u8>>();
    let write = |name: &str, bytes: &[u8]| fs::write(case.path(name), bytes).unwrap();
    let mut tokens = vec![5; 4000];
    tokens[1234] = 999;
    write("beyond.bin", &u16s(&tokens));
    let mut tokens = vec![5; 4000];
    tokens[3999] = u32::MAX;
    write("beyond.u32", &u32s(&tokens));
    write("torn.bin", &[7; 8001]);
    write("short.txt", b"too short");
    write("empty.txt", b"");
    write("llmc.bin", &u32s(&[20_240_520; 4000]));
    write("table.parquet", &[1; 4000]);
    fs::create_dir(case.path("folder")).unwrap();
    std::os::unix::fs::symlink("loop.txt", case.path("loop.txt")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(case.path("pipe")).status().unwrap().success());

    let vocab = "model.vocab_size=100";
    let header = |words: [u32; 3]| [u32s(&words), vec![0; 1012]].concat();
    write("lies.bin", &[header([20_240_520, 1, 5000]), vec![0; 8000]].concat());
    write("large.bin", &[header([20_240_520, 1, 4000]), vec![1; 8000]].concat());
    let faults: [(usize, &[&str], &[&str]); 19] = [
        (
            2,
            &["data.train=lies.bin", "data.format=llmc", vocab],
            &["lies.bin has 5000 tokens according to its header (byte offset 8), but contains 4000"],
        ),
        (
            0,
            &["data.train=torn.bin", "data.format=llmc", vocab],
            &["torn.bin starts with 117901063 (byte offset 0)"],
        ),
        (
            0,
            &["data.train=large.bin", "data.format=llmc", vocab],
            &["large.bin: token 0 (byte offset 1024) is 257, outside the vocabulary of 100 (4000 such \
                 tokens"],
        ),
        (
            3,
            &["data.train=beyond.bin", vocab],
            &["beyond.bin: token 1234 (byte offset 2468) is 999", "vocabulary of 100"],
        ),
        (2, &["data.train=beyond.u32", vocab], &["beyond.u32: token 3999 (byte offset 15996) is 4294967295"]),
        (2, &["data.train=torn.bin", vocab], &["torn.bin has 8001 bytes", "byte offset 8000"]),
        (
            2,
            &["data.train=short.txt"],
            &[
                "data.train: short.txt: 9 tokens are too few",
                "of the 9 tokens in short.txt it leaves 0 for validation",
            ],
        ),
        (
            0,
            &["data.val=short.txt"],
            &["data.val: short.txt: 9 tokens are too few", "model.seq_len + 1 = 17"],
        ),
        (2, &["model.seq_len=100000"], &["18000 for training", "2000 for validation"]),
        (0, &["data.train=empty.txt"], &["empty.txt: 0 bytes"]),
        (3, &["data.train=nothing/*.txt"], &["no file matches nothing/*.txt; relative paths start from"]),
        (2, &["data.train=missing.txt,gone.txt"], &["cannot read missing.txt", "cannot read gone.txt"]),
        (
            0,
            &["data.train=folder"],
            &["folder is a directory; use a glob for its files, e.g. folder/**/*.txt"],
        ),
        (0, &["data.train=["], &["[ is not a glob"]),
        (0, &["data.train=loop.txt"], &["cannot read loop.txt"]),
        (2, &["data.train=pipe"], &["pipe is not a regular file"]),
        (
            0,
            &["data.train=llmc.bin", vocab],
            &["llmc.bin starts with the header of an llm.c token file; set data.format = \"llmc\""],
        ),
        (
            0,
            &["data.train=table.parquet"],
            &["data.format = auto: files of text or bare tokens, unlike table.parquet"],
        ),
        (2, &[vocab], &["model.vocab_size = 100: at least 256"]),
    ];
    for (n_ranks, words, parts) in faults {
        refuse(&case, n_ranks, words, parts);
    }
    // A dry run finds them too.
    refuse(
        &case,
        0,
        &["data.train=beyond.bin", vocab, "--dry-run"],
        &["token 1234 (byte offset 2468) is 999"],
    );
    expect_refusal(
        Run::new(0)
            .dir(&case.path(""))
            .args(["data", "info", "deck.toml", "data.train=torn.bin", vocab])
            .output(),
        &["torn.bin has 8001 bytes"],
    );
}

#[test]
fn a_run_directory_that_cannot_be_is_refused_before_step_0() {
    let case = Case::tiny();
    let remedy = "set run.dir to a writable directory";
    expect_refusal(case.train(3, "text.txt", &[]).output(), &["text.txt is not a directory", remedy]);
    expect_refusal(
        case.train(0, "text.txt/deeper", &["--dry-run"]).output(),
        &["text.txt is not a directory", remedy],
    );
    fs::create_dir(case.path("odd")).unwrap();
    fs::write(case.path("odd/checkpoints"), "a file").unwrap();
    expect_refusal(case.train(2, "odd", &[]).output(), &["checkpoints is not a directory", remedy]);
}

#[test]
fn initial_weights_that_do_not_fit_are_refused() {
    let case = Case::tiny();
    let missing = ["model.init_from=gone.h5"];
    expect_refusal(case.train(3, "run", &missing).output(), &["gone.h5: no such file"]);
    expect_refusal(
        case.train(0, "dry", &["model.init_from=gone.h5", "--dry-run"]).output(),
        &["gone.h5: no such file"],
    );
    expect_refusal(
        case.train(2, "run", &["model.init_from=text.txt"]).output(),
        &["text.txt: not a readable HDF5 file"],
    );
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Overwrites one byte.
fn spoil(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 0x55;
    fs::write(path, bytes).unwrap();
}

/// TOSCA #33: a truncated checkpoint hung each queued job for its whole time limit.
#[test]
fn a_bad_checkpoint_is_refused_and_an_older_one_is_named() {
    let case = Case::tiny();
    case.train(2, "good", &[]).output().expect_success();
    type Damage = fn(&Path);
    // What is done to step 4, and what is said. Values lie before the last structures of a file: the middle
    // is a value.
    let damages: [(usize, Damage, &[&str]); 7] = [
        (
            3,
            |dir| fs::remove_file(dir.join("rank_0001_of_0002.h5")).unwrap(),
            &["rank_0001_of_0002.h5 is missing"],
        ),
        (
            2,
            |dir| fs::write(dir.join("rank_0000_of_0002.h5"), "short").unwrap(),
            &["rank_0000_of_0002.h5 has 5 bytes"],
        ),
        (3, |dir| fs::remove_file(dir.join("manifest.json")).unwrap(), &["manifest.json is missing"]),
        (2, |dir| fs::write(dir.join("manifest.json"), "{").unwrap(), &["manifest.json is damaged"]),
        (0, |dir| spoil(&dir.join("manifest.json"), 300), &["manifest.json is damaged"]),
        (
            3,
            |dir| spoil(&dir.join("rank_0001_of_0002.h5"), 60_000),
            &["rank_0001_of_0002.h5: dataset", "is damaged"],
        ),
        (
            2,
            |dir| fs::rename(dir.join("rank_0000_of_0002.h5"), dir.join("rank_0001_of_0002.h5")).unwrap(),
            &["rank_0000_of_0002.h5 is missing"],
        ),
    ];
    for (i, (n_ranks, damage, parts)) in damages.into_iter().enumerate() {
        let name = format!("bad{i}");
        copy_tree(&case.path("good"), &case.path(&name));
        damage(&case.path(&name).join("checkpoints/step_00000004"));
        let older = format!("--resume {}", case.path(&name).join("checkpoints/step_00000002").display());
        let log = fs::read(case.path(&name).join("steps.csv")).unwrap();
        let output = case.train(n_ranks, &name, &["train.steps=6"]).output();
        expect_refusal(output, &[parts, &[older.as_str()]].concat());
        assert_eq!(
            fs::read(case.path(&name).join("steps.csv")).unwrap(),
            log,
            "a refused resume changes nothing"
        );
        let entries = fs::read_dir(case.path(&name).join("checkpoints")).unwrap();
        let n_checkpoints = entries.filter(|e| e.as_ref().unwrap().file_name() != "latest").count();
        assert_eq!(n_checkpoints, 2, "a refused resume deletes nothing");
    }
    // What is advised works.
    let older = case.path("bad0/checkpoints/step_00000002");
    case.train(3, "bad0", &["--resume", older.to_str().unwrap()]).output().expect_success();

    // Sound, but of another model or other data.
    let deep = ["train.steps=6", "model.n_layer=3"];
    expect_refusal(
        case.train(2, "good", &deep).output(),
        &["does not fit this run", "h.2.ln_1.weight is not in the"],
    );
    let wide = ["train.steps=6", "model.d_model=40", "--dry-run"];
    let parts = ["wte.weight is [256, 20] in the checkpoint and [256, 40] in the deck"];
    expect_refusal(case.train(0, "good", &wide).output(), &parts);
    fs::write(case.path("text.txt"), text(20_001)).unwrap();
    let parts = ["the data differ", "data.allow_changed=true"];
    expect_refusal(case.train(3, "good", &["train.steps=6"]).output(), &parts);
    let output =
        case.train(3, "good", &["train.steps=6", "data.allow_changed=true"]).output().expect_success();
    assert_eq!(output.text().matches("the data differ from those").count(), 1, "{output}");
}

/// DeepSpeed #6691: a resume finds nothing and starts from scratch without a word.
#[test]
fn a_resume_from_nothing_is_an_error_never_a_fresh_start() {
    let case = Case::tiny();
    fs::create_dir_all(case.path("bare")).unwrap();
    refuse(&case, 3, &["--resume", "nowhere"], &["nowhere: no such directory"]);
    refuse(&case, 2, &["--resume", "text.txt"], &["text.txt: not a directory"]);
    refuse(&case, 0, &["--resume", "bare"], &["bare: no complete checkpoint"]);
    refuse(&case, 0, &["--resume", "nowhere", "--dry-run"], &["nowhere: no such directory"]);
    expect_refusal(
        Run::new(0).args(["ckpt", "inspect"]).arg(case.path("bare")).output(),
        &["no complete checkpoint"],
    );
}

#[test]
fn a_dry_run_prints_the_resolved_deck_and_starts_nothing() {
    let case = Case::tiny();
    let output = case.train(3, "dry", &["--dry-run", "optim.lr=0.125"]).output().expect_success();
    assert!(!case.path("dry").exists(), "a dry run makes no run directory");
    assert_eq!(output.stdout.matches("[run]").count(), 1, "printed once\n{output}");
    let table: toml::Table = output.stdout.parse().unwrap_or_else(|e| panic!("{e}\n{output}"));
    assert_eq!(table["optim"]["lr"].as_float(), Some(0.125));
    assert_eq!(table["optim"]["decay_steps"].as_integer(), Some(4), "what a 0 stood for is written out");
    assert_eq!(table["model"]["vocab_size"].as_integer(), Some(256), "the tokenizer's");

    fs::write(case.path("resolved.toml"), &output.stdout).unwrap();
    let again =
        Run::new(0).args(["train", "--dry-run"]).arg(case.path("resolved.toml")).output().expect_success();
    // Open MPI's terminal may have turned line ends into \r\n.
    assert_eq!(output.stdout.lines().collect::<Vec<_>>(), again.stdout.lines().collect::<Vec<_>>());
}

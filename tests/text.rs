//! `zero3 data tokenize` and `data info`: the files of the real program, restarts after kills, and training
//! on them.

mod common;

use common::{Case, Run, Steps, assert_same_curve, text};
use std::collections::BTreeMap;
use std::path::Path;

fn zero3(case: &Case, line: &[&str]) -> Run {
    Run::new(0).dir(case.path("").as_path()).args(line)
}

/// Every file of a directory that tokenizing made.
fn made(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&p).unwrap()))
        .collect()
}

#[test]
fn training_on_an_llmc_file_gives_the_bits_of_the_bare_file_and_of_the_text() {
    let case = Case::tiny();
    for (out, format) in [("bytes.u16", "auto"), ("bytes.bin", "llmc")] {
        let line = ["data", "tokenize", "--tokenizer", "bytes", out, "text.txt", "--format", format];
        zero3(&case, &line)
            .output()
            .expect_success()
            .expect_text("20000 tokens")
            .expect_text("model.vocab_size = 256");
    }
    case.train(2, "text", &[]).output().expect_success();
    let want = Steps::read(&case.path("text"));
    for (n, run, words) in [
        (1, "raw", &["data.train=bytes.u16", "model.vocab_size=256"][..]),
        (3, "llmc", &["data.train=bytes.bin", "data.format=llmc", "model.vocab_size=256"]),
    ] {
        case.train(n, run, words).output().expect_success();
        assert_same_curve(&Steps::read(&case.path(run)), &want);
    }
    let info = |file: &str| zero3(&case, &["data", "info", file]).output().expect_success();
    info("bytes.bin").expect_text("20000 tokens in 1 file, llmc_u16").expect_text("as text            \"");
    let start = text(24);
    info("bytes.u16").expect_text("raw_u16").expect_text(&format!("{start:?}"));
}

#[test]
fn a_run_killed_at_any_batch_goes_on_to_the_same_files() {
    let case = Case::tiny();
    // Several batches of 16 MiB.
    std::fs::write(case.path("long.txt"), text(70 << 20)).unwrap();
    let line = |dir: &str| {
        let out = format!("{dir}/t.bin");
        std::fs::create_dir_all(case.path(dir)).unwrap();
        let words =
            ["data", "tokenize", "--tokenizer", "bytes", "--separator", "\n", "--val-fraction", "0.25"];
        let rest = ["--format", "llmc", "--shard-tokens", "10000000", &out, "text.txt", "long.txt"];
        zero3(&case, &[&words[..], &rest[..]].concat())
    };
    line("whole").output().expect_success().expect_text("validation: ");
    let want = made(&case.path("whole"));
    assert!(want.len() >= 9 && want.keys().all(|name| !name.ends_with(".partial")), "{:?}", want.keys());
    for place in ["batch:0:0", "batch:0:2", "finished:0:0"] {
        let dir = place.replace(':', "_");
        line(&dir).env("ZERO3_TEST_FAULT", format!("kill@tokenize.{place}")).output().expect_code(137);
        line(&dir).output().expect_success();
        let found = made(&case.path(&dir));
        assert!(found == want, "killed at {place}: {:?}", found.keys());
        line(&dir).output().expect_success().expect_text("already complete");
    }
}

#[test]
fn faults_of_text_and_token_files_are_named_with_file_and_offset() {
    let case = Case::tiny();
    std::fs::write(case.path("bad.txt"), [&text(3000).into_bytes()[..], b"\xc3("].concat()).unwrap();
    std::fs::write(case.path("bad.jsonl"), "{\"text\": \"good\"}\n{\"txt\": 1}\n").unwrap();
    std::fs::write(case.path("large.u16"), [7, 0, 0x51, 0xc4]).unwrap();
    std::fs::write(case.path("torn.u32"), [7; 9]).unwrap();
    let lie =
        [&20_240_520u32.to_le_bytes()[..], &1u32.to_le_bytes(), &9u32.to_le_bytes(), &[0; 1012]].concat();
    std::fs::write(case.path("lie.bin"), lie).unwrap();
    std::fs::write(case.path("cut.json"), "{\"decoder\":[").unwrap();
    std::fs::write(case.path("words.TXT.GZ"), "not packed at all").unwrap();
    std::fs::write(case.path("packed.txt"), b"\x1f\x8b\x08\0rest").unwrap();
    // Behind a byte order mark; a surrogate by itself.
    std::fs::write(case.path("LINES.NDJSON"), "\u{feff}{\"text\": \"on\"}\n{\"text\": \"ab\\ud83dcd\"}\n")
        .unwrap();
    let tokenize = ["data", "tokenize", "--tokenizer", "gpt2", "o.bin"];
    let bytes = ["data", "tokenize", "--tokenizer", "bytes", "o.bin"];
    for (line, says) in [
        (
            &[&tokenize[..], &["text.txt", "bad.txt"]].concat()[..],
            "bad.txt: byte offset 3000: byte 0xc3 is not UTF-8",
        ),
        (
            &[&tokenize[..], &["bad.jsonl"]].concat(),
            "bad.jsonl: line 2, byte offset 17: a line must be a JSON object",
        ),
        (&[&tokenize[..], &["gone.txt"]].concat(), "cannot read gone.txt"),
        (&["data", "tokenize", "--tokenizer", "none.json", "o.bin", "text.txt"], "none.json: no such file"),
        (
            &["data", "info", "--tokenizer", "gpt2", "large.u16"],
            "large.u16: token 1 (byte offset 2) is 50257",
        ),
        (&["data", "info", "torn.u32"], "torn.u32 has 9 bytes"),
        (
            &["data", "tokenize", "--tokenizer", "cut.json", "o.bin", "text.txt"],
            "cut.json: not a tokenizer.json: ",
        ),
        (&[&bytes[..], &["words.TXT.GZ"]].concat(), "words.TXT.GZ is a .gz container, not text; unpack it"),
        (&[&bytes[..], &["packed.txt"]].concat(), "packed.txt is a gzip file, not text; unpack it"),
        (&[&bytes[..], &["LINES.NDJSON"]].concat(), "LINES.NDJSON: line 2, byte offset 36: "),
        (
            &[&bytes[..], &["text.txt", "--val-fraction", "0.1"]].concat(),
            "--val-fraction 0.1: the split is by document",
        ),
        (
            &["data", "info", "lie.bin"],
            "lie.bin has 9 tokens according to its header (byte offset 8), but contains 0",
        ),
        (
            &["data", "info", "--format", "llmc", "text.txt"],
            "(byte offset 0), but an llm.c token file starts with 20240520",
        ),
    ] {
        zero3(&case, line).output().expect_code(2).expect_text(says);
        for left in ["o.bin.tokenize.json", "o.bin.partial"] {
            std::fs::remove_file(case.path(left)).ok();
        }
    }
}

#[test]
fn another_tokenizer_than_the_tokens_were_made_with_is_warned_of_and_samples_nothing() {
    let case = Case::tiny();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/tokenizer.json");
    std::fs::copy(golden, case.path("tokenizer.json")).unwrap();
    let line = ["data", "tokenize", "--tokenizer", "tokenizer.json", "t.u16", "text.txt"];
    zero3(&case, &line).output().expect_success();
    let of_data =
        ["data.train=t.u16", "data.tokenizer=tokenizer.json", "model.vocab_size=600", "train.steps=2"];
    let said = case.train(2, "run", &of_data).output().expect_success();
    assert!(!said.text().contains("the tokens of "), "{said}");

    let mut other: serde_json::Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    other["version"] = "1.0".into();
    std::fs::write(case.path("tokenizer.json"), serde_json::to_vec_pretty(&other).unwrap()).unwrap();
    let digest =
        |path: &Path| format!("(digest {:016x})", xxhash_rust::xxh3::xxh3_64(&std::fs::read(path).unwrap()));
    let digests = [digest(Path::new(golden)), digest(&case.path("tokenizer.json"))];
    assert_ne!(digests[0], digests[1]);
    let names_both =
        |said: common::Output| digests.iter().fold(said, |said, digest| said.expect_text(digest));
    names_both(zero3(&case, &["data", "info", "t.u16"]).output().expect_success());
    // A resume, and a start.
    let more = [&of_data[..], &["train.steps=3"]].concat();
    names_both(case.train(2, "run", &more).output().expect_success());
    names_both(case.train(1, "new", &of_data).output().expect_success());
    let sample = || {
        Run::new(2).dir(case.path("").as_path()).args(["sample", "run", "--max-tokens", "2", "--prompt", "a"])
    };
    names_both(sample().output().expect_code(2));
    std::fs::copy(golden, case.path("tokenizer.json")).unwrap();
    sample().output().expect_success();
}

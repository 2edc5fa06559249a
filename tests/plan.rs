//! `zero3 plan` with models, hardware, sweeps and calibration, through the real program.

mod common;

use common::{Case, Output, Run};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e}\n{output}"))
}

/// Refused with code 2, and each of `parts` is in what is said.
#[track_caller]
fn expect_refusal(output: Output, parts: &[&str]) {
    let output = output.expect_code(2);
    for part in parts {
        assert!(output.text().contains(part), "{part:?} is not in\n{output}");
    }
}

fn plan(words: &[&str]) -> Output {
    Run::new(0).dir(Path::new(env!("CARGO_MANIFEST_DIR"))).arg("plan").args(words).output()
}

#[test]
fn the_papers_row_comes_out_for_7_5_billion_parameters_on_64_ranks() {
    // arXiv:1910.02054, figure 1: 120, 31.4, 16.6 and 1.9 GB.
    let text = plan(&["--params", "7.5B", "--ranks", "64"]).expect_success().stdout;
    for (stage, gb) in [("0", "120.0"), ("1", "31.4"), ("2", "16.6"), ("3", "1.9")] {
        let line = text.lines().find(|line| line.contains(&format!("stage {stage} at rest"))).unwrap();
        assert!(line.contains(&format!(" {gb} GB")), "{line}");
    }
    // The plan itself, of a real model of about that size, says the same.
    for (stage, gb) in [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)] {
        let stage = format!("zero.stage={stage}");
        let json = json(&plan(&["--params", "7.5B", "--ranks", "64", "--json", &stage]).expect_success());
        let resident = json["resident_bytes"].as_f64().unwrap() / 1e9;
        assert!((resident / gb - 1.0).abs() < 0.015, "{stage}: {resident} GB");
        assert_eq!(json["formula"]["n_params"], 7_500_000_000_u64);
        let off = json["n_params"].as_f64().unwrap() / 7.5e9 - 1.0;
        assert!(off.abs() < 0.02, "{off}");
    }
}

#[test]
fn a_forecast_names_its_basis_its_figures_and_the_knob_to_turn() {
    let words = ["--model", "llama-1b", "--ranks", "16", "--hardware", "h100"];
    let text = plan(&words).expect_success().stdout;
    for part in [
        "llama with 1235814400 parameters",
        "not verified on such a machine",
        "16 ranks on 2 nodes of 8",
        "leaving a node",
        "exposed",
        "MFU",
        "change first: ",
        "one key changed",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let json = json(&plan(&[&words[..], &["--json"]].concat()).expect_success());
    let forecast = &json["forecast"];
    let number = |key: &str| forecast[key].as_f64().unwrap_or_else(|| panic!("{key} in {forecast}"));
    assert_eq!(forecast["measured"], false);
    assert!(number("step_s") >= number("compute_s") && (0.0..1.0).contains(&number("mfu")));
    assert_eq!(number("all_gather_bytes"), json["step_volume"][0]["all_gather_bytes"].as_f64().unwrap());
    // Flat rings leave a node with all slices but one.
    assert_eq!(number("leaving_node_all_gather_bytes"), number("all_gather_bytes"));
    let gains: Vec<f64> = json["advice"]["fits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|turn| turn["gain"].as_f64().unwrap())
        .collect();
    assert!(gains.len() > 8 && gains.is_sorted_by(|a, b| a >= b), "{gains:?}");
    // What is advised gives what it says: the change as a word of the command line.
    let best = &json["advice"]["fits"][0];
    let change: Vec<&str> = best["change"].as_str().unwrap().split(' ').collect();
    let base_batch = format!("train.global_batch_size={}", json["n_micro"].as_u64().unwrap());
    let batch = if change.iter().any(|c| c.starts_with("train.global_batch_size")) {
        vec![]
    } else {
        vec![base_batch]
    };
    let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
    let turned = self::json(&plan(&[&words[..], &batch, &change, &["--json"]].concat()).expect_success());
    let (told, got) = (&best["forecast"]["step_s"], &turned["forecast"]["step_s"]);
    assert!((told.as_f64().unwrap() / got.as_f64().unwrap() - 1.0).abs() < 1e-9, "{told} {got}");
}

#[test]
fn a_model_that_is_too_large_is_answered_with_what_would_fit() {
    let text =
        plan(&["--model", "llama3-70b", "--ranks", "8", "--hardware", "a100-40gb"]).expect_success().stdout;
    assert!(
        text.contains("DOES NOT FIT") && text.contains("\nto fit 37.3 GiB: ") && text.contains("would fit"),
        "{text}"
    );
    // What does not fit now, and is faster, says what would make it fit.
    let words =
        ["--model", "llama2-7b", "--ranks", "64", "--hardware", "h100", "zero.activation_checkpointing=all"];
    let json = json(&plan(&[&words[..], &["train.micro_batch_size=8", "--json"]].concat()).expect_success());
    assert_eq!(json["forecast"]["fits"], true);
    let too_large = json["advice"]["too_large"].as_array().unwrap();
    let plain = too_large
        .iter()
        .find(|turn| turn["change"] == "zero.activation_checkpointing=none")
        .expect("faster, too large");
    assert!(
        plain["gain"].as_f64().unwrap() > 0.1 && plain["remedy"]["gain"].as_f64().unwrap() > 0.1,
        "{plain}"
    );
    assert!(too_large.iter().all(|turn| turn["forecast"]["fits"] == false));
    let text = plan(&[&words[..], &["train.micro_batch_size=8"]].concat()).expect_success().stdout;
    assert!(
        text.contains("or both of: zero.activation_checkpointing=none train.micro_batch_size=4"),
        "{text}"
    );
    assert!(json["advice"]["fits"].as_array().unwrap().iter().all(|turn| turn["forecast"]["fits"] == true));
}

#[test]
fn a_sweep_to_4096_ranks_writes_csv_and_svg() {
    let case = Case::tiny();
    let (csv, svg) = (case.path("s.csv").display().to_string(), case.path("s.svg").display().to_string());
    let words = [
        "--model",
        "llama2-7b",
        "--hardware",
        "h100",
        "--sweep",
        "ranks=8..4096",
        "--csv",
        &csv,
        "--figure",
        &svg,
    ];
    let output = plan(&words).expect_success();
    assert!(output.stdout.contains("not verified"), "{output}");
    let table = std::fs::read_to_string(&csv).unwrap();
    let mut lines = table.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(
        rows.iter().map(|row| row[0]).collect::<Vec<_>>(),
        ["8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096"]
    );
    let column = |name: &str| header.iter().position(|h| *h == name).unwrap();
    let received: Vec<f64> =
        rows.iter().map(|row| row[column("all_gather_bytes")].parse().unwrap()).collect();
    assert!(received.is_sorted(), "(N-1)/N of everything: {received:?}");
    assert_eq!(rows[0][column("leaving_node_all_gather_bytes")], "0", "one node");
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(
        picture.starts_with("<svg") && picture.contains("4096") && picture.contains("H100"),
        "{}",
        &picture[..200]
    );
}

#[test]
fn any_key_can_be_swept_and_what_cannot_be_planned_says_why() {
    let deck = ["inputs/gpt2-124m.toml", "--hardware", "a100-40gb", "--ranks", "3"];
    let text = plan(&[&deck[..], &["--sweep", "micro_batch_size=1,2,7"]].concat()).expect_success().stdout;
    assert!(text.contains("train.micro_batch_size") && text.contains("global_batch_size"), "{text}");
    // Ranks that no node divides, and more ranks than elements of many parameters.
    for words in [
        ["--sweep", "ranks=1,3,7,4096", "--ranks-per-node", "3"],
        ["--sweep", "network.gb_per_s=1..8", "--ranks-per-node", "2"],
    ] {
        let output = plan(&[&deck[..], &words].concat()).expect_success();
        assert!(output.stdout.lines().count() >= 5, "{output}");
    }
    expect_refusal(
        plan(&["inputs/gpt2-124m.toml", "--hardware", "h100", "--sweep", "zero.stage=0,1"]),
        &["pass --ranks N"],
    );
    expect_refusal(plan(&[&deck[..], &["--sweep", "ranks=0,1"]].concat()), &["ranks=0", "a count from 1"]);
    let case = Case::tiny();
    let png = case.path("s.PNG");
    let figure = ["--sweep", "ranks=1,2", "--figure", &png.display().to_string()];
    plan(&[&deck[..], &figure].concat()).expect_success();
    assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"), "a picture of its name's kind");
    expect_refusal(
        plan(&[&deck[..], &["--sweep", "zero.param_dtype=f32,bf16", "--figure", "/dev/null"]].concat()),
        &["are not positive numbers"],
    );
}

#[test]
fn bad_hardware_files_are_refused_with_key_value_and_what_would_do() {
    let case = Case::tiny();
    let good =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs/hardware/h100.toml"))
            .unwrap();
    let write = |text: &str| std::fs::write(case.path("bad.toml"), text).unwrap();
    let refused = |says: &[&str]| {
        let words = ["plan", "deck.toml", "--ranks", "2", "--hardware", "bad.toml"];
        expect_refusal(Run::new(0).dir(&case.path("")).args(words).output(), says);
    };
    write(&good.replace("memory_gb = 80", "memory_gb = -80\nmemroy = 3"));
    refused(&[
        "bad.toml has 2 faults",
        "device.memory_gb = -80: a number from",
        "device.memroy = 3: no such key",
    ]);
    write("");
    refused(&["hardware.name = missing", "network.gb_per_s = missing"]);
    write("[device\n");
    refused(&["bad.toml is not TOML: line 1"]);
    expect_refusal(
        plan(&["--model", "llama-1b", "--ranks", "2", "--hardware", "tpu"]),
        &["neither a file nor one of a100-40gb"],
    );
    expect_refusal(
        plan(&["--model", "llama-1b", "--ranks", "2", "node.gb_per_s=3"]),
        &["pass one with --hardware"],
    );
    expect_refusal(plan(&["--params", "1M", "--ranks", "2"]), &["the smallest model of 50257 tokens"]);
    let words = ["--model", "llama-1b", "--ranks", "32", "--ranks-per-node", "16", "--hardware", "h100"];
    expect_refusal(plan(&words), &["has 8 devices"]);
    expect_refusal(
        plan(&["--model", "llama-1b", "--ranks", "2", "--hardware", "h100", "run.backend=cpu"]),
        &["run.backend = cpu", "cuda"],
    );
}

#[test]
fn a_calibration_removes_no_directory_that_it_has_not_made() {
    let case = Case::tiny();
    let mine = case.path("this.work/mine");
    std::fs::create_dir(case.path("this.work")).unwrap();
    std::fs::write(&mine, "mine").unwrap();
    let run = Run::new(2).dir(&case.path("")).args(["plan", "--calibrate", "--out", "this.toml"]);
    expect_refusal(run.timeout(Duration::from_secs(60)).output(), &["this.work: exists"]);
    assert!(mine.exists() && !case.path("this.toml").exists());
}

#[test]
#[ignore = "minutes of training on one and two ranks: make test-slow"]
fn a_calibrated_machine_is_a_hardware_file_that_predictions_read() {
    [1, 2].into_iter().for_each(calibrates);
}

#[track_caller]
fn calibrates(n_ranks: usize) {
    let case = Case::tiny();
    let run = Run::new(n_ranks).dir(&case.path("")).args([
        "plan",
        "--calibrate",
        "--rounds",
        "1",
        "--out",
        "this.toml",
    ]);
    let output = run.timeout(Duration::from_secs(600)).output().expect_success();
    for part in [
        "fits: ",
        "linear_forward f32",
        "predicted beside measured",
        "1 rank: mean error",
        "written: this.toml",
        "load ",
    ] {
        assert!(output.stdout.contains(part), "{part:?} is not in\n{output}");
    }
    let two = output.stdout.contains("2 ranks: mean error");
    assert_eq!(two, n_ranks == 2, "{output}");
    assert!(!case.path("this.work").exists(), "runs are cleared away");
    let words = ["plan", "deck.toml", "--ranks", "2", "--hardware", "this.toml", "--json"];
    let forecast = json(&Run::new(0).dir(&case.path("")).args(words).output().expect_success());
    assert_eq!(forecast["forecast"]["measured"], true);
    assert!(forecast["forecast"]["step_s"].as_f64().unwrap() > 0.0);
}

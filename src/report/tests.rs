use super::pictures::run_plan::RunPlan;
use super::recorded_run::RecordedRun;
use super::*;
use crate::config::{BackendKind, Deck};

/// The plan of a small deck on `n` ranks.
pub fn planned(n: usize, keys: &[&str]) -> RunPlan {
    let text = "[run]\ndir = \"RUN\"\n[model]\nn_layer = 2\nn_head = 2\nd_model = 20\nseq_len = \
                16\nvocab_size = 256\n[data]\ntrain = [\"text\"]\n[train]\nsteps = 4\nmicro_batch_size = \
                1\nglobal_batch_size = 6\n";
    let overrides: Vec<(String, String)> = keys
        .iter()
        .map(|key| key.split_once('=').expect("key=value"))
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    let deck = Deck::parse(text, &overrides, "test").unwrap_or_else(|e| panic!("{e}"));
    let run = RecordedRun {
        summary: None,
        deck,
        world_size: n,
        backend: BackendKind::Cpu,
        events: Vec::new(),
        steps: Vec::new(),
        trace: None,
    };
    RunPlan::of(&run).unwrap()
}

#[test]
fn a_directory_without_a_summary_says_what_would_do() {
    let dir = tempfile::tempdir().unwrap();
    let error = run(dir.path(), &Wanted::default()).unwrap_err();
    assert!(error.to_string().contains("SIGUSR2") && error.exit().code() == 2, "{error}");
    let error = run(&dir.path().join("none"), &Wanted::default()).unwrap_err();
    assert!(error.exit().code() == 2, "{error}");
}

#[test]
fn nothing_is_written_for_a_directory_that_is_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let wanted = Wanted { figures: Some(out.clone()), png: true, html: Some(dir.path().join("report.html")) };
    let error = run(dir.path(), &wanted).unwrap_err();
    assert!(error.to_string().contains("deck.toml") && error.exit().code() == 2, "{error}");
    assert!(!out.exists() && std::fs::read_dir(dir.path()).unwrap().count() == 0);
}

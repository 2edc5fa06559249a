//! Every command of the README does what the README says. Long ones are shortened by one more override.

mod common;

use common::Run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The lines of all `sh` blocks.
fn commands() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("README.md")).expect("a README");
    let mut lines = Vec::new();
    let mut inside = false;
    for line in text.replace("\\\n", "").lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => lines.push(line.to_string()),
            _ => {}
        }
    }
    assert!(lines.len() > 8, "the README has commands: {lines:?}");
    lines
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A directory that looks like the project to a command, so that its runs/ stays alone.
fn stage() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for entry in std::fs::read_dir(root()).expect("the project").flatten() {
        let name = entry.file_name();
        if !["target", "runs", ".git"].iter().any(|n| name == *n) {
            std::os::unix::fs::symlink(entry.path(), dir.path().join(&name)).expect("a link");
        }
    }
    dir
}

/// Ranks and arguments of a command that starts zero3; without a launcher 0 ranks.
fn zero3(line: &str) -> Option<(usize, Vec<&str>)> {
    let (launch, words) = line.split_once("target/release/zero3")?;
    let n_ranks = launch
        .split_whitespace()
        .skip_while(|w| *w != "-n")
        .nth(1)
        .map_or(0, |n| n.parse().expect("a number"));
    Some((n_ranks, words.split_whitespace().collect()))
}

#[test]
fn every_target_of_the_makefile_is_there_once_and_says_what_it_is_for() {
    let text = std::fs::read_to_string(root().join("Makefile")).expect("a Makefile").replace("\\\n", "");
    let phony = text.lines().find_map(|line| line.strip_prefix(".PHONY: ")).expect("a list of targets");
    let rules = |target: &str| {
        text.lines().filter(|line| line.starts_with(&format!("{target}:"))).collect::<Vec<_>>()
    };
    for target in phony.split_whitespace() {
        let rules = rules(target);
        assert!(rules.len() == 1 && rules[0].contains(" ## "), "{target}: {rules:?}");
    }
    let helped = text.lines().filter(|line| line.contains(": ") && line.contains(" ## ")).count();
    assert_eq!(helped, phony.split_whitespace().count(), "a target is missing from .PHONY");
}

#[test]
fn every_command_of_the_readme_works() {
    let dir = stage();
    let mut trained = 0;
    for line in commands() {
        let line = line.split('#').next().expect("split gives one").trim().to_string();
        if let Some(target) = line.strip_prefix("make ") {
            // `.ci/run` runs them; a test cannot run all tests.
            let known = Command::new("make").args(["-n", target]).current_dir(root()).output().expect("make");
            assert!(known.status.success(), "{line}");
            if target == "run" {
                let run = Run::new(2).args(["train", "inputs/tiny.toml", "train.steps=2"]).dir(dir.path());
                run.output().expect_success();
            }
        } else if let Some(script) = line.strip_prefix("sbatch ") {
            // tests/slurm.rs submits it; here: the file is there and is a script.
            let path: PathBuf = root().join(script.split_whitespace().next().expect("a script"));
            assert!(Command::new("bash").arg("-n").arg(&path).status().expect("bash").success(), "{line}");
        } else {
            let (n_ranks, mut words) = zero3(&line).unwrap_or_else(|| panic!("`{line}` is run by no test"));
            if words[0] == "train" && n_ranks > 0 {
                trained += 1;
                words.extend(["train.steps=4", "checkpoint.every=2"]);
            }
            let accepts = words[0] == "accept";
            let output = Run::new(n_ranks).args(words).dir(dir.path()).output();
            let output = if accepts {
                // Other tests run beside this one and take cores away: that may cost the acceptance, not the
                // validity.
                assert!([0, 3].contains(&output.code), "{line}\n{output}");
                output.expect_text("\nVALID")
            } else {
                output.expect_success()
            };
            assert!(!output.stdout.trim().is_empty(), "{line} says something");
        }
    }
    assert!(trained >= 2, "the README trains and restores");
}

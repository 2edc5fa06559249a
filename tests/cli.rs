//! The command line as people and scripts meet it: help, codes, what each command prints, and that it prints
//! it once.

mod common;

use common::{Case, Output, Run, Steps};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e}\n{output}"))
}

#[test]
fn the_help_of_each_command_teaches_with_an_example() {
    let commands: [(&[&str], &str); 6] = [
        (&[], "mpirun -n 2 zero3 train inputs/tiny.toml"),
        (&["train"], "mpirun -n 2 zero3 train inputs/tiny.toml"),
        (&["plan"], "zero3 plan inputs/gpt2-124m.toml --ranks 8"),
        (&["data"], "zero3 data info inputs/tiny.toml"),
        (&["data", "info"], "zero3 data info inputs/tiny.toml"),
        (&["ckpt", "inspect"], "zero3 ckpt inspect runs/tiny"),
    ];
    for (command, example) in commands {
        let output = Run::new(0).args(command).arg("--help").output().expect_success().expect_text(example);
        assert!(output.stdout.contains("xit codes:") && output.stderr.is_empty(), "{output}");
        assert!(output.stdout.lines().all(|line| line.len() <= 120), "{output}");
    }
    // Under a launcher: once, and without the colours of a terminal that is not there.
    let output = Run::new(3).arg("--help").output().expect_success();
    assert_eq!(output.stdout.matches("Usage:").count(), 1, "{output}");
    assert!(!output.stdout.contains('\x1b'), "{output}");
}

/// Lightning #6797, #11406: variables of a launcher that did not start this process.
#[test]
fn a_rank_in_the_environment_alone_does_its_work_and_a_second_rank_of_one_command_says_that_it_does_not() {
    for variables in [
        &[("SLURM_PROCID", "3")][..],
        &[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4")],
        &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")],
        &[("PMI_RANK", "1"), ("PMI_SIZE", "2")],
    ] {
        let run = Run::new(0).args(["ckpt", "verify", "/nothing"]);
        let run = variables.iter().fold(run, |run, (name, value)| run.env(name, value));
        run.output().expect_code(2).expect_text("/nothing: no such directory");
    }
    let case = Case::tiny();
    let plan =
        Run::new(3).arg("plan").arg(case.deck()).args(["--ranks", "2", "--json"]).output().expect_success();
    // Of two or three copies no JSON would be made.
    assert!(serde_json::from_str::<serde_json::Value>(&plan.stdout).is_ok(), "{plan}");
    assert_eq!(plan.stderr.matches("does nothing: rank 0 runs the same command").count(), 2, "{plan}");
    // Tasks of a farm, each with words of its own.
    let farm = Run::new(2).program("sh").args(["-c", "exec \"$0\" ckpt verify /no/$OMPI_COMM_WORLD_RANK"]);
    let farm = farm.arg(env!("CARGO_BIN_EXE_zero3")).output().expect_code(2);
    assert!(["/no/0: no such", "/no/1: no such"].iter().any(|words| farm.text().contains(words)), "{farm}");
    assert!(!farm.text().contains("does nothing"), "{farm}");
}

#[test]
fn every_exit_code_is_documented_in_the_help() {
    let help = Run::new(0).arg("--help").output().expect_success().stdout;
    for code in
        ["0  success", "2  bad deck", "4  training", "5  communication", "70  internal", "75  stopped early"]
    {
        assert!(help.contains(code), "{code:?} is not in\n{help}");
    }
}

#[test]
fn usage_faults_give_code_2() {
    let wrong: [&[&str]; 6] =
        [&[], &["frobnicate"], &["train"], &["plan", "x.toml"], &["data"], &["ckpt", "inspect"]];
    for args in wrong {
        let output = Run::new(0).args(args).output().expect_code(2);
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{output}");
    }
}

#[test]
fn a_tiny_plan_agrees_with_arithmetic_by_hand() {
    // One block, C = 4, T = 4, V = 256, one head; 3 ranks, 3 micro-batches of one sequence, so one micro-step
    // (A = 1).
    //   parameter        numel   slice = ceil(numel / 3)   padded = 3 * slice wte  256 x 4      1024   342
    //   1026 wpe    4 x 4        16     6                         18 c_attn 12 x 4       48    16
    //   48 c_attn bias         12     4                         12 c_proj 4 x 4        16     6
    //   18 c_fc  16 x 4        64    22                         66 c_fc bias           16     6
    //   18 mlp c_proj 4 x 16   64    22                         66 8 vectors of 4      32    8 * 2
    //   48    (ln_1, ln_2, ln_f: 2 each; two c_proj biases) together          1292   440
    //   1320
    let case = Case::tiny();
    let words = [
        "model.n_layer=1",
        "model.n_head=1",
        "model.d_model=4",
        "model.seq_len=4",
        "train.global_batch_size=3",
    ];
    let plan = Run::new(0)
        .dir(&case.path(""))
        .args(["plan", "deck.toml", "--ranks", "3", "--json"])
        .args(words)
        .output();
    let plan = json(&plan.expect_success());
    let expected = [
        ("world_size", 3),
        ("n_params", 1292),
        ("n_params_padded", 1320),
        ("n_micro", 3),
        ("micro_steps", 1),
        ("ranks_in_last_micro_step", 3),
        // Parameter, gradient and two moments of 4 bytes each: 16 * 440.
        ("resident_bytes", 7040),
    ];
    for (key, value) in expected {
        assert_eq!(plan[key], value, "{key}");
    }
    // A * 3 * Psi^ * (N-1)/N elements of 4 bytes: 3 * 1320 * 2/3 * 4.
    assert_eq!(plan["upper_bound"]["bytes"], 10560);
    let formula = plan["formula_bytes"].as_f64().unwrap();
    assert!((formula - 16.0 * 1292.0 / 3.0).abs() < 1e-9, "{formula}");

    // Received per step: one reduction of everything, 4 * 1320 * 2/3 = 3520; gathered twice, 7040, less what
    // is gathered once only: wpe, whose backward needs no weights (18 * 4 * 2/3 = 48), and ln_f, kept from
    // forward to backward in the last unit (twice 6 * 4 * 2/3 = 16). wte is gathered twice: by the embedding
    // and by the tied head.
    let volume = plan["step_volume"].as_array().unwrap();
    assert_eq!(volume.len(), 1, "the same on every rank");
    assert_eq!(volume[0]["reduce_scatter_bytes"], 3520);
    assert_eq!(volume[0]["all_gather_bytes"], 7040 - 48 - 2 * 16);
    let savings: u64 = plan["savings"].as_array().unwrap().iter().map(|s| s["bytes"].as_u64().unwrap()).sum();
    assert_eq!(savings, 48 + 2 * 16);

    // And the run moves what the plan says.
    case.train(3, "run", &words).output().expect_success();
    let steps = Steps::read(&case.path("run"));
    assert!(
        steps.numbers("all_gather_bytes").iter().all(|b| *b == 6960.0),
        "{:?}",
        steps.column("all_gather_bytes")
    );
    assert!(steps.numbers("reduce_scatter_bytes").iter().all(|b| *b == 3520.0));
    assert!(
        steps.numbers("resident_bytes").iter().all(|b| *b == 7040.0),
        "{:?}",
        steps.column("resident_bytes")
    );
}

#[test]
fn plans_of_1_to_1024_ranks_are_made_at_once() {
    for n_ranks in [1, 3, 8, 1024] {
        let plan = |json: &[&str]| {
            let words = [
                "plan",
                "inputs/gpt2-124m.toml",
                "model.preset=gpt2-1.5b",
                "--ranks-per-node",
                "8",
                "--ranks",
            ];
            let run = Run::new(0).dir(repository()).args(words).arg(n_ranks.to_string()).args(json);
            // It takes some 30 ms. The fastest of five counts: much else may run on the machine.
            let quick = |output: &Output| output.elapsed < Duration::from_secs(2);
            let output = (0..5).map(|_| run.clone().output().expect_success()).find(quick);
            output.expect("one plan of five within two seconds")
        };
        let text = plan(&[]);
        let parts = [
            if n_ranks == 1 {
                "plan for 1 rank, 1 on a node".to_string()
            } else {
                format!("plan for {n_ranks} ranks")
            },
            "partition: 1557611200 parameters".into(),
            "schedule:".into(),
            "memory per rank, at peak".into(),
            "bytes received per step".into(),
        ];
        for part in parts {
            assert!(text.stdout.contains(&part), "{part:?} is not in\n{text}");
        }
        let json = json(&plan(&["--json"]));
        // GPT-2 XL: 50257 * 1600 + 1024 * 1600 + 48 * (12 * 1600^2 + 13 * 1600) + 2 * 1600.
        assert_eq!(json["n_params"], 1_557_611_200_u64);
        assert_eq!(json["world_size"], n_ranks);
        assert_eq!(json["params"].as_array().unwrap().len(), 2 + 12 * 48 + 2);
        let resident = json["resident_bytes"].as_f64().unwrap();
        let formula = json["formula_bytes"].as_f64().unwrap();
        assert_eq!(formula, 16.0 * 1_557_611_200.0 / f64::from(n_ranks));
        // Padding: less than one element per parameter and rank.
        assert!(resident >= formula && resident < formula + 16.0 * 580.0, "{resident} against {formula}");
    }
}

#[test]
fn commands_of_one_process_print_once_under_mpirun() {
    let case = Case::tiny();
    case.train(2, "run", &[]).output().expect_success();
    let run = |args: &[&str]| Run::new(3).dir(&case.path("")).args(args).output().expect_success();
    let outputs = [
        (run(&["plan", "deck.toml", "--ranks", "3"]), "plan for 3 ranks"),
        (run(&["data", "info", "deck.toml"]), "training: 18000 tokens"),
        (run(&["ckpt", "inspect", "run"]), "step         4 (4 attempts)"),
        (run(&["train", "deck.toml", "--dry-run"]), "[optim]"),
        (run(&["--version"]), "zero3 "),
    ];
    for (output, part) in outputs {
        assert_eq!(output.stdout.matches(part).count(), 1, "{part:?} is not said once\n{output}");
    }
}

#[test]
fn a_checkpoint_is_inspected_as_text_and_json() {
    let case = Case::tiny();
    case.train(3, "run", &[]).output().expect_success();
    let inspect =
        |args: &[&str]| Run::new(0).dir(&case.path("")).args(["ckpt", "inspect"]).args(args).output();
    let text = inspect(&["run"]).expect_success();
    let parts = [
        "step         4 (4 attempts)",
        "data         24 samples, 384 tokens",
        "parameters   15600 (Psi) in 28",
        "ranks        3 (mesh:",
        "lm_head.weight",
        "rank_0002_of_0003.h5",
    ];
    for part in parts {
        assert!(text.stdout.contains(part), "{part:?} is not in\n{text}");
    }
    let json = json(&inspect(&["run/checkpoints/step_00000002", "--json"]).expect_success());
    assert_eq!(json["step"], 2);
    assert_eq!(json["world_size"], 3);
    assert_eq!(json["psi"], 15600);
    assert_eq!(json["files"].as_array().unwrap().len(), 3);
    let numel: u64 = json["files"].as_array().unwrap().iter().map(|f| f["numel"].as_u64().unwrap()).sum();
    assert_eq!(numel, 15600, "no padding is stored");
    let deck: toml::Table = json["deck"].as_str().unwrap().parse().expect("the deck is TOML");
    assert_eq!(deck["train"]["steps"].as_integer(), Some(4));
}

#[test]
fn data_info_says_what_a_run_would_read() {
    let case = Case::tiny();
    let output =
        Run::new(0).dir(&case.path("")).args(["data", "info", "deck.toml"]).output().expect_success();
    for part in
        ["training: 18000 tokens, text", "validation: 2000 tokens, text", "text.txt", "unigram entropy"]
    {
        assert!(output.stdout.contains(part), "{part:?} is not in\n{output}");
    }
}

#[test]
fn every_input_of_the_repository_is_a_valid_deck() {
    let case = Case::tiny();
    let run_dir = format!("run.dir={}", case.path("run").display());
    let mut n_decks = 0;
    for entry in std::fs::read_dir(repository().join("inputs")).unwrap().map(Result::unwrap) {
        if entry.path().extension().is_none_or(|e| e != "toml") {
            continue;
        }
        n_decks += 1;
        // Those of `zero3 accept` have keys of their own.
        if entry.file_name().to_string_lossy().starts_with("acceptance") {
            zero3::config::acceptance::Deck::load(&entry.path(), &[])
                .unwrap_or_else(|error| panic!("{error}"));
            continue;
        }
        let output = Run::new(0)
            .dir(repository())
            .args(["train", "--dry-run"])
            .arg(entry.path())
            .arg(&run_dir)
            .output();
        // Data that a person has to prepare may be missing, and that is all that may be wrong.
        let data_missing = output.code == 2 && output.stderr.starts_with("zero3: data.train: ");
        assert!(output.code == 0 || data_missing, "{output}");
        assert!(!case.path("run").exists(), "a dry run makes nothing");
    }
    assert!(n_decks >= 2, "inputs/ holds {n_decks} decks");
}

#[test]
fn without_a_terminal_progress_is_plain_aligned_lines() {
    let case = Case::tiny();
    for n_ranks in [0, 3] {
        let name = format!("run{n_ranks}");
        let output = case.train(n_ranks, &name, &[]).output().expect_success();
        // Under Open MPI ranks write to a terminal of its own, which turns \n into \r\n.
        let stdout = output.stdout.replace("\r\n", "\n");
        for text in [&stdout, &output.stderr] {
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "a control character in\n{output}");
        }
        let header =
            stdout.lines().position(|line| line.trim_start().starts_with("step ")).expect("a header");
        let table: Vec<&str> = stdout.lines().skip(header).take(5).collect();
        assert_eq!(table.len(), 5, "{output}");
        for (step, line) in table.iter().enumerate() {
            assert_eq!(line.len(), table[0].len(), "{table:#?}");
            assert!(step == 0 || line.split_whitespace().next() == Some(&step.to_string()), "{table:#?}");
        }
    }
}

#[test]
fn a_closed_or_full_standard_output_does_not_end_a_run() {
    let case = Case::tiny();
    let zero3 = env!("CARGO_BIN_EXE_zero3");
    let run = format!("run.dir={}", case.path("run").display());
    let scripts = [
        // Trains; then says that it is finished, to nobody.
        r#""$@" | true; "$@" | true"#,
        r#""$@" --resume none >/dev/full 2>/dev/full"#,
        r#""$@" --resume none >&- 2>&-"#,
        r#""$@" --dry-run | true"#,
    ];
    for script in scripts {
        let script = format!("set -o pipefail; {script}");
        let program =
            Run::new(0).program("bash").dir(&case.path("")).args(["-c", &script, "bash", zero3, "train"]);
        program.arg(case.deck()).arg(&run).output().expect_success();
    }
    // What was asked for and could not be written was not done.
    for words in ["train \"$2\" --dry-run", "plan \"$2\" --ranks 3", "plan \"$2\" --ranks 2 --json"] {
        let script = format!("\"$1\" {words} >/dev/full");
        let program = Run::new(0).program("bash").args(["-c", &script, "bash", zero3]).arg(case.deck());
        program.output().expect_code(5).expect_text("standard output: No space left on device");
    }
    let script = r#""$@" optim.lr=-1 2>/dev/full"#;
    let program = Run::new(0).program("bash").args(["-c", script, "bash", zero3, "train"]);
    program.arg(case.deck()).output().expect_code(2);
}

#[test]
fn started_twice_a_run_says_that_it_is_finished() {
    let case = Case::tiny();
    case.train(2, "run", &[]).output().expect_success();
    let log = std::fs::read(case.path("run/steps.csv")).unwrap();
    for words in [&[][..], &["train.steps=3"]] {
        let output = case.train(3, "run", words).output().expect_success();
        assert_eq!(output.text().matches("finished: ").count(), 1, "{output}");
        assert!(output.text().contains("raise train.steps to continue"), "{output}");
    }
    assert_eq!(std::fs::read(case.path("run/steps.csv")).unwrap(), log, "the log stays as it is");
}

#[test]
fn a_filter_of_log_levels_is_taken() {
    let case = Case::tiny();
    let quiet = case
        .train(2, "quiet", &["log.level=error,zero3::data=debug", "log.every=0"])
        .output()
        .expect_success();
    assert!(!quiet.stderr.contains("INFO"), "{quiet}");
    let loud = case.train(2, "loud", &["log.level=info"]).output().expect_success();
    assert!(loud.stderr.contains("[rank 0]") && !loud.stderr.contains("[rank 1]"), "{loud}");
}

/// `script` gives the launcher a terminal; the ranks have pipes to it.
#[test]
fn a_bar_is_drawn_where_the_launcher_has_a_terminal_and_lines_are_plain_elsewhere() {
    let case = Case::tiny();
    let run = |script: bool, run: &str| {
        let train = format!("train {} run.dir={}", case.deck().display(), case.path(run).display());
        let line = format!("mpirun -n 2 --oversubscribe {} {train}", env!("CARGO_BIN_EXE_zero3"));
        let mut shell =
            if script { std::process::Command::new("script") } else { std::process::Command::new("sh") };
        match script {
            true => shell.args(["-qec", &line, "/dev/null"]),
            false => shell.args(["-c", &line]),
        };
        shell.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        let output = shell.output().expect("script of util-linux, or sh");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let (watched, plain) = (run(true, "watched"), run(false, "plain"));
    assert!(watched.contains(" steps  ") && watched.contains("\x1b["), "{watched}");
    assert!(plain.contains("finished: ") && !plain.contains('\x1b'), "{plain}");
}

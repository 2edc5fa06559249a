//! The command line and its `--help`: a file for each kind of command.
//!
//! Must not know: how a command runs. Under MPI every rank parses the same arguments to the same result.

mod ckpt;
mod counts;
mod data;
mod infer;
mod machine;
mod run;
mod words;

pub use ckpt::{
    CkptCommand, CkptDiffArgs, CkptExportArgs, CkptImportArgs, CkptInspectArgs, CkptReshardArgs,
    CkptVerifyArgs,
};
pub use counts::MAX_RANKS;
pub use data::{DataCommand, DataFilesArgs, DataInfoArgs, TokenizeArgs};
pub use infer::{EvalArgs, SampleArgs};
pub use machine::{AcceptArgs, DeviceCheckArgs, DeviceCommand};
pub use run::{PlanArgs, ReportArgs, Resume, TrainArgs, WatchArgs};
pub use words::{DeckArgs, PlanOf, PlanSubject};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

const PROGRAM_HELP: &str = "\
Start it like any MPI program; a single rank needs no launcher:
  mpirun -n 2 zero3 train inputs/tiny.toml
  srun -n 16 zero3 train my.toml run.dir=runs/a optim.lr=6e-4
  zero3 train inputs/tiny.toml --dry-run

Exit codes:
   0  success
   1  a comparison found a difference
   2  bad deck, input, checkpoint or command line
   3  not accepted
   4  training became non-finite
   5  communication, device or I/O failure
  70  internal error
  75  stopped early with a checkpoint saved: run the same command again";

/// Trains GPT-2 and Llama models with ZeRO-3 over MPI.
///
/// Parameters, gradients and optimizer state are sharded over the ranks; each layer's parameters are gathered
/// just before use and released right after. Results are bitwise identical on any number of ranks.
#[derive(Parser, Debug)]
#[command(name = "zero3", bin_name = "zero3", version)]
#[command(after_long_help = PROGRAM_HELP, after_help = "See `zero3 --help` for more.")]
#[command(subcommand_required = true, arg_required_else_help = false)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The commands; `--help` prints the doc comments of their arguments.
#[derive(Subcommand, Debug, Clone, PartialEq)]
pub enum Command {
    Train(TrainArgs),
    Accept(AcceptArgs),
    Sample(SampleArgs),
    Eval(EvalArgs),
    Plan(PlanArgs),
    #[command(subcommand)]
    Data(DataCommand),
    #[command(subcommand)]
    Device(DeviceCommand),
    Report(ReportArgs),
    Watch(WatchArgs),
    #[command(subcommand)]
    Ckpt(CkptCommand),
}

/// Parses the arguments, the program's own name first.
///
/// # Errors
/// A usage error (its `exit_code()` is 2), or the text of `--help` and `--version` (0); `print()` shows
/// either.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, clap::Error> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map(|cli| cli.command).map_err(|error| {
        // With the usage line of the subcommand that was typed.
        command.build();
        let (mut typed, mut matches) = (&mut command, &matches);
        while let Some((name, inner)) = matches.subcommand() {
            typed = typed.find_subcommand_mut(name).expect("clap found it");
            matches = inner;
        }
        error.format(typed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DataFormat, Tokenizer};
    use crate::text::Layout;

    fn parsed(line: &str) -> Result<Command, clap::Error> {
        parse(std::iter::once("zero3").chain(line.split_whitespace()).map(OsString::from))
    }

    fn deck(path: &str, overrides: &[(&str, &str)]) -> DeckArgs {
        DeckArgs {
            path: path.into(),
            overrides: overrides.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        }
    }

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn train_takes_deck_flags_and_overrides_in_any_order() {
        let want = Command::Train(TrainArgs {
            deck: deck("a.toml", &[("optim.lr", "-1e-3"), ("data.train", "x=y,z")]),
            resume: Resume::Path("runs/a".into()),
            dry_run: true,
        });
        for line in [
            "train a.toml optim.lr=-1e-3 data.train=x=y,z --resume runs/a --dry-run",
            "train --dry-run optim.lr=-1e-3 a.toml --resume=runs/a data.train=x=y,z",
            "train optim.lr=-1e-3 data.train=x=y,z --resume runs/a --dry-run a.toml",
        ] {
            assert_eq!(parsed(line).unwrap(), want, "{line}");
        }
    }

    #[test]
    fn resume_is_auto_unless_said_otherwise() {
        for (line, want) in [
            ("train a.toml", Resume::Auto),
            ("train a.toml --resume auto", Resume::Auto),
            ("train a.toml --resume none", Resume::None),
            ("train a.toml --resume ./auto", Resume::Path("./auto".into())),
        ] {
            let Command::Train(args) = parsed(line).unwrap() else { panic!("{line}") };
            assert_eq!((args.resume, args.dry_run), (want, false), "{line}");
        }
    }

    #[test]
    fn a_path_with_an_equals_sign_is_still_a_deck() {
        assert_eq!(parsed("data info runs/lr=1/deck.toml").unwrap(), {
            Command::Data(DataCommand::Info(DataInfoArgs::Deck(deck("runs/lr=1/deck.toml", &[]))))
        });
    }

    #[test]
    fn plan_data_and_ckpt_parse() {
        assert_eq!(
            parsed("plan zero.prefetch_units=2 --ranks 5 a.toml --ranks-per-node 2 --json").unwrap(),
            Command::Plan(PlanArgs {
                subject: PlanSubject {
                    of: PlanOf::Deck("a.toml".into()),
                    overrides: vec![("zero.prefetch_units".into(), "2".into())]
                },
                n_ranks: Some(5),
                ranks_per_node: Some(2),
                hardware: None,
                micro_batches_per_rank: None,
                sweep: None,
                csv: None,
                figure: None,
                out: "hardware.toml".into(),
                rounds: 3,
                json: true
            })
        );
        let of = |line: &str| match parsed(line).unwrap() {
            Command::Plan(args) => args,
            other => panic!("{other:?}"),
        };
        assert_eq!(of("plan --params 7.5B --ranks 64").subject.of, PlanOf::Params(7_500_000_000));
        let args = of("plan --model llama3-8b zero.stage=2 --hardware h100 --sweep ranks=8..32");
        assert_eq!(args.subject.of, PlanOf::Model(crate::config::Preset::Llama3_8b));
        assert_eq!(
            (args.subject.overrides.len(), args.n_ranks, args.sweep.unwrap().values.len()),
            (1, None, 3)
        );
        assert_eq!(of("plan --calibrate --out x.toml").subject.of, PlanOf::Machine);
        assert_eq!(
            parsed("data info a.bin --format llmc b.bin --tokenizer gpt2").unwrap(),
            Command::Data(DataCommand::Info(DataInfoArgs::Files(DataFilesArgs {
                paths: vec!["a.bin".into(), "b.bin".into()],
                format: DataFormat::Llmc,
                tokenizer: Some(Tokenizer::Gpt2)
            })))
        );
        let Command::Data(DataCommand::Tokenize(args)) =
            parsed("data tokenize --tokenizer t.json o.bin a b --val-fraction 0.5 --separator x").unwrap()
        else {
            panic!()
        };
        assert_eq!((args.inputs.len(), args.val_fraction, args.out.as_path()), (2, 0.5, "o.bin".as_ref()));
        assert_eq!(
            (args.layout(), args.tokenizer),
            (Layout::Separated("x".into()), Tokenizer::File("t.json".into()))
        );
        assert_eq!(parsed("data info a.toml data.val=").unwrap(), {
            Command::Data(DataCommand::Info(DataInfoArgs::Deck(deck("a.toml", &[("data.val", "")]))))
        });
        assert_eq!(
            parsed("ckpt inspect runs/tiny --json").unwrap(),
            Command::Ckpt(CkptCommand::Inspect(CkptInspectArgs { path: "runs/tiny".into(), json: true }))
        );
        assert_eq!(
            parsed("ckpt diff a b").unwrap(),
            Command::Ckpt(CkptCommand::Diff(CkptDiffArgs { a: "a".into(), b: "b".into(), json: false }))
        );
        assert_eq!(
            parsed("ckpt reshard --ranks 3 a b").unwrap(),
            Command::Ckpt(CkptCommand::Reshard(CkptReshardArgs {
                source: "a".into(),
                run_dir: "b".into(),
                n_ranks: 3
            }))
        );
    }

    #[test]
    fn usage_errors_exit_with_two_and_say_what_would_do() {
        for (line, says) in [
            ("", "Usage: zero3"),
            ("trian a.toml", "train"),
            ("train", "DECK"),
            ("train train.steps=3", "no deck"),
            ("train a.toml b.toml", "more than one deck: a.toml, b.toml"),
            ("train a.toml =3", "section.key=value"),
            ("train a.toml --resume", "auto|none|PATH"),
            ("train a.toml --dryrun", "--dry-run"),
            ("plan a.toml", "--ranks"),
            ("plan a.toml --ranks 0", "0"),
            ("plan a.toml --ranks x", "x"),
            ("plan --ranks 2", "--model NAME"),
            ("plan --model gpt3 --ranks 2", "gpt2-1.5b"),
            ("plan --params many --ranks 2", "7.5B"),
            ("plan --params 1B --model llama-1b --ranks 2", "cannot be used"),
            ("plan a.toml --params 1B --ranks 2", "cannot be combined"),
            ("plan a.toml --ranks 2 --csv x", "--sweep"),
            ("plan a.toml --sweep ranks=1..2", "--hardware"),
            ("plan a.toml --hardware h100 --sweep ranks=2..1", "is not an ascending range of counts"),
            ("plan a.toml --ranks 2 --out x", "--calibrate"),
            ("data", "Usage"),
            ("data info", "DECK"),
            ("data info a.bin data.val=b", "no deck"),
            ("data info a.toml --format llmc", "data.format=..."),
            ("data tokenize o.bin a.txt", "--tokenizer"),
            ("data tokenize --tokenizer gtp2 o.bin a.txt", "gpt2, bytes or"),
            ("data tokenize --tokenizer gpt2 o.bin", "FILE"),
            ("data tokenize --tokenizer gpt2 o.bin a --val-fraction 1", "below 1"),
            ("data tokenize --tokenizer gpt2 o.bin a --separator x --json-key y", "cannot be used"),
            ("data tokenize --tokenizer gpt2 o.bin a --shard-tokens 0", "0"),
            ("watch", "<RUN>"),
            ("watch a b", "unexpected argument 'b'"),
            ("ckpt inspect", "PATH"),
            ("ckpt verify", "PATH"),
            ("ckpt diff a", "<B>"),
            ("ckpt reshard a b", "--ranks"),
            ("ckpt reshard a b --ranks 0", "0"),
            ("ckpt export a", "<OUT_DIR>"),
            ("ckpt export a b --dtype f16", "f32 or bf16"),
            ("ckpt export a b --max-shard-size 5XB", "5GB"),
            ("ckpt export a b --format gguf", "safetensors"),
            ("ckpt import a", "<RUN_DIR>"),
            ("ckpt import a b --ranks 0", "0"),
        ] {
            let err = parsed(line).unwrap_err();
            assert_eq!(err.exit_code(), 2, "{line}: {err}");
            assert!(err.to_string().contains(says), "{line}: {err}");
        }
    }

    #[test]
    fn help_teaches_with_an_example_and_exit_codes() {
        for line in [
            "",
            "train",
            "accept",
            "plan",
            "data",
            "data info",
            "data tokenize",
            "report",
            "watch",
            "ckpt",
            "ckpt inspect",
            "ckpt verify",
            "ckpt diff",
            "ckpt reshard",
            "ckpt export",
            "ckpt import",
        ] {
            let help = parsed(&format!("{line} --help")).unwrap_err();
            assert_eq!(help.exit_code(), 0);
            let text = help.to_string();
            assert!(
                text.contains("zero3 ") && text.contains("inputs/") || text.contains("runs/tiny"),
                "{text}"
            );
            assert!(text.contains("Exit codes"), "{text}");
        }
    }
}

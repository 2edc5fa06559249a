//! What can be typed after `zero3`, and what `--help` teaches.
//!
//! Must not know: how anything is run. Under MPI every rank parses the same arguments and comes to the same result.

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::config::{DataFormat, Tokenizer};
use crate::dtype::DType;
use crate::text::Layout;
use crate::text::tokenize::DocumentToken;

const PROGRAM_HELP: &str = "\
Start it like any MPI program; one rank alone needs no launcher:
  mpirun -n 2 zero3 train inputs/tiny.toml
  srun -n 16 zero3 train my.toml run.dir=runs/a optim.lr=6e-4
  zero3 train inputs/tiny.toml --dry-run

Exit codes:
   0  finished
   1  two things that were compared differ
   2  bad deck, input or checkpoint (or a wrong command line)
   3  acceptance not met
   4  training became non-finite
   5  communication, device or I/O failure
  70  internal error
  75  stopped early with a checkpoint saved: start the same command again";

const TRAIN_HELP: &str = "\
Examples:
  mpirun -n 2 zero3 train inputs/tiny.toml
      train; the same line again resumes from the newest checkpoint
  mpirun -n 3 zero3 train inputs/tiny.toml train.steps=600
      go on with three ranks and more steps
  mpirun -n 2 zero3 train inputs/tiny.toml run.dir=/tmp/b 'data.train=a.txt,b/*.txt' --resume none
      somewhere else, on other text, from the start
  zero3 train inputs/tiny.toml --dry-run
      check the deck and print it with every default

Exit codes: 0 finished; 2 bad deck, input or checkpoint; 4 training became non-finite;
5 communication, device or I/O failure; 70 internal error; 75 stopped early with a checkpoint saved:
start the same command again.";

const PLAN_HELP: &str = "\
Examples:
  zero3 plan inputs/gpt2-124m.toml --ranks 8
  zero3 plan inputs/gpt2-124m.toml --ranks 64 --ranks-per-node 8 model.preset=gpt2-1.5b
  zero3 plan inputs/tiny.toml --ranks 3 --json

Exit codes: 0 finished; 2 bad deck or command line; 70 internal error.";

const DEVICE_HELP: &str = "\
Examples:
  zero3 device check
  zero3 device check --device 1 --json

Exit codes: 0 all kernels keep to their tolerance; 1 one does not; 5 no GPU to be had, or it failed; 70 internal error.";

const ACCEPT_HELP: &str = "\
Examples:
  mpirun -n 2 zero3 accept inputs/acceptance_quick.toml run.dir=runs/acceptance
      two minutes on two cores; runs/acceptance/report.html has the plots
  sbatch --nodes=16 slurm/acceptance.sbatch
  srun -n 128 zero3 accept inputs/acceptance.toml --record-baseline good.json
      then, after the next maintenance:  ... --baseline good.json

Exit codes: 0 accepted; 2 bad deck or baseline; 3 not accepted; 5 communication, device or I/O failure, or out of time;
70 internal error.";

const DATA_HELP: &str = "\
Examples:
  zero3 data info inputs/tiny.toml
  zero3 data tokenize --tokenizer gpt2 data/books.bin 'books/a.txt' books/b.txt
  zero3 data info data/books.bin

Exit codes: 0 finished; 2 bad deck or data; 5 it could not be written; 70 internal error.";

const DATA_INFO_HELP: &str = "\
Examples:
  zero3 data info inputs/tiny.toml data.val=other.txt
      what a run would read, and what it would refuse
  zero3 data info data/books.bin
      a token file; the tokenizer is known where zero3 made it
  zero3 data info --tokenizer gpt2 --format llmc fineweb_val_000000.bin

Exit codes: 0 finished; 2 bad deck or data; 70 internal error.";

const DATA_TOKENIZE_HELP: &str = "\
What a document is: each file; with --separator STR what lies between two STR; of a .jsonl file, or with --json-key, each line's
text. Its token (GPT-2: <|endoftext|>, 50256) goes before it, as llm.c has it.

Examples:
  zero3 data tokenize --tokenizer gpt2 data/shakespeare.bin input.txt --val-fraction 0.1
      makes data/shakespeare_train.bin and data/shakespeare_val.bin, tokens as nanoGPT writes them
  zero3 data tokenize --tokenizer gpt2 --format llmc --shard-tokens 100000000 data/web.bin web/*.jsonl
      makes data/web_000000.bin, data/web_000001.bin, ... as llm.c writes them
  zero3 data tokenize --tokenizer llama/tokenizer.json --separator $'\\n\\n' data/notes.u32 - < notes.txt
      then, in a deck such as inputs/tiny.toml:  data.train = [\"data/notes.u32\"]

Killed anywhere, the same line goes on where it was, and makes the same bytes.
Exit codes: 0 finished; 2 bad text, tokenizer or command line; 5 it could not be written; 70 internal error.";

const CKPT_HELP: &str = "\
Examples:
  zero3 ckpt inspect runs/tiny
  zero3 ckpt inspect runs/tiny/checkpoints/step_00000300 --json

Exit codes: 0 finished; 2 no checkpoint there, or a damaged one; 70 internal error.";

const CKPT_VERIFY_HELP: &str = "\
Examples:
  zero3 ckpt verify runs/tiny
      the newest checkpoint of a run
  zero3 ckpt verify runs/tiny/checkpoints/step_00000300 --json

Exit codes: 0 all as written; 2 no checkpoint there, or damage: which file, dataset and elements; 70 internal error.";

const CKPT_DIFF_HELP: &str = "\
Examples:
  zero3 ckpt diff runs/tiny runs/other
      the newest checkpoints of two runs, whatever their rank counts
  zero3 ckpt diff runs/tiny/checkpoints/step_00000200 runs/tiny/checkpoints/step_00000300 --json

Exit codes: 0 equal, bit for bit; 1 they differ: which parameter, how far; 2 no checkpoint there, or a damaged
one; 70 internal error.";

const CKPT_RESHARD_HELP: &str = "\
Examples:
  zero3 ckpt reshard runs/tiny runs/tiny-on-8 --ranks 8
  zero3 ckpt reshard runs/tiny/checkpoints/step_00000300 /scratch/archive --ranks 1
      then, if you like:  mpirun -n 1 zero3 train inputs/tiny.toml --resume /scratch/archive

Exit codes: 0 finished; 2 no checkpoint there, a damaged one, or the destination has one already; 5 it could not be
written; 70 internal error.";

const CKPT_EXPORT_HELP: &str = "\
Examples:
  zero3 ckpt export runs/tiny tiny-hf
      then, in Python:  AutoModelForCausalLM.from_pretrained(\"tiny-hf\")
  zero3 ckpt export --dtype bf16 --max-shard-size 500MB runs/tiny/checkpoints/step_00000300 tiny-hf

Exit codes: 0 finished; 2 no checkpoint there, a damaged one, or the directory is not empty; 5 it could not be
written; 70 internal error.";

const CKPT_IMPORT_HELP: &str = "\
Examples:
  zero3 ckpt import gpt2 runs/gpt2 --ranks 4
      of a directory with config.json and model.safetensors (or its index)
  mpirun -n 2 zero3 train my.toml --resume runs/gpt2
      trains on from it at step 0; so does model.init_from=runs/gpt2 (a deck as inputs/tiny.toml, of the same sizes)

Exit codes: 0 finished; 2 no such model, tensors amiss, or the destination has a checkpoint already; 5 it could not be
written; 70 internal error.";

const SAMPLE_HELP: &str = "\
Examples:
  zero3 sample runs/tiny --prompt 'The '
  mpirun -n 4 zero3 sample runs/tiny --prompt 'The ' --temperature 0.8 --top-k 40 --seed 7 --max-tokens 500
      the same text on any number of ranks
  zero3 sample runs/web --prompt 'Once upon a time' data.tokenizer=gpt2
      the deck of the run named no tokenizer

Exit codes: 0 finished; 2 no checkpoint there, a damaged one, or a prompt that is no text of the tokenizer; 5 communication or
device failure; 70 internal error.";

const EVAL_HELP: &str = "\
Examples:
  zero3 eval runs/tiny inputs/tiny.toml
  mpirun -n 4 zero3 eval runs/tiny inputs/tiny.toml data.val=other.txt --stride 16 --json
      the same digits on any number of ranks

Exit codes: 0 finished; 2 no checkpoint there, a damaged one, or bad data; 5 communication or device failure; 70 internal error.";

const REPORT_HELP: &str = "\
Example:
  zero3 report runs/tiny

Exit codes: 0 finished; 2 no summary there; 70 internal error.";

/// Ranks that can be planned or cut for: more than any machine starts, few enough for a plan to be made at once.
const MAX_RANKS: i64 = 1 << 20;

/// Everything the program can be asked to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// `zero3 train`
    Train(TrainArgs),
    /// `zero3 accept`
    Accept(AcceptArgs),
    /// `zero3 sample`
    Sample(SampleArgs),
    /// `zero3 eval`
    Eval(EvalArgs),
    /// `zero3 plan`
    Plan(PlanArgs),
    /// `zero3 data info` of a deck's data.
    DataInfo(DeckArgs),
    /// `zero3 data info` of token files.
    DataFiles(DataFilesArgs),
    /// `zero3 data tokenize`
    DataTokenize(TokenizeArgs),
    /// `zero3 ckpt inspect`
    CkptInspect(CkptInspectArgs),
    /// `zero3 ckpt verify`
    CkptVerify(CkptInspectArgs),
    /// `zero3 ckpt diff`
    CkptDiff(CkptDiffArgs),
    /// `zero3 ckpt reshard`
    CkptReshard(CkptReshardArgs),
    /// `zero3 ckpt export`
    CkptExport(CkptExportArgs),
    /// `zero3 ckpt import`
    CkptImport(CkptImportArgs),
    /// `zero3 report`: the five questions about a run directory.
    Report(PathBuf),
    /// `zero3 device check`
    DeviceCheck(DeviceCheckArgs),
}

/// Arguments of `zero3 device check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCheckArgs {
    /// CUDA ordinal.
    pub device: usize,
    /// Small shapes: for tests.
    pub small: bool,
    /// Print JSON.
    pub json: bool,
}

/// A deck and what the command line changes in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeckArgs {
    /// The TOML file.
    pub path: PathBuf,
    /// `section.key` and text, in the order given; see [`crate::config::Deck::load`].
    pub overrides: Vec<(String, String)>,
}

/// Arguments of `zero3 train`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainArgs {
    /// The deck.
    pub deck: DeckArgs,
    /// Where to start from.
    pub resume: Resume,
    /// Validate, print the resolved deck, start nothing.
    pub dry_run: bool,
}

/// Arguments of `zero3 accept`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptArgs {
    /// The deck; its keys are those of docs/acceptance.md.
    pub deck: DeckArgs,
    /// A baseline to hold figures against.
    pub baseline: Option<PathBuf>,
    /// Where to write this run's figures as a baseline.
    pub record_baseline: Option<PathBuf>,
    /// Where to add this run's losses as a known answer.
    pub record_answers: Option<PathBuf>,
}

/// Arguments of `zero3 sample`.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub checkpoint: PathBuf,
    /// Changes to the checkpoint's deck.
    pub overrides: Vec<(String, String)>,
    /// How the text begins.
    pub prompt: String,
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Tokens to draw from; 0 = all.
    pub top_k: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// Most tokens after the prompt.
    pub max_tokens: usize,
}

/// Arguments of `zero3 eval`.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub checkpoint: PathBuf,
    /// The deck that names the data.
    pub deck: DeckArgs,
    /// Tokens from a window to the next; None = half a window.
    pub stride: Option<usize>,
    /// Print JSON.
    pub json: bool,
}

/// Arguments of `zero3 plan`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanArgs {
    /// The deck.
    pub deck: DeckArgs,
    /// Ranks to plan for, at least 1.
    pub n_ranks: usize,
    /// Ranks of one node, at least 1; `None` = all ranks on one node.
    pub ranks_per_node: Option<usize>,
    /// Print JSON.
    pub json: bool,
}

/// Arguments of `zero3 data info` for token files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFilesArgs {
    /// The files.
    pub paths: Vec<PathBuf>,
    /// A `data.format`.
    pub format: DataFormat,
    /// What the tokens mean.
    pub tokenizer: Option<Tokenizer>,
}

/// Arguments of `zero3 data tokenize`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeArgs {
    /// What makes tokens.
    pub tokenizer: Tokenizer,
    /// The token file, or what the names of several are made of.
    pub out: PathBuf,
    /// Text files.
    pub inputs: Vec<PathBuf>,
    /// How the tokens lie in the file.
    pub format: DataFormat,
    /// Tokens of one file.
    pub shard_tokens: Option<u64>,
    /// Share of the documents for validation.
    pub val_fraction: f64,
    /// What a document is.
    pub layout: Layout,
    /// Where the document's token stands; None = before, if the tokenizer has one.
    pub document_token: Option<DocumentToken>,
    /// Its name.
    pub document_token_name: Option<String>,
    /// Start over.
    pub overwrite: bool,
}

/// Arguments of `zero3 ckpt inspect` and `zero3 ckpt verify`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CkptInspectArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub path: PathBuf,
    /// Print JSON.
    pub json: bool,
}

/// Arguments of `zero3 ckpt diff`; each path is a run directory or a step directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CkptDiffArgs {
    /// The first checkpoint.
    pub a: PathBuf,
    /// The second.
    pub b: PathBuf,
    /// Print JSON.
    pub json: bool,
}

/// Arguments of `zero3 ckpt reshard`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CkptReshardArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub source: PathBuf,
    /// A run directory without checkpoints.
    pub run_dir: PathBuf,
    /// Ranks to cut for, at least 1.
    pub n_ranks: usize,
}

/// Arguments of `zero3 ckpt export`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CkptExportArgs {
    /// A run directory (its newest complete checkpoint) or a step directory.
    pub source: PathBuf,
    /// A directory that is empty or not there.
    pub out_dir: PathBuf,
    /// Element type of the values.
    pub dtype: DType,
    /// Bytes of values in one file, about.
    pub max_shard_bytes: u64,
}

/// Arguments of `zero3 ckpt import`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CkptImportArgs {
    /// A Hugging Face directory or a safetensors file.
    pub source: PathBuf,
    /// A run directory without checkpoints.
    pub run_dir: PathBuf,
    /// Ranks to cut for, at least 1.
    pub n_ranks: usize,
}

/// Where a run starts from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Resume {
    /// The newest complete checkpoint of the run directory, or step 0 when there is none.
    #[default]
    Auto,
    /// Step 0.
    None,
    /// A run or step directory.
    Path(PathBuf),
}

/// Trains GPT models with ZeRO-3 over MPI.
///
/// Parameters, gradients and optimizer state are cut into one slice per rank; each layer's parameters are gathered just
/// before they are needed and released right after. The result is the same bits on any number of ranks.
#[derive(Parser, Debug)]
#[command(name = "zero3", bin_name = "zero3", version)]
#[command(after_long_help = PROGRAM_HELP, after_help = "`zero3 --help` says more.")]
#[command(subcommand_required = true, arg_required_else_help = false)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand, Debug)]
enum CliCommand {
    /// Train as a deck says, or go on where the last run stopped.
    ///
    /// Reads a deck (a TOML file; docs/deck.md lists its keys), trains, validates, and writes logs and checkpoints
    /// under run.dir. Started again, it goes on from the newest complete checkpoint, on any number of ranks, or says
    /// that the run is finished.
    #[command(override_usage = "zero3 train DECK [KEY=VALUE ...] [--resume auto|none|PATH] [--dry-run]")]
    #[command(after_help = TRAIN_HELP)]
    Train {
        #[command(flatten)]
        words: Words,
        /// Where to start from: auto = the newest complete checkpoint of run.dir, if any; none = from scratch; PATH = a
        /// run or step directory (write ./auto for a directory of that name).
        #[arg(long, value_name = "auto|none|PATH", default_value = "auto", hide_default_value = false)]
        #[arg(value_parser = OsStringValueParser::new().try_map(parse_resume))]
        resume: Resume,
        /// Check everything in the deck, print it with all defaults, start nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Say whether this cluster can be signed for, with reasons.
    ///
    /// Measures devices, collectives, storage, training, scaling and restarts of the job's ranks, checks every result, holds the
    /// figures against the deck's limits and a baseline, names the rank, node or link that stands out, and ends with one line:
    /// VALID or INVALID, ACCEPTED or NOT ACCEPTED. docs/acceptance.md explains each figure and the deck.
    #[command(override_usage = "zero3 accept DECK [KEY=VALUE ...] [--baseline FILE] [--record-baseline FILE]")]
    #[command(after_help = ACCEPT_HELP)]
    Accept {
        #[command(flatten)]
        words: Words,
        /// Hold figures against those of an earlier run, where the deck gives no reference.
        #[arg(long, value_name = "FILE")]
        baseline: Option<PathBuf>,
        /// Write this run's figures for later runs to be held against; not where the run is INVALID.
        #[arg(long, value_name = "FILE")]
        record_baseline: Option<PathBuf>,
        /// Add this run's losses to a file for training.known_answers.
        #[arg(long, value_name = "FILE")]
        record_answers: Option<PathBuf>,
    },
    /// Write text with a checkpoint's model.
    ///
    /// Ranks hold slices of the parameters alone and gather unit by unit as in training; each token costs one row of computing
    /// and one gather of every unit. The same seed gives the same text on any number of ranks. The deck is the checkpoint's own;
    /// KEY=VALUE changes it (run.backend, run.threads_per_rank, data.tokenizer ...).
    #[command(override_usage = "zero3 sample CHECKPOINT --prompt TEXT [--temperature T] [--top-k K] [--seed S] \
                                [--max-tokens N] [KEY=VALUE ...]")]
    #[command(after_help = SAMPLE_HELP)]
    Sample {
        /// A run directory (its newest complete checkpoint) or a step directory.
        checkpoint: PathBuf,
        /// How the text begins; empty = with the token that begins documents, where the tokenizer has one.
        #[arg(long, value_name = "TEXT")]
        prompt: String,
        /// Divides the logits before the draw: below 1 nearer to the likeliest, 0 = the likeliest token always.
        #[arg(long, value_name = "T", default_value = "1", value_parser = parse_temperature)]
        temperature: f64,
        /// Draw from the K likeliest tokens alone; 0 = from all.
        #[arg(long, value_name = "K", default_value = "0")]
        top_k: usize,
        /// Seed of the draws.
        #[arg(long, value_name = "S", default_value = "1")]
        seed: u64,
        /// Most tokens after the prompt. When the model's context is full it goes on with the last half of it.
        #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(1..))]
        max_tokens: u32,
        /// Keys of the deck to change.
        #[arg(value_name = "KEY=VALUE", value_parser = OsStringValueParser::new().try_map(parse_override))]
        overrides: Vec<(String, String)>,
    },
    /// Give the loss, perplexity and bits per byte of a checkpoint's model on a text.
    ///
    /// The text is the deck's validation data, or its training data where it has none; the model is the checkpoint's, whatever
    /// sizes the deck has, unless KEY=VALUE says otherwise. A window of model.seq_len tokens slides over the text: every
    /// token but the first is predicted once, from at least model.seq_len - stride tokens before it. The same digits on any
    /// number of ranks.
    #[command(override_usage = "zero3 eval CHECKPOINT DECK [KEY=VALUE ...] [--stride N] [--json]")]
    #[command(after_help = EVAL_HELP)]
    Eval {
        /// A run directory (its newest complete checkpoint) or a step directory.
        checkpoint: PathBuf,
        #[command(flatten)]
        words: Words,
        /// Tokens from the start of a window to that of the next; at most model.seq_len. Without it: half of that.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        stride: Option<u32>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what a run would hold and move, without starting it.
    ///
    /// Computes, from the deck and a number of ranks alone, who owns which slices, the order of gathers and reductions,
    /// the peak memory and the bytes each rank receives per step. Needs no MPI: it plans 1000 ranks on a laptop.
    #[command(override_usage = "zero3 plan DECK --ranks N [--ranks-per-node K] [--json] [KEY=VALUE ...]")]
    #[command(after_help = PLAN_HELP)]
    Plan {
        #[command(flatten)]
        words: Words,
        /// Ranks to plan for.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS))]
        ranks: u32,
        /// Ranks that share a node; without it, all of them do.
        #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
        ranks_per_node: Option<u32>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make token files, and look at data.
    #[command(after_help = DATA_HELP)]
    Data {
        #[command(subcommand)]
        command: DataCommand,
    },
    /// Check this node's GPU.
    #[command(after_help = DEVICE_HELP)]
    Device {
        #[command(subcommand)]
        command: DeviceCommand,
    },
    /// Answer five questions about a run's memory and time from its own records.
    ///
    /// Which shards are resident at rest; which full parameters are gathered; did prefetches overlap compute; were full
    /// parameters released soon enough; were gradients reduced, or did full copies pile up. Each answer cites its numbers.
    #[command(after_help = REPORT_HELP)]
    Report {
        /// A run directory.
        run: PathBuf,
    },
    /// Look at checkpoints, cut them anew, exchange weights with other programs.
    #[command(after_help = CKPT_HELP)]
    Ckpt {
        #[command(subcommand)]
        command: CkptCommand,
    },
}

#[derive(Subcommand, Debug)]
enum DeviceCommand {
    /// Hold every kernel of a GPU against its naive sibling in f64, and time it.
    ///
    /// Prints a line for each kernel and element type: its error, what is allowed, its time on the shapes of GPT-2 124M, and
    /// the bandwidth or TFLOP/s that makes. Needs one GPU, and no MPI.
    #[command(after_help = DEVICE_HELP)]
    Check {
        /// CUDA ordinal of the device.
        #[arg(long, value_name = "N", default_value_t = 0)]
        device: usize,
        /// Time small shapes: says nothing of speed.
        #[arg(long)]
        small: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand, Debug)]
enum DataCommand {
    /// Say what a deck's data files hold, or token files by themselves.
    ///
    /// Of a deck (*.toml): expands the globs, reads every file a run would read, and prints files, tokens, the split into
    /// training and validation, and the digest that checkpoints keep; finds what a run would refuse. Of token files: their
    /// size, how much of the vocabulary they use, and the first tokens as text. Needs no MPI.
    #[command(
        override_usage = "zero3 data info DECK.toml [KEY=VALUE ...]\n       zero3 data info FILE ... [--format FORMAT] \
                                [--tokenizer gpt2|bytes|FILE]"
    )]
    #[command(after_help = DATA_INFO_HELP)]
    Info {
        #[command(flatten)]
        words: Words,
        /// Of token files: text, raw_u16, raw_u32, llmc, or auto = by name and header.
        #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
        format: Option<DataFormat>,
        /// Of token files: what the tokens mean. Known where zero3 made the file.
        #[arg(long, value_name = "gpt2|bytes|FILE", value_parser = parse_tokenizer)]
        tokenizer: Option<Tokenizer>,
    },
    /// Turn text into token files.
    ///
    /// Reads text files of any size in bounded memory, encodes them on all cores, and writes token files that training
    /// maps and reads as they are. Killed anywhere, the same command goes on and makes the same bytes. Needs no MPI.
    #[command(after_help = DATA_TOKENIZE_HELP)]
    Tokenize {
        /// What makes tokens: GPT-2's byte pairs, single bytes, or a Hugging Face tokenizer.json.
        #[arg(long, value_name = "gpt2|bytes|FILE", value_parser = parse_tokenizer)]
        tokenizer: Tokenizer,
        /// The token file. With --val-fraction its name gets _train and _val before the ending, with --shard-tokens the
        /// number of the shard.
        #[arg(value_name = "OUT")]
        out: PathBuf,
        /// Text files (*.jsonl: JSON lines); - is standard input.
        #[arg(value_name = "FILE", required = true, num_args = 1..)]
        inputs: Vec<PathBuf>,
        /// raw_u16, raw_u32 or llmc; auto = by the ending of OUT: .u16 and .bin raw_u16, .u32 raw_u32. llmc takes 16 or 32
        /// bits as the vocabulary needs.
        #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = parse_format)]
        format: DataFormat,
        /// Tokens of one file; without it, all go into one.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        shard_tokens: Option<u64>,
        /// Share of the documents that go to a validation file of their own. Which ones is decided by a hash of their text.
        #[arg(long, value_name = "F", default_value = "0", value_parser = parse_fraction)]
        val_fraction: f64,
        /// What separates documents within a file; without it, a file is one document.
        #[arg(long, value_name = "STR", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        separator: Option<String>,
        /// Read all files as lines of JSON objects, with the text under this key. (*.jsonl files are read so, under \"text\".)
        #[arg(long, value_name = "KEY", conflicts_with = "separator")]
        json_key: Option<String>,
        /// Where the token that marks a document stands; bytes have none.
        #[arg(long, value_name = "before|after|none", value_parser = parse_document_token)]
        document_token: Option<DocumentToken>,
        /// The name of that token in a tokenizer.json; without it, the first found of <|endoftext|>, <|end_of_text|>,
        /// `<|begin_of_text|>`, `</s>`, `<eos>`.
        #[arg(long, value_name = "TOKEN")]
        document_token_name: Option<String>,
        /// Start over, whatever an earlier run made of OUT.
        #[arg(long)]
        overwrite: bool,
    },
}

#[derive(Subcommand, Debug)]
enum CkptCommand {
    /// Say what a checkpoint holds.
    ///
    /// Prints step, ranks, model, parameters and the deck it was made with, and checks that all its files are there.
    /// Needs no MPI.
    #[command(after_help = CKPT_HELP)]
    Inspect {
        /// A run directory (its newest complete checkpoint) or a step directory.
        path: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read every byte of a checkpoint and compare it with its digests.
    ///
    /// Names each damage: the file, the dataset, the elements. A restore checks what it reads too; this checks all of it,
    /// files side by side, without a job. Needs no MPI.
    #[command(after_help = CKPT_VERIFY_HELP)]
    Verify {
        /// A run directory (its newest checkpoint) or a step directory.
        path: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Compare the weights and moments of two checkpoints, bit for bit.
    ///
    /// The rank counts need not be the same. Says which parameters differ, in how many elements and how far. Needs no MPI.
    #[command(after_help = CKPT_DIFF_HELP)]
    Diff {
        /// A run directory (its newest complete checkpoint) or a step directory.
        a: PathBuf,
        /// Another one.
        b: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write a checkpoint anew for another rank count, without a job.
    ///
    /// A restore does not need this: it takes any rank count. Use it for fewer or more files, or to copy a checkpoint
    /// with every digest checked. Takes little memory, whatever the model's size. Needs no MPI.
    #[command(after_help = CKPT_RESHARD_HELP)]
    Reshard {
        /// A run directory (its newest complete checkpoint) or a step directory.
        source: PathBuf,
        /// The run directory to write to; it may not hold a checkpoint yet.
        run_dir: PathBuf,
        /// Ranks to cut for.
        #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS))]
        ranks: u32,
    },
    /// Write a checkpoint's weights as other programs have them.
    ///
    /// safetensors files with the names, shapes and config.json of Hugging Face's transformers; the tied head once. Holds one
    /// parameter in memory at a time. Needs no MPI.
    #[command(after_help = CKPT_EXPORT_HELP)]
    Export {
        /// A run directory (its newest complete checkpoint) or a step directory.
        source: PathBuf,
        /// The directory to write: empty, or not there.
        out_dir: PathBuf,
        /// The format.
        #[arg(long, value_name = "safetensors", default_value = "safetensors", value_parser = ["safetensors"])]
        format: String,
        /// f32 (the master weights as they are) or bf16 (rounded to nearest even).
        #[arg(long, value_name = "f32|bf16", default_value = "f32", value_parser = parse_dtype)]
        dtype: DType,
        /// Values in one file, about: bytes, or KB, MB, GB (powers of 1000), KiB, MiB, GiB (of 1024).
        #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = parse_size)]
        max_shard_size: u64,
    },
    /// Make a checkpoint of other programs' weights.
    ///
    /// Reads safetensors files (f32, bf16, f16, f64) with the names and shapes of Hugging Face's transformers, a single one or
    /// what an index lists, and writes a checkpoint of step 0. All tensors that are missing, too many or misshapen are named.
    /// Takes little memory, whatever the model's size. Needs no MPI.
    #[command(after_help = CKPT_IMPORT_HELP)]
    Import {
        /// A directory with config.json and model.safetensors (or its index), or such a file beside its config.json.
        source: PathBuf,
        /// The run directory to write to; it may not hold a checkpoint yet.
        run_dir: PathBuf,
        /// Ranks to cut for. A restore takes any number of ranks, whatever this one is.
        #[arg(long, value_name = "N", default_value = "1")]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS))]
        ranks: u32,
    },
}

/// A deck and overrides, in any order.
#[derive(clap::Args, Debug)]
struct Words {
    /// The deck, and any number of keys to set in it, e.g. optim.lr=1e-3 data.train=a.txt,b.txt. What has a `=` after a
    /// plain key is an override; write ./a=b.toml for a deck of such a name.
    #[arg(value_name = "DECK|KEY=VALUE", required = true, num_args = 1..)]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_word))]
    words: Vec<Word>,
}

#[derive(Debug, Clone)]
enum Word {
    Deck(PathBuf),
    Override(String, String),
}

/// A word is an override if it has a `=` and no `/` before it; everything else is the path of a deck.
fn parse_word(word: OsString) -> Result<Word, String> {
    let bytes = word.as_encoded_bytes();
    let is_override = bytes.iter().position(|b| *b == b'=').is_some_and(|at| !bytes[..at].contains(&b'/'));
    if !is_override {
        return if word.is_empty() { Err("the empty word is no deck".into()) } else { Ok(Word::Deck(word.into())) };
    }
    let text = word.into_string().map_err(|_| "an override must be valid UTF-8".to_owned())?;
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok(Word::Override(key.trim().into(), value.into())),
        _ => Err("an override is written section.key=value".into()),
    }
}

fn parse_override(word: OsString) -> Result<(String, String), String> {
    match parse_word(word)? {
        Word::Override(key, value) => Ok((key, value)),
        Word::Deck(path) => Err(format!("{} is no KEY=VALUE; the deck is the checkpoint's own", path.display())),
    }
}

fn parse_temperature(word: &str) -> Result<f64, String> {
    word.parse().ok().filter(|t| (0.0..=100.0).contains(t)).ok_or_else(|| "a number from 0 to 100".into())
}

fn parse_resume(text: OsString) -> Result<Resume, String> {
    match text {
        text if text.is_empty() => Err("say auto, none or a directory".into()),
        text if text == OsStr::new("auto") => Ok(Resume::Auto),
        text if text == OsStr::new("none") => Ok(Resume::None),
        text => Ok(Resume::Path(text.into())),
    }
}

fn parse_format(word: &str) -> Result<DataFormat, String> {
    let value = toml::Value::String(word.into());
    value.try_into().map_err(|_| format!("one of {}", DataFormat::NAMES.join(", ")))
}

fn parse_tokenizer(word: &str) -> Result<Tokenizer, String> {
    match word.parse() {
        Ok(Tokenizer::None) | Err(_) => Err("gpt2, bytes or the path of a tokenizer.json (it ends in .json)".into()),
        Ok(tokenizer) => Ok(tokenizer),
    }
}

fn parse_dtype(word: &str) -> Result<DType, String> {
    match word {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::Bf16),
        _ => Err("f32 or bf16".into()),
    }
}

fn parse_size(word: &str) -> Result<u64, String> {
    let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &word[digits.len()..] {
        "" | "B" => 1,
        "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => 0,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|&n| n > 0);
    bytes.ok_or_else(|| "a size such as 5GB, 500MB or 2GiB".into())
}

fn parse_fraction(word: &str) -> Result<f64, String> {
    word.parse().ok().filter(|f| (0.0..1.0).contains(f)).ok_or_else(|| "a number from 0 to below 1".into())
}

fn parse_document_token(word: &str) -> Result<DocumentToken, String> {
    match word {
        "before" => Ok(DocumentToken::Before),
        "after" => Ok(DocumentToken::After),
        "none" => Ok(DocumentToken::None),
        _ => Err("before, after or none".into()),
    }
}

impl Words {
    /// Whether the words name token files and no deck.
    fn are_files(&self) -> bool {
        let is_deck = |word: &Word| match word {
            Word::Deck(path) => path.extension().is_some_and(|e| e == "toml"),
            Word::Override(..) => false,
        };
        self.words.iter().any(|word| matches!(word, Word::Deck(_))) && !self.words.iter().any(is_deck)
    }

    /// The paths among the words, which may hold nothing else.
    fn into_files(self) -> Result<Vec<PathBuf>, clap::Error> {
        let path = |word| match word {
            Word::Deck(path) => Ok(path),
            Word::Override(key, value) => {
                let message = format!("{key}={value} sets a key of a deck, and no deck (*.toml) is named");
                Err(usage_error(&["data", "info"], ErrorKind::UnknownArgument, message))
            }
        };
        self.words.into_iter().map(path).collect()
    }

    /// The one deck among the words; `subcommand` is the path of names for the usage line of an error.
    fn into_deck(self, subcommand: &[&str]) -> Result<DeckArgs, clap::Error> {
        let mut decks = Vec::new();
        let mut overrides = Vec::new();
        for word in self.words {
            match word {
                Word::Deck(path) => decks.push(path),
                Word::Override(key, value) => overrides.push((key, value)),
            }
        }
        match <[PathBuf; 1]>::try_from(decks) {
            Ok([path]) => Ok(DeckArgs { path, overrides }),
            Err(decks) if decks.is_empty() => {
                let message = "no deck: give the path of a TOML file, e.g. inputs/tiny.toml";
                Err(usage_error(subcommand, ErrorKind::MissingRequiredArgument, message.into()))
            }
            Err(decks) => {
                let names: Vec<String> = decks.iter().map(|d| d.display().to_string()).collect();
                let message = format!("more than one deck: {}; a key is set with section.key=value", names.join(", "));
                Err(usage_error(subcommand, ErrorKind::TooManyValues, message))
            }
        }
    }
}

/// An error that shows the usage line of a subcommand.
fn usage_error(subcommand: &[&str], kind: ErrorKind, message: String) -> clap::Error {
    let mut command = Cli::command();
    command.build();
    let mut current = &mut command;
    for name in subcommand {
        current = current.find_subcommand_mut(name).expect("a subcommand defined above");
    }
    current.error(kind, message)
}

/// Parses the arguments, the program's own name first.
///
/// # Errors
/// A usage error (its `exit_code()` is 2), or the text of `--help` and `--version` (0); `print()` shows either.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, clap::Error> {
    match Cli::try_parse_from(args)?.command {
        CliCommand::Train { words, resume, dry_run } => {
            Ok(Command::Train(TrainArgs { deck: words.into_deck(&["train"])?, resume, dry_run }))
        }
        CliCommand::Accept { words, baseline, record_baseline, record_answers } => {
            let deck = words.into_deck(&["accept"])?;
            Ok(Command::Accept(AcceptArgs { deck, baseline, record_baseline, record_answers }))
        }
        CliCommand::Sample { checkpoint, prompt, temperature, top_k, seed, max_tokens, overrides } => {
            let max_tokens = max_tokens as usize;
            Ok(Command::Sample(SampleArgs { checkpoint, overrides, prompt, temperature, top_k, seed, max_tokens }))
        }
        CliCommand::Eval { checkpoint, words, stride, json } => {
            let (deck, stride) = (words.into_deck(&["eval"])?, stride.map(|n| n as usize));
            Ok(Command::Eval(EvalArgs { checkpoint, deck, stride, json }))
        }
        CliCommand::Plan { words, ranks, ranks_per_node, json } => Ok(Command::Plan(PlanArgs {
            deck: words.into_deck(&["plan"])?,
            n_ranks: ranks as usize,
            ranks_per_node: ranks_per_node.map(|k| k as usize),
            json,
        })),
        CliCommand::Data { command: DataCommand::Info { words, format, tokenizer } } if words.are_files() => {
            let format = format.unwrap_or(DataFormat::Auto);
            Ok(Command::DataFiles(DataFilesArgs { paths: words.into_files()?, format, tokenizer }))
        }
        CliCommand::Data { command: DataCommand::Info { words, format, tokenizer } } => {
            if format.is_some() || tokenizer.is_some() {
                let message = "--format and --tokenizer are for token files; set data.format=... for a deck";
                return Err(usage_error(&["data", "info"], ErrorKind::ArgumentConflict, message.into()));
            }
            Ok(Command::DataInfo(words.into_deck(&["data", "info"])?))
        }
        CliCommand::Data {
            command:
                DataCommand::Tokenize {
                    tokenizer,
                    out,
                    inputs,
                    format,
                    shard_tokens,
                    val_fraction,
                    separator,
                    json_key,
                    document_token,
                    document_token_name,
                    overwrite,
                },
        } => {
            let layout = match (separator, json_key) {
                (Some(separator), _) => Layout::Separated(separator),
                (None, Some(key)) => Layout::JsonLines(key),
                (None, None) => Layout::Whole,
            };
            Ok(Command::DataTokenize(TokenizeArgs {
                tokenizer,
                out,
                inputs,
                format,
                shard_tokens,
                val_fraction,
                layout,
                document_token,
                document_token_name,
                overwrite,
            }))
        }
        CliCommand::Report { run } => Ok(Command::Report(run)),
        CliCommand::Device { command: DeviceCommand::Check { device, small, json } } => {
            Ok(Command::DeviceCheck(DeviceCheckArgs { device, small, json }))
        }
        CliCommand::Ckpt { command: CkptCommand::Inspect { path, json } } => {
            Ok(Command::CkptInspect(CkptInspectArgs { path, json }))
        }
        CliCommand::Ckpt { command: CkptCommand::Verify { path, json } } => {
            Ok(Command::CkptVerify(CkptInspectArgs { path, json }))
        }
        CliCommand::Ckpt { command: CkptCommand::Diff { a, b, json } } => {
            Ok(Command::CkptDiff(CkptDiffArgs { a, b, json }))
        }
        CliCommand::Ckpt { command: CkptCommand::Export { source, out_dir, format: _, dtype, max_shard_size } } => {
            Ok(Command::CkptExport(CkptExportArgs { source, out_dir, dtype, max_shard_bytes: max_shard_size }))
        }
        CliCommand::Ckpt { command: CkptCommand::Import { source, run_dir, ranks } } => {
            Ok(Command::CkptImport(CkptImportArgs { source, run_dir, n_ranks: ranks as usize }))
        }
        CliCommand::Ckpt { command: CkptCommand::Reshard { source, run_dir, ranks } } => {
            Ok(Command::CkptReshard(CkptReshardArgs { source, run_dir, n_ranks: ranks as usize }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            Command::DataInfo(deck("runs/lr=1/deck.toml", &[]))
        });
    }

    #[test]
    fn plan_data_and_ckpt_parse() {
        assert_eq!(
            parsed("plan zero.prefetch_units=2 --ranks 5 a.toml --ranks-per-node 2 --json").unwrap(),
            Command::Plan(PlanArgs {
                deck: deck("a.toml", &[("zero.prefetch_units", "2")]),
                n_ranks: 5,
                ranks_per_node: Some(2),
                json: true
            })
        );
        assert_eq!(
            parsed("data info a.bin --format llmc b.bin --tokenizer gpt2").unwrap(),
            Command::DataFiles(DataFilesArgs {
                paths: vec!["a.bin".into(), "b.bin".into()],
                format: DataFormat::Llmc,
                tokenizer: Some(Tokenizer::Gpt2)
            })
        );
        let Command::DataTokenize(args) =
            parsed("data tokenize --tokenizer t.json o.bin a b --val-fraction 0.5 --separator x").unwrap()
        else {
            panic!()
        };
        assert_eq!((args.inputs.len(), args.val_fraction, args.out), (2, 0.5, "o.bin".into()));
        assert_eq!((args.layout, args.tokenizer), (Layout::Separated("x".into()), Tokenizer::File("t.json".into())));
        assert_eq!(parsed("data info a.toml data.val=").unwrap(), {
            Command::DataInfo(deck("a.toml", &[("data.val", "")]))
        });
        assert_eq!(
            parsed("ckpt inspect runs/tiny --json").unwrap(),
            Command::CkptInspect(CkptInspectArgs { path: "runs/tiny".into(), json: true })
        );
        assert_eq!(
            parsed("ckpt diff a b").unwrap(),
            Command::CkptDiff(CkptDiffArgs { a: "a".into(), b: "b".into(), json: false })
        );
        assert_eq!(
            parsed("ckpt reshard --ranks 3 a b").unwrap(),
            Command::CkptReshard(CkptReshardArgs { source: "a".into(), run_dir: "b".into(), n_ranks: 3 })
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
            assert!(text.contains("zero3 ") && text.contains("inputs/") || text.contains("runs/tiny"), "{text}");
            assert!(text.contains("Exit codes"), "{text}");
        }
    }
}

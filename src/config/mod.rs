//! The deck: every key, its type, its range, its default and its meaning, in one table.
//!
//! Reading order: the table below, then `rules.rs` (how keys depend on each other). The structs, the
//! defaults, the checks, the text of `--dry-run` and the table of `docs/deck.md` all come from the table, so
//! they cannot drift.
//!
//! Must not know: MPI, files other than the deck itself, the model's code.

mod choices;
mod family;
mod key;
mod limit;
mod rate;
mod render;
mod resolve;
mod rules;
mod suggest;
#[cfg(test)]
mod tests;
pub mod values;

pub use choices::{
    ActivationCheckpointing, BackendKind, CONTAINERS, DataFormat, DeviceKind, GatherRoute, Locking,
    OnSaveError, ReduceWhen, Tokenizer,
};
pub use family::{Family, Preset, PresetSizes};
pub use key::{Key, Kind, Origin, Table};
pub use limit::Limit;
pub use render::markdown_table;
pub use values::Written;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::files;
use crate::optimizers::{Hyper, OptimizerKind};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;
use values::{DeviceList, SignalSet, StepSet, TimeLimit};

/// Smaller gradient exchanges would be dominated by latency.
const MIN_REDUCE_BUCKET_BYTES: i64 = 4096;
/// Longer files are not decks.
const MAX_DECK_BYTES: u64 = 16 << 20;

/// Element types a deck can name.
const DTYPES: Kind = Kind::Choice(&["f32", "bf16"]);
/// A count or a number of bytes, 0 included.
const UNSIGNED: Kind = Kind::Integer { min: 0, max: i64::MAX };

const fn integer(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

const fn float(min: f64, max: f64) -> Kind {
    Kind::Float { min, max, below_max: false }
}

/// A number in [0, 1).
const FRACTION: Kind = Kind::Float { min: 0.0, max: 1.0, below_max: true };

/// `(required)`, `(default "text")` or `(derived "words")` as an [`Origin`].
macro_rules! origin {
    (required) => {
        Origin::Required
    };
    (default $text:literal) => {
        Origin::Fixed($text)
    };
    (derived $words:literal) => {
        Origin::Derived($words)
    };
}

/// The same as a sentence of documentation.
macro_rules! origin_doc {
    (required) => {
        "Required."
    };
    (default "") => {
        "Default: empty."
    };
    (default $text:literal) => {
        concat!("Default: `", $text, "`.")
    };
    (derived $words:literal) => {
        concat!("Default: ", $words, ".")
    };
}

/// Defines the section structs, [`Deck`] with its methods, [`SECTIONS`] and [`KEYS`] from the table below. A
/// row is `field: type = (origin), kind, help;`.
macro_rules! deck {
    ($(
        $(#[doc = $section_help:literal])+
        $section:ident: $Section:ident {
            $(
                $field:ident: $ty:ty = ($($origin:tt)+), $kind:expr, $help:literal;
            )+
        }
    )+) => {
        /// A whole resolved deck: everything a run does, with every default filled in.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Deck {
            $(
                #[doc = concat!("`[", stringify!($section), "]`")]
                pub $section: $Section,
            )+
        }

        $(
            $(#[doc = $section_help])+
            ///
            /// `Default` gives the table's defaults; required and derived keys are empty, zero or the first
            /// choice.
            #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $Section {
                $(
                    #[doc = $help]
                    #[doc = origin_doc!($($origin)+)]
                    pub $field: $ty,
                )+
            }

            impl Default for $Section {
                fn default() -> Self {
                    key::default_section(KEYS, stringify!($section))
                }
            }
        )+

        impl Deck {
            /// Reads and resolves the deck at `path`; `overrides` are `section.key` and text, the last one of
            /// a key taking precedence.
            ///
            /// # Errors
            /// [`Error::Input`] when the file cannot be read or is not TOML, [`Error::Deck`] with every fault
            /// otherwise.
            pub fn load(path: &Path, overrides: &[(String, String)]) -> Result<Deck> {
                Deck::parse(&read_text(path, "deck")?, overrides, &path.display().to_string())
            }

            /// The whole deck as TOML, every key written out; it parses back to the same deck.
            pub fn to_toml(&self) -> String {
                render::toml(&TABLE, self, false)
            }

            /// xxh3 (64 bit) of [`Deck::to_toml`]: equal decks have equal digests, however they were written.
            pub fn digest(&self) -> u64 {
                xxhash_rust::xxh3::xxh3_64(self.to_toml().as_bytes())
            }
        }

        /// The table that all of this is built from.
        pub static TABLE: Table = Table { sections: SECTIONS, keys: KEYS };

        /// Every section with its help, in the order they are printed.
        pub static SECTIONS: &[(&str, &str)] =
            &[$((stringify!($section), concat!($($section_help, "\n"),+))),+];

        /// Every key, in the order they are printed.
        pub static KEYS: &[Key] = &[$($(
            Key {
                name: concat!(stringify!($section), ".", stringify!($field)),
                kind: $kind,
                origin: origin!($($origin)+),
                help: $help,
            },
        )+)+];
    };
}

// After the macro that builds its table.
pub mod acceptance;
pub mod hardware;

deck! {
    /// Where the run is stored and what it runs on.
    run: RunSection {
        dir: String = (required), Kind::Text { may_be_empty: false },
            "Run directory: logs, summary and checkpoints.";
        backend: BackendKind = (default "auto"), Kind::Choice(BackendKind::NAMES),
            "Compute device; `auto` selects GPUs if every rank has one, and CPUs if none has.";
        devices: Written<DeviceList> = (default ""), Kind::Devices,
            "CUDA ordinal of each rank of a node, such as \"0,1\"; empty = each rank uses a different one.";
        tf32: bool = (default "false"), Kind::Flag,
            "Round the operands of f32 matrix products to TF32 (10-bit mantissa) on a GPU: faster, with \
             different results.";
        kernel_cache: String = (default "auto"), Kind::Text { may_be_empty: true },
            "Cache directory of compiled GPU kernels; `auto` = zero3 in the user's cache directory \
             (XDG_CACHE_HOME or ~/.cache), empty = compile them at each start.";
        threads_per_rank: usize = (default "0"), integer(0, 4096),
            "Compute threads per rank; 0 = the number of cores in the rank's cpuset.";
        single_copy: bool = (default "true"), Kind::Flag,
            "Ranks of a node read slices from each other's memory if the system permits it; false = MPI \
             messages. The results are bitwise the same. CPUs only.";
        peak_gflops: f64 = (default "0"), float(0.0, 1e12),
            "Peak f32 GFLOP/s per rank, the denominator of `mfu`; 0 = unknown, which leaves the column \
             empty.";
        memory_budget_bytes: u64 = (default "0"), UNSIGNED,
            "Maximum size of a rank's arena; a plan that requires more is rejected before the start. 0 = \
             unlimited.";
        locking: Locking = (default "best_effort"), Kind::Choice(Locking::NAMES),
            "Lock the run directory against a second job: never, if the file system supports it, or always.";
        time_limit: Written<TimeLimit> = (default ""), Kind::Duration,
            "Time limit of the process, from its start; it saves and stops with code 75 before. Slurm's \
             limit applies too.";
        stop_signals: Written<SignalSet> = (default "TERM,USR1"), Kind::Signals,
            "Signals that request a checkpoint at the next step boundary and a stop with code 75; one rank \
             receiving one suffices.";
        job_comment: bool = (default "false"), Kind::Flag,
            "Write step, pace and projected end into the Slurm job's comment (`squeue -o '%i %k'`), at most \
             once a minute.";
        timeout: u64 = (default "600"), integer(0, 1 << 31),
            "Seconds without progress after which a run counts as hung: it reports the late ranks and ends \
             with code 5. 0 = wait forever.";
    }

    /// The transformer.
    model: ModelSection {
        preset: Preset = (default "none"), Kind::Choice(Preset::NAMES),
            "A published model size. Size keys override it; `none` requires them all.";
        family: Family = (derived "the preset's, otherwise `gpt2`"), Kind::Choice(Family::NAMES),
            "`gpt2`: LayerNorm, learned positions, GELU, biases, tied head. `llama`: RMSNorm, rotary \
             positions, SwiGLU, grouped key/value heads, no biases. `qwen3`: a Llama with RMSNorm of each \
             query and key head.";
        n_layer: usize = (derived "the preset's, otherwise required"), integer(1, 4096),
            "Transformer blocks (L).";
        n_head: usize = (derived "the preset's, otherwise required"), integer(1, 4096),
            "Attention heads; must divide `model.d_model`, unless `model.head_dim` is free.";
        n_kv_head: usize = (derived "the preset's, otherwise `model.n_head`"), integer(1, 4096),
            "Key/value heads, each shared by the same number of attention heads; must divide `model.n_head`. \
             `gpt2`: `model.n_head`.";
        head_dim: usize = (derived "the preset's, else `model.d_model` / \
                                    `model.n_head`"), integer(1, 1 << 20),
            "Channels of a head (D); free for `qwen3`, fixed by `model.d_model` and `model.n_head` \
             otherwise.";
        d_model: usize = (derived "the preset's, otherwise required"), integer(1, 1 << 20),
            "Width (C).";
        d_ff: usize = (derived "the preset's, else 4 * `model.d_model`; others: 8/3 of it, up to a multiple \
                                of 256"), integer(1, 1 << 22),
            "Width of the hidden layer of a block. `gpt2`: 4 * `model.d_model`.";
        seq_len: usize = (derived "the preset's (1024), else required"), integer(1, 1 << 20),
            "Tokens per sequence (T).";
        vocab_size: usize = (derived "the tokenizer's (`bytes`: 256), else the preset's (50257), else \
                                      required"),
            integer(1, 1 << 31),
            "Vocabulary (V); at least the tokenizer's.";
        rope_theta: f64 = (derived "the preset's, else 10000; `gpt2`: 0, `qwen3`: 1000000"), float(0.0, 1e12),
            "Base of the rotary position frequencies. `gpt2`: 0, its positions are learned.";
        norm_eps: f64 = (derived "1e-5; `qwen3`: 1e-6"), float(1e-12, 1.0),
            "Added to the mean square in RMSNorm. `gpt2`: 1e-5.";
        tied: bool = (derived "the preset's, else false; `gpt2`: true"), Kind::Flag,
            "Tie the head to the token embedding. `gpt2`: true.";
        init_seed: u64 = (default "1"), UNSIGNED,
            "Seed of the initial weights, which do not depend on the rank count.";
        init_from: String = (default ""), Kind::Text { may_be_empty: true },
            "Initial weights: an HDF5 file (`FILE` or `FILE:GROUP`), or a checkpoint or run directory, from \
             which only the weights are read; empty = from `model.init_seed`.";
    }

    /// Training and validation tokens. Relative paths start at the working directory of the program.
    data: DataSection {
        train: Vec<String> = (required), Kind::Paths { may_be_empty: false },
            "Paths or globs of training data.";
        val: Vec<String> = (default ""), Kind::Paths { may_be_empty: true },
            "Paths or globs of validation data; overrides `data.val_fraction`.";
        val_fraction: f64 = (default "0"), FRACTION,
            "Fraction at the end of the training stream reserved for validation.";
        format: DataFormat = (default "auto"), Kind::Choice(DataFormat::NAMES),
            "Format of the files; `auto` = by name: `*.bin` and `*.u16` raw_u16, `*.u32` raw_u32, otherwise \
             text. llm.c's files with headers require llmc.";
        tokenizer: Tokenizer = (derived "`bytes` for text, otherwise `none`"), Kind::Tokenizer,
            "The tokenizer: `bytes` for text; for token files, the one they were made with (`gpt2` or the \
             path of a tokenizer.json), used by `data info` and `sample`, or `none`.";
        seed: u64 = (default "1"), UNSIGNED,
            "Seed of the sample order.";
        shuffle: bool = (default "true"), Kind::Flag,
            "Shuffle the samples of each epoch; false = file order.";
        stride: usize = (default "0"), integer(0, 1 << 40),
            "Tokens between the starts of consecutive training samples; 0 = `model.seq_len`.";
        val_stride: usize = (default "0"), integer(0, 1 << 40),
            "Tokens between the starts of consecutive validation windows; 0 = `model.seq_len`. If \
             `train.eval_batches` uses fewer windows than there are, they are spread evenly.";
        allow_changed: bool = (default "false"), Kind::Flag,
            "Allow a resume with data other than the checkpoint's.";
    }

    /// The training loop.
    train: TrainSection {
        steps: u64 = (required), integer(1, 1_000_000_000),
            "Optimizer steps of the whole run.";
        micro_batch_size: usize = (default "4"), integer(1, 1 << 20),
            "Sequences per rank and micro-step. Affects the numerics: a different value rounds differently.";
        global_batch_size: usize = (derived "8 * `train.micro_batch_size`"), integer(1, 1 << 30),
            "Sequences per step over all ranks; a multiple of `train.micro_batch_size`, not of the rank \
             count.";
        eval_every: u64 = (default "0"), UNSIGNED,
            "Steps between validations; 0 = never.";
        eval_batches: u64 = (default "8"), integer(1, 1_000_000_000),
            "Micro-batches of one validation, over all ranks.";
        sample_every: u64 = (default "0"), UNSIGNED,
            "Steps between printed samples of the model; 0 = never. Requires a `data.tokenizer`.";
        sample_prompt: String = (default "The"), Kind::Text { may_be_empty: false },
            "Prompt of these samples.";
        sample_tokens: usize = (default "64"), integer(1, 1 << 20),
            "Tokens per sample.";
        max_skipped_steps: u64 = (default "10"), integer(1, i64::MAX),
            "Number of consecutive skipped (non-finite) steps that ends the run with exit code 4.";
    }

    /// The optimizer, its schedule (linear warm-up, cosine decay) and gradient clipping.
    optim: OptimSection {
        kind: OptimizerKind = (default "adamw"), Kind::Choice(OptimizerKind::NAMES),
            "The optimizer; the table below lists its states and keys.";
        lr: f64 = (default "3e-4"), float(0.0, 1e3),
            "Peak learning rate.";
        min_lr: f64 = (default "0"), float(0.0, 1e3),
            "Learning rate at the end of the decay; at most `optim.lr`.";
        warmup_steps: u64 = (default "100"), UNSIGNED,
            "Steps of linear warm-up; may exceed `train.steps`.";
        decay_steps: u64 = (default "0"), UNSIGNED,
            "Step at which the cosine decay reaches `optim.min_lr`; 0 = `train.steps`.";
        beta1: f64 = (derived "the optimizer's, 0 if it has none"), FRACTION,
            "Decay of the first moment, or of the average that determines an update's direction.";
        beta2: f64 = (derived "the optimizer's, 0 if it has none"), FRACTION,
            "Decay of the second moment, or of the stored average.";
        eps: f64 = (derived "the optimizer's, 0 if it has none"), float(0.0, 1.0),
            "Added to the square root of the second moment; must be above 0 if the optimizer uses it.";
        momentum: f64 = (derived "the optimizer's, 0 if it has none"), FRACTION,
            "Decay of the momentum buffer; 0 = none.";
        nesterov: bool = (default "false"), Kind::Flag,
            "Use Nesterov momentum.";
        weight_decay: f64 = (default "0.1"), float(0.0, 1e3),
            "Decoupled weight decay of parameters with two or more dimensions.";
        grad_clip: f64 = (default "1"), float(0.0, 1e30),
            "Maximum global gradient norm; 0 = no clipping.";
    }

    /// Sharding, prefetching and lifetimes of parameters and gradients.
    zero: ZeroSection {
        stage: u8 = (default "3"), integer(0, 3),
            "0 replicates all; 1 shards the optimizer; 2 also gradients; 3 also parameters.";
        prefetch_units: usize = (default "1"), integer(0, 1024),
            "Number of units to prefetch; 0 = wait for each gather.";
        prefetch_max_bytes: u64 = (default "0"), UNSIGNED,
            "Cap on prefetched bytes; 0 = no separate cap.";
        max_live_bytes: u64 = (default "0"), UNSIGNED,
            "Cap on the bytes of gathered parameters live at once; 0 = no cap.";
        persistence_threshold_bytes: u64 = (default "0"), UNSIGNED,
            "Parameters of at most this many bytes remain whole on every rank between steps; 0 = none.";
        gather_bucket_bytes: u64 = (default "0"), UNSIGNED,
            "Bytes of parameters gathered in one call; 0 = one unit at a time.";
        reduce_bucket_bytes: u64 = (default "33554432"), integer(MIN_REDUCE_BUCKET_BYTES, i64::MAX),
            "Bytes of receive staging of one gradient exchange: larger = fewer calls, more memory.";
        release_after_forward: bool = (default "true"), Kind::Flag,
            "Release parameters after forward; false = keep them gathered until backward: less \
             communication, more memory.";
        overlap: bool = (default "true"), Kind::Flag,
            "Overlap collectives with compute; false = wait for each at once. The results are bitwise the \
             same.";
        param_dtype: DType = (default "f32"), DTYPES,
            "Element type of gathered parameters. Master weights are always f32.";
        grad_dtype: DType = (default "f32"), DTYPES,
            "Element type of stored gradient slices. Sums are always f32.";
        reduce_dtype: DType = (default "f32"), DTYPES,
            "Element type of gradients in collectives.";
        activation_checkpointing: ActivationCheckpointing = (default "none"), Kind::Checkpointing,
            "Blocks recomputed in backward: none, all, or every K-th one. Less memory, more compute, bitwise \
             the same results.";
        reduce: ReduceWhen = (default "every_micro_step"), Kind::Choice(ReduceWhen::NAMES),
            "Reduce into slices each micro-step, or accumulate full f32 gradients and reduce once per step \
             (rounds differently: sums are local first).";
        deterministic: bool = (derived "true; false with `run.backend = \"cuda\"`"), Kind::Flag,
            "Add gradients in a fixed order, independent of the rank count; always true with MPI. False: \
             NCCL adds in its own order.";
    }

    /// Checkpoints, in `checkpoints` under `run.dir`.
    checkpoint: CheckpointSection {
        every: u64 = (default "1000"), UNSIGNED,
            "Steps between checkpoints, with one at the end; 0 = none, not even at the end.";
        keep_last: usize = (default "2"), UNSIGNED,
            "Number of newest complete checkpoints to retain; 0 = all.";
        keep_every: u64 = (default "0"), UNSIGNED,
            "Checkpoints whose step is a multiple of this are retained forever; 0 = none.";
        async_save: bool = (default "false"), Kind::Flag,
            "Copy the state to host memory and write it while training continues; needs additional memory of \
             the size of a rank's weights and optimizer states.";
        on_error: OnSaveError = (default "stop"), Kind::Choice(OnSaveError::NAMES),
            "After a failed save (disk full, I/O error): end with exit code 5, or continue with the previous \
             checkpoint.";
        locking: Locking = (default "off"), Kind::Choice(Locking::NAMES),
            "Lock a checkpoint file while it is written or read: never, if the file system supports it, or \
             always.";
    }

    /// Log output; `steps.csv` and `steps.jsonl` record every step in any case.
    log: LogSection {
        every: u64 = (default "10"), UNSIGNED,
            "Steps between printed lines; 0 = never.";
        level: String = (default "info"), Kind::LogFilter,
            "A level, or an env_logger filter by module.";
        trace: Written<StepSet> = (default ""), Kind::Steps,
            "Steps to record in trace.json: A, A..B (B excluded) or A..=B; empty = none.";
    }
}

impl Deck {
    /// The keys of a section and their values, as overrides that set them.
    pub fn overrides_of(&self, section: &str) -> Vec<(String, String)> {
        let keys = render::section(&TABLE, self, section);
        keys.into_iter().map(|(key, value)| (key.name.to_owned(), value)).collect()
    }

    /// [`Deck::to_toml`] with each key's description as a comment, for `--dry-run`.
    pub fn to_commented_toml(&self) -> String {
        render::toml(&TABLE, self, true)
    }
}

impl TrainSection {
    /// Micro-batches of a step, over all ranks.
    pub fn n_micro(&self) -> usize {
        self.global_batch_size / self.micro_batch_size
    }
}

/// The text of a deck, or of another file of keys named by `what`.
fn read_text(path: &Path, what: &str) -> Result<String> {
    let no = |why: &str| {
        Error::Input(format!("cannot read the {what} {}: {why}; a {what} is a TOML file", path.display()))
    };
    let mut text = String::new();
    files::open_input(path)
        .and_then(|file| file.take(MAX_DECK_BYTES + 1).read_to_string(&mut text))
        .map_err(|err| no(&err.to_string()))?;
    if text.len() as u64 > MAX_DECK_BYTES {
        return Err(no(&format!("it exceeds {MAX_DECK_BYTES} bytes")));
    }
    Ok(text)
}

impl OptimSection {
    /// The hyperparameters of an update.
    pub fn hyper(&self) -> Hyper {
        let &OptimSection { beta1, beta2, eps, momentum, nesterov, weight_decay, .. } = self;
        Hyper { beta1, beta2, eps, momentum, nesterov, weight_decay }
    }
}

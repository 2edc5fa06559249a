//! The deck: every key, its type, its default and what it means. `docs/deck.md` says the same to people.
//!
//! Must not know: MPI, files other than the deck itself, the model's code.

use serde::{Deserialize, Serialize};

/// A whole resolved deck: what the run does, with every default filled in.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Deck {
    /// `[run]`
    pub run: RunSection,
    /// `[model]`
    pub model: ModelSection,
    /// `[data]`
    pub data: DataSection,
    /// `[train]`
    pub train: TrainSection,
    /// `[optim]`
    pub optim: OptimSection,
    /// `[zero]`
    pub zero: ZeroSection,
    /// `[checkpoint]`
    pub checkpoint: CheckpointSection,
    /// `[log]`
    pub log: LogSection,
}

/// Where the run lives and what it runs on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunSection {
    /// Run directory: logs, summary and checkpoints. Required.
    pub dir: String,
    /// `auto`, `cpu` or `cuda`.
    pub backend: String,
    /// Compute threads of one rank; 0 = the cores of the rank's cpuset.
    pub threads_per_rank: usize,
    /// Peak f32 GFLOP/s of one rank, the denominator of `mfu`; 0 = unknown (the column stays empty).
    pub peak_gflops: f64,
}

/// The transformer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelSection {
    /// `gpt2-124m`, `gpt2-355m`, `gpt2-774m`, `gpt2-1.5b`, or empty for free sizes. Size keys beat it.
    pub preset: String,
    /// Transformer blocks (L).
    pub n_layer: usize,
    /// Attention heads; divides `d_model`.
    pub n_head: usize,
    /// Width (C).
    pub d_model: usize,
    /// Tokens per sequence (T).
    pub seq_len: usize,
    /// Vocabulary (V); defaults to the tokenizer's.
    pub vocab_size: usize,
    /// Seed of the initial weights.
    pub init_seed: u64,
    /// HDF5 file with initial weights, `FILE` or `FILE:GROUP`; empty = from `init_seed`.
    pub init_from: String,
}

/// Training and validation tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DataSection {
    /// Paths or globs of training data.
    pub train: Vec<String>,
    /// Paths or globs of validation data; beats `val_fraction`.
    pub val: Vec<String>,
    /// Share of the end of the training stream kept for validation, in [0, 1).
    pub val_fraction: f64,
    /// `auto`, `text`, `raw_u16`, `raw_u32`, `llmc`.
    pub format: String,
    /// `bytes` or `none`.
    pub tokenizer: String,
    /// Seed of the sample order.
    pub seed: u64,
    /// Permute the samples of each epoch; false = in file order.
    pub shuffle: bool,
    /// Tokens from the start of a sample to the start of the next; 0 = `seq_len`.
    pub stride: usize,
    /// Let a resume go on with data other than the checkpoint's.
    pub allow_changed: bool,
}

/// The training loop.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainSection {
    /// Optimizer steps of the whole run.
    pub steps: u64,
    /// Sequences per rank and micro-step.
    pub micro_batch_size: usize,
    /// Sequences per step over all ranks; a multiple of `micro_batch_size`.
    pub global_batch_size: usize,
    /// Validate every so many steps; 0 = never.
    pub eval_every: u64,
    /// Micro-batches of one validation, over all ranks.
    pub eval_batches: u64,
    /// Skipped (non-finite) steps in a row that end the run with exit code 4.
    pub max_skipped_steps: u64,
}

/// AdamW and its schedule.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OptimSection {
    /// Peak learning rate.
    pub lr: f64,
    /// Learning rate at the end of the decay.
    pub min_lr: f64,
    /// Steps of linear warm-up; may exceed `train.steps`.
    pub warmup_steps: u64,
    /// Step at which the cosine decay reaches `min_lr`; 0 = `train.steps`.
    pub decay_steps: u64,
    /// First moment decay.
    pub beta1: f64,
    /// Second moment decay.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of parameters with two or more dimensions.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 = no clipping.
    pub grad_clip: f64,
}

/// The ZeRO knobs (see docs/deck.md for each one's effect).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ZeroSection {
    /// 0, 1, 2 or 3.
    pub stage: u8,
    /// Units gathered ahead of their use.
    pub prefetch_units: usize,
    /// Cap on bytes gathered ahead; 0 = no cap of its own.
    pub prefetch_max_bytes: u64,
    /// Cap on gathered parameters alive at once; 0 = no cap.
    pub max_live_bytes: u64,
    /// Parameters at or under this size stay whole on every rank.
    pub persistence_threshold_bytes: u64,
    /// Parameters gathered together in one call.
    pub gather_bucket_bytes: u64,
    /// Receive staging of one gradient exchange.
    pub reduce_bucket_bytes: u64,
    /// false: keep parameters gathered from forward to backward.
    pub release_after_forward: bool,
    /// Collectives run beside compute; false = each one waited for at once.
    pub overlap: bool,
    /// Element type that is gathered.
    pub param_dtype: String,
    /// Element type of gradient slices.
    pub grad_dtype: String,
    /// Element type gradients travel in.
    pub reduce_dtype: String,
    /// `none`, `all`, `every:K`.
    pub activation_checkpointing: String,
    /// `every_micro_step` or `last_micro_step`.
    pub reduce: String,
    /// Same bits whatever the rank count; always so on MPI.
    pub deterministic: bool,
}

/// Checkpoints.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CheckpointSection {
    /// Save every so many steps; 0 = never, not even at the end.
    pub every: u64,
    /// Complete checkpoints kept; 0 = all.
    pub keep_last: usize,
}

/// Logging.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LogSection {
    /// Print every so many steps; 0 = never. The log files get every step.
    pub every: u64,
    /// `error`, `warn`, `info`, `debug`, `trace`, or an env_logger filter.
    pub level: String,
}

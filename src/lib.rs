//! ZeRO-3 transformer training for batch systems.
//!
//! Reading order: this table, then `train/step.rs` (the algorithm), then `zero/`.
//!
//! | layer | modules | knows |
//! | --- | --- | --- |
//! | L0 | [`error`], [`dtype`], [`params`], [`optimizers`], [`work`], [`exact_sum`], [`files`], [`foreign`], [`random`], [`human`], [`quantile`], [`say`], [`clock`], [`environment`], [`limits`], [`threads`], [`test_hooks`], [`features`], [`config`] | nothing above; decks |
//! | L1 | [`plan`], [`telemetry`], [`liveness`], [`records`], [`batch`], [`data`], [`text`], [`figures`] | pure plans, counters, token files, text, figures |
//! | L2 | [`backend`], [`checkpoint`] | devices and MPI; HDF5 and host slices |
//! | L3 | [`model`], [`zero`] | transformer math; shards, gathers, reductions (neither knows the other) |
//! | L4 | [`optim`] | norm, clipping, schedule, update |
//! | L5 | [`train`] | the step, the loop, restore |
//! | L6 | [`harness`], [`accept`], [`calibrate`], [`report`], [`watch`], [`hf`], [`device_check`] | infrastructure for measuring jobs; the acceptance benchmark; calibration of the planner; reports from a run's records, and live; weights of other programs; kernels against naive implementations |
//! | L7 | [`cli`] and `main` | arguments, MPI start, exit code |
#![warn(missing_docs)]

pub mod accept;
pub mod backend;
pub mod batch;
pub mod calibrate;
pub mod checkpoint;
pub mod cli;
pub mod clock;
pub mod config;
pub mod data;
pub mod device_check;
pub mod dtype;
pub mod environment;
pub mod error;
pub mod exact_sum;
pub mod features;
pub mod figures;
pub mod files;
pub mod foreign;
pub mod harness;
pub mod hf;
pub mod human;
pub mod limits;
pub mod liveness;
pub mod model;
pub mod optim;
pub mod optimizers;
pub mod params;
pub mod plan;
pub mod quantile;
pub mod random;
pub mod records;
pub mod report;
pub mod say;
pub mod telemetry;
pub mod test_hooks;
pub mod text;
pub mod threads;
pub mod train;
pub mod watch;
pub mod work;
pub mod zero;

//! The benchmarks, one per section, in the order they run. Each returns metrics, the same on every rank, from
//! gathered numbers.
//!
//! Must not know: which sections ran before, unless they pass it on; reports.

pub mod collectives;
pub mod device;
pub mod elasticity;
pub mod inventory;
pub mod scaling;
mod square_product;
pub mod storage;
pub mod training;

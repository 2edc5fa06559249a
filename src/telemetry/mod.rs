//! temp
pub mod comm_volume;
pub mod ledger;
pub mod timer;

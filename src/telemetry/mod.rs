//! temp
pub mod ledger;

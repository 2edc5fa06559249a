//! temp
#![allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemKind {
    ParamShard,
    Master,
    GradShard,
    Moment,
    Gathered,
    Prefetched,
    FullGrad,
    ReduceStaging,
    Activation,
    Workspace,
    Input,
    Staging,
}
impl MemKind {
    pub const ALL: [MemKind; 12] = [
        MemKind::ParamShard,
        MemKind::Master,
        MemKind::GradShard,
        MemKind::Moment,
        MemKind::Gathered,
        MemKind::Prefetched,
        MemKind::FullGrad,
        MemKind::ReduceStaging,
        MemKind::Activation,
        MemKind::Workspace,
        MemKind::Input,
        MemKind::Staging,
    ];
}

#[derive(Default)]
pub struct Ledger {
    n: u64,
}
impl Ledger {
    pub fn take(&mut self, _k: MemKind, b: u64) {
        self.n += b
    }
    pub fn give(&mut self, _k: MemKind, b: u64) {
        self.n -= b
    }
    pub fn convert(&mut self, _a: MemKind, _b: MemKind, _n: u64) {}
    pub fn total_now(&self) -> u64 {
        self.n
    }
    pub fn set_label(&mut self, _l: usize) {}
}

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

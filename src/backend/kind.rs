//! From `run.backend` to types: what depends on the kind of a backend where there is neither a device nor a
//! job.

use super::cpu::Cpu;
use super::cuda::Cuda;
use super::traits::Backend;
use crate::config::BackendKind;

/// Something that needs no more of a backend than its types: a plan, a figure, the versions of its libraries.
pub trait OnKind {
    /// Its result.
    type Output;

    /// The same for every backend.
    fn on<B: Backend>(self) -> Self::Output;
}

/// Does it for a kind of backend. `auto` stands for the CPU: the devices of this node are not looked at.
pub fn on_kind<W: OnKind>(kind: BackendKind, work: W) -> W::Output {
    match kind {
        BackendKind::Auto | BackendKind::Cpu => work.on::<Cpu>(),
        BackendKind::Cuda => work.on::<Cuda>(),
    }
}

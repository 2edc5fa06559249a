//! Opens the chosen backend and runs work on it: the one place that turns a choice into types.
//!
//! Must not know: what the work is.

use super::backend_choice::Chosen;
use crate::backend::Backend;
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::cpu::{Cpu, CpuComm, CpuDevice};
use crate::backend::cuda::{Architecture, Cache, Cuda, CudaDevice, Image, NcclComm};
use crate::backend::mpi::Group;
use crate::config::Deck;
use crate::error::Result;
use std::rc::Rc;
use std::time::Duration;

/// Work that runs on any backend.
pub(super) trait Work {
    /// The result.
    type Output;

    /// Runs it. Collective.
    fn on<B: Backend>(self, device: &B::Device, comm: &B::Comm) -> Result<Self::Output>;
}

/// Runs the work on the chosen backend, with `threads` threads if that is the CPU. Collective.
///
/// # Errors
/// A rank cannot open its device; NCCL does not connect; errors of the work.
pub(super) fn on_backend<W: Work>(
    chosen: Chosen,
    control: Group,
    deck: &Deck,
    threads: usize,
    work: W,
) -> Result<W::Output> {
    match chosen {
        Chosen::Cpu => {
            let comm = CpuComm::connect(control, deck.run.single_copy)?;
            work.on::<Cpu>(&CpuDevice::new(threads)?, &comm)
        }
        Chosen::Cuda { ordinal } => {
            let timeout = match deck.run.timeout {
                0 => Duration::MAX,
                seconds => Duration::from_secs(seconds),
            };
            let image = kernels(&control, ordinal, &Cache::new(&deck.run.kernel_cache))?;
            let opened = image.and_then(|image| CudaDevice::open(ordinal, deck.run.tf32, &image));
            let mut device = None;
            all_or_none(&control, opened.map(|opened| _ = device.insert(opened)))?;
            let device = Rc::new(device.expect("no rank failed"));
            let comm = NcclComm::connect(Rc::clone(&device), control, deck.zero.deterministic, timeout)?;
            let output = work.on::<Cuda>(&device, &comm)?;
            comm.close(timeout)?;
            Ok(output)
        }
    }
}

/// The kernels for this rank's device: those of rank 0, or its own if its device has another architecture.
/// Collective.
///
/// # Errors
/// A rank has no such device, or rank 0 cannot obtain the kernels: on every rank. The inner error is this
/// rank's alone.
fn kernels(control: &Group, ordinal: usize, cache: &Cache) -> Result<Result<Image>> {
    let architectures = all_or_none(control, Architecture::of_device(ordinal))?;
    let (first, own) = (architectures[0], architectures[control.rank()]);
    let mut obtained = None;
    decided_by_rank_0(control, || Image::obtain(first, cache).map(|image| _ = obtained.insert(image)))?;
    let bytes = control.broadcast_bytes(obtained.as_ref().map_or(&[], Image::bytes))?;
    Ok(if own == first { Ok(Image::from_bytes(bytes)) } else { Image::obtain(own, cache) })
}

//! Opens the backend that was chosen and works on it: the one place that turns a choice into types.
//!
//! Must not know: what the work is.

use super::backend_choice::Chosen;
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::cpu::{Cpu, CpuDevice, MpiComm};
use crate::backend::cuda::{Architecture, Cache, Cuda, CudaDevice, Image, NcclComm};
use crate::backend::{Backend, Comm};
use crate::config::Deck;
use crate::error::Result;
use std::rc::Rc;
use std::time::Duration;

/// What is done on whichever backend the deck and the node make it.
pub(super) trait Work {
    /// What comes of it.
    type Output;

    /// Does it. Collective.
    fn on<B: Backend>(self, device: &B::Device, comm: &B::Comm) -> Result<Self::Output>;
}

/// Works on the chosen backend, with `threads` threads where it is the processor. Collective.
///
/// # Errors
/// The device cannot be had, on any rank; NCCL does not connect; what the work says.
pub(super) fn on_backend<W: Work>(
    chosen: Chosen,
    comm: MpiComm,
    deck: &Deck,
    threads: usize,
    work: W,
) -> Result<W::Output> {
    match chosen {
        Chosen::Cpu => {
            let comm = if deck.run.single_copy { comm.reading_peers() } else { comm };
            work.on::<Cpu>(&CpuDevice::new(threads)?, &comm)
        }
        Chosen::Cuda { ordinal } => {
            let timeout = match deck.run.timeout {
                0 => Duration::MAX,
                seconds => Duration::from_secs(seconds),
            };
            let image = kernels(&comm, ordinal, &Cache::new(&deck.run.kernel_cache))?;
            let opened = image.and_then(|image| CudaDevice::open(ordinal, deck.run.tf32, &image));
            let mut device = None;
            all_or_none(&comm, opened.map(|opened| _ = device.insert(opened)))?;
            let device = Rc::new(device.expect("no rank failed"));
            let comm = NcclComm::connect(Rc::clone(&device), comm, deck.zero.deterministic, timeout)?;
            let output = work.on::<Cuda>(&device, &comm)?;
            comm.close(timeout)?;
            Ok(output)
        }
    }
}

/// The kernels for this rank's device: what rank 0 obtained, or its own where it has a device of another architecture. Collective.
///
/// # Errors
/// A rank has no such device, or rank 0 cannot obtain them, on every rank; the inner one is this rank's alone.
fn kernels(comm: &MpiComm, ordinal: usize, cache: &Cache) -> Result<Result<Image>> {
    let architectures = all_or_none(comm, Architecture::of_device(ordinal))?;
    let (first, own) = (architectures[0], architectures[comm.rank()]);
    let mut obtained = None;
    decided_by_rank_0(comm, || Image::obtain(first, cache).map(|image| _ = obtained.insert(image)))?;
    let bytes = comm.broadcast_bytes(obtained.as_ref().map_or(&[], Image::bytes))?;
    Ok(if own == first { Ok(Image::from_bytes(bytes)) } else { Image::obtain(own, cache) })
}

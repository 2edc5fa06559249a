//! Tensors that every rank holds whole become whole again from the slices of their owners.
//!
//! Must not know: why, or when in a step.

use super::Shards;
use crate::backend::memory::Memory;
use crate::backend::{Backend, Buf, Comm, Device, Ops, Pending, Queue};
use crate::error::Result;
use crate::params::PerTensor;
use crate::plan::Plan;
use crate::plan::placement::State;
use crate::telemetry::{CommClass, CommVolume};

/// The buffers of a bucket, reused from one to the next: a bucket may hold many parameters.
#[derive(Default)]
pub struct BucketLists {
    staging: PerTensor<Buf>,
    whole: PerTensor<Buf>,
}

/// What a refresh works with.
pub struct Refresher<'r, B: Backend> {
    /// Where slices are copied.
    pub device: &'r B::Device,
    /// The ranks that hold the tensors.
    pub comm: &'r B::Comm,
    /// Its buckets and their staging.
    pub plan: &'r Plan,
    /// Where the staging comes from.
    pub memory: &'r mut Memory<B::Device>,
    /// The tensors.
    pub shards: &'r mut Shards,
    /// Where the bytes that this rank receives are counted.
    pub volume: &'r CommVolume,
    /// As what they are counted.
    pub class: CommClass,
    /// Reused lists.
    pub lists: &'r mut BucketLists,
}

impl<B: Backend> Refresher<'_, B> {
    /// All-gathers every tensor of `state` that is held whole, bucket by bucket.
    pub fn refresh(self, state: State) -> Result<()> {
        let Refresher { device, comm, plan, memory, shards, volume, class, lists } = self;
        for bucket in plan.refresh.of(state) {
            let BucketLists { mut staging, mut whole } = std::mem::take(lists);
            for (&p, &slot) in bucket.params.iter().zip(&bucket.staging) {
                let slot = &plan.refresh.slots[slot];
                let mut buf = memory.take(device, slot, slot.kind, Queue::Compute);
                let n = shards.range(p).len();
                device.cast(buf.view_mut().range(0..n), shards.owned(p, state));
                // What lies beyond the parameter must be defined: it travels.
                device.fill_bytes(buf.view_mut().range(n..slot.numel), 0);
                staging.push(buf);
            }
            whole.extend(bucket.params.iter().map(|&p| shards.lend(p, state)));
            let mut landed = comm.all_gather(device.record(Queue::Compute), staging, whole).wait()?;
            volume.add(class, landed.record.received_bytes);
            for (&p, whole) in bucket.params.iter().zip(landed.outputs.drain(..)) {
                shards.restore(p, state, whole);
            }
            for (buf, &slot) in landed.inputs.drain(..).zip(&bucket.staging) {
                memory.give(device, buf, plan.refresh.slots[slot].kind);
            }
            *lists = BucketLists { staging: landed.inputs, whole: landed.outputs };
        }
        Ok(())
    }
}

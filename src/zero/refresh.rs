//! What every rank keeps whole becomes whole again from its owners' slices.

use super::Shards;
use crate::backend::memory::Memory;
use crate::backend::{Backend, Buf, Comm, Device, Ops, Pending, Queue};
use crate::error::Result;
use crate::params::PerTensor;
use crate::plan::Plan;
use crate::plan::placement::State;
use crate::telemetry::{CommClass, CommVolume};

/// The buffers of a bucket, kept for their room: a bucket may hold many parameters.
#[derive(Default)]
pub struct Lists {
    staging: PerTensor<Buf>,
    whole: PerTensor<Buf>,
}

/// All-gathers every tensor of `state` that is kept whole, bucket by bucket, and counts the bytes as `class`.
pub fn refresh<B: Backend>(
    (device, comm): (&B::Device, &B::Comm),
    memory: &mut Memory<B::Device>,
    plan: &Plan,
    shards: &mut Shards,
    state: State,
    (volume, class): (&CommVolume, CommClass),
    lists: &mut Lists,
) -> Result<()> {
    for bucket in plan.refresh.of(state) {
        let Lists { mut staging, mut whole } = std::mem::take(lists);
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
        *lists = Lists { staging: landed.inputs, whole: landed.outputs };
    }
    Ok(())
}

//! Full gradients to the owners of their slices: started, waited for.
//!
//! Must not know: when a gradient is complete.

use super::Shards;
use crate::backend::comm::ReduceScatter;
use crate::backend::{Buf, Comm, Pending, RecordOf};
use crate::error::Result;
use crate::params::PerTensor;
use crate::plan::Plan;
use crate::plan::schedule::{Reduce, ReduceId};

/// The reductions in flight, by their index in a program.
pub struct Reductions<C: Comm> {
    in_flight: Vec<Option<C::Pending>>,
}

/// Whose gradients a reduction adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contributions {
    /// Ranks `0..contributors` have a gradient to add.
    pub contributors: usize,
    /// Slices are overwritten, not added to: the first reduction of the step.
    pub overwrites: bool,
}

/// What this rank puts into a reduction.
pub struct Contribution {
    /// Full gradients, padded, in the order of the reduction's parameters.
    pub full: PerTensor<Buf>,
    /// Receive staging; none on one rank.
    pub staging: Option<Buf>,
    /// Who contributes.
    pub from: Contributions,
}

impl<C: Comm> Default for Reductions<C> {
    fn default() -> Self {
        Reductions { in_flight: Vec::new() }
    }
}

impl<C: Comm> Reductions<C> {
    /// For a pass over a program of `n_reduces`: nothing is in flight.
    pub fn reset(&mut self, n_reduces: usize) {
        self.in_flight.clear();
        self.in_flight.resize_with(n_reduces, || None);
    }

    /// Starts a reduction: full gradients, gradient slices and staging belong to it until
    /// [`Reductions::wait`].
    pub fn start(
        &mut self,
        r: ReduceId,
        reduce: &Reduce,
        comm: &C,
        after: C::Event,
        shards: &mut Shards,
        own: Contribution,
    ) {
        let slices = reduce.params.iter().map(|&p| shards.lend_sum(p)).collect();
        let Contribution { full, staging, from: Contributions { contributors, overwrites } } = own;
        let buckets = reduce.buckets.clone();
        let job = ReduceScatter { full, slices, staging, buckets, contributors, overwrites };
        self.in_flight[r] = Some(comm.reduce_scatter(after, job));
    }

    /// Waits until this rank's slices hold the sums; gives back the full gradients and the staging, and adds
    /// a record to `landed`.
    pub fn wait(
        &mut self,
        r: ReduceId,
        reduce: &Reduce,
        shards: &mut Shards,
        plan: &Plan,
        landed: &mut PerTensor<RecordOf<C>>,
    ) -> Result<(PerTensor<Buf>, Option<Buf>)> {
        let pending = self.in_flight[r].take().expect("a reduction is waited for after its start, once");
        let done = pending.wait()?;
        for (&p, slice) in reduce.params.iter().zip(done.outputs) {
            shards.restore_sum(p, slice, plan);
        }
        landed.push(done.record);
        Ok((done.inputs, done.staging))
    }
}

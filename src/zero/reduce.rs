//! Full gradients back to the owners of their slices.

use super::Shards;
use crate::backend::comm::ReduceScatter;
use crate::backend::{Buf, Comm, Pending, RecordOf};
use crate::error::Result;
use crate::params::PerTensor;
use crate::plan::Plan;
use crate::plan::schedule::{Reduce, ReduceId};

/// The state of every reduction of a program; at first of one without any.
pub struct Reductions<C: Comm> {
    in_flight: Vec<Option<C::Pending>>,
}

/// Whose gradients one micro-step adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contributions {
    /// Ranks `0..contributors` have a gradient to add.
    pub contributors: usize,
    /// First reduction of the step: slices are overwritten, not added to.
    pub first: bool,
}

impl<C: Comm> Default for Reductions<C> {
    fn default() -> Self {
        Reductions { in_flight: Vec::new() }
    }
}

impl<C: Comm> Reductions<C> {
    /// Nothing is on its way, of a program of `n_reduces`.
    pub fn reset(&mut self, n_reduces: usize) {
        self.in_flight.clear();
        self.in_flight.resize_with(n_reduces, || None);
    }

    /// Starts a reduction: full gradients, gradient slices and staging belong to it until [`Reductions::wait`].
    #[allow(clippy::too_many_arguments)]
    pub fn start(
        &mut self,
        r: ReduceId,
        reduce: &Reduce,
        comm: &C,
        after: C::Event,
        shards: &mut Shards,
        full: PerTensor<Buf>,
        staging: Option<Buf>,
        who: Contributions,
    ) {
        let slices = reduce.params.iter().map(|&p| shards.lend_sum(p)).collect();
        let Contributions { contributors, first } = who;
        let buckets = reduce.buckets.clone();
        let job = ReduceScatter { full, slices, staging, buckets, contributors, first };
        self.in_flight[r] = Some(comm.reduce_scatter(after, job));
    }

    /// Waits until this rank's slices hold the sums; gives back the full gradients and the staging.
    pub fn wait(
        &mut self,
        r: ReduceId,
        reduce: &Reduce,
        shards: &mut Shards,
        plan: &Plan,
    ) -> Result<(PerTensor<Buf>, Option<Buf>, RecordOf<C>)> {
        let pending = self.in_flight[r].take().expect("a reduction is waited for after its start, once");
        let landed = pending.wait()?;
        for (&p, slice) in reduce.params.iter().zip(landed.outputs) {
            shards.restore_sum(p, slice, plan);
        }
        Ok((landed.inputs, landed.staging, landed.record))
    }
}

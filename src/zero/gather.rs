//! Whole parameters for the time of a visit: started, waited for, live, released.
//!
//! Must not know: what computes with them, when they are needed.

use super::Shards;
use crate::backend::{Buf, Comm, Pending, RecordOf};
use crate::error::Result;
use crate::params::PerTensor;
use crate::plan::State;
use crate::plan::schedule::{Gather, GatherId};

/// Where the parameters of one gather are.
enum UnitState<P> {
    /// Only slices, one on each rank.
    Sharded,
    /// Their all-gathers are in flight, in one or more calls.
    Gathering(PerTensor<P>),
    /// Whole: visits may use them.
    Live,
}

/// The state of every gather of a program.
pub struct Gathers<C: Comm> {
    states: Vec<UnitState<C::Pending>>,
}

impl<C: Comm> Default for Gathers<C> {
    fn default() -> Self {
        Gathers { states: Vec::new() }
    }
}

impl<C: Comm> Gathers<C> {
    /// For a pass over a program of `n_gathers`: everything is sharded.
    pub fn reset(&mut self, n_gathers: usize) {
        self.states.clear();
        self.states.resize_with(n_gathers, || UnitState::Sharded);
    }

    /// Starts gathering: the slices and the output buffers belong to the collectives until [`Gathers::wait`].
    pub fn start(
        &mut self,
        g: GatherId,
        gather: &Gather,
        comm: &C,
        after: C::Event,
        shards: &mut Shards,
        outs: PerTensor<Buf>,
    ) {
        assert!(matches!(self.states[g], UnitState::Sharded), "gather {g} starts once");
        let mut outs = outs.into_iter();
        let calls = gather.calls.iter().map(|call| {
            let inputs = gather.params[call.clone()].iter().map(|&p| shards.lend(p, State::Param)).collect();
            comm.all_gather(after.clone(), inputs, outs.by_ref().take(call.len()).collect())
        });
        self.states[g] = UnitState::Gathering(calls.collect());
    }

    /// Waits until the parameters are whole, in the order of `gather.params`; adds a record per call to
    /// `landed`.
    pub fn wait(
        &mut self,
        g: GatherId,
        gather: &Gather,
        shards: &mut Shards,
        landed: &mut PerTensor<RecordOf<C>>,
    ) -> Result<PerTensor<Buf>> {
        let UnitState::Gathering(calls) = std::mem::replace(&mut self.states[g], UnitState::Live) else {
            panic!("gather {g} is waited for after its start, once");
        };
        let mut outs = PerTensor::with_capacity(gather.params.len());
        let mut params = gather.params.iter();
        for call in calls {
            let done = call.wait()?;
            for (slice, &p) in done.inputs.into_iter().zip(params.by_ref()) {
                shards.restore(p, State::Param, slice);
            }
            outs.extend(done.outputs);
            landed.push(done.record);
        }
        Ok(outs)
    }

    /// The parameters are used no more.
    pub fn release(&mut self, g: GatherId) {
        assert!(self.is_live(g), "gather {g} is released after its use");
        self.states[g] = UnitState::Sharded;
    }

    /// Whether a visit may use the parameters.
    pub fn is_live(&self, g: GatherId) -> bool {
        matches!(self.states[g], UnitState::Live)
    }

    /// Gathers whose parameters are whole now, and gathers in flight.
    pub fn now(&self) -> (Vec<GatherId>, Vec<GatherId>) {
        let ids = |wanted: fn(&UnitState<C::Pending>) -> bool| {
            self.states.iter().enumerate().filter(|(_, s)| wanted(s)).map(|(g, _)| g).collect()
        };
        (ids(|s| matches!(s, UnitState::Live)), ids(|s| matches!(s, UnitState::Gathering(_))))
    }
}

//! Whole parameters for the time of a visit: started, waited for, live, released.

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
    /// On their way, in one or more calls.
    Gathering(PerTensor<P>),
    /// Whole, in the executor's hands.
    Live,
}

/// The state of every gather of a program; at first of one without any.
pub struct Gathers<C: Comm> {
    states: Vec<UnitState<C::Pending>>,
}

impl<C: Comm> Default for Gathers<C> {
    fn default() -> Self {
        Gathers { states: Vec::new() }
    }
}

impl<C: Comm> Gathers<C> {
    /// Nothing is gathered of a program of `n_gathers`.
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

    /// Waits until the parameters are whole; gives them out in the order of `gather.params`, with a record per call.
    pub fn wait(
        &mut self,
        g: GatherId,
        gather: &Gather,
        shards: &mut Shards,
    ) -> Result<(PerTensor<Buf>, PerTensor<RecordOf<C>>)> {
        let UnitState::Gathering(calls) = std::mem::replace(&mut self.states[g], UnitState::Live) else {
            panic!("gather {g} is waited for after its start, once");
        };
        let (mut outs, mut records) =
            (PerTensor::with_capacity(gather.params.len()), PerTensor::with_capacity(calls.len()));
        let mut params = gather.params.iter();
        for call in calls {
            let landed = call.wait()?;
            for (slice, &p) in landed.inputs.into_iter().zip(params.by_ref()) {
                shards.restore(p, State::Param, slice);
            }
            outs.extend(landed.outputs);
            records.push(landed.record);
        }
        Ok((outs, records))
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

    /// Gathers whose parameters are whole now, and gathers on their way.
    pub fn now(&self) -> (Vec<GatherId>, Vec<GatherId>) {
        let ids = |wanted: fn(&UnitState<C::Pending>) -> bool| {
            self.states.iter().enumerate().filter(|(_, s)| wanted(s)).map(|(g, _)| g).collect()
        };
        (ids(|s| matches!(s, UnitState::Live)), ids(|s| matches!(s, UnitState::Gathering(_))))
    }
}

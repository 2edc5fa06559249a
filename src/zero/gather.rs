//! Whole parameters for the time of a visit: started, waited for, live, released.

use super::Shards;
use crate::backend::{Buf, Comm, CommRecord, Pending};
use crate::error::Result;
use crate::plan::State;
use crate::plan::schedule::{Gather, GatherId};

/// Where the parameters of one gather are.
enum UnitState<P> {
    /// Only slices, one on each rank.
    Sharded,
    /// On their way.
    Gathering(P),
    /// Whole, in the executor's hands.
    Live,
}

/// The state of every gather of a program.
pub struct Gathers<C: Comm> {
    states: Vec<UnitState<C::Pending>>,
}

impl<C: Comm> Gathers<C> {
    /// Nothing is gathered.
    pub fn new(n_gathers: usize) -> Self {
        Gathers { states: (0..n_gathers).map(|_| UnitState::Sharded).collect() }
    }

    /// Starts gathering: the slices and the output buffers belong to the collective until [`Gathers::wait`].
    pub fn start(
        &mut self,
        g: GatherId,
        gather: &Gather,
        comm: &C,
        after: C::Event,
        shards: &mut Shards,
        outs: Vec<Buf>,
    ) {
        assert!(matches!(self.states[g], UnitState::Sharded), "gather {g} starts once");
        let inputs = gather.params.iter().map(|&p| shards.lend(p, State::Param)).collect();
        self.states[g] = UnitState::Gathering(comm.all_gather(after, inputs, outs));
    }

    /// Waits until the parameters are whole; gives them out in the order of `gather.params`.
    pub fn wait(&mut self, g: GatherId, gather: &Gather, shards: &mut Shards) -> Result<(Vec<Buf>, CommRecord)> {
        let UnitState::Gathering(pending) = std::mem::replace(&mut self.states[g], UnitState::Live) else {
            panic!("gather {g} is waited for after its start, once");
        };
        let landed = pending.wait()?;
        for (&p, slice) in gather.params.iter().zip(landed.inputs) {
            shards.restore(p, State::Param, slice);
        }
        Ok((landed.outputs, landed.record))
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
}

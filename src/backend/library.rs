//! Collectives of the communication library itself, for the acceptance benchmark: what training does not use,
//! but what tells a healthy network from a sick one in the terms of nccl-tests.
//!
//! Each call blocks the host until this rank's part is done. Elements are f32.

use super::buffer::{Buf, View, ViewMut};
use crate::error::Result;

/// A group of ranks with the library's own collectives.
pub trait Library {
    /// `out = sum over ranks of inp`. Overwrites; both have the same number of elements.
    fn all_reduce(&self, out: ViewMut<'_>, inp: View<'_>) -> Result<()>;
    /// Rank `root`'s elements on every rank.
    fn broadcast(&self, buf: ViewMut<'_>, root: usize) -> Result<()>;
    /// `out = this rank's part of the sum over ranks of inp`, which has one part per rank. Overwrites.
    fn reduce_scatter(&self, out: ViewMut<'_>, inp: View<'_>) -> Result<()>;
    /// Sends to one rank.
    fn send(&self, inp: View<'_>, to: usize) -> Result<()>;
    /// Receives from one rank. Overwrites.
    fn receive(&self, out: ViewMut<'_>, from: usize) -> Result<()>;
    /// Returns when every rank has called it. A waiting rank leaves its core to ranks that are being
    /// measured.
    fn quiet_barrier(&self) -> Result<()>;
}

/// A round trip between this rank and `peer`: the lower rank sends first.
pub fn ping_pong(library: &dyn Library, rank: usize, peer: usize, out: &mut Buf, inp: &Buf) -> Result<()> {
    if rank < peer {
        library.send(inp.view(), peer)?;
        library.receive(out.view_mut(), peer)
    } else {
        library.receive(out.view_mut(), peer)?;
        library.send(inp.view(), peer)
    }
}

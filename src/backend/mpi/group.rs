//! A group of ranks: who is in it, and blocking messages between all of them.
//!
//! These messages are control: small, blocking, and counted apart from the slices of a training step.

use super::call::check;
use super::roll_call::roll_call;
use crate::backend::mesh::{Dim, Mesh};
use crate::error::{Error, Result};
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::{Color, Communicator, SimpleCommunicator};
use mpi::traits::Equivalence;
use smallvec::SmallVec;
use std::os::raw::c_int;
use std::time::Duration;

/// Ranks with a communicator. All methods but `rank` and `size` are collective.
pub struct Group {
    comm: SimpleCommunicator,
    rank: usize,
    size: usize,
}

impl AsRef<Group> for Group {
    fn as_ref(&self) -> &Group {
        self
    }
}

impl Group {
    /// All ranks of the job, over `MPI_COMM_WORLD`, where an error of MPI ends the job.
    pub(super) fn world(comm: SimpleCommunicator) -> Self {
        let (rank, size) = (comm.rank() as usize, comm.size() as usize);
        Group { comm, rank, size }
    }

    /// A new communicator, whose errors are returned.
    fn new(comm: SimpleCommunicator) -> Result<Self> {
        // SAFETY: a live communicator and a constant handle.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", code)?;
        Ok(Group::world(comm))
    }

    /// The ranks that pass the same `color`, ordered by `key`.
    pub fn split(&self, color: usize, key: usize) -> Result<Self> {
        let comm = self.comm.split_by_color_with_key(Color::with_value(color as i32), key as i32);
        Group::new(comm.ok_or_else(|| Error::Comm("MPI_Comm_split returned no communicator".into()))?)
    }

    /// The ranks that differ from this one along `dim` only; this group is the whole of `mesh`.
    pub fn along(&self, mesh: &Mesh, dim: Dim) -> Result<Self> {
        assert_eq!(mesh.world_size(), self.size, "ranks of a mesh and of its group");
        self.split(mesh.color(self.rank, dim), mesh.coordinate(self.rank, dim))
    }

    /// The ranks on this rank's node.
    pub fn on_this_node(&self) -> Result<Self> {
        Group::new(self.comm.split_shared(self.comm.rank()))
    }

    /// The same ranks with a communicator apart: messages of the two never meet.
    pub(in crate::backend) fn duplicate(&self) -> Result<SimpleCommunicator> {
        Ok(Group::new(self.comm.duplicate())?.comm)
    }

    /// The communicator of blocking calls.
    pub(in crate::backend) fn communicator(&self) -> &SimpleCommunicator {
        &self.comm
    }

    /// Rank in this group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks in this group.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The ranks that have not called this within `timeout` of this rank. Unlike a barrier it ends when one
    /// does not come; then the job has to end too, since messages stay under way.
    pub fn roll_call(&self, timeout: Duration) -> Result<Vec<usize>> {
        roll_call(&self.comm, timeout)
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: a live communicator.
        check("MPI_Barrier", unsafe { ffi::MPI_Barrier(self.comm.as_raw()) })
    }

    /// Element-wise sum of every rank's integers.
    pub fn all_reduce_sum(&self, values: &mut [i64]) -> Result<()> {
        let own: SmallVec<[i64; 32]> = SmallVec::from_slice(values);
        let (n, kind) = signature(&own)?;
        let all = values.as_mut_ptr();
        // SAFETY: two slices of `n` elements that live until the call returns.
        check("MPI_Allreduce", unsafe {
            ffi::MPI_Allreduce(own.as_ptr().cast(), all.cast(), n, kind, ffi::RSMPI_SUM, self.comm.as_raw())
        })
    }

    /// `all` becomes every rank's values, in rank order; all ranks pass the same count.
    pub fn all_gather_into<T: Equivalence>(&self, own: &[T], all: &mut [T]) -> Result<()> {
        assert_eq!(all.len(), own.len() * self.size, "the same count from each rank");
        let (n, kind) = signature(own)?;
        let (from, to) = (own.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: slices of `n` and `n * size` elements that live until the call returns.
        check("MPI_Allgather", unsafe { ffi::MPI_Allgather(from, n, kind, to, n, kind, self.comm.as_raw()) })
    }

    /// Every rank's values, in rank order; all ranks pass the same count.
    pub fn all_gather_f64(&self, values: &[f64]) -> Result<Vec<f64>> {
        let mut all = vec![0.0; values.len() * self.size];
        self.all_gather_into(values, &mut all)?;
        Ok(all)
    }

    /// Every rank's bytes, in rank order; lengths may differ.
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (counts, own) = self.padded(bytes)?;
        let mut all = vec![0u8; own.len() * self.size];
        if !own.is_empty() {
            self.all_gather_into(&own, &mut all)?;
        }
        Ok(unpadded(&all, &counts))
    }

    /// Every rank's bytes on rank 0, in rank order; nothing elsewhere.
    pub fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (counts, own) = self.padded(bytes)?;
        let mut all = vec![0u8; if self.rank == 0 { own.len() * self.size } else { 0 }];
        let (n, kind) = signature(&own)?;
        let (from, to) = (own.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: slices of `n` and, on the root, `n * size` bytes that live until the call returns.
        check("MPI_Gather", unsafe { ffi::MPI_Gather(from, n, kind, to, n, kind, 0, self.comm.as_raw()) })?;
        Ok(if self.rank == 0 { unpadded(&all, &counts) } else { Vec::new() })
    }

    /// Rank 0's bytes on every rank.
    pub fn broadcast_bytes(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut count = [bytes.len() as u64];
        self.broadcast(&mut count)?;
        let mut all = bytes.to_vec();
        all.resize(count[0] as usize, 0);
        if !all.is_empty() {
            self.broadcast(&mut all)?;
        }
        Ok(all)
    }

    /// `values` become those of rank 0.
    fn broadcast<T: Equivalence>(&self, values: &mut [T]) -> Result<()> {
        let (n, kind) = signature(values)?;
        // SAFETY: a slice of `n` elements that lives until the call returns.
        check("MPI_Bcast", unsafe {
            ffi::MPI_Bcast(values.as_mut_ptr().cast(), n, kind, 0, self.comm.as_raw())
        })
    }

    /// How many bytes each rank has, and this rank's with zeros up to the largest of these counts.
    fn padded(&self, bytes: &[u8]) -> Result<(Vec<u64>, Vec<u8>)> {
        let mut counts = vec![0u64; self.size];
        self.all_gather_into(&[bytes.len() as u64], &mut counts)?;
        let longest = *counts.iter().max().expect("a group has a rank") as usize;
        let mut own = bytes.to_vec();
        own.resize(longest, 0);
        Ok((counts, own))
    }
}

/// Every rank's bytes from their padded concatenation.
fn unpadded(all: &[u8], counts: &[u64]) -> Vec<Vec<u8>> {
    let longest = all.len() / counts.len();
    counts.iter().enumerate().map(|(r, &n)| all[r * longest..r * longest + n as usize].to_vec()).collect()
}

/// Count and type of a message.
///
/// # Errors
/// There are more elements than MPI counts in one message.
fn signature<T: Equivalence>(values: &[T]) -> Result<(c_int, ffi::MPI_Datatype)> {
    let n = c_int::try_from(values.len()).map_err(|_| {
        Error::Comm(format!("a control message has {} elements, MPI counts to {}", values.len(), c_int::MAX))
    })?;
    Ok((n, T::equivalent_datatype().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::unpadded;

    #[test]
    fn bytes_of_uneven_lengths_are_cut_where_each_rank_ends() {
        assert_eq!(unpadded(b"ab\0\0\0\0xyz", &[2, 0, 3]), [b"ab".to_vec(), b"".to_vec(), b"xyz".to_vec()]);
        assert_eq!(unpadded(b"", &[0, 0]), [b"".to_vec(), b"".to_vec()]);
    }
}

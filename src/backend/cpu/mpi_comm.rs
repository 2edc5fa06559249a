//! [`Comm`] over MPI: gathers and reductions on two queues with a communicator each, control on a third.

use super::Done;
use super::element::Element;
use super::host::{elements, f32s_mut};
use super::requests::{self, MAX_MESSAGE_NUMEL, RawComm, Requests, check};
use super::worker::{InFlight, Worker};
use crate::backend::buffer::{Arena, Buf, Space};
use crate::backend::comm::{Comm, CommRecord, Landed, ReduceScatter};
use crate::backend::library::Library;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::schedule::Bucket;
use half::bf16;
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::{Color, Communicator, SimpleCommunicator};
use mpi::traits::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A group of ranks over MPI.
pub struct MpiComm {
    // Field order is drop order: the threads end before their communicators are freed.
    gather_queue: Worker,
    reduce_queue: Worker,
    gather: SimpleCommunicator,
    reduce: SimpleCommunicator,
    control: SimpleCommunicator,
    rank: usize,
    size: usize,
    max_message_numel: usize,
}

impl MpiComm {
    /// Splits `parent` (collective over it): ranks of one `color` form a group, ordered by `key`.
    pub fn split(parent: &impl Communicator, color: usize, key: usize) -> Result<Self> {
        let split = || {
            parent
                .split_by_color_with_key(Color::with_value(color as i32), key as i32)
                .ok_or_else(|| Error::Comm("MPI_Comm_split gave no communicator".into()))
        };
        let (gather, reduce, control) = (split()?, split()?, split()?);
        for comm in [&gather, &reduce, &control] {
            // SAFETY: a live communicator and a constant handle.
            check("MPI_Comm_set_errhandler", unsafe {
                ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN)
            })?;
        }
        let (rank, size) = (control.rank() as usize, control.size() as usize);
        Ok(MpiComm {
            gather_queue: Worker::start("gather")?,
            reduce_queue: Worker::start("reduce")?,
            gather,
            reduce,
            control,
            rank,
            size,
            max_message_numel: MAX_MESSAGE_NUMEL,
        })
    }

    /// Cuts messages at `numel` elements; for tests of the cutting.
    pub fn with_max_message_numel(mut self, numel: usize) -> Self {
        self.max_message_numel = numel;
        self
    }

    /// The ranks that have not called this within `timeout` of this rank. Unlike a barrier it ends when one does not come; then
    /// the job has to end too, since messages stay under way.
    pub fn roll_call(&self, timeout: Duration) -> Result<Vec<usize>> {
        requests::roll_call(RawComm(self.control.as_raw()), self.rank, self.size, timeout)
    }

    /// The communicator of blocking calls.
    pub(super) fn control(&self) -> &SimpleCommunicator {
        &self.control
    }

    fn requests(&self, comm: &SimpleCommunicator) -> Requests {
        Requests::new(RawComm(comm.as_raw()), self.rank, self.size, self.max_message_numel)
    }
}

/// Requests travel to the helper thread inside a job.
struct Portable(Requests);
// SAFETY: request handles are plain values, valid in every thread under MPI_THREAD_MULTIPLE; only one thread has them.
unsafe impl Send for Portable {}

impl Portable {
    fn get(self) -> Requests {
        self.0
    }
}

fn landed(inputs: Vec<Buf>, outputs: Vec<Buf>, staging: Option<Buf>) -> Landed<Instant> {
    let now = Instant::now();
    Landed { inputs, outputs, staging, record: CommRecord { received_bytes: 0, started: now, finished: now } }
}

impl Comm for MpiComm {
    type Event = Done;
    type Mark = Instant;
    type Pending = InFlight;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<Arena>> {
        let mut map = memmap2::MmapMut::map_anon(bytes.max(1))
            .map_err(|e| {
                Error::Comm(format!(
                    "cannot allocate {bytes} bytes for model and activations: {e}; start more ranks on more nodes, or lower \
                     train.micro_batch_size or the model's sizes (`zero3 plan` shows what is needed)"
                ))
            })?;
        let base = map.as_mut_ptr().expose_provenance() as u64;
        Ok(Arena::new(base, bytes, Space::Host, Box::new(map)))
    }

    fn all_gather(&self, _after: Done, shards: Vec<Buf>, mut outs: Vec<Buf>) -> InFlight {
        assert_eq!(shards.len(), outs.len(), "one output per shard");
        let requests = Portable(self.requests(&self.gather));
        self.gather_queue.submit(move |pacer| {
            let mut requests = requests.get();
            for (shard, out) in shards.iter().zip(&mut outs) {
                // SAFETY: this job owns both buffers and returns only after test_all said true.
                unsafe { requests.all_gather(shard.view(), out.view_mut())? };
            }
            pacer.until(|| requests.test_all())?;
            Ok((landed(shards, outs, None), requests.received_bytes()))
        })
    }

    fn reduce_scatter(&self, _after: Done, reduce: ReduceScatter) -> InFlight {
        let requests = Portable(self.requests(&self.reduce));
        let (rank, size) = (self.rank, self.size);
        self.reduce_queue.submit(move |pacer| {
            let mut requests = requests.get();
            let ReduceScatter { full, mut slices, mut staging, buckets, contributors, first } = reduce;
            for bucket in buckets.iter() {
                exchange(&mut requests, bucket, &full, staging.as_mut(), contributors, rank, size)?;
                pacer.until(|| requests.test_all())?;
                add_in_order(bucket, &full, &mut slices, staging.as_ref(), contributors, rank, first);
            }
            Ok((landed(full, slices, staging), requests.received_bytes()))
        })
    }

    fn library(&self) -> Option<&dyn Library> {
        Some(self)
    }

    fn barrier(&self) -> Result<()> {
        self.control.barrier();
        Ok(())
    }

    fn all_reduce_sum(&self, values: &mut [i64]) -> Result<()> {
        let own = values.to_vec();
        self.control.all_reduce_into(&own, values, mpi::collective::SystemOperation::sum());
        Ok(())
    }

    fn all_gather_f64(&self, values: &[f64]) -> Result<Vec<f64>> {
        let mut all = vec![0.0; values.len() * self.size];
        self.control.all_gather_into(values, &mut all);
        Ok(all)
    }

    fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut counts = vec![0u64; self.size];
        self.control.all_gather_into(&(bytes.len() as u64), &mut counts);
        let longest = *counts.iter().max().expect("a group has a rank") as usize;
        let mut own = bytes.to_vec();
        own.resize(longest, 0);
        let mut all = vec![0u8; longest * self.size];
        if longest > 0 {
            self.control.all_gather_into(&own, &mut all);
        }
        let parts = counts.iter().enumerate();
        Ok(parts.map(|(r, &n)| all[r * longest..r * longest + n as usize].to_vec()).collect())
    }

    fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut counts = vec![0u64; self.size];
        self.control.all_gather_into(&(bytes.len() as u64), &mut counts);
        let longest = *counts.iter().max().expect("a group has a rank") as usize;
        let mut own = bytes.to_vec();
        own.resize(longest, 0);
        let root = self.control.process_at_rank(0);
        if self.rank != 0 {
            root.gather_into(&own);
            return Ok(Vec::new());
        }
        let mut all = vec![0u8; longest * self.size];
        root.gather_into_root(&own, &mut all);
        let parts = counts.iter().enumerate();
        Ok(parts.map(|(r, &n)| all[r * longest..r * longest + n as usize].to_vec()).collect())
    }

    fn broadcast_bytes(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let root = self.control.process_at_rank(0);
        let mut count = bytes.len() as u64;
        root.broadcast_into(&mut count);
        let mut all = bytes.to_vec();
        all.resize(count as usize, 0);
        if count > 0 {
            root.broadcast_into(&mut all);
        }
        Ok(all)
    }
}

/// Position of a contributor's part in the staging buffer: contributors in rank order, this rank left out.
fn staging_index(contributor: usize, rank: usize) -> usize {
    contributor - usize::from(contributor > rank)
}

/// Starts the exchange of one bucket: every contributor sends each owner its part of the owner's slice.
fn exchange(
    requests: &mut Requests,
    bucket: &Bucket,
    full: &[Buf],
    staging: Option<&mut Buf>,
    contributors: usize,
    rank: usize,
    size: usize,
) -> Result<()> {
    if let Some(staging) = staging {
        for from in (0..contributors).filter(|&r| r != rank) {
            let mut offset = staging_index(from, rank) * bucket.numel();
            for piece in &bucket.pieces {
                let out = staging.view_mut().range(offset..offset + piece.range.len());
                // SAFETY: the job that called us owns the staging buffer until test_all says true.
                unsafe { requests.receive(out, from)? };
                offset += piece.range.len();
            }
        }
    }
    if rank < contributors {
        for to in (0..size).filter(|&r| r != rank) {
            for piece in &bucket.pieces {
                let inp = full[piece.param].view();
                let slice = to * (inp.numel() / size);
                // SAFETY: the job that called us owns the full gradients until test_all says true.
                unsafe { requests.send(inp.range(slice + piece.range.start..slice + piece.range.end), to)? };
            }
        }
    }
    Ok(())
}

/// The left fold of rule 8: contributions in the order of the micro-batch index, which within a micro-step is the
/// order of ranks; the very first of a step is copied.
fn add_in_order(
    bucket: &Bucket,
    full: &[Buf],
    slices: &mut [Buf],
    staging: Option<&Buf>,
    contributors: usize,
    rank: usize,
    first: bool,
) {
    let mut offset = 0;
    for piece in &bucket.pieces {
        let slice_numel = slices[piece.param].numel();
        let sum = f32s_mut(slices[piece.param].view_mut().range(piece.range.clone()));
        for from in 0..contributors {
            let contribution = if from == rank {
                let own = rank * slice_numel;
                full[piece.param].view().range(own + piece.range.start..own + piece.range.end)
            } else {
                let start = staging_index(from, rank) * bucket.numel() + offset;
                staging.expect("planned where there are others").view().range(start..start + piece.range.len())
            };
            // Rounded to reduce_dtype before it travelled; the sum is f32.
            match contribution.dtype() {
                DType::Bf16 => add(sum, elements::<bf16>(contribution), first && from == 0),
                _ => add(sum, elements::<f32>(contribution), first && from == 0),
            }
        }
        offset += piece.range.len();
    }
}

/// `sum += contribution`, or a copy for the first one.
fn add<T: Element>(sum: &mut [f32], contribution: &[T], copy: bool) {
    let pairs = sum.iter_mut().zip(contribution);
    if copy {
        pairs.for_each(|(s, c)| *s = c.load());
    } else {
        pairs.for_each(|(s, c)| *s += c.load());
    }
}

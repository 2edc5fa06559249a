//! The two collectives of a step, as the threads of their queues run them.
//!
//! Ranks of one node read each other's memory ([`Peers`]): each tells the others where its bytes lie, reads theirs, and
//! says so; a gather is one copy, and a reduction reads what it adds, chunk by chunk, without staging. Everything else
//! travels in MPI messages: gathers of a group on several nodes, and gradients between nodes.
//!
//! Must not know: units, plans, queues.

use super::element::Element;
use super::host::{bytes, bytes_mut, elements, f32s_mut};
use super::peers::Peers;
use super::requests::{RawComm, Requests};
use super::simd::simd;
use super::worker::{self, Pacer};
use crate::backend::buffer::{Buf, View};
use crate::backend::comm::{CommRecord, Landed, ReduceScatter};
use crate::dtype::DType;
use crate::error::Result;
use crate::params::PerTensor;
use crate::plan::schedule::Bucket;
use half::bf16;
use mpi::ffi;
use std::os::raw::c_int;
use std::sync::Arc;
use std::time::Instant;

/// Tag of the words that say where bytes lie.
const HERE: c_int = 2;
/// Tag of the (empty) words that say they have been read.
const DONE: c_int = 3;

/// Bytes that are read and then added at once: they stay in the second level cache in between.
const CHUNK_BYTES: usize = 128 * 1024;

/// What a queue keeps from one collective to the next.
#[derive(Default)]
pub struct Kept {
    /// Calls in flight.
    pending: Vec<ffi::MPI_Request>,
    words: Words,
    /// What a reduction reads before it adds, [`CHUNK_BYTES`] where it does.
    chunk: Vec<u32>,
}

/// Where buffers lie.
#[derive(Default)]
struct Words {
    /// Those of this rank.
    own: Vec<u64>,
    /// As many of each rank that was asked, one rank after the other.
    theirs: Vec<u64>,
}

/// A collective of a group, with all it needs.
pub struct Job {
    /// The ranks.
    pub group: Group,
    /// What they do.
    pub call: Call,
}

/// One of the two collectives of a step.
pub enum Call {
    /// `outs[i]` becomes the concatenation of every rank's `shards[i]`.
    AllGather {
        /// This rank's slices.
        shards: PerTensor<Buf>,
        /// Whole tensors.
        outs: PerTensor<Buf>,
    },
    /// Adds this rank's part of the contributors' full gradients to its slices.
    ReduceScatter(ReduceScatter),
}

impl worker::Job for Job {
    type Kept = Kept;

    fn run(&mut self, pacer: &Pacer<'_>, kept: &mut Kept) -> Result<u64> {
        match &mut self.call {
            Call::AllGather { shards, outs } => all_gather(&self.group, pacer, kept, shards, outs),
            Call::ReduceScatter(reduce) => reduce_scatter(&self.group, pacer, kept, reduce),
        }
    }

    fn land(self, record: CommRecord<Instant>) -> Landed<Instant> {
        let (inputs, outputs, staging) = match self.call {
            Call::AllGather { shards, outs } => (shards, outs, None),
            Call::ReduceScatter(reduce) => (reduce.full, reduce.slices, reduce.staging),
        };
        Landed { inputs, outputs, staging, record }
    }
}

/// The ranks of a collective and how they are reached.
pub struct Group {
    /// The queue's communicator.
    pub comm: RawComm,
    /// This rank.
    pub rank: usize,
    /// Ranks.
    pub size: usize,
    /// Longest message.
    pub max_message_numel: usize,
    /// Ranks that are read, if any.
    pub peers: Option<Arc<Peers>>,
}

impl Group {
    fn requests<'a>(&self, pending: &'a mut Vec<ffi::MPI_Request>) -> Requests<'a> {
        Requests::new(self.comm, self.rank, self.size, self.max_message_numel, pending)
    }

    /// The ranks whose memory is read, but this one, ascending.
    fn neighbours(&self) -> &[usize] {
        self.peers.as_ref().map_or(&[], |peers| peers.others())
    }

    fn reads(&self, rank: usize) -> bool {
        self.peers.as_ref().is_some_and(|peers| peers.reads(rank))
    }
}

impl Words {
    /// This rank's words are where `bufs` lie.
    fn point_at(&mut self, bufs: &[Buf]) {
        self.own.clear();
        self.own.extend(bufs.iter().map(|buf| buf.view().addr()));
    }

    /// Tells this rank's words to each rank of `to`, and hears as many of each of `from`.
    fn exchange(&mut self, requests: &mut Requests<'_>, pacer: &Pacer<'_>, to: &[usize], from: &[usize]) -> Result<()> {
        let n = self.own.len();
        self.theirs.clear();
        self.theirs.resize(n * from.len(), 0);
        for (i, &rank) in from.iter().enumerate() {
            // SAFETY: both lists stay as they are until the wait below is over.
            unsafe { requests.receive_words(&mut self.theirs[i * n..(i + 1) * n], rank, HERE)? };
        }
        for &rank in to {
            // SAFETY: as above.
            unsafe { requests.send_words(&self.own, rank, HERE)? };
        }
        pacer.until(|| requests.test_all())
    }
}

/// Tells each rank of `to` that its bytes have been read, and waits until each of `from` has said so.
fn read_by_all(requests: &mut Requests<'_>, pacer: &Pacer<'_>, to: &[usize], from: &[usize]) -> Result<()> {
    for &rank in from {
        // SAFETY: nothing is written or read.
        unsafe { requests.receive_words(&mut [], rank, DONE)? };
    }
    for &rank in to {
        // SAFETY: as above.
        unsafe { requests.send_words(&[], rank, DONE)? };
    }
    pacer.until(|| requests.test_all())
}

/// `outs[i]` becomes the concatenation of every rank's `shards[i]`. Returns the payload bytes received from others.
fn all_gather(group: &Group, pacer: &Pacer<'_>, kept: &mut Kept, shards: &[Buf], outs: &mut [Buf]) -> Result<u64> {
    assert_eq!(shards.len(), outs.len(), "one output per shard");
    let mut requests = group.requests(&mut kept.pending);
    if let Some(peers) = group.peers.as_ref().filter(|peers| peers.are_all()) {
        let others = peers.others();
        kept.words.point_at(shards);
        kept.words.exchange(&mut requests, pacer, others, others)?;
        let read_bytes = read_slices(group, peers, &kept.words.theirs, shards, outs)?;
        read_by_all(&mut requests, pacer, others, others)?;
        return Ok(read_bytes);
    }
    for (shard, out) in shards.iter().zip(outs) {
        // SAFETY: both buffers are borrowed until the wait below is over.
        unsafe { requests.all_gather(shard.view(), out.view_mut())? };
    }
    pacer.until(|| requests.test_all())?;
    Ok(requests.received_bytes())
}

/// Copies this rank's slices and reads those of the others, which lie at `theirs`. Returns the bytes read.
fn read_slices(group: &Group, peers: &Peers, theirs: &[u64], shards: &[Buf], outs: &mut [Buf]) -> Result<u64> {
    let others = peers.others();
    let mut read_bytes = 0;
    for (i, (shard, out)) in shards.iter().zip(outs).enumerate() {
        let s = shard.numel();
        assert_eq!((out.numel(), out.dtype()), (s * group.size, shard.dtype()), "the output holds one slice per rank");
        let slice_of = |rank: usize| rank * s..(rank + 1) * s;
        bytes_mut(out.view_mut().range(slice_of(group.rank))).copy_from_slice(bytes(shard.view()));
        // Each rank begins with the one after it: no memory is read by all at once.
        let (before, after) = others.split_at(others.partition_point(|&rank| rank < group.rank));
        for &rank in after.iter().chain(before) {
            let at = others.partition_point(|&other| other < rank);
            let slice = bytes_mut(out.view_mut().range(slice_of(rank)));
            peers.read(rank, theirs[at * shards.len() + i], slice)?;
            read_bytes += slice.len() as u64;
        }
    }
    Ok(read_bytes)
}

/// Adds this rank's part of the contributors' full gradients to its slices. Returns the payload bytes received from others.
fn reduce_scatter(group: &Group, pacer: &Pacer<'_>, kept: &mut Kept, reduce: &mut ReduceScatter) -> Result<u64> {
    let ReduceScatter { full, slices, staging, buckets, contributors, first } = reduce;
    let (contributors, first) = (*contributors, *first);
    let Kept { pending, words, chunk } = kept;
    let mut requests = group.requests(pending);
    let neighbours = group.neighbours();
    let givers = &neighbours[..neighbours.partition_point(|&rank| rank < contributors)];
    let takers = if group.rank < contributors { neighbours } else { &[] };
    words.point_at(full);
    words.exchange(&mut requests, pacer, takers, givers)?;
    if !givers.is_empty() {
        chunk.resize(CHUNK_BYTES / 4, 0);
    }
    let mut sum = Sum { group, full, givers, theirs: &words.theirs, chunk, read_bytes: 0 };
    for bucket in buckets.iter() {
        exchange(&mut requests, group, bucket, full, staging.as_mut(), contributors)?;
        pacer.until(|| requests.test_all())?;
        sum.add_in_order(bucket, slices, staging.as_ref(), contributors, first)?;
    }
    let read_bytes = sum.read_bytes;
    read_by_all(&mut requests, pacer, givers, takers)?;
    Ok(requests.received_bytes() + read_bytes)
}

/// Position of a contributor's part in the staging buffer: contributors in rank order, this rank left out.
fn staging_index(contributor: usize, rank: usize) -> usize {
    contributor - usize::from(contributor > rank)
}

/// Starts the messages of one bucket: every contributor sends each owner that cannot read it its part of the owner's slice.
fn exchange(
    requests: &mut Requests<'_>,
    group: &Group,
    bucket: &Bucket,
    full: &[Buf],
    mut staging: Option<&mut Buf>,
    contributors: usize,
) -> Result<()> {
    let far = |rank: usize| rank != group.rank && !group.reads(rank);
    for from in (0..contributors).filter(|&rank| far(rank)) {
        let staging = staging.as_mut().expect("planned where there are others");
        let mut offset = staging_index(from, group.rank) * bucket.numel();
        for piece in &bucket.pieces {
            let out = staging.view_mut().range(offset..offset + piece.range.len());
            // SAFETY: the job that called us owns the staging buffer until test_all says true.
            unsafe { requests.receive(out, from)? };
            offset += piece.range.len();
        }
    }
    if group.rank < contributors {
        for to in (0..group.size).filter(|&rank| far(rank)) {
            for piece in &bucket.pieces {
                let inp = full[piece.param].view();
                let slice = to * (inp.numel() / group.size);
                // SAFETY: the job that called us owns the full gradients until test_all says true.
                unsafe { requests.send(inp.range(slice + piece.range.start..slice + piece.range.end), to)? };
            }
        }
    }
    Ok(())
}

/// What a reduction adds, and from where.
struct Sum<'a> {
    group: &'a Group,
    /// This rank's full gradients.
    full: &'a [Buf],
    /// Contributors that are read.
    givers: &'a [usize],
    /// Where their full gradients lie: one word per gradient and giver.
    theirs: &'a [u64],
    /// What is read before it is added, [`CHUNK_BYTES`].
    chunk: &'a mut [u32],
    read_bytes: u64,
}

impl Sum<'_> {
    /// The left fold of rule 8: contributions in the order of the micro-batch index, which within a micro-step is the
    /// order of ranks; the very first of a step is copied.
    fn add_in_order(
        &mut self,
        bucket: &Bucket,
        slices: &mut [Buf],
        staging: Option<&Buf>,
        contributors: usize,
        first: bool,
    ) -> Result<()> {
        let mut offset = 0;
        for piece in &bucket.pieces {
            let dtype = self.full[piece.param].dtype();
            let own = self.group.rank * slices[piece.param].numel();
            let mut sum = f32s_mut(slices[piece.param].view_mut().range(piece.range.clone()));
            let mut at = piece.range.start;
            while !sum.is_empty() {
                let n = sum.len().min(CHUNK_BYTES / dtype.bytes());
                let (chunk, rest) = sum.split_at_mut(n);
                for from in 0..contributors {
                    let copy = first && from == 0;
                    if let Ok(giver) = self.givers.binary_search(&from) {
                        self.add_read(chunk, dtype, giver, piece.param, own + at, copy)?;
                    } else if from == self.group.rank {
                        add_view(chunk, self.full[piece.param].view().range(own + at..own + at + n), copy);
                    } else {
                        let start = staging_index(from, self.group.rank) * bucket.numel() + offset;
                        let staging = staging.expect("planned where there are others").view();
                        add_view(chunk, staging.range(start..start + n), copy);
                    }
                }
                (sum, at, offset) = (rest, at + n, offset + n);
            }
        }
        Ok(())
    }

    /// Adds elements from `start` of a full gradient of a giver.
    fn add_read(
        &mut self,
        sum: &mut [f32],
        dtype: DType,
        giver: usize,
        param: usize,
        start: usize,
        copy: bool,
    ) -> Result<()> {
        let peers = self.group.peers.as_ref().expect("givers are peers");
        let addr = self.theirs[giver * self.full.len() + param] + (start * dtype.bytes()) as u64;
        let read = &mut bytemuck::cast_slice_mut(self.chunk)[..sum.len() * dtype.bytes()];
        peers.read(self.givers[giver], addr, read)?;
        self.read_bytes += read.len() as u64;
        match dtype {
            DType::Bf16 => add(sum, bytemuck::cast_slice::<u8, bf16>(read), copy),
            _ => add(sum, bytemuck::cast_slice::<u8, f32>(read), copy),
        }
        Ok(())
    }
}

/// [`add`] of a view of either type.
fn add_view(sum: &mut [f32], contribution: View<'_>, copy: bool) {
    // Rounded to reduce_dtype before it travelled; the sum is f32.
    match contribution.dtype() {
        DType::Bf16 => add(sum, elements::<bf16>(contribution), copy),
        _ => add(sum, elements::<f32>(contribution), copy),
    }
}

simd! {
    /// `sum += contribution`, or a copy for the first one.
    fn add<T: Element>(sum: &mut [f32], contribution: &[T], copy: bool) {
        let pairs = sum.iter_mut().zip(contribution);
        if copy {
            pairs.for_each(|(s, c)| *s = c.load());
        } else {
            pairs.for_each(|(s, c)| *s += c.load());
        }
    }
}

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
use super::worker::Pacer;
use crate::backend::buffer::{Buf, View};
use crate::backend::comm::ReduceScatter;
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::schedule::Bucket;
use half::bf16;
use std::cell::Cell;
use std::os::raw::c_int;
use std::sync::Arc;

/// Tag of the words that say where bytes lie.
const HERE: c_int = 2;
/// Tag of the (empty) words that say they have been read.
const DONE: c_int = 3;

/// Bytes that are read and then added at once: they stay in the second level cache in between.
const CHUNK_BYTES: usize = 128 * 1024;

thread_local! {
    /// The queue's chunk, kept from one reduction to the next.
    static CHUNK: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
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
    fn requests(&self) -> Requests {
        Requests::new(self.comm, self.rank, self.size, self.max_message_numel)
    }

    /// The ranks whose memory is read, but this one.
    fn neighbours(&self) -> Vec<usize> {
        (0..self.size).filter(|&rank| rank != self.rank && self.reads(rank)).collect()
    }

    fn reads(&self, rank: usize) -> bool {
        self.peers.as_ref().is_some_and(|peers| peers.reads(rank))
    }

    /// Tells `own` to each rank of `to` and gives back what those of `from` told, one after the other.
    fn exchange_words(&self, pacer: &Pacer, tag: c_int, own: &[u64], to: &[usize], from: &[usize]) -> Result<Vec<u64>> {
        let mut told = vec![0; own.len() * from.len()];
        let mut requests = self.requests();
        for (i, &rank) in from.iter().enumerate() {
            let words = &mut told[i * own.len()..(i + 1) * own.len()];
            // SAFETY: `told` and `own` outlive the wait below.
            unsafe { requests.receive_words(words, rank, tag)? };
        }
        for &rank in to {
            // SAFETY: as above.
            unsafe { requests.send_words(own, rank, tag)? };
        }
        pacer.until(|| requests.test_all())?;
        Ok(told)
    }
}

/// Where the bytes of each buffer lie.
fn addresses(bufs: &[Buf]) -> Vec<u64> {
    bufs.iter().map(|buf| buf.view().addr()).collect()
}

/// `outs[i]` becomes the concatenation of every rank's `shards[i]`. Returns the payload bytes received from others.
pub fn all_gather(group: &Group, pacer: &Pacer, shards: &[Buf], outs: &mut [Buf]) -> Result<u64> {
    assert_eq!(shards.len(), outs.len(), "one output per shard");
    match &group.peers {
        Some(peers) if peers.are_all() => gather_by_reading(group, peers, pacer, shards, outs),
        _ => {
            let mut requests = group.requests();
            for (shard, out) in shards.iter().zip(outs) {
                // SAFETY: both buffers are borrowed until the wait below is over.
                unsafe { requests.all_gather(shard.view(), out.view_mut())? };
            }
            pacer.until(|| requests.test_all())?;
            Ok(requests.received_bytes())
        }
    }
}

fn gather_by_reading(group: &Group, peers: &Peers, pacer: &Pacer, shards: &[Buf], outs: &mut [Buf]) -> Result<u64> {
    let others = group.neighbours();
    let theirs = group.exchange_words(pacer, HERE, &addresses(shards), &others, &others)?;
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
    group.exchange_words(pacer, DONE, &[], &others, &others)?;
    Ok(read_bytes)
}

/// Adds this rank's part of the contributors' full gradients to its slices. Returns the payload bytes received from others.
pub fn reduce_scatter(group: &Group, pacer: &Pacer, reduce: &mut ReduceScatter) -> Result<u64> {
    let ReduceScatter { full, slices, staging, buckets, contributors, first } = reduce;
    let (contributors, first) = (*contributors, *first);
    let neighbours = group.neighbours();
    let givers: Vec<usize> = neighbours.iter().copied().filter(|&rank| rank < contributors).collect();
    let takers: &[usize] = if group.rank < contributors { &neighbours } else { &[] };
    let theirs = group.exchange_words(pacer, HERE, &addresses(full), takers, &givers)?;
    let mut chunk = CHUNK.take();
    if !givers.is_empty() {
        chunk.resize(CHUNK_BYTES / 4, 0);
    }
    let mut sum = Sum { group, full, givers: &givers, theirs: &theirs, chunk, read_bytes: 0 };
    let mut requests = group.requests();
    for bucket in buckets.iter() {
        exchange(&mut requests, group, bucket, full, staging.as_mut(), contributors)?;
        pacer.until(|| requests.test_all())?;
        sum.add_in_order(bucket, slices, staging.as_ref(), contributors, first)?;
    }
    let read_bytes = sum.read_bytes;
    CHUNK.set(sum.chunk);
    group.exchange_words(pacer, DONE, &[], &givers, takers)?;
    Ok(requests.received_bytes() + read_bytes)
}

/// Position of a contributor's part in the staging buffer: contributors in rank order, this rank left out.
fn staging_index(contributor: usize, rank: usize) -> usize {
    contributor - usize::from(contributor > rank)
}

/// Starts the messages of one bucket: every contributor sends each owner that cannot read it its part of the owner's slice.
fn exchange(
    requests: &mut Requests,
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
    chunk: Vec<u32>,
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
        let read = &mut bytemuck::cast_slice_mut(&mut self.chunk)[..sum.len() * dtype.bytes()];
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

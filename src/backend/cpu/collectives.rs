//! The two collectives of a step, as the threads of their queues run them.
//!
//! Ranks of one node read each other's memory ([`Peers`]): each tells the others where its bytes lie, reads
//! theirs, and says so; a gather is one copy, and a reduction reads what it adds, chunk by chunk, without
//! staging. Everything else travels in MPI messages: gathers of a group on several nodes, and gradients
//! between nodes. Which gradients go where is planned (`plan/ordered_exchange.rs`).
//!
//! Must not know: units, queues.

use super::element::Element;
use super::host::{bytes, bytes_mut, elements, f32s_mut};
use super::peers::Peers;
use super::requests::{RawComm, Requests};
use super::simd::simd;
use super::worker::{Pacer, Queued};
use crate::backend::buffer::{Buf, View};
use crate::backend::comm::{CommRecord, Landed, ReduceScatter};
use crate::dtype::DType;
use crate::error::Result;
use crate::params::PerTensor;
use crate::plan::ordered_exchange::{OrderedExchange, Part};
use half::bf16;
use mpi::ffi;
use std::ops::Range;
use std::os::raw::c_int;
use std::sync::Arc;
use std::time::Instant;

/// Tag of the messages that say where bytes lie.
const HERE: c_int = 2;
/// Tag of the (empty) messages that say they have been read.
const DONE: c_int = 3;

/// Bytes that are read and then added at once: they stay in the second level cache in between.
const CHUNK_BYTES: usize = 128 * 1024;

/// Lists that a queue reuses from one collective to the next.
#[derive(Default)]
pub struct Scratch {
    /// Calls in flight.
    pending: Vec<ffi::MPI_Request>,
    addresses: Addresses,
    /// What a reduction reads before it adds, [`CHUNK_BYTES`] where it does.
    chunk: Vec<u32>,
}

/// Where buffers lie.
#[derive(Default)]
struct Addresses {
    /// One for each buffer of this rank.
    own: Vec<u64>,
    /// As many of each rank that was asked, one rank after the other.
    theirs: Vec<u64>,
}

/// A collective with all it needs.
pub struct Collective {
    /// The ranks, and how they are reached.
    pub transport: Transport,
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

impl Queued for Collective {
    type Scratch = Scratch;

    fn run(&mut self, pacer: &Pacer<'_>, scratch: &mut Scratch) -> Result<u64> {
        match &mut self.call {
            Call::AllGather { shards, outs } => all_gather(&self.transport, pacer, scratch, shards, outs),
            Call::ReduceScatter(reduce) => reduce_scatter(&self.transport, pacer, scratch, reduce),
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
pub struct Transport {
    /// The queue's communicator.
    pub comm: RawComm,
    /// This rank.
    pub rank: usize,
    /// Ranks.
    pub size: usize,
    /// Longest message.
    pub max_message_numel: usize,
    /// Ranks whose memory is read, if any.
    pub peers: Option<Arc<Peers>>,
}

impl Transport {
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

impl Addresses {
    /// This rank's are where `bufs` lie.
    fn point_at(&mut self, bufs: &[Buf]) {
        self.own.clear();
        self.own.extend(bufs.iter().map(|buf| buf.view().addr()));
    }

    /// Sends this rank's addresses to each rank of `to`, and receives as many from each of `from`.
    fn exchange(
        &mut self,
        requests: &mut Requests<'_>,
        pacer: &Pacer<'_>,
        to: &[usize],
        from: &[usize],
    ) -> Result<()> {
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

/// `outs[i]` becomes the concatenation of every rank's `shards[i]`. Returns the payload bytes received from
/// others.
fn all_gather(
    transport: &Transport,
    pacer: &Pacer<'_>,
    scratch: &mut Scratch,
    shards: &[Buf],
    outs: &mut [Buf],
) -> Result<u64> {
    assert_eq!(shards.len(), outs.len(), "one output per shard");
    let mut requests = transport.requests(&mut scratch.pending);
    if let Some(peers) = transport.peers.as_ref().filter(|peers| peers.are_all()) {
        let others = peers.others();
        scratch.addresses.point_at(shards);
        scratch.addresses.exchange(&mut requests, pacer, others, others)?;
        let read_bytes = read_slices(transport, peers, &scratch.addresses.theirs, shards, outs)?;
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
fn read_slices(
    transport: &Transport,
    peers: &Peers,
    theirs: &[u64],
    shards: &[Buf],
    outs: &mut [Buf],
) -> Result<u64> {
    let others = peers.others();
    let mut read_bytes = 0;
    for (i, (shard, out)) in shards.iter().zip(outs).enumerate() {
        let s = shard.numel();
        assert_eq!(
            (out.numel(), out.dtype()),
            (s * transport.size, shard.dtype()),
            "the output holds one slice per rank"
        );
        let slice_of = |rank: usize| rank * s..(rank + 1) * s;
        bytes_mut(out.view_mut().range(slice_of(transport.rank))).copy_from_slice(bytes(shard.view()));
        // Each rank begins with the one after it: no memory is read by all at once.
        let (before, after) = others.split_at(others.partition_point(|&rank| rank < transport.rank));
        for &rank in after.iter().chain(before) {
            let at = others.partition_point(|&other| other < rank);
            let slice = bytes_mut(out.view_mut().range(slice_of(rank)));
            peers.read(rank, theirs[at * shards.len() + i], slice)?;
            read_bytes += slice.len() as u64;
        }
    }
    Ok(read_bytes)
}

/// Adds this rank's part of the contributors' full gradients to its slices. Returns the payload bytes
/// received from others.
fn reduce_scatter(
    transport: &Transport,
    pacer: &Pacer<'_>,
    scratch: &mut Scratch,
    reduce: &mut ReduceScatter,
) -> Result<u64> {
    let ReduceScatter { full, slices, staging, buckets, contributors, overwrites } = reduce;
    let Scratch { pending, addresses, chunk } = scratch;
    let mut requests = transport.requests(pending);
    let neighbours = transport.neighbours();
    let givers = &neighbours[..neighbours.partition_point(|&rank| rank < *contributors)];
    let takers = if transport.rank < *contributors { neighbours } else { &[] };
    addresses.point_at(full);
    addresses.exchange(&mut requests, pacer, takers, givers)?;
    if !givers.is_empty() {
        chunk.resize(CHUNK_BYTES / 4, 0);
    }
    let mut sum = Sum {
        transport,
        full,
        givers,
        theirs: &addresses.theirs,
        chunk,
        overwrites: *overwrites,
        read_bytes: 0,
    };
    for bucket in buckets.iter() {
        let exchange = bucket.exchange(transport.rank, transport.size, *contributors);
        start(exchange, &mut requests, transport, full, staging.as_mut())?;
        pacer.until(|| requests.test_all())?;
        for part in exchange.parts() {
            sum.add_in_order(exchange, &part, &mut slices[part.param], staging.as_ref())?;
        }
    }
    let read_bytes = sum.read_bytes;
    read_by_all(&mut requests, pacer, givers, takers)?;
    Ok(requests.received_bytes() + read_bytes)
}

/// Starts the messages of an exchange, but for those between ranks that read each other's memory.
fn start(
    exchange: OrderedExchange<'_>,
    requests: &mut Requests<'_>,
    transport: &Transport,
    full: &[Buf],
    mut staging: Option<&mut Buf>,
) -> Result<()> {
    for message in exchange.receives().filter(|message| !transport.reads(message.peer)) {
        let staging = staging.as_mut().expect("planned where there are others");
        // SAFETY: the collective that called us owns the staging buffer until test_all says true.
        unsafe { requests.receive(staging.view_mut().range(message.elements), message.peer)? };
    }
    for message in exchange.sends().filter(|message| !transport.reads(message.peer)) {
        // SAFETY: the collective that called us owns the full gradients until test_all says true.
        unsafe { requests.send(full[message.param].view().range(message.elements), message.peer)? };
    }
    Ok(())
}

/// What a reduction adds, and from where.
struct Sum<'a> {
    transport: &'a Transport,
    /// This rank's full gradients.
    full: &'a [Buf],
    /// Contributors whose memory is read.
    givers: &'a [usize],
    /// Where their full gradients lie: one address per gradient and giver.
    theirs: &'a [u64],
    /// What is read before it is added, [`CHUNK_BYTES`].
    chunk: &'a mut [u32],
    /// The first contribution is copied, not added.
    overwrites: bool,
    read_bytes: u64,
}

impl Sum<'_> {
    /// The left fold of rule 8, chunk by chunk.
    fn add_in_order(
        &mut self,
        exchange: OrderedExchange<'_>,
        part: &Part,
        slice: &mut Buf,
        staging: Option<&Buf>,
    ) -> Result<()> {
        let rank = self.transport.rank;
        let dtype = self.full[part.param].dtype();
        let mut sum = f32s_mut(slice.view_mut().range(part.in_slice.clone()));
        let mut done = 0;
        while !sum.is_empty() {
            let n = sum.len().min(CHUNK_BYTES / dtype.bytes());
            let (chunk, rest) = sum.split_at_mut(n);
            // The chunk of a range that holds the part's elements.
            let chunk_of = |range: Range<usize>| range.start + done..range.start + done + n;
            let in_full = chunk_of(part.in_full.clone());
            for from in exchange.contributors() {
                let copy = self.overwrites && from == 0;
                if let Ok(giver) = self.givers.binary_search(&from) {
                    self.add_read(chunk, giver, part.param, in_full.start, copy)?;
                } else if from == rank {
                    add_view(chunk, self.full[part.param].view().range(in_full.clone()), copy);
                } else {
                    let staging = staging.expect("planned where there are others").view();
                    add_view(chunk, staging.range(chunk_of(part.staged(from, rank))), copy);
                }
            }
            (sum, done) = (rest, done + n);
        }
        Ok(())
    }

    /// Adds elements from `start` of a full gradient of a giver.
    fn add_read(
        &mut self,
        sum: &mut [f32],
        giver: usize,
        param: usize,
        start: usize,
        copy: bool,
    ) -> Result<()> {
        let dtype = self.full[param].dtype();
        let peers = self.transport.peers.as_ref().expect("givers are peers");
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

//! The order of one micro-step (or one evaluation pass): gather, wait, use, release, reduce.
//!
//! It is a pure function of the model, N and the deck. The executor in `train/step.rs` runs the list from top
//! to bottom; nothing is discovered at run time.

use super::knobs::Knobs;
use super::partition::Partition;
use super::placement::{Hold, Placement};
use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use crate::human;
use crate::params::{ModelSpec, ParamId, SHARED_GRAD, UnitId, UnitRole};
use std::ops::Range;
use std::sync::Arc;

/// Index into [`Schedule::gathers`].
pub type GatherId = usize;
/// Index into [`Schedule::reduces`].
pub type ReduceId = usize;

/// The purpose of a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Forward only.
    Forward,
    /// The head's forward, loss and, in training, backward, in one visit: it remains gathered between the
    /// two.
    Loss,
    /// Backward, from saved or recomputed tensors.
    Backward,
}

/// One visit of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Visit {
    /// The unit.
    pub unit: UnitId,
    /// The purpose.
    pub pass: Pass,
    /// The gather of its sharded parameters; none if it has none or needs none.
    pub gather: Option<GatherId>,
}

/// One instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Instr {
    /// Start the all-gather of a unit's parameters.
    Gather(GatherId),
    /// Wait until it is complete.
    Wait(GatherId),
    /// Compute one visit of a unit.
    Compute(Visit),
    /// Release the gathered parameters.
    Release(GatherId),
    /// Add complete gradients to those of earlier micro-steps.
    Accumulate(ReduceId),
    /// Round complete gradients that are sums of parts to the communicated type.
    Round(ReduceId),
    /// Start the reduction of complete gradients to their owners.
    Reduce(ReduceId),
    /// Wait until the slices have been added, and release the full gradients.
    ReduceWait(ReduceId),
}

/// One all-gather: the sharded parameters of one visit of a unit, or of both if they remain gathered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gather {
    /// The unit that will use them.
    pub unit: UnitId,
    /// The visit.
    pub pass: Pass,
    /// Parameters, in the order of the unit.
    pub params: Vec<ParamId>,
    /// The calls it consists of: ranges of `params`, each at most `gather_bucket_bytes`.
    pub calls: Vec<Range<usize>>,
}

/// One gradient reduction: the parameters whose gradient is complete after the backward of `unit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduce {
    /// The unit whose backward completed the gradients.
    pub unit: UnitId,
    /// Parameters.
    pub params: Vec<ParamId>,
    /// The exchanges, split so that the receive staging stays within `reduce_bucket_bytes`.
    pub buckets: Arc<[Bucket]>,
}

/// One exchange of a reduction: pieces communicated together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Pieces, in order of communication.
    pub pieces: Vec<Piece>,
}

/// Part of the slices of one parameter; the same part of every rank's slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Position of the parameter in the reduction's list.
    pub param: usize,
    /// Elements, relative to the start of a slice.
    pub range: Range<usize>,
    /// Elements of a whole slice of the parameter, padding included.
    pub shard_numel: usize,
}

impl Piece {
    /// The piece of `owner` in a full gradient.
    pub fn in_full(&self, owner: usize) -> Range<usize> {
        let slice = owner * self.shard_numel;
        slice + self.range.start..slice + self.range.end
    }
}

impl Bucket {
    /// Elements received from each peer.
    pub fn numel(&self) -> usize {
        self.pieces.iter().map(|p| p.range.len()).sum()
    }
}

/// The planned order of one micro-step or evaluation pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Instructions, top to bottom.
    pub instrs: Vec<Instr>,
    /// All-gathers.
    pub gathers: Vec<Gather>,
    /// Reductions (or accumulations); empty for evaluation.
    pub reduces: Vec<Reduce>,
}

/// Treatment of complete gradients in a micro-step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gradients {
    /// There are none: evaluation.
    None,
    /// They are reduced at once.
    Reduce,
    /// They are accumulated on this rank.
    Hold,
    /// They are accumulated, and the sum is reduced: the last micro-step.
    HoldAndReduce,
}

/// Bytes of a gather's buffers: its parameters whole, with padding.
pub fn gathered_bytes(gather: &Gather, partitions: &[Partition], dtype: DType) -> u64 {
    gather.params.iter().map(|&p| (dtype.bytes() * partitions[p].padded_numel()) as u64).sum()
}

/// Whether a parameter's full gradient is accumulated in a different type from the communicated one.
pub fn is_rounded(spec: &ModelSpec, param: ParamId, knobs: &Knobs) -> bool {
    knobs.reduce_dtype != SHARED_GRAD && spec.is_summed(param)
}

/// The training order of one micro-step.
///
/// # Errors
/// `zero.max_live_bytes` is too small; the message has the minimum.
pub fn training(
    spec: &ModelSpec,
    partitions: &[Partition],
    placements: &[Placement],
    knobs: &Knobs,
    gradients: Gradients,
) -> Result<Schedule> {
    let head = spec.units.len() - 1;
    let forward = (0..head).map(|u| (u, Pass::Forward));
    let backward = (0..head).rev().map(|u| (u, Pass::Backward));
    let visits: Vec<(UnitId, Pass)> = forward.chain([(head, Pass::Loss)]).chain(backward).collect();
    build(spec, partitions, placements, knobs, &visits, gradients)
}

/// The order of one evaluation pass: forward only.
///
/// # Errors
/// Those of [`training`].
pub fn evaluation(
    spec: &ModelSpec,
    partitions: &[Partition],
    placements: &[Placement],
    knobs: &Knobs,
) -> Result<Schedule> {
    let head = spec.units.len() - 1;
    let visits: Vec<(UnitId, Pass)> =
        (0..head).map(|u| (u, Pass::Forward)).chain([(head, Pass::Loss)]).collect();
    build(spec, partitions, placements, knobs, &visits, Gradients::None)
}

/// The parameters a visit must gather: the sharded ones, unless it needs none (the gradient of a lookup is a
/// function of the tokens alone).
fn to_gather(spec: &ModelSpec, placements: &[Placement], (unit, pass): (UnitId, Pass)) -> Vec<ParamId> {
    if pass == Pass::Backward && spec.units[unit].role == UnitRole::Embedding {
        return Vec::new();
    }
    spec.units[unit].params.iter().copied().filter(|&p| placements[p].param == Hold::Sharded).collect()
}

fn build(
    spec: &ModelSpec,
    partitions: &[Partition],
    placements: &[Placement],
    knobs: &Knobs,
    visits: &[(UnitId, Pass)],
    gradients: Gradients,
) -> Result<Schedule> {
    let mut gathers: Vec<Gather> = Vec::new();
    let mut gather_of_visit: Vec<Option<GatherId>> = Vec::with_capacity(visits.len());
    for &(unit, pass) in visits {
        let params = to_gather(spec, placements, (unit, pass));
        let kept = gathers
            .iter()
            .position(|g| g.unit == unit && pass == Pass::Backward && !knobs.release_after_forward);
        gather_of_visit.push(match (params.is_empty(), kept) {
            (true, _) => None,
            (false, Some(forward)) => Some(forward),
            (false, None) => {
                let calls = calls(&params, partitions, knobs);
                gathers.push(Gather { unit, pass, params, calls });
                Some(gathers.len() - 1)
            }
        });
    }
    let users = spec.users();
    let last_use =
        |g: GatherId| gather_of_visit.iter().rposition(|&v| v == Some(g)).expect("a gather is for a visit");

    let no_room = |OverCap| over_cap(spec, partitions, knobs, visits, &gathers);
    let mut order = Order {
        instrs: Vec::new(),
        started: 0,
        waited: 0,
        live_bytes: 0,
        partitions,
        gathers: &gathers,
        knobs,
    };
    let mut reduces: Vec<Reduce> = Vec::new();
    let mut in_flight: Option<ReduceId> = None;
    for (i, &(unit, pass)) in visits.iter().enumerate() {
        let gather = gather_of_visit[i];
        if let Some(g) = gather {
            order.start_up_to(g, true).map_err(no_room)?;
        }
        // The next visits whose parameters may be in flight while this one computes.
        if knobs.overlap {
            let ahead = gather_of_visit[i + 1..].iter().flatten().take(knobs.prefetch_units);
            if let Some(last) = ahead.copied().max() {
                order.start_up_to(last, false).map_err(no_room)?;
            }
        }
        if let Some(g) = gather.filter(|&g| g >= order.waited) {
            order.instrs.push(Instr::Wait(g));
            order.waited = g + 1;
        }
        order.instrs.push(Instr::Compute(Visit { unit, pass, gather }));
        if let Some(g) = gather.filter(|&g| last_use(g) == i) {
            order.instrs.push(Instr::Release(g));
            order.live_bytes -= gathered_bytes(&gathers[g], partitions, knobs.param_dtype);
        }
        let complete: Vec<ParamId> = match pass {
            Pass::Forward => Vec::new(),
            _ if gradients == Gradients::None => Vec::new(),
            _ => spec.units[unit].params.iter().copied().filter(|&p| users[p][0] == unit).collect(),
        };
        if complete.is_empty() {
            continue;
        }
        let id = reduces.len();
        let buckets = buckets(&complete, partitions, knobs);
        let rounds = gradients == Gradients::Reduce && complete.iter().any(|&p| is_rounded(spec, p, knobs));
        reduces.push(Reduce { unit, params: complete, buckets });
        if matches!(gradients, Gradients::Hold | Gradients::HoldAndReduce) {
            order.instrs.push(Instr::Accumulate(id));
        }
        if gradients == Gradients::Hold {
            continue;
        }
        // One reduction in flight: its staging and its full gradients are released before the next one
        // starts.
        if let Some(previous) = in_flight.take() {
            order.instrs.push(Instr::ReduceWait(previous));
        }
        if rounds {
            order.instrs.push(Instr::Round(id));
        }
        order.instrs.push(Instr::Reduce(id));
        if knobs.overlap {
            in_flight = Some(id);
        } else {
            order.instrs.push(Instr::ReduceWait(id));
        }
    }
    if let Some(last) = in_flight {
        order.instrs.push(Instr::ReduceWait(last));
    }
    Ok(Schedule { instrs: order.instrs, gathers, reduces })
}

/// A gather that is needed now would exceed `max_live_bytes`.
struct OverCap;

/// The instruction list under construction.
struct Order<'a> {
    instrs: Vec<Instr>,
    /// Gathers `..started` are in flight or complete.
    started: usize,
    /// Gathers `..waited` are complete.
    waited: usize,
    /// Bytes of started gathers not yet released.
    live_bytes: u64,
    partitions: &'a [Partition],
    gathers: &'a [Gather],
    knobs: &'a Knobs,
}

impl Order<'_> {
    /// Starts gathers in order up to and including `last`. Without `needed` it stops early if a cap would be
    /// exceeded, or if a parameter is still in flight in an earlier gather.
    fn start_up_to(&mut self, last: GatherId, needed: bool) -> std::result::Result<(), OverCap> {
        while self.started <= last {
            let next = &self.gathers[self.started];
            let bytes = self.bytes(next);
            let fits = self.live_bytes.saturating_add(bytes) <= self.knobs.max_live_bytes;
            if needed && !fits {
                return Err(OverCap);
            }
            let on_the_way = &self.gathers[self.waited..self.started];
            let busy = on_the_way.iter().any(|g| g.params.iter().any(|p| next.params.contains(p)));
            // The first one not waited for is the current visit's own.
            let ahead: u64 = on_the_way.iter().skip(1).map(|g| self.bytes(g)).sum();
            if !needed && (busy || !fits || ahead + bytes > self.knobs.prefetch_max_bytes) {
                return Ok(());
            }
            self.instrs.push(Instr::Gather(self.started));
            self.live_bytes += bytes;
            self.started += 1;
        }
        Ok(())
    }

    fn bytes(&self, gather: &Gather) -> u64 {
        gathered_bytes(gather, self.partitions, self.knobs.param_dtype)
    }
}

/// The cap on live bytes cannot be met: the error has the minimum.
fn over_cap(
    spec: &ModelSpec,
    partitions: &[Partition],
    knobs: &Knobs,
    visits: &[(UnitId, Pass)],
    gathers: &[Gather],
) -> Error {
    // Without prefetching, the live parameters at a visit are its own gather and those held from forward to
    // backward.
    let bytes = |g: &Gather| gathered_bytes(g, partitions, knobs.param_dtype);
    let ranks = human::counted(partitions[0].world_size, "rank");
    let wants = if knobs.release_after_forward {
        let largest = gathers.iter().max_by_key(|g| bytes(g)).expect("a gather passed the cap");
        let (unit, needed) = (&spec.units[largest.unit].name, bytes(largest));
        format!("unit `{unit}` alone gathers {needed} bytes on {ranks}: at least that, or 0 for no cap")
    } else {
        // Forward gathers accumulate up to the head, except the embedding's: it has no gather in backward to
        // be held for.
        let kept = |g: &&Gather| {
            visits.contains(&(g.unit, Pass::Backward)) && spec.units[g.unit].role == UnitRole::Block
        };
        let (blocks, others): (Vec<&Gather>, Vec<&Gather>) = gathers.iter().partition(kept);
        let needed =
            blocks.iter().map(|g| bytes(g)).sum::<u64>() + others.iter().map(|g| bytes(g)).max().unwrap_or(0);
        format!(
            "zero.release_after_forward = false holds up to {needed} bytes gathered on {ranks}: at least \
             that, 0 for no cap, or release after forward"
        )
    };
    Error::Deck(vec![Fault {
        key: "zero.max_live_bytes".into(),
        value: knobs.max_live_bytes.to_string(),
        wants,
    }])
}

/// Splits a gather into calls of at most `gather_bucket_bytes`, at least one parameter each.
fn calls(params: &[ParamId], partitions: &[Partition], knobs: &Knobs) -> Vec<Range<usize>> {
    let mut calls: Vec<Range<usize>> = Vec::new();
    let mut bytes_in_call = 0;
    for (i, &p) in params.iter().enumerate() {
        let bytes = (knobs.param_dtype.bytes() * partitions[p].padded_numel()) as u64;
        match calls.last_mut() {
            Some(call) if bytes_in_call + bytes <= knobs.gather_bucket_bytes => {
                call.end = i + 1;
                bytes_in_call += bytes;
            }
            _ => {
                calls.push(i..i + 1);
                bytes_in_call = bytes;
            }
        }
    }
    calls
}

/// Splits the slices of `params` into exchanges whose receive staging stays within `reduce_bucket_bytes`:
/// (N-1) contributions per element. If a reduce-scatter adds on the way it is one sum each, but only whole
/// slices can be taken from a full gradient, so a slice larger than the cap is a separate bucket.
fn buckets(params: &[ParamId], partitions: &[Partition], knobs: &Knobs) -> Arc<[Bucket]> {
    let arrivals = knobs.arrivals(partitions[params[0]].world_size).max(1) as u64;
    // At least one cache line each, so that a tiny cap still makes progress.
    let cap_numel =
        ((knobs.reduce_bucket_bytes / knobs.reduce_dtype.bytes() as u64 / arrivals) as usize).max(16);
    let mut buckets = vec![Bucket { pieces: Vec::new() }];
    let mut room = cap_numel;
    for (position, &param) in params.iter().enumerate() {
        let mut start = 0;
        let shard_numel = partitions[param].shard_numel();
        while start < shard_numel {
            let is_empty = buckets.last().is_none_or(|bucket| bucket.pieces.is_empty());
            if room == 0 || !knobs.deterministic && room < shard_numel && !is_empty {
                buckets.push(Bucket { pieces: Vec::new() });
                room = cap_numel;
            }
            let end = if knobs.deterministic { shard_numel.min(start + room) } else { shard_numel };
            buckets.last_mut().expect("never empty").pieces.push(Piece {
                param: position,
                range: start..end,
                shard_numel,
            });
            room = room.saturating_sub(end - start);
            start = end;
        }
    }
    buckets.into()
}

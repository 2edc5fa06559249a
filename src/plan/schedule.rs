//! The order of everything in one micro-step (or one evaluation pass): gather, wait, use, release, reduce.
//!
//! It is a pure function of the model, N and the deck. The executor in `train/step.rs` runs the list from top to
//! bottom; nothing is discovered at run time.

use super::partition::Partition;
use crate::config::ZeroSection;
use crate::error::{Error, Fault, Result};
use crate::params::{ModelSpec, ParamId, UnitId, UnitRole};
use std::ops::Range;
use std::sync::Arc;

/// Index into [`Schedule::gathers`].
pub type GatherId = usize;
/// Index into [`Schedule::reduces`].
pub type ReduceId = usize;

/// What a unit is visited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Forward only.
    Forward,
    /// The head's forward, loss and, in training, backward, in one visit: it stays gathered between the two.
    Loss,
    /// Backward, from the tensors saved by forward.
    Backward,
}

/// One instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instr {
    /// Start the all-gather of a unit's parameters.
    Gather(GatherId),
    /// Wait until it has landed.
    Wait(GatherId),
    /// Compute a unit, its parameters gathered by the given gather (none: it needs no parameters).
    Compute {
        /// Which unit.
        unit: UnitId,
        /// For what.
        pass: Pass,
        /// Its parameters.
        gather: Option<GatherId>,
    },
    /// Drop the gathered parameters.
    Release(GatherId),
    /// Start the reduction of complete gradients to their owners.
    Reduce(ReduceId),
    /// Wait until the slices have been added, and drop the full gradients.
    ReduceWait(ReduceId),
}

/// One all-gather: the parameters of one visit of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gather {
    /// The unit that will use them.
    pub unit: UnitId,
    /// The visit it is for.
    pub pass: Pass,
    /// Parameters, in the order of the unit.
    pub params: Vec<ParamId>,
}

/// One gradient reduction: the parameters whose gradient is complete after the backward of `unit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduce {
    /// The unit whose backward completed the gradients.
    pub unit: UnitId,
    /// Parameters.
    pub params: Vec<ParamId>,
    /// The exchange, cut so that the receive staging keeps to `reduce_bucket_bytes`.
    pub buckets: Arc<[Bucket]>,
}

/// One exchange of a reduction: pieces that travel together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Pieces, in the order they travel.
    pub pieces: Vec<Piece>,
}

/// Part of the slices of one parameter; the same part of every rank's slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Position of the parameter in the reduction's list.
    pub param: usize,
    /// Elements, relative to the start of a slice.
    pub range: Range<usize>,
}

impl Bucket {
    /// Elements that arrive from each peer.
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
    /// Reductions; empty for evaluation.
    pub reduces: Vec<Reduce>,
}

/// The knobs the order depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knobs {
    /// Visits gathered ahead.
    pub prefetch_units: usize,
    /// Cap on bytes gathered ahead; `u64::MAX` = none.
    pub prefetch_max_bytes: u64,
    /// Cap on gathered bytes alive at once; `u64::MAX` = none.
    pub max_live_bytes: u64,
    /// Receive staging of one exchange, in bytes.
    pub reduce_bucket_bytes: u64,
    /// Collectives run beside compute.
    pub overlap: bool,
}

impl Knobs {
    /// Reads the deck's `[zero]` section, where 0 means no cap.
    pub fn from_deck(zero: &ZeroSection) -> Self {
        let cap = |bytes: u64| if bytes == 0 { u64::MAX } else { bytes };
        Knobs {
            prefetch_units: zero.prefetch_units,
            prefetch_max_bytes: cap(zero.prefetch_max_bytes),
            max_live_bytes: cap(zero.max_live_bytes),
            reduce_bucket_bytes: zero.reduce_bucket_bytes,
            overlap: zero.overlap,
        }
    }
}

/// Bytes of a gather's buffers: its parameters whole, with padding.
pub fn gathered_bytes(gather: &Gather, partitions: &[Partition]) -> u64 {
    gather.params.iter().map(|&p| 4 * partitions[p].padded_numel() as u64).sum()
}

/// The training order of one micro-step.
pub fn training(spec: &ModelSpec, partitions: &[Partition], knobs: &Knobs) -> Result<Schedule> {
    let head = spec.units.len() - 1;
    let forward = (0..head).map(|u| (u, Pass::Forward));
    let backward = (0..head).rev().map(|u| (u, Pass::Backward));
    let visits: Vec<(UnitId, Pass)> = forward.chain([(head, Pass::Loss)]).chain(backward).collect();
    build(spec, partitions, knobs, &visits, true)
}

/// The order of one evaluation pass: forward only.
pub fn evaluation(spec: &ModelSpec, partitions: &[Partition], knobs: &Knobs) -> Result<Schedule> {
    let head = spec.units.len() - 1;
    let visits: Vec<(UnitId, Pass)> = (0..head).map(|u| (u, Pass::Forward)).chain([(head, Pass::Loss)]).collect();
    build(spec, partitions, knobs, &visits, false)
}

/// Whether a visit needs its unit's parameters. The gradient of a lookup is a function of the tokens alone.
fn needs_params(spec: &ModelSpec, (unit, pass): (UnitId, Pass)) -> bool {
    !(pass == Pass::Backward && spec.units[unit].role == UnitRole::Embedding)
}

fn build(
    spec: &ModelSpec,
    partitions: &[Partition],
    knobs: &Knobs,
    visits: &[(UnitId, Pass)],
    train: bool,
) -> Result<Schedule> {
    let mut gathers = Vec::new();
    let gather_of_visit: Vec<Option<GatherId>> = visits
        .iter()
        .map(|&visit| {
            needs_params(spec, visit).then(|| {
                gathers.push(Gather { unit: visit.0, pass: visit.1, params: spec.units[visit.0].params.clone() });
                gathers.len() - 1
            })
        })
        .collect();
    check_cap(spec, partitions, knobs, &gathers)?;

    let mut order = Order { instrs: Vec::new(), started: 0, waited: 0, live_bytes: 0 };
    let mut reduces: Vec<Reduce> = Vec::new();
    let mut in_flight: Option<ReduceId> = None;
    for (i, &(unit, pass)) in visits.iter().enumerate() {
        let gather = gather_of_visit[i];
        // The visits whose parameters may be on their way while this one computes.
        let ahead =
            gather_of_visit[i + 1..].iter().flatten().take(if knobs.overlap { knobs.prefetch_units } else { 0 });
        if let Some(g) = gather {
            order.start_up_to(g, &gathers, partitions, knobs, true);
        }
        if let Some(&last) = ahead.last() {
            order.start_up_to(last, &gathers, partitions, knobs, false);
        }
        if let Some(g) = gather {
            order.instrs.push(Instr::Wait(g));
            order.waited = g + 1;
        }
        order.instrs.push(Instr::Compute { unit, pass, gather });
        if let Some(g) = gather {
            order.instrs.push(Instr::Release(g));
            order.live_bytes -= gathered_bytes(&gathers[g], partitions);
        }
        let complete: Vec<ParamId> = match pass {
            Pass::Forward => Vec::new(),
            Pass::Loss | Pass::Backward if train => {
                spec.units[unit].params.iter().copied().filter(|&p| spec.first_unit_of(p) == unit).collect()
            }
            _ => Vec::new(),
        };
        if complete.is_empty() {
            continue;
        }
        // One reduction in flight: its staging and its full gradients are gone before the next one starts.
        if let Some(previous) = in_flight.take() {
            order.instrs.push(Instr::ReduceWait(previous));
        }
        let id = reduces.len();
        let buckets = buckets(&complete, partitions, knobs.reduce_bucket_bytes);
        reduces.push(Reduce { unit, params: complete, buckets });
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

/// The instruction list while it grows.
struct Order {
    instrs: Vec<Instr>,
    /// Gathers `..started` are on their way or have landed.
    started: usize,
    /// Gathers `..waited` have landed.
    waited: usize,
    /// Bytes of started gathers that are not released.
    live_bytes: u64,
}

impl Order {
    /// Starts gathers in order up to and including `last`; stops early where a cap would be passed, or a parameter
    /// is still on its way in an earlier gather, unless the gather is `needed` now.
    fn start_up_to(
        &mut self,
        last: GatherId,
        gathers: &[Gather],
        partitions: &[Partition],
        knobs: &Knobs,
        needed: bool,
    ) {
        while self.started <= last {
            let next = &gathers[self.started];
            let bytes = gathered_bytes(next, partitions);
            if !needed {
                let ahead: u64 = gathers[self.waited..self.started]
                    .iter()
                    .skip(1) // the first one not waited for is the current visit's own
                    .map(|g| gathered_bytes(g, partitions))
                    .sum();
                let busy =
                    gathers[self.waited..self.started].iter().any(|g| g.params.iter().any(|p| next.params.contains(p)));
                if busy || self.live_bytes + bytes > knobs.max_live_bytes || ahead + bytes > knobs.prefetch_max_bytes {
                    return;
                }
            }
            self.instrs.push(Instr::Gather(self.started));
            self.live_bytes += bytes;
            self.started += 1;
        }
    }
}

/// A unit that is larger than the cap on its own can never be used.
fn check_cap(spec: &ModelSpec, partitions: &[Partition], knobs: &Knobs, gathers: &[Gather]) -> Result<()> {
    let largest = gathers.iter().max_by_key(|g| gathered_bytes(g, partitions));
    match largest {
        Some(g) if gathered_bytes(g, partitions) > knobs.max_live_bytes => Err(Error::Deck(vec![Fault {
            key: "zero.max_live_bytes".into(),
            value: knobs.max_live_bytes.to_string(),
            wants: format!(
                "unit `{}` alone gathers {} bytes on {} ranks: at least that, or 0 for no cap",
                spec.units[g.unit].name,
                gathered_bytes(g, partitions),
                partitions[0].world_size
            ),
        }])),
        _ => Ok(()),
    }
}

/// Cuts the slices of `params` into exchanges whose receive staging, (N-1) slices, keeps to `cap_bytes`.
fn buckets(params: &[ParamId], partitions: &[Partition], cap_bytes: u64) -> Arc<[Bucket]> {
    let peers = (partitions[params[0]].world_size - 1).max(1) as u64;
    // At least one cache line per peer, so that a tiny cap still makes progress.
    let cap_numel = ((cap_bytes / 4 / peers) as usize).max(16);
    let mut buckets = vec![Bucket { pieces: Vec::new() }];
    let mut room = cap_numel;
    for (position, &param) in params.iter().enumerate() {
        let mut start = 0;
        let shard_numel = partitions[param].shard_numel();
        while start < shard_numel {
            if room == 0 {
                buckets.push(Bucket { pieces: Vec::new() });
                room = cap_numel;
            }
            let end = shard_numel.min(start + room);
            buckets.last_mut().expect("never empty").pieces.push(Piece { param: position, range: start..end });
            room -= end - start;
            start = end;
        }
    }
    buckets.into()
}

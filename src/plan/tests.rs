//! Properties of every plan, whatever the model, the rank count and the knobs.

use super::knobs::Knobs;
use super::schedule::{Instr, Pass, Schedule, Visit};
use super::slots::Slot;
use super::*;
use crate::params::{Init, ParamSpec, TensorSpec, UnitRole, UnitSpec};
use proptest::prelude::*;
use std::collections::HashSet;

/// A model of the same build as GPT-2 with parameters of arbitrary size; the head is tied to parameter 0.
pub(super) fn model(sizes: &[Vec<usize>]) -> ModelSpec {
    let mut params = Vec::new();
    let mut units = Vec::new();
    for (u, sizes) in sizes.iter().enumerate() {
        let ids = sizes
            .iter()
            .map(|&numel| {
                let name = format!("u{u}.p{}", params.len());
                params.push(ParamSpec { name, shape: vec![numel], init: Init::Zeros, decay: false });
                params.len() - 1
            })
            .collect();
        units.push(UnitSpec {
            name: format!("u{u}"),
            role: if u == 0 { UnitRole::Embedding } else { UnitRole::Block },
            params: ids,
            pieces: &[],
            saved: vec![TensorSpec::f32("saved", 7 * (u + 1))],
            forward_work: vec![TensorSpec::f32("forward_work", 5)],
            backward_work: vec![TensorSpec::f32("backward_work", 9)],
        });
    }
    let head = units.last_mut().expect("at least two units");
    head.role = UnitRole::Head;
    head.params.push(0);
    ModelSpec {
        params,
        units,
        aliases: Vec::new(),
        activation_dtype: DType::F32,
        residual_numel: 12,
        tokens_per_micro_batch: 4,
        flops_per_token: 1.0,
    }
}

fn knobs(prefetch_units: usize, overlap: bool) -> Knobs {
    Knobs { prefetch_units, overlap, reduce_bucket_bytes: 1 << 20, ..Knobs::default() }
}

fn gathered_bytes(gather: &schedule::Gather, partitions: &[Partition]) -> u64 {
    schedule::gathered_bytes(gather, partitions, DType::F32)
}

prop_compose! {
    pub(super) fn any_model()(
        sizes in prop::collection::vec(prop::collection::vec(1usize..60, 1..4), 2..7)
    ) -> ModelSpec {
        model(&sizes)
    }
}

prop_compose! {
    pub(super) fn any_knobs()(
        stage in 0u8..4, prefetch_units in 0usize..5, overlap: bool, bucket in 4u64..3000,
        ahead in prop::option::of(0u64..600), call in prop::option::of(4u64..600),
        persistent in prop::option::of(0u64..150), again in 0u32..4, last: bool
    ) -> Knobs {
        use crate::config::ActivationCheckpointing::{All, Every, None};
        Knobs {
            stage,
            reduce_bucket_bytes: bucket,
            prefetch_max_bytes: ahead.unwrap_or(u64::MAX),
            gather_bucket_bytes: call.unwrap_or(u64::MAX),
            persistence_threshold_bytes: persistent.unwrap_or(0),
            activation_checkpointing: match again { 0 => None, 1 => All, k => Every(k) },
            reduce: if last { ReduceWhen::LastMicroStep } else { ReduceWhen::EveryMicroStep },
            ..knobs(prefetch_units, overlap)
        }
    }
}

/// Checks one schedule from top to bottom; returns the largest number of gathered bytes alive at once.
fn walk(spec: &ModelSpec, partitions: &[Partition], s: &Schedule) -> u64 {
    #[derive(PartialEq, Debug, Clone, Copy)]
    enum At {
        Sharded,
        Gathering,
        Live,
        Used,
    }
    let mut at = vec![At::Sharded; s.gathers.len()];
    let mut released = HashSet::new();
    let mut lent: HashSet<ParamId> = HashSet::new();
    let (mut live, mut peak) = (0, 0);
    let mut reduced: Vec<bool> = vec![false; s.reduces.len()];
    let mut visited = HashSet::new();
    for instr in &s.instrs {
        match *instr {
            Instr::Gather(g) => {
                assert!(at[g] == At::Sharded && !released.contains(&g), "gather {g} starts once");
                for &p in &s.gathers[g].params {
                    assert!(lent.insert(p), "parameter {p} is in one collective at a time");
                }
                at[g] = At::Gathering;
                live += gathered_bytes(&s.gathers[g], partitions);
                peak = peak.max(live);
            }
            Instr::Wait(g) => {
                assert_eq!(at[g], At::Gathering);
                at[g] = At::Live;
                s.gathers[g].params.iter().for_each(|p| assert!(lent.remove(p)));
            }
            Instr::Compute(Visit { unit, pass, gather }) => {
                if let Some(g) = gather {
                    assert_eq!(
                        (at[g], s.gathers[g].unit, s.gathers[g].pass),
                        (At::Live, unit, pass),
                        "gathered before use"
                    );
                    at[g] = At::Used;
                }
                if pass == Pass::Backward {
                    assert!(visited.contains(&(unit, Pass::Forward)), "forward before backward");
                }
                assert!(visited.insert((unit, pass)), "a unit is visited once a pass");
            }
            Instr::Release(g) => {
                assert_eq!(at[g], At::Used, "released after its last use");
                at[g] = At::Sharded;
                released.insert(g);
                live -= gathered_bytes(&s.gathers[g], partitions);
            }
            Instr::Reduce(r) => {
                for &p in &s.reduces[r].params {
                    let users = spec.units.iter().enumerate().filter(|(_, u)| u.params.contains(&p));
                    for (u, unit) in users {
                        let pass = if unit.role == UnitRole::Head { Pass::Loss } else { Pass::Backward };
                        assert!(
                            visited.contains(&(u, pass)),
                            "gradient of {p} is complete when it is reduced"
                        );
                    }
                }
            }
            Instr::Accumulate(_) | Instr::Round(_) => {}
            Instr::ReduceWait(r) => assert!(!std::mem::replace(&mut reduced[r], true)),
        }
    }
    assert!(reduced.iter().all(|&r| r), "every reduction is waited for");
    assert_eq!(live, 0, "nothing is gathered between steps");
    peak
}

proptest! {
    #[test]
    fn every_gather_precedes_its_use_and_ends_after_it(
        spec in any_model(), n in 1usize..9, knobs in any_knobs()
    ) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        walk(&spec, &plan.partitions, &plan.train.schedule);
        walk(&spec, &plan.partitions, &plan.eval.schedule);
    }

    #[test]
    fn gathered_bytes_never_pass_the_cap(
        spec in any_model(), n in 1usize..9, knobs in any_knobs(), slack in 0u64..500
    ) {
        let free = Plan::new(&spec, n, &knobs).unwrap();
        let largest = free
            .train
            .schedule
            .gathers
            .iter()
            .map(|g| gathered_bytes(g, &free.partitions))
            .max()
            .unwrap_or(0);
        prop_assume!(largest > 0);
        let capped = Knobs { max_live_bytes: largest + slack, ..knobs };
        let plan = Plan::new(&spec, n, &capped).unwrap();
        prop_assert!(walk(&spec, &plan.partitions, &plan.train.schedule) <= largest + slack);
        let refused = Plan::new(&spec, n, &Knobs { max_live_bytes: largest - 1, ..knobs });
        prop_assert!(
            refused.unwrap_err().to_string().contains(&largest.to_string()),
            "the error names what would do"
        );
    }

    #[test]
    fn moved_bytes_are_two_gathers_and_one_reduction_less_what_is_named(
        spec in any_model(), n in 1usize..9, knobs in any_knobs(), n_micro in 1usize..20
    ) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let peers = n as u64 - 1;
        let slices = |wanted: &dyn Fn(usize) -> bool| -> u64 {
            (0..spec.params.len())
                .filter(|&p| wanted(p))
                .map(|p| 4 * plan.partitions[p].shard_numel() as u64)
                .sum()
        };
        let (all, cut) =
            (slices(&|_| true) * peers, slices(&|p| plan.placements[p].param == Hold::Sharded) * peers);
        let saved: u64 = plan.savings(&spec).iter().map(|s| s.bytes).sum();
        let a = MicroBatches::new(n_micro, n).micro_steps() as u64;
        let last = knobs.reduce == ReduceWhen::LastMicroStep;
        let refreshed = if knobs.stage == 0 { all } else { all - cut };
        let mut reduced = 0;
        for rank in 0..n {
            let volume = plan.step_volume(rank, n_micro);
            prop_assert_eq!(volume.all_gather_bytes, a * (2 * cut - saved) + refreshed);
            // Rule 6, and for stages below 3: (A + 1) or, reduced once, 2 times everything.
            let reductions = if last { 1 } else { a };
            let bound = if knobs.stage == 3 {
                2 * a * cut + (all - cut) + reductions * all
            } else {
                (reductions + 1) * all
            };
            prop_assert!(volume.total() <= bound, "{} of at most {}", volume.total(), bound);
            reduced += volume.reduce_scatter_bytes;
        }
        // Each contribution reaches every owner but the one that computed it, once.
        let contributions = if last { n_micro.min(n) } else { n_micro } as u64;
        prop_assert_eq!(reduced, contributions * all);
    }

    #[test]
    fn the_bound_and_a_node_of_one_rank_are_those_of_the_stage_and_the_element_types(
        spec in any_model(), n in 1usize..9, knobs in any_knobs(), n_micro in 1usize..20,
        bf16 in any::<[bool; 3]>()
    ) {
        let dtype = |bf16: bool| if bf16 { DType::Bf16 } else { DType::F32 };
        let reduce_dtype = dtype(bf16[2] && knobs.reduce == ReduceWhen::EveryMicroStep);
        let knobs = Knobs {
            param_dtype: dtype(bf16[0]),
            grad_dtype: dtype(bf16[1]),
            reduce_dtype,
            persistence_threshold_bytes: 0,
            ..knobs
        };
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let paper = plan_table::Paper::new(&spec, &plan, plan_table::Shape { n_micro, ranks_per_node: 1 });
        let volume = plan.step_volume(0, n_micro);
        prop_assert_eq!(paper.node.all_gather_bytes, volume.all_gather_bytes);
        prop_assert_eq!(paper.node.reduce_scatter_bytes, volume.reduce_scatter_bytes);

        let a = MicroBatches::new(n_micro, n).micro_steps() as u64;
        let reductions = if knobs.reduce == ReduceWhen::LastMicroStep { 1 } else { a };
        // What the bound leaves out: gathers that are saved, and contributions of this rank's own and of
        // none.
        let saved: u64 = plan.savings(&spec).iter().map(|s| a * s.bytes).sum();
        let slices: u64 =
            plan.partitions.iter().map(|p| (knobs.reduce_dtype.bytes() * p.shard_numel()) as u64).sum();
        let absent = reductions * (n as u64 - 1) * slices - volume.reduce_scatter_bytes;
        prop_assert_eq!(volume.total() + saved + absent, paper.upper_bound.bytes);
    }

    #[test]
    fn a_plan_of_a_billion_micro_batches_and_a_million_ranks_is_that_of_few(
        spec in any_model(), n in 1usize..9, knobs in any_knobs(), n_micro in 1usize..30
    ) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let paper = plan_table::Paper::new(&spec, &plan, plan_table::Shape { n_micro, ranks_per_node: 1 });
        for rank in 0..n {
            let volume = |n_micro| {
                let v = plan.step_volume(rank, n_micro);
                (v.all_gather_bytes, v.reduce_scatter_bytes)
            };
            let row = paper
                .step_volume
                .iter()
                .find(|row| (row.first_rank..=row.last_rank).contains(&rank))
                .unwrap();
            prop_assert_eq!((row.all_gather_bytes, row.reduce_scatter_bytes), volume(n_micro));
            // Each micro-step more of all ranks brings the same (from the second on, where gradients are
            // held).
            let (few, more, many) =
                (volume(n_micro + n), volume(n_micro + 2 * n), volume(n_micro + (1_000_000_000 + 1) * n));
            prop_assert_eq!(many.0 - few.0, 1_000_000_000 * (more.0 - few.0));
            prop_assert_eq!(many.1 - few.1, 1_000_000_000 * (more.1 - few.1));
        }
        let wide = Plan::new(&spec, 1 << 20, &knobs).unwrap();
        let paper = plan_table::Paper::new(&spec, &wide, plan_table::Shape { n_micro, ranks_per_node: 8 });
        let last = paper.step_volume.last().unwrap().last_rank;
        prop_assert!(last == (1 << 20) - 1 && paper.step_volume.len() <= 2, "{:?}", paper.step_volume);
    }

    #[test]
    fn exchanges_cover_every_slice_once_and_keep_to_the_staging_cap(
        spec in any_model(), n in 1usize..9, knobs in any_knobs()
    ) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let mut seen: Vec<usize> = vec![0; spec.params.len()];
        for reduce in &plan.train.schedule.reduces {
            for bucket in reduce.buckets.iter() {
                let floor = 16; // elements per peer that a bucket may always have
                prop_assert!(
                    bucket.numel() <= floor.max(knobs.reduce_bucket_bytes as usize / 4 / (n - 1).max(1))
                );
                for piece in &bucket.pieces {
                    let param = reduce.params[piece.param];
                    prop_assert_eq!(piece.range.start, seen[param], "in order, without a gap");
                    seen[param] = piece.range.end;
                }
            }
        }
        for (partition, seen) in plan.partitions.iter().zip(seen) {
            prop_assert_eq!(partition.shard_numel(), seen);
        }
    }

    #[test]
    fn a_reduce_scatter_takes_whole_slices_and_one_sum_of_each_arrives(
        spec in any_model(), n in 2usize..9, knobs in any_knobs(), n_micro in 1usize..20
    ) {
        let knobs = Knobs { deterministic: false, ..knobs };
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let cap_numel = 16.max(knobs.reduce_bucket_bytes as usize / 4);
        for (r, reduce) in plan.train.schedule.reduces.iter().enumerate() {
            let pieces: Vec<_> = reduce.buckets.iter().flat_map(|bucket| &bucket.pieces).collect();
            prop_assert_eq!(pieces.len(), reduce.params.len());
            for (position, (piece, &param)) in pieces.into_iter().zip(&reduce.params).enumerate() {
                prop_assert_eq!(
                    (piece.param, piece.range.clone()),
                    (position, 0..plan.partitions[param].shard_numel())
                );
            }
            for bucket in reduce.buckets.iter() {
                prop_assert!(bucket.numel() <= cap_numel || bucket.pieces.len() == 1);
            }
            let largest = reduce.buckets.iter().map(|bucket| bucket.numel()).max().unwrap();
            prop_assert_eq!(plan.train.staging[r].map(|id| plan.train.slots[id].numel), Some(largest));
        }
        let slices: usize = plan.partitions.iter().map(|p| 4 * p.shard_numel()).sum();
        let reductions: u64 = plan.reductions(n_micro).map(|(_, times)| times).sum();
        for rank in 0..n {
            let bytes = plan.step_volume(rank, n_micro).reduce_scatter_bytes;
            prop_assert_eq!(bytes, reductions * ((n - 1) * slices) as u64);
        }
    }

    #[test]
    fn living_buffers_lie_apart_in_the_arena(spec in any_model(), n in 1usize..9, knobs in any_knobs()) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        for program in [&plan.train, &plan.eval] {
            let step: &[Slot] = if std::ptr::eq(program, &plan.eval) { &[] } else { &plan.step.slots };
            let all: Vec<&Slot> = plan.resident.iter().chain(step).chain(&program.slots).collect();
            for (i, a) in all.iter().enumerate() {
                prop_assert!(a.offset + a.bytes() <= plan.arena_bytes);
                for b in &all[..i] {
                    let in_time = a.first <= b.last && b.first <= a.last;
                    let in_space = a.offset < b.offset + b.bytes() && b.offset < a.offset + a.bytes();
                    prop_assert!(!(in_time && in_space), "{} and {}", a.name, b.name);
                }
            }
        }
    }

    #[test]
    fn resident_state_is_the_stage_formula_on_padded_parameters(
        spec in any_model(), n in 1usize..9, knobs in any_knobs()
    ) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let (whole, cut) = placement::bytes_per_param(&knobs);
        let padded: u64 = plan.partitions.iter().map(|p| p.padded_numel() as u64).sum();
        let formula = whole as u64 * padded + cut as u64 * padded / n as u64;
        let persistent: u64 = (0..spec.params.len())
            .filter(|&p| knobs.stage == 3 && plan.placements[p].param == Hold::Whole)
            .map(|p| 4 * (plan.partitions[p].padded_numel() - plan.partitions[p].shard_numel()) as u64)
            .sum();
        prop_assert_eq!(plan.resident_bytes(), formula + persistent);
    }
}

#[test]
fn prefetch_starts_the_next_gather_before_the_current_unit_computes() {
    let spec = model(&[vec![8], vec![8], vec![8], vec![8]]);
    let plan = Plan::new(&spec, 2, &knobs(1, true)).unwrap();
    let instrs = &plan.train.schedule.instrs;
    let start = instrs.iter().position(|i| *i == Instr::Gather(2)).unwrap();
    let previous = instrs
        .iter()
        .position(|i| matches!(i, Instr::Compute(Visit { unit: 1, pass: Pass::Forward, .. })))
        .unwrap();
    assert!(start < previous);
    let without = Plan::new(&spec, 2, &knobs(0, true)).unwrap();
    let peak = |p: &Plan| p.train.peaks.by_kind.iter().find(|(k, _)| *k == MemKind::Prefetched).unwrap().1;
    assert!(peak(&plan) > peak(&without), "prefetching costs memory, and the plan says how much");
}

#[test]
fn the_last_unit_and_the_embedding_are_gathered_once_and_named() {
    let spec = model(&[vec![10, 3], vec![8], vec![5]]);
    let plan = Plan::new(&spec, 2, &knobs(0, false)).unwrap();
    let savings = plan.savings(&spec);
    let names: Vec<(&str, u64)> = savings.iter().map(|s| (s.param.as_str(), s.bytes)).collect();
    // The tied parameter 0 is gathered for the embedding and for the head: twice, nothing saved.
    assert_eq!(names, [("u0.p1", 8), ("u2.p3", 12)]);
}

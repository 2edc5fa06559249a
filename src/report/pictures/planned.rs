//! Figures from the plan alone: storage and compute by rank, and the cost of other stages and rank counts.

use super::run_plan::RunPlan;
use crate::figures::stages::Point;
use crate::figures::storage::{Held, Param, Unit};
use crate::figures::{Figure, compute, stages, storage};
use crate::params::ModelSpec;
use crate::plan::placement::{Hold, Placement};
use crate::plan::schedule::{self, Instr, Pass};
use crate::plan::{Knobs, Plan};
use crate::telemetry::MemKind;

/// Rank counts of the curves by stage.
const RANK_COUNTS: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 32, 40, 48, 64];

/// The parameters of each unit; one shared by several units under the first.
pub fn own_params(spec: &ModelSpec) -> Vec<Vec<usize>> {
    let users = spec.users();
    (0..spec.units.len())
        .map(|u| spec.units[u].params.iter().copied().filter(|&p| users[p][0] == u).collect())
        .collect()
}

/// Storage by rank.
pub fn storage(planned: &RunPlan) -> Figure {
    let RunPlan { spec, plan, .. } = planned;
    let held = |placement: &Placement| match (placement.param, placement.optim) {
        (_, Hold::Whole) => Held::Whole,
        (Hold::Whole, Hold::Sharded) => Held::WeightsWhole,
        (Hold::Sharded, Hold::Sharded) => Held::Cut,
    };
    let param = |&p: &usize| Param {
        name: spec.params[p].name.clone(),
        numel: spec.params[p].numel(),
        held: held(&plan.placements[p]),
    };
    let own = own_params(spec);
    let units: Vec<Unit> = spec
        .units
        .iter()
        .zip(&own)
        .map(|(unit, own)| Unit { name: unit.name.clone(), params: own.iter().map(param).collect() })
        .collect();
    storage::figure(&units, plan.world_size)
}

/// Compute by rank.
pub fn compute(planned: &RunPlan) -> Figure {
    let RunPlan { spec, plan, n_micro } = planned;
    let schedule = &plan.train.schedule;
    let mut visits: Vec<compute::Visit> = Vec::new();
    for instr in &schedule.instrs {
        match *instr {
            Instr::Compute(schedule::Visit { unit, pass, .. }) => visits.push(compute::Visit {
                unit: spec.units[unit].name.clone(),
                pass: match pass {
                    Pass::Forward => compute::Pass::Forward,
                    Pass::Loss => compute::Pass::Loss,
                    Pass::Backward => compute::Pass::Backward,
                },
                gathers: schedule.gathers.iter().any(|g| g.unit == unit && g.pass == pass),
                reduces: false,
            }),
            Instr::Reduce(_) => {
                if let Some(last) = visits.last_mut() {
                    last.reduces = true;
                }
            }
            _ => {}
        }
    }
    compute::Compute { world_size: plan.world_size, n_micro: *n_micro, visits }.figure()
}

/// Memory and communication of a plan.
fn point(plan: &Plan, n_micro: usize) -> Point {
    let of = |kind: MemKind| plan.resident.iter().filter(|s| s.kind == kind).map(|s| s.bytes() as u64).sum();
    // Later ranks receive no less: they have a micro-batch less often.
    let volume = plan.step_volume(plan.world_size - 1, n_micro);
    Point {
        stage: plan.knobs.stage,
        n_ranks: plan.world_size,
        resident: [MemKind::ParamShard, MemKind::Master, MemKind::GradShard, MemKind::OptimState].map(of),
        all_gather_bytes: volume.all_gather_bytes,
        reduce_scatter_bytes: volume.reduce_scatter_bytes,
    }
}

/// Memory and communication of each stage. A plan that a cap of the deck forbids is omitted.
pub fn stages(planned: &RunPlan) -> Figure {
    let RunPlan { spec, plan, n_micro } = planned;
    let of = |stage: u8, n: usize| {
        let knobs = Knobs { stage, ..plan.knobs };
        Plan::new(spec, n, &knobs).ok().map(|plan| point(&plan, *n_micro))
    };
    let here: Vec<Point> = (0..=3).filter_map(|stage| of(stage, plan.world_size)).collect();
    let over: Vec<Point> = (0..=3).flat_map(|stage| RANK_COUNTS.map(|n| of(stage, n))).flatten().collect();
    stages::figure(&here, &over, *n_micro, plan.knobs.stage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::planned;

    #[test]
    fn the_pictures_are_of_the_plan_to_the_element_and_the_byte() {
        for (n, keys) in
            [(1, &[][..]), (3, &["zero.stage=2"]), (5, &["zero.persistence_threshold_bytes=200"]), (64, &[])]
        {
            let planned = planned(n, keys);
            let figure = storage(&planned);
            let document = roxmltree::Document::parse(&figure.light).unwrap();
            for (param, partition) in planned.spec.params.iter().zip(&planned.plan.partitions) {
                for rank in 0..n {
                    let own = partition.shard_range(rank);
                    let found = document.descendants().any(|node| {
                        let is = |name: &str, value: &str| node.attribute(name) == Some(value);
                        is("data-param", &param.name)
                            && is("data-rank", &rank.to_string())
                            && is("data-start", &own.start.to_string())
                            && is("data-end", &own.end.to_string())
                    });
                    assert!(found, "{} of rank {rank} of {n}: {own:?}", param.name);
                }
            }
            let step = planned.plan.step_volume(n - 1, planned.n_micro);
            let point = point(&planned.plan, planned.n_micro);
            assert_eq!(point.resident.iter().sum::<u64>(), planned.plan.resident_bytes());
            assert_eq!(point.all_gather_bytes + point.reduce_scatter_bytes, step.total());
            assert!(
                (0..n).all(|rank| planned.plan.step_volume(rank, planned.n_micro).total() <= step.total())
            );
            let visits = compute(&planned).light.matches("data-visit").count();
            assert_eq!(visits, n * (2 * planned.spec.units.len() - 1));
            assert!(stages(&planned).caption.contains(&format!("stage {}", planned.plan.knobs.stage)));
        }
    }
}

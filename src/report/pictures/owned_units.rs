//! The cost of owning whole units and broadcasting them, for the run's model, compared with sharding.
//!
//! With U units, unit u belonging to rank `u div ceil(U / N)`, `E(r)` elements owned by rank r, and K bytes
//! of state per parameter (16 for bf16 with bf16 gradients and for fp32):
//!
//! - at rest rank r holds `K * E(r)`; with every parameter sharded each rank holds `K * sum of ceil(numel /
//!   N)`;
//! - the same gathers as planned, each a broadcast from its owner: rank r receives `param bytes * numel` of
//!   every gathered parameter that it does not own, in every micro-step; a gather of slices brings it `(N -
//!   1) * ceil(numel / N)` of each;
//! - gradients are sent to the owner of the unit, which receives one contribution of each other rank that has
//!   one: `reduce bytes * E(r)` each; sharded, every rank receives as many of `sum of ceil(numel / N)`
//!   elements.
//!
//! Summed over ranks both move the same apart from padding. The difference is which rank holds it, and which
//! ranks send and receive while others wait.

use super::planned::own_params;
use super::run_plan::RunPlan;
use crate::error::Result;
use crate::figures::Figure;
use crate::figures::ownership::{Cost, Ownership};
use crate::plan::MicroBatches;
use crate::plan::placement::bytes_per_param;
use crate::plan::{Knobs, Plan};

/// Plots both. A run of another stage is compared as if it were of stage 3, the subject of the figure.
pub fn figure(planned: &RunPlan) -> Result<Figure> {
    Ok(compare(planned)?.figure())
}

fn compare(planned: &RunPlan) -> Result<Ownership> {
    let RunPlan { spec, plan, n_micro } = planned;
    let (n, stage) = (plan.world_size, plan.knobs.stage);
    let as_stage_3;
    let (plan, remark) = match stage {
        3 => (plan, String::new()),
        _ => {
            as_stage_3 = Plan::new(spec, n, &Knobs { stage: 3, ..plan.knobs })?;
            (&as_stage_3, format!("Both for stage 3; the run itself was of stage {stage}."))
        }
    };
    let own = own_params(spec);
    let per_rank = spec.units.len().div_ceil(n);
    let owners: Vec<usize> = (0..spec.units.len()).map(|u| u / per_rank).collect();
    let mut owner_of_param = vec![0; spec.params.len()];
    let mut owned = vec![0u64; n];
    for (params, &owner) in own.iter().zip(&owners) {
        for &p in params {
            owner_of_param[p] = owner;
            owned[owner] += spec.params[p].numel() as u64;
        }
    }
    let (whole, cut) = bytes_per_param(&plan.knobs);
    let n_micro_steps = MicroBatches::new(*n_micro, n).micro_steps();
    let received = |rank: usize| -> u64 {
        let param_bytes = plan.knobs.param_dtype.bytes() as u64;
        let foreign = |a: usize| -> u64 {
            let gathered = plan.micro_step(a, n_micro_steps).schedule.gathers.iter().flat_map(|g| &g.params);
            let foreign = gathered.filter(|&&p| owner_of_param[p] != rank);
            foreign.map(|&p| param_bytes * spec.params[p].numel() as u64).sum()
        };
        // All micro-steps except the last are alike.
        let broadcast = foreign(0) * (n_micro_steps as u64 - 1) + foreign(n_micro_steps - 1);
        let contributions: u64 =
            plan.reductions(*n_micro).map(|(k, times)| plan.n_received(rank, k) as u64 * times).sum();
        broadcast + contributions * plan.knobs.reduce_dtype.bytes() as u64 * owned[rank]
    };
    Ok(Ownership {
        world_size: n,
        units: spec
            .units
            .iter()
            .zip(&own)
            .map(|(unit, own)| (unit.name.clone(), own.iter().map(|&p| spec.params[p].numel()).sum()))
            .collect(),
        owners,
        wrong: Cost {
            resident_bytes: owned.iter().map(|e| (whole + cut) as u64 * e).collect(),
            received_bytes: (0..n).map(received).collect(),
        },
        right: Cost {
            resident_bytes: vec![plan.resident_bytes(); n],
            received_bytes: (0..n).map(|rank| plan.step_volume(rank, *n_micro).total()).collect(),
        },
        remark,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::planned;

    #[test]
    fn the_right_side_is_the_plan_and_the_wrong_one_the_same_traffic_badly_shared() {
        for n in [1, 2, 3, 5, 7, 64] {
            let planned = planned(n, &[]);
            let both = compare(&planned).unwrap();
            let psi = planned.spec.numel() as u64;
            assert_eq!(both.right.resident_bytes, vec![planned.plan.resident_bytes(); n]);
            for rank in 0..n {
                let volume = planned.plan.step_volume(rank, planned.n_micro);
                assert_eq!(both.right.received_bytes[rank], volume.total());
            }
            assert_eq!(both.wrong.resident_bytes.iter().sum::<u64>(), 16 * psi, "each element has one owner");
            // Gathers in sum over ranks: each of the others receives everything, once per gather; without
            // padding.
            let gathered: u64 = planned
                .plan
                .train
                .schedule
                .gathers
                .iter()
                .flat_map(|g| &g.params)
                .map(|&p| 4 * planned.spec.params[p].numel() as u64)
                .sum();
            let a = MicroBatches::new(planned.n_micro, n).micro_steps() as u64;
            let reduced: u64 = (0..n)
                .map(|rank| {
                    let runs = planned.plan.reductions(planned.n_micro);
                    let arrive: u64 =
                        runs.map(|(k, times)| planned.plan.n_received(rank, k) as u64 * times).sum();
                    arrive * both.wrong.resident_bytes[rank] / 16 * 4
                })
                .sum();
            assert_eq!(
                both.wrong.received_bytes.iter().sum::<u64>(),
                a * (n as u64 - 1) * gathered + reduced,
                "{n} ranks"
            );
            let fullest = both.wrong.resident_bytes.iter().max().unwrap();
            assert!(n == 1 || *fullest > planned.plan.resident_bytes(), "{n} ranks");
        }
    }

    #[test]
    fn another_stage_is_compared_as_stage_3_and_says_so() {
        let both = compare(&planned(3, &["zero.stage=1"])).unwrap();
        assert!(both.remark.contains("was of stage 1"));
        assert_eq!(both.right, compare(&planned(3, &[])).unwrap().right);
    }
}

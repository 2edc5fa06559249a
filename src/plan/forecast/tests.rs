//! Properties of every forecast, whatever the model, the ranks, the knobs and the hardware.

use super::cost::Machine;
use super::simulate::{CommQueue, Task};
use super::traffic::{self, Layout};
use super::*;
use crate::config::GatherRoute;
use crate::plan::tests::{any_knobs, any_model, model};
use crate::plan::{Knobs, placement};
use crate::work::LinearShape;
use proptest::prelude::*;

/// Kernels of some length for each unit.
fn works(spec: &ModelSpec, scale: usize) -> Vec<UnitWork> {
    let unit = |u: usize| {
        let product = LinearShape { rows: 64 * scale, n_in: 64 * (u + 1), n_out: 256 };
        UnitWork {
            forward: vec![product.work(Kernel::LinearForward, DType::F32, 4, false)],
            backward: vec![product.work(Kernel::LinearBackwardInput, DType::F32, 4, false); 2],
        }
    };
    (0..spec.units.len()).map(unit).collect()
}

fn hardware(words: &[(&str, String)]) -> Hardware {
    let words: Vec<(String, String)> =
        words.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    Hardware::named(std::path::Path::new("a100-80gb"), &words).unwrap()
}

fn forecast(spec: &ModelSpec, plan: &Plan, n_micro: usize, per_node: usize, hardware: &Hardware) -> Forecast {
    let works = works(spec, 1);
    Forecast::new(&Subject { spec, works: &works, plan, n_micro, per_node, tf32: false }, hardware).unwrap()
}

proptest! {
    #[test]
    fn waiting_is_no_more_than_collectives_and_a_step_no_less_than_its_longest_queue(
        spec in any_model(), n in 1usize..20, per_node in 1usize..9, knobs in any_knobs(),
        n_micro in 1usize..40
    ) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let f = forecast(&spec, &plan, n_micro, per_node, &hardware(&[("assumed.contention", "0".into())]));
        let refreshed = f.optimizer_s;
        // Two collectives at once share the links: together they take no longer than one after the other.
        prop_assert!(f.exposed_comm_s <= (f.gather_s + f.reduce_s) * (1.0 + 1e-9) + refreshed, "{f:?}");
        prop_assert!(f.step_s >= f.compute_s.max(f.gather_s + f.reduce_s) * (1.0 - 1e-9), "{f:?}");
        prop_assert!(
            f.step_s <= (f.compute_s + f.gather_s + f.reduce_s + f.optimizer_s) * (1.0 + 1e-9),
            "{f:?}"
        );
        prop_assert!(f.mfu > 0.0 && f.hfu < 1.0 && f.idle_ranks < n, "{f:?}");
    }

    #[test]
    fn more_bandwidth_is_never_slower(
        spec in any_model(), n in 2usize..20, per_node in 1usize..9, knobs in any_knobs(),
        times in 1.0f64..8.0
    ) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let at = |times: f64| {
            let keys =
                [("node.gb_per_s", 300.0), ("network.gb_per_s", 25.0), ("device.memory_gb_per_s", 2039.0)];
            let keys: Vec<_> = keys.map(|(key, value)| (key, (value * times * 1e-4).to_string())).to_vec();
            forecast(&spec, &plan, 2 * n, per_node, &hardware(&keys)).step_s
        };
        prop_assert!(at(times) <= at(1.0) * (1.0 + 1e-9), "{} after {}", at(times), at(1.0));
    }

    #[test]
    fn without_overlap_every_collective_is_exposed(
        spec in any_model(), n in 2usize..20, per_node in 1usize..9, knobs in any_knobs()
    ) {
        let knobs = Knobs { overlap: false, ..knobs };
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let f = forecast(&spec, &plan, n, per_node, &hardware(&[]));
        prop_assert!(f.exposed_comm_s >= (f.gather_s + f.reduce_s) * (1.0 - 1e-9), "{f:?}");
        // With overlap but nothing ahead, all gathers still are.
        let plan = Plan::new(&spec, n, &Knobs { overlap: true, prefetch_units: 0, ..knobs }).unwrap();
        let f = forecast(&spec, &plan, n, per_node, &hardware(&[]));
        prop_assert!(f.exposed_comm_s >= f.gather_s * (1.0 - 1e-9), "{f:?}");
    }

    #[test]
    fn bytes_are_those_of_the_plan_and_what_leaves_a_node_of_one_rank_is_what_it_sends(
        spec in any_model(), n in 1usize..12, per_node in 1usize..5, knobs in any_knobs(),
        n_micro in 1usize..30
    ) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let (layout, a) = (Layout::new(n, per_node), MicroBatches::new(n_micro, n).micro_steps());
        let (mut gathered, mut reduced, mut leaving) = (0, 0, 0);
        for a_i in 0..a {
            let schedule = &plan.micro_step(a_i, a).schedule;
            for gather in &schedule.gathers {
                let slices: usize = gather.params.iter().map(|&p| 4 * plan.partitions[p].shard_numel()).sum();
                let moved = traffic::all_gather(layout, GatherRoute::Ring, slices as u64);
                (gathered, leaving) = (gathered + moved.received(), leaving + moved.leaving_node);
            }
            for reduce in schedule.reduces.iter().filter(|_| plan.train_hold.is_none() || a_i + 1 == a) {
                let slices: usize = reduce.params.iter().map(|&p| 4 * plan.partitions[p].shard_numel()).sum();
                let k = plan.contributors(n_micro, a_i);
                reduced += traffic::reduce_scatter(layout, true, k, slices as u64).received();
            }
        }
        let volume = plan.step_volume(0, n_micro);
        let refreshed: u64 = plan.refreshed_state().map_or(0, |s| plan.refresh.received_bytes(s, n));
        prop_assert_eq!(
            (gathered + refreshed, reduced),
            (volume.all_gather_bytes, volume.reduce_scatter_bytes)
        );
        let f = forecast(&spec, &plan, n_micro, per_node, &hardware(&[]));
        prop_assert_eq!((f.all_gather_bytes, f.reduce_scatter_bytes), (gathered + refreshed, reduced));
        let refreshed_leaving = if n > per_node { refreshed } else { 0 };
        prop_assert_eq!(f.leaving_node_all_gather_bytes, leaving + refreshed_leaving);
        // Every rank on a node of its own: sent by the first in exchanges is what others receive of it.
        let own = forecast(&spec, &plan, n_micro, 1, &hardware(&[]));
        let contributions: u64 = plan.reductions(n_micro).map(|(_, times)| times).sum();
        prop_assert_eq!(
            own.leaving_node_reduce_scatter_bytes,
            contributions * (n as u64 - 1) * plan.reduce_slice_bytes()
        );
    }

    #[test]
    fn the_run_follows_the_schedule_instruction_by_instruction(
        spec in any_model(), n in 1usize..9, knobs in any_knobs()
    ) {
        let plan = Plan::new(&spec, n, &knobs).unwrap();
        let (works, hardware) = (works(&spec, 1), hardware(&[]));
        let subject =
            Subject { spec: &spec, works: &works, plan: &plan, n_micro: n, per_node: n.min(8), tf32: false };
        let machine = Machine::new(&hardware, Layout::new(n, n.min(8)), false).unwrap();
        let timed = TimedProgram::new(&subject, &machine, &plan.train, n);
        let mut tasks = timed.tasks.iter();
        let mut jobs = std::collections::HashMap::new();
        for instr in plan.train.schedule.instrs.iter().filter(|i| !matches!(i, Instr::Release(_))) {
            match (*instr, tasks.next().expect("a task for each")) {
                (Instr::Gather(g), Task::Start { job, queue: CommQueue::Gather, .. }) => {
                    _ = jobs.insert((true, g), *job)
                }
                (Instr::Reduce(r), Task::Start { job, queue: CommQueue::Reduce, .. }) => {
                    _ = jobs.insert((false, r), *job)
                }
                (Instr::Wait(g), Task::Wait(job)) => prop_assert_eq!(jobs[&(true, g)], *job),
                (Instr::ReduceWait(r), Task::Wait(job)) => prop_assert_eq!(jobs[&(false, r)], *job),
                (Instr::Compute(_) | Instr::Accumulate(_) | Instr::Round(_), Task::Compute(seconds)) => {
                    prop_assert!(*seconds > 0.0);
                }
                (instr, task) => prop_assert!(false, "{instr:?} became {task:?}"),
            }
        }
        prop_assert!(tasks.next().is_none());
        // Gathers end in the order they were started.
        let ended = simulate::run(&timed.tasks, machine.sharing(n)).ended;
        let gathers: Vec<usize> =
            ended.iter().copied().filter(|job| jobs.iter().any(|(k, v)| k.0 && v == job)).collect();
        prop_assert!(gathers.is_sorted(), "{gathers:?}");
    }
}

#[test]
fn odd_ranks_nodes_and_slices_are_planned_and_too_many_devices_refused() {
    // Parameters of one and two elements: most ranks own nothing.
    let spec = model(&[vec![2, 1], vec![40], vec![1]]);
    for (n, per_node) in [(1, 8), (3, 2), (7, 3), (4096, 8), (4096, 5)] {
        let plan = Plan::new(&spec, n, &Knobs::default()).unwrap();
        let f = forecast(&spec, &plan, n, per_node, &hardware(&[]));
        assert_eq!((f.n_nodes, f.idle_ranks), (n.div_ceil(per_node.min(n)), 0), "{n} ranks");
        assert!(f.step_s.is_finite() && f.step_s > 0.0 && f.fits);
    }
    let plan = Plan::new(&spec, 16, &Knobs::default()).unwrap();
    let works = works(&spec, 1);
    let subject = Subject { spec: &spec, works: &works, plan: &plan, n_micro: 16, per_node: 16, tf32: false };
    let said = Forecast::new(&subject, &hardware(&[])).unwrap_err().to_string();
    assert!(said.contains("has 8 devices") && said.contains("--ranks-per-node must be at most 8"), "{said}");
}

#[test]
fn four_ranks_on_two_cores_take_twice_as_long_as_on_four() {
    let spec = model(&[vec![400, 3], vec![4000], vec![500]]);
    let plan = Plan::new(&spec, 4, &Knobs::default()).unwrap();
    let on = |cores: usize| {
        let keys = [
            ("hardware.kind", "cpu".into()),
            ("node.devices", cores.to_string()),
            ("assumed.contention", "1".into()),
        ];
        forecast(&spec, &plan, 4, 4, &hardware(&keys))
    };
    let (two, four) = (on(2), on(4));
    assert!((two.step_s / four.step_s - 2.0).abs() < 1e-9, "{} {}", two.step_s, four.step_s);
    assert_eq!(two.compute_s, four.compute_s, "by themselves kernels take what they take");
    // Nothing hides on cores that collectives run on.
    let in_a_row = four.compute_s + four.gather_s + four.reduce_s + four.optimizer_s;
    assert!((four.step_s / in_a_row - 1.0).abs() < 1e-9, "{} {in_a_row}", four.step_s);
    // In the last micro-step two ranks have a micro-batch: each has a core.
    let busy = forecast(
        &spec,
        &plan,
        6,
        4,
        &hardware(&[("hardware.kind", "cpu".into()), ("node.devices", "2".into())]),
    );
    assert_eq!((busy.micro_steps, busy.idle_ranks), (2, 2));
}

#[test]
fn a_recomputed_block_costs_its_forward_again_and_stages_keep_their_bytes() {
    let spec = model(&[vec![64], vec![4096], vec![4096], vec![64]]);
    let at = |knobs: Knobs| forecast(&spec, &Plan::new(&spec, 4, &knobs).unwrap(), 8, 4, &hardware(&[]));
    let plain = at(Knobs::default());
    let again = at(Knobs {
        activation_checkpointing: crate::config::ActivationCheckpointing::All,
        ..Knobs::default()
    });
    assert_eq!(plain.recompute_s, 0.0);
    assert!((again.compute_s - plain.compute_s - again.recompute_s).abs() < 1e-12 && again.recompute_s > 0.0);
    assert!(again.hfu > 0.0 && again.mfu < plain.mfu);
    // Below stage 3 parameters are gathered once, after the update, and nothing hides that.
    let stage_2 = at(Knobs { stage: 2, ..Knobs::default() });
    assert_eq!(stage_2.gather_s, 0.0);
    assert!(stage_2.optimizer_s > plain.optimizer_s);
    assert_eq!(placement::bytes_per_param(&Knobs::default()), (0, 16));
}

//! A discrete-event simulation of one program: the executor's instructions from top to bottom, collectives on
//! separate queues.
//!
//! As in `train/step.rs`, the host runs the list in order; a collective starts when its queue reaches it, and
//! not before the compute ahead of it is done; a wait blocks the compute queue. Concurrent work shares the
//! device and the links, so the simulation advances all of it at fixed rates from each event to the next.
//! Pure.

use std::collections::VecDeque;

/// The queues of collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommQueue {
    /// All-gathers.
    Gather = 0,
    /// Reductions.
    Reduce = 1,
}

/// One entry of the compute queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Task {
    /// Kernels that take this many seconds alone.
    Compute(f64),
    /// Enqueues a collective that takes this many seconds alone.
    Start {
        /// Name for [`Task::Wait`]; each is started once.
        job: usize,
        /// The queue.
        queue: CommQueue,
        /// Its duration.
        seconds: f64,
    },
    /// Continues when the collective is done.
    Wait(usize),
}

/// Resources shared by concurrent work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sharing {
    /// Devices available to the kernels of one rank: 1, or less if ranks share cores.
    pub capacity: f64,
    /// Fraction of a device that a collective uses.
    pub contention: f64,
}

impl Default for Sharing {
    fn default() -> Self {
        Sharing { capacity: 1.0, contention: 0.0 }
    }
}

/// The result.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// From the first task to the last.
    pub seconds: f64,
    /// Time with kernels running.
    pub compute_s: f64,
    /// Time with a collective of each queue running.
    pub comm_s: [f64; 2],
    /// Time compute waited for a collective.
    pub exposed_s: f64,
    /// Jobs in the order they ended.
    pub ended: Vec<usize>,
}

/// Runs tasks to their end.
pub fn run(tasks: &[Task], sharing: Sharing) -> Outcome {
    let n_jobs = tasks.iter().filter(|task| matches!(task, Task::Start { .. })).count();
    let mut done = vec![false; n_jobs];
    let mut queues: [VecDeque<(usize, f64)>; 2] = Default::default();
    let mut tasks = tasks.iter().copied().peekable();
    let mut computing: Option<f64> = None;
    let mut outcome = Outcome::default();
    loop {
        while computing.is_none() {
            match tasks.peek() {
                Some(&Task::Compute(seconds)) => computing = Some(seconds),
                Some(&Task::Start { job, queue, seconds }) => {
                    queues[queue as usize].push_back((job, seconds))
                }
                Some(&Task::Wait(job)) if done[job] => {}
                Some(Task::Wait(_)) | None => break,
            }
            tasks.next();
        }
        let n_comm = queues.iter().filter(|queue| !queue.is_empty()).count() as f64;
        if computing.is_none() && n_comm == 0.0 {
            assert!(tasks.peek().is_none(), "a wait is for a collective that was started");
            return outcome;
        }
        let demand = f64::from(u8::from(computing.is_some())) + sharing.contention * n_comm;
        let device_speed = (sharing.capacity / demand.max(f64::MIN_POSITIVE)).min(1.0);
        // If collectives do not use the device, its load does not affect them.
        let comm_speed = if sharing.contention > 0.0 { device_speed } else { 1.0 }.min(1.0 / n_comm.max(1.0));
        let heads = queues.iter().filter_map(|queue| queue.front()).map(|(_, left)| left / comm_speed);
        let next_s = heads.chain(computing.map(|left| left / device_speed)).fold(f64::INFINITY, f64::min);

        outcome.seconds += next_s;
        match &mut computing {
            Some(left) => {
                outcome.compute_s += next_s;
                // What ends now has ended, regardless of rounding.
                let ends = *left / device_speed <= next_s;
                *left -= next_s * device_speed;
                if ends {
                    computing = None;
                }
            }
            None if tasks.peek().is_some() => outcome.exposed_s += next_s,
            None => {}
        }
        for (queue, busy_s) in queues.iter_mut().zip(&mut outcome.comm_s) {
            let Some((job, left)) = queue.front_mut() else { continue };
            *busy_s += next_s;
            let ends = *left / comm_speed <= next_s;
            *left -= next_s * comm_speed;
            if ends {
                done[*job] = true;
                outcome.ended.push(*job);
                queue.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn start(job: usize, queue: CommQueue, seconds: f64) -> Task {
        Task::Start { job, queue, seconds }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
    }

    #[test]
    fn a_prefetched_gather_hides_behind_compute_as_far_as_that_lasts() {
        let (gather, reduce) = (CommQueue::Gather, CommQueue::Reduce);
        let tasks = [start(0, gather, 5.0), Task::Compute(3.0), Task::Wait(0), Task::Compute(1.0)];
        let outcome = run(&tasks, Sharing::default());
        assert_eq!((outcome.seconds, outcome.compute_s, outcome.exposed_s), (6.0, 4.0, 2.0));
        // On one core nothing hides: 5 + 4, and while both run each has half of it.
        let outcome = run(&tasks, Sharing { capacity: 1.0, contention: 1.0 });
        assert!(near(outcome.seconds, 9.0) && near(outcome.exposed_s, 2.0), "{outcome:?}");
        // Half a core: all of it twice.
        let outcome = run(&tasks, Sharing { capacity: 0.5, contention: 1.0 });
        assert!(near(outcome.seconds, 18.0), "{outcome:?}");
        // Two collectives share the links: 2 + 2 seconds are both over after 4.
        let both = [start(0, gather, 2.0), start(1, reduce, 2.0), Task::Wait(1)];
        assert_eq!(run(&both, Sharing::default()).seconds, 4.0);
        // Of one queue, the second waits for the first.
        let queued =
            [start(0, gather, 2.0), start(1, gather, 1.0), Task::Wait(0), Task::Compute(1.0), Task::Wait(1)];
        let outcome = run(&queued, Sharing::default());
        assert_eq!((outcome.seconds, outcome.exposed_s, outcome.ended), (3.0, 2.0, vec![0, 1]));
    }

    prop_compose! {
        /// Visits with gathers some way ahead and one reduction in flight, as schedules are.
        fn any_tasks()(
            visits in prop::collection::vec((0.0f64..5.0, 0.0f64..5.0, 0.0f64..5.0, any::<bool>()), 1..20),
            ahead in 0usize..4
        ) -> Vec<Task> {
            let n = visits.len();
            let mut tasks = Vec::new();
            let (mut started, mut in_flight) = (0, None);
            for (i, &(compute, _, reduce, reduces)) in visits.iter().enumerate() {
                while started < n.min(i + 1 + ahead) {
                    tasks.push(start(started, CommQueue::Gather, visits[started].1));
                    started += 1;
                }
                tasks.extend([Task::Wait(i), Task::Compute(compute)]);
                if reduces {
                    tasks.extend(in_flight.take().map(Task::Wait));
                    tasks.push(start(n + i, CommQueue::Reduce, reduce));
                    in_flight = Some(n + i);
                }
            }
            tasks.extend(in_flight.map(Task::Wait));
            renumbered(&tasks)
        }
    }

    /// Jobs numbered in the order of their start.
    fn renumbered(tasks: &[Task]) -> Vec<Task> {
        let started: Vec<usize> = tasks
            .iter()
            .filter_map(|t| if let Task::Start { job, .. } = t { Some(*job) } else { None })
            .collect();
        let number = |job: usize| started.iter().position(|&j| j == job).unwrap();
        tasks
            .iter()
            .map(|task| match *task {
                Task::Start { job, queue, seconds } => start(number(job), queue, seconds),
                Task::Wait(job) => Task::Wait(number(job)),
                compute => compute,
            })
            .collect()
    }

    fn without_reductions(tasks: &[Task]) -> Vec<Task> {
        let reductions: Vec<usize> = (tasks.iter())
            .filter_map(|task| match *task {
                Task::Start { job, queue: CommQueue::Reduce, .. } => Some(job),
                _ => None,
            })
            .collect();
        let of_one = |task: &&Task| match task {
            Task::Start { job, .. } | Task::Wait(job) => reductions.contains(job),
            Task::Compute(_) => false,
        };
        tasks.iter().filter(|task| !of_one(task)).copied().collect()
    }

    fn sums(tasks: &[Task]) -> (f64, [f64; 2]) {
        let (mut compute, mut comm) = (0.0, [0.0; 2]);
        for task in tasks {
            match *task {
                Task::Compute(seconds) => compute += seconds,
                Task::Start { queue, seconds, .. } => comm[queue as usize] += seconds,
                Task::Wait(_) => {}
            }
        }
        (compute, comm)
    }

    fn scaled(tasks: &[Task], compute: f64, comm: f64) -> Vec<Task> {
        let scale = |task: &Task| match *task {
            Task::Compute(seconds) => Task::Compute(seconds * compute),
            Task::Start { job, queue, seconds } => start(job, queue, seconds * comm),
            wait => wait,
        };
        tasks.iter().map(scale).collect()
    }

    proptest! {
        #[test]
        fn no_run_is_shorter_than_a_queue_nor_longer_than_all_in_a_row(
            tasks in any_tasks(), capacity in 0.2f64..=1.0, contention in 0.0f64..=1.0
        ) {
            let outcome = run(&tasks, Sharing { capacity, contention });
            let (compute, comm) = sums(&tasks);
            let least = compute.max(comm[0] + comm[1]);
            prop_assert!(outcome.seconds >= least * (1.0 - 1e-9), "{} of at least {least}", outcome.seconds);
            let most = (compute + comm[0] + comm[1]) / capacity;
            prop_assert!(outcome.seconds <= most * (1.0 + 1e-9), "{} of at most {most}", outcome.seconds);
            prop_assert!(outcome.exposed_s <= (outcome.comm_s[0] + outcome.comm_s[1]) * (1.0 + 1e-9));
            prop_assert!(near(outcome.compute_s + outcome.exposed_s, outcome.seconds));
        }

        /// Of what shares nothing. Two queues that share a link may well be slower on a faster device: a
        /// reduction that starts sooner takes bandwidth from the gather that compute waits for.
        #[test]
        fn faster_links_or_devices_are_never_slower(
            tasks in any_tasks(), compute in 0.1f64..=1.0, comm in 0.1f64..=1.0
        ) {
            let tasks = renumbered(&without_reductions(&tasks));
            let seconds = |tasks: &[Task]| run(tasks, Sharing::default()).seconds;
            let before = seconds(&tasks);
            let links = seconds(&scaled(&tasks, 1.0, comm));
            prop_assert!(links <= before * (1.0 + 1e-9), "links {links} before {before}");
            let device = seconds(&scaled(&tasks, compute, 1.0));
            prop_assert!(device <= before * (1.0 + 1e-9), "device {device} before {before}");
        }

        #[test]
        fn a_machine_twice_as_fast_takes_half_as_long(
            tasks in any_tasks(), scale in 0.1f64..=1.0, capacity in 0.2f64..=1.0, contention in 0.0f64..=1.0
        ) {
            let seconds = |tasks: &[Task]| run(tasks, Sharing { capacity, contention }).seconds;
            let (before, after) = (seconds(&tasks), seconds(&scaled(&tasks, scale, scale)));
            prop_assert!((after - before * scale).abs() <= 1e-6 * before, "{after} of {before} by {scale}");
        }

        #[test]
        fn without_prefetching_every_gather_is_exposed(
            gathers in prop::collection::vec((0.0f64..5.0, 0.0f64..5.0), 1..20)
        ) {
            let mut tasks = Vec::new();
            for (i, &(gather, compute)) in gathers.iter().enumerate() {
                tasks.extend([start(i, CommQueue::Gather, gather), Task::Wait(i), Task::Compute(compute)]);
            }
            let outcome = run(&tasks, Sharing { capacity: 1.0, contention: 0.3 });
            let comm: f64 = gathers.iter().map(|g| g.0).sum();
            prop_assert!(near(outcome.exposed_s, comm) && near(outcome.comm_s[0], comm));
        }
    }
}

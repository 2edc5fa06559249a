//! What every section works with: the ranks, the deck, the baseline; buffers, timed calls, names of ranks.
//!
//! What several sections ask of a [`Device`] or of the reference model stands here once.

use super::baseline::Baseline;
use super::deadline::OwnWork;
use super::metric::{Metric, Source, Status};
use crate::backend::agree::all_or_none;
use crate::backend::memory::Memory;
use crate::backend::{Backend, Buf, Comm, Device, Queue, View};
use crate::config::acceptance::{Deck, LimitsSection};
use crate::config::{self, Limit, Written};
use crate::dtype::DType;
use crate::error::{Error, Exit, Result};
use crate::model::Model;
use crate::params::ModelSpec;
use crate::plan::memory::{Slot, lay_in_a_row};
use crate::telemetry::MemKind;
use crate::test_hooks;
use crate::train::node_memory::NodeMemory;
use half::bf16;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A figure, and the limit of the deck that it is held against: its key, its value.
type Limited = (&'static str, &'static str, fn(&LimitsSection) -> &Written<Limit>);

/// The figure that each limit of the deck is about.
const LIMITED: [Limited; 22] = [
    ("device.gemm_f32.slowest", "gemm_f32_gflops", |limits| &limits.gemm_f32_gflops),
    ("device.gemm_bf16.slowest", "gemm_bf16_gflops", |limits| &limits.gemm_bf16_gflops),
    ("device.memory.slowest", "memory_gb_per_s", |limits| &limits.memory_gb_per_s),
    ("collectives.all_gather.busbw", "all_gather_busbw", |limits| &limits.all_gather_busbw),
    ("collectives.reduce_scatter.busbw", "reduce_scatter_busbw", |limits| &limits.reduce_scatter_busbw),
    ("collectives.library_reduce_scatter.busbw", "library_reduce_scatter_busbw", |limits| {
        &limits.library_reduce_scatter_busbw
    }),
    ("collectives.all_reduce.busbw", "all_reduce_busbw", |limits| &limits.all_reduce_busbw),
    ("collectives.broadcast.busbw", "broadcast_busbw", |limits| &limits.broadcast_busbw),
    ("collectives.point_to_point.busbw", "point_to_point_busbw", |limits| &limits.point_to_point_busbw),
    ("collectives.latency_us", "latency_us", |limits| &limits.latency_us),
    ("collectives.overlap", "overlap", |limits| &limits.overlap),
    ("storage.write", "write_gb_per_s", |limits| &limits.write_gb_per_s),
    ("storage.read", "read_gb_per_s", |limits| &limits.read_gb_per_s),
    ("storage.metadata", "metadata_per_s", |limits| &limits.metadata_per_s),
    ("training.tokens_per_s", "tokens_per_s", |limits| &limits.tokens_per_s),
    ("training.mfu", "mfu", |limits| &limits.mfu),
    ("training.step_p99", "step_p99_ms", |limits| &limits.step_p99_ms),
    ("training.exposed_comm", "exposed_comm", |limits| &limits.exposed_comm),
    ("training.losses", "loss", |limits| &limits.loss),
    ("scaling.strong_efficiency", "strong_efficiency", |limits| &limits.strong_efficiency),
    ("scaling.weak_efficiency", "weak_efficiency", |limits| &limits.weak_efficiency),
    ("elasticity.goodput", "goodput", |limits| &limits.goodput),
];

/// Makes a group of the ranks with the same colour, ordered by key. Collective over the whole job.
pub type Split<'a, C> = dyn Fn(usize, usize) -> Result<C> + 'a;

/// The job that is judged.
pub struct Lab<'a, B: Backend> {
    /// This rank's device.
    pub device: &'a B::Device,
    /// All ranks.
    pub comm: &'a B::Comm,
    /// Groups of them.
    pub split: &'a Split<'a, B::Comm>,
    /// What to measure.
    pub deck: &'a Deck,
    /// An earlier run.
    pub baseline: &'a Baseline,
    /// Node of each rank.
    pub hosts: Vec<String>,
    /// What ran, for the reports: program, MPI, instruction set.
    pub versions: BTreeMap<String, String>,
    /// Fill released buffers with NaN.
    pub poison: bool,
    /// When the process started.
    pub started: Instant,
    /// Ends the job on every rank.
    pub abort: fn(Exit),
    /// Whether this rank is at work of its own.
    pub own_work: OwnWork,
}

impl<B: Backend> Lab<'_, B> {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// All ranks.
    pub fn n(&self) -> usize {
        self.comm.size()
    }

    /// `rank 3 on n2`.
    pub fn name(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.hosts[rank])
    }

    /// A figure held against its limit in the deck, one of [`LIMITED`].
    pub fn judged(&self, name: &str, value: f64, unit: &str, theory: Option<f64>) -> Metric {
        let (.., limit) =
            LIMITED.iter().find(|(figure, ..)| *figure == name).unwrap_or_else(|| panic!("{name} has no limit"));
        let judged =
            Metric::info(name, value, unit).judged(limit(&self.deck.limits), self.baseline.value(name), theory);
        match judged.source {
            Some(Source::Baseline) if self.baseline.is_of_other_than(self.n()) => {
                judged.because(format!("the baseline is of {} ranks", self.baseline.n_ranks))
            }
            _ => judged,
        }
    }

    /// What `stage` has found, with a failure for each figure that the deck has a reference for and that was not measured.
    pub fn with_missing(&self, stage: &str, metrics: Vec<Metric>) -> Vec<Metric> {
        with_missing(self.deck, stage, metrics)
    }

    /// The training deck of the reference run, for what needs its sizes alone: its paths lead nowhere.
    pub fn reference_deck(&self) -> Result<config::Deck> {
        self.deck.reference("tokens.u16", "reference", self.deck.training.steps)
    }

    /// The parameters and units of the reference model.
    pub fn reference_spec(&self) -> Result<ModelSpec> {
        Ok(Model::of_deck::<B::Device>(&self.reference_deck()?).spec)
    }

    /// The same number of every rank. Collective.
    pub fn gather(&self, own: f64) -> Result<Vec<f64>> {
        self.comm.control().all_gather_f64(&[own])
    }

    /// Buffers of these sizes in elements, in memory that collectives work on. Collective.
    pub fn buffers(&self, sizes: &[(usize, DType)]) -> Result<Vec<Buf>> {
        self.buffers_of(self.comm, sizes)
    }

    /// The same for the ranks of `comm`. Collective over them.
    ///
    /// # Errors
    /// For all alike: the memory of a node, or of a device, does not hold them.
    pub fn buffers_of(&self, comm: &B::Comm, sizes: &[(usize, DType)]) -> Result<Vec<Buf>> {
        all_or_none(comm, self.check_room(sizes.iter().map(|(numel, dtype)| (numel * dtype.bytes()) as u64).sum()))?;
        buffers::<B>(self.device, comm, sizes)
    }

    /// The system hands out memory on credit and ends a job that takes more than there is. Devices with memory of their own refuse.
    fn check_room(&self, bytes: u64) -> Result<()> {
        let Some(node) = NodeMemory::here().filter(|_| self.device.free_bytes().is_none()) else { return Ok(()) };
        let host = &self.hosts[self.rank()];
        let n_here = self.hosts.iter().filter(|h| *h == host).count() as u64;
        // Numbers are made and checked in copies.
        let needed = bytes.saturating_mul(2 * n_here);
        if needed <= node.available_bytes {
            return Ok(());
        }
        Err(Error::Input(format!(
            "buffers and their copies take {needed} bytes on {host} ({n_here} ranks), which has {} free: lower device.gemm_n, \
             device.memory_bytes, collectives.max_bytes or the reference model, or start fewer ranks on a node",
            node.available_bytes
        )))
    }

    /// Puts f32 or bf16 numbers into a buffer: `value(i)` must be exact in its type.
    pub fn fill(&self, buf: &mut Buf, value: impl Fn(usize) -> f32) -> Result<()> {
        let numbers = (0..buf.numel()).map(value);
        match buf.dtype() {
            DType::Bf16 => {
                let bits: Vec<u16> = numbers.map(|x| bf16::from_f32(x).to_bits()).collect();
                self.device.upload(buf.view_mut(), bytemuck::cast_slice(&bits))
            }
            _ => {
                let numbers: Vec<f32> = numbers.collect();
                self.device.upload(buf.view_mut(), bytemuck::cast_slice(&numbers))
            }
        }
    }

    /// The numbers of a buffer.
    pub fn read(&self, view: View<'_>) -> Result<Vec<f32>> {
        Ok(self.device.read(view)?.into_owned())
    }

    /// Waits until everything on the compute queue is done.
    pub fn settle(&self) -> Result<()> {
        self.device.when(&self.device.mark(Queue::Compute)).map(|_| ())
    }

    /// Mean time of calls of `work`, made for `seconds` and at least three times, after one that is not timed. The mean, because what
    /// others take of a rank's core falls between most of its short calls: their median would not see it.
    pub fn mean_time(&self, seconds: f64, work: impl FnMut()) -> Result<Duration> {
        self.own_work.run(|| self.mean_of_calls(seconds, work))
    }

    fn mean_of_calls(&self, seconds: f64, mut work: impl FnMut()) -> Result<Duration> {
        work();
        self.settle()?;
        let began = Instant::now();
        let mut n_calls = 0;
        while n_calls < 3 || began.elapsed().as_secs_f64() < seconds {
            let started = Instant::now();
            work();
            self.settle()?;
            test_hooks::drag(started.elapsed());
            n_calls += 1;
        }
        Ok(began.elapsed() / n_calls)
    }
}

/// [`Lab::buffers`] of any group.
pub fn buffers<B: Backend>(device: &B::Device, comm: &B::Comm, sizes: &[(usize, DType)]) -> Result<Vec<Buf>> {
    let slot = |&(numel, dtype): &(usize, DType)| Slot::always("bench".into(), MemKind::Workspace, numel, dtype);
    let mut slots: Vec<Slot> = sizes.iter().map(slot).collect();
    let bytes = lay_in_a_row(&mut slots, 0);
    let mut arena = None;
    device.release();
    let allocated = comm.alloc(bytes).and_then(|a| device.reserve(0, 0).map(|()| _ = arena.insert(a)));
    all_or_none(comm, allocated)?;
    let mut memory = Memory::<B::Device>::new(arena.expect("no rank failed"), false);
    let mut bufs: Vec<Buf> =
        slots.iter().map(|slot| memory.take(device, slot, MemKind::Workspace, Queue::Compute)).collect();
    // Pages are there before anything is timed.
    bufs.iter_mut().for_each(|buf| device.fill_bytes(buf.view_mut(), 0));
    Ok(bufs)
}

/// [`Lab::with_missing`] of a deck.
fn with_missing(deck: &Deck, stage: &str, mut metrics: Vec<Metric>) -> Vec<Metric> {
    for (name, key, limit) in LIMITED.iter().filter(|(name, ..)| name.split('.').next() == Some(stage)) {
        let limit = limit(&deck.limits);
        let own = metrics.iter().position(|m| m.name == *name);
        let is_measured = own.is_some_and(|i| metrics[i].status != Status::Skipped);
        if limit.reference.is_none() || is_measured {
            continue;
        }
        // A section that could measure nothing has one line that says why, by its own name.
        let why = own.or_else(|| metrics.iter().position(|m| m.name == stage)).map(|i| metrics[i].reason.clone());
        let missing = Metric {
            reference: limit.reference,
            low: limit.low,
            high: limit.high,
            source: Some(Source::Deck),
            status: Status::Fail,
            ..Metric::skipped(name, format!("limits.{key} has a reference, and there is no figure"))
        };
        let missing = missing.because(why.unwrap_or_default());
        match own {
            Some(i) => metrics[i] = missing,
            None => metrics.push(missing),
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deck(limits: &str) -> Deck {
        Deck::parse(&format!("run.dir = \"r\"\n{limits}"), &[], "test.toml").unwrap()
    }

    #[test]
    fn every_limit_of_the_deck_is_about_one_figure() {
        let limits = toml::Table::try_from(&deck("").limits).unwrap();
        let mut about: Vec<&str> = LIMITED.iter().map(|(_, key, _)| *key).collect();
        about.sort_unstable();
        let mut keys: Vec<&str> = limits.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(about, keys);
    }

    #[test]
    fn a_reference_without_a_figure_fails_and_says_why_there_is_none() {
        let deck = deck("limits.weak_efficiency = \"0.9 -10%\"\nlimits.overlap = \"0.5 -10%\"");
        let found = with_missing(&deck, "scaling", vec![Metric::skipped("scaling", "one rank")]);
        let missing = found.iter().find(|m| m.name == "scaling.weak_efficiency").unwrap();
        assert_eq!((missing.status, missing.reference, missing.value), (Status::Fail, Some(0.9), None));
        assert!(missing.reason.starts_with("one rank; limits.weak_efficiency has a reference"), "{missing:?}");
        assert_eq!(found.len(), 2, "no other figure has a reference: {found:?}");
        let measured = vec![Metric::info("collectives.overlap", 0.5, "")];
        assert_eq!(with_missing(&deck, "collectives", measured.clone()), measured);
    }
}

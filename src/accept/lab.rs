//! What every section works with: the ranks, the deck, the baseline; buffers, timed calls, names of ranks.
//!
//! What several sections ask of a [`Device`] or of the reference model stands here once.

use super::baseline::Baseline;
use super::metric::Metric;
use crate::backend::agree::all_or_none;
use crate::backend::memory::Memory;
use crate::backend::{Backend, Buf, Comm, Device, Queue, View};
use crate::config::acceptance::Deck;
use crate::config::{self, Limit};
use crate::dtype::DType;
use crate::error::{Exit, Result};
use crate::model::Model;
use crate::params::ModelSpec;
use crate::plan::memory::{Slot, lay_in_a_row};
use crate::telemetry::MemKind;
use crate::test_hooks;
use half::bf16;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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

    /// A figure held against the deck's limit `limits.<key>`.
    pub fn judged(&self, name: &str, key: &str, value: f64, unit: &str, theory: Option<f64>) -> Metric {
        Metric::info(name, value, unit).judged(&self.limit(key), self.baseline.value(name), theory)
    }

    /// The deck's limit of that name.
    fn limit(&self, key: &str) -> Limit {
        let limits = toml::Value::try_from(&self.deck.limits).expect("a section is a table");
        let text = limits.get(key).and_then(|v| v.as_str()).unwrap_or_else(|| panic!("no limit {key}"));
        text.parse().expect("the deck was checked")
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
        self.comm.all_gather_f64(&[own])
    }

    /// Buffers of these sizes in elements, in memory that collectives work on. Collective.
    pub fn buffers(&self, sizes: &[(usize, DType)]) -> Result<Vec<Buf>> {
        buffers::<B>(self.device, self.comm, sizes)
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

    /// Median time of calls of `work`, made for `seconds` and at least three times, after one that is not timed.
    pub fn median_time(&self, seconds: f64, mut work: impl FnMut()) -> Result<Duration> {
        work();
        self.settle()?;
        let began = Instant::now();
        let mut times = Vec::new();
        while times.len() < 3 || began.elapsed().as_secs_f64() < seconds {
            let started = Instant::now();
            work();
            self.settle()?;
            test_hooks::drag(started.elapsed());
            times.push(started.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
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

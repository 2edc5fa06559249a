//! The memory ledger: every planned byte a rank holds, by kind, current and peak.
//!
//! The arena and the executor write it; the plan predicts it; between steps it contains only the shards. Must
//! not know: the origin of buffers, units' names.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use crate::human;

/// The purpose of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemKind {
    /// The parameters a rank stores, slices or whole, in param_dtype.
    ParamShard,
    /// fp32 master weights for low-precision parameters.
    Master,
    /// The reduced gradients a rank stores, slices or whole, in grad_dtype.
    GradShard,
    /// Fp32 sums of gradient slices during a step, if the slices at rest are of lower precision or whole.
    GradSum,
    /// The optimizer's states.
    #[serde(rename = "moment")]
    OptimState,
    /// Whole parameters of units in use.
    Gathered,
    /// Whole parameters of units that are prefetched.
    Prefetched,
    /// Whole gradients not yet reduced.
    FullGrad,
    /// Received contributions of a gradient exchange.
    ReduceStaging,
    /// Outputs saved from forward to backward.
    Activation,
    /// Scratch of one operation.
    Workspace,
    /// Tokens and targets of a micro-batch.
    Input,
    /// Host copies in transit to or from a device or a file.
    Staging,
}

impl MemKind {
    /// Every kind, in display order.
    pub const ALL: [MemKind; 13] = [
        MemKind::ParamShard,
        MemKind::Master,
        MemKind::GradShard,
        MemKind::GradSum,
        MemKind::OptimState,
        MemKind::Gathered,
        MemKind::Prefetched,
        MemKind::FullGrad,
        MemKind::ReduceStaging,
        MemKind::Activation,
        MemKind::Workspace,
        MemKind::Input,
        MemKind::Staging,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            MemKind::ParamShard => "params at rest",
            MemKind::Master => "master weights",
            MemKind::GradShard => "grads at rest",
            MemKind::GradSum => "grad sums",
            MemKind::OptimState => "optimizer state",
            MemKind::Gathered => "gathered params",
            MemKind::Prefetched => "prefetched params",
            MemKind::FullGrad => "full grads",
            MemKind::ReduceStaging => "reduce staging",
            MemKind::Activation => "activations",
            MemKind::Workspace => "workspace",
            MemKind::Input => "input",
            MemKind::Staging => "staging",
        }
    }

    /// Whether it is model state at rest: parameters, master weights, gradients, optimizer state.
    pub fn is_resident(self) -> bool {
        matches!(self, MemKind::ParamShard | MemKind::Master | MemKind::GradShard | MemKind::OptimState)
    }
}

impl fmt::Display for MemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

const N_KINDS: usize = MemKind::ALL.len();

/// The current instruction, for naming the moment of a peak. The caller knows the unit's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Label {
    /// E.g. `forward`, `backward`, `reduce`.
    pub what: &'static str,
    /// The unit it concerns, if any.
    pub unit_idx: Option<usize>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.what, self.unit_idx) {
            ("", _) => f.write_str("-"),
            (what, None) => f.write_str(what),
            (what, Some(unit_idx)) => write!(f, "{what} of unit {unit_idx}"),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    now: [u64; N_KINDS],
    peak: [u64; N_KINDS],
    total_now: u64,
    total_peak: u64,
    /// The bytes by kind when the total was at its peak.
    at_total_peak: [u64; N_KINDS],
    /// Peaks of the previous steps, of each kind and of the total.
    peak_before: [u64; N_KINDS],
    total_peak_before: u64,
    label: Label,
    peak_label: Label,
}

/// Bytes by kind of one rank. Methods take `&self`, so that arena, executor and log share one ledger.
#[derive(Debug, Default)]
pub struct Ledger {
    state: Mutex<State>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// A broken invariant aborts the job, so only error reporting ever sees a poisoned lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds `bytes` of `kind`.
    pub fn take(&self, kind: MemKind, bytes: u64) {
        let mut state = self.state();
        state.add(kind, bytes);
        state.total_now += bytes;
        if state.total_now > state.total_peak {
            state.set_total_peak();
        }
    }

    /// Removes `bytes` of `kind`.
    pub fn give(&self, kind: MemKind, bytes: u64) {
        let mut state = self.state();
        state.subtract(kind, bytes);
        state.total_now -= bytes;
    }

    /// Moves `bytes` to another kind, e.g. when prefetched parameters come into use. The total is unchanged.
    pub fn convert(&self, from: MemKind, to: MemKind, bytes: u64) {
        let mut state = self.state();
        state.subtract(from, bytes);
        state.add(to, bytes);
    }

    /// Sets the current instruction.
    pub fn set_label(&self, what: &'static str, unit_idx: Option<usize>) {
        self.state().label = Label { what, unit_idx };
    }

    /// Bytes of `kind` held now.
    pub fn now(&self, kind: MemKind) -> u64 {
        self.state().now[kind as usize]
    }

    /// Peak bytes of `kind` since [`Ledger::reset_peaks`].
    pub fn peak(&self, kind: MemKind) -> u64 {
        self.state().peak[kind as usize]
    }

    /// Bytes of all kinds held now.
    pub fn total_now(&self) -> u64 {
        self.state().total_now
    }

    /// Peak of the total since [`Ledger::reset_peaks`].
    pub fn total_peak(&self) -> u64 {
        self.state().total_peak
    }

    /// Bytes of `kind` when the total was at its peak.
    pub fn at_total_peak(&self, kind: MemKind) -> u64 {
        self.state().at_total_peak[kind as usize]
    }

    /// The instruction during which the total first reached its peak.
    pub fn peak_label(&self) -> Label {
        self.state().peak_label
    }

    /// Bytes of model state held now (see [`MemKind::is_resident`]).
    pub fn resident(&self) -> u64 {
        let state = self.state();
        MemKind::ALL.iter().filter(|kind| kind.is_resident()).map(|&kind| state.now[kind as usize]).sum()
    }

    /// Resets the peaks to the bytes held now. Once per step.
    pub fn reset_peaks(&self) {
        let mut state = self.state();
        (state.peak_before, state.total_peak_before) = state.peaks_since_start();
        state.peak = state.now;
        state.set_total_peak();
    }

    /// The first step comes next: earlier peaks no longer count.
    pub fn begin_steps(&self) {
        let mut state = self.state();
        state.peak = state.now;
        state.set_total_peak();
        (state.peak_before, state.total_peak_before) = (state.now, state.total_now);
    }

    /// Bytes now, and their peaks over the steps so far: of each kind, in the order of [`MemKind::ALL`], and
    /// in total.
    pub fn since_start(&self) -> (Vec<(u64, u64)>, (u64, u64)) {
        let state = *self.state();
        let (peaks, total_peak) = state.peaks_since_start();
        (state.now.into_iter().zip(peaks).collect(), (state.total_now, total_peak))
    }
}

impl State {
    fn add(&mut self, kind: MemKind, bytes: u64) {
        let i = kind as usize;
        self.now[i] += bytes;
        self.peak[i] = self.peak[i].max(self.now[i]);
    }

    fn subtract(&mut self, kind: MemKind, bytes: u64) {
        let held = self.now[kind as usize];
        assert!(
            bytes <= held,
            "{bytes} bytes of {kind} released while {held} are held, during {}",
            self.label
        );
        self.now[kind as usize] = held - bytes;
    }

    fn peaks_since_start(&self) -> ([u64; N_KINDS], u64) {
        let peaks = std::array::from_fn(|i| self.peak_before[i].max(self.peak[i]));
        (peaks, self.total_peak_before.max(self.total_peak))
    }

    fn set_total_peak(&mut self) {
        self.total_peak = self.total_now;
        self.at_total_peak = self.now;
        self.peak_label = self.label;
    }
}

/// A table of the kinds that were ever used: current, peak, share of the total peak.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = *self.state();
        writeln!(f, "{:<18} {:>12} {:>12} {:>14}", "memory", "now", "peak", "at total peak")?;
        for kind in MemKind::ALL {
            let i = kind as usize;
            if state.peak[i] > 0 {
                let columns = [state.now[i], state.peak[i], state.at_total_peak[i]].map(human::bytes);
                writeln!(f, "{kind:<18} {:>12} {:>12} {:>14}", columns[0], columns[1], columns[2])?;
            }
        }
        let (now, peak) = (human::bytes(state.total_now), human::bytes(state.total_peak));
        write!(f, "{:<18} {now:>12} {peak:>12} {peak:>14}", "total")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(
        expected = "5 bytes of gathered params released while 4 are held, during release of unit 7"
    )]
    fn giving_back_more_than_is_held_is_a_broken_invariant() {
        let ledger = Ledger::new();
        ledger.take(MemKind::Gathered, 4);
        ledger.take(MemKind::Activation, 100);
        ledger.set_label("release", Some(7));
        ledger.give(MemKind::Gathered, 5);
    }

    #[test]
    #[should_panic(expected = "prefetched params")]
    fn converting_what_is_not_held_is_a_broken_invariant() {
        Ledger::new().convert(MemKind::Prefetched, MemKind::Gathered, 1);
    }

    #[test]
    fn the_total_peak_is_no_sum_of_peaks_and_names_its_moment() {
        let ledger = Ledger::new();
        ledger.set_label("forward", Some(0));
        ledger.take(MemKind::Gathered, 100);
        ledger.give(MemKind::Gathered, 100);
        ledger.set_label("backward", Some(2));
        ledger.take(MemKind::FullGrad, 70);
        ledger.take(MemKind::Activation, 60);
        ledger.set_label("reduce", None);
        ledger.give(MemKind::Activation, 60);
        ledger.take(MemKind::Activation, 60);
        assert_eq!((ledger.total_now(), ledger.total_peak()), (130, 130));
        assert_eq!(ledger.peak(MemKind::Gathered), 100);
        assert_eq!(ledger.at_total_peak(MemKind::Gathered), 0);
        assert_eq!(ledger.peak_label().to_string(), "backward of unit 2", "the first time counts");
    }

    #[test]
    fn converting_moves_bytes_without_a_new_total_peak() {
        let ledger = Ledger::new();
        ledger.take(MemKind::Prefetched, 10);
        ledger.convert(MemKind::Prefetched, MemKind::Gathered, 10);
        assert_eq!((ledger.now(MemKind::Prefetched), ledger.now(MemKind::Gathered)), (0, 10));
        assert_eq!((ledger.peak(MemKind::Gathered), ledger.total_peak()), (10, 10));
    }

    #[test]
    fn peaks_begin_anew_from_what_is_held() {
        let ledger = Ledger::new();
        ledger.take(MemKind::ParamShard, 8);
        ledger.take(MemKind::Workspace, 100);
        ledger.give(MemKind::Workspace, 100);
        ledger.reset_peaks();
        assert_eq!((ledger.peak(MemKind::ParamShard), ledger.peak(MemKind::Workspace)), (8, 0));
        assert_eq!((ledger.total_peak(), ledger.resident()), (8, 8));
    }

    #[test]
    fn the_table_has_a_line_for_every_kind_in_use() {
        let ledger = Ledger::new();
        ledger.take(MemKind::OptimState, 3 << 20);
        ledger.set_label("embed", None);
        ledger.take(MemKind::Input, 512);
        let table = ledger.to_string();
        assert_eq!(table.lines().count(), 4, "{table}");
        assert!(table.contains("optimizer state         3.0 MiB      3.0 MiB        3.0 MiB"), "{table}");
    }

    #[test]
    fn kinds_are_listed_in_their_own_order() {
        for (i, kind) in MemKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i, "{kind}");
        }
    }
}

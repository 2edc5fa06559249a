//! What is recorded of every instruction, at its beginning and its end: flight recorder, ledger label, phase,
//! bytes received, spans.
//!
//! Must not know: what an instruction does (`moves.rs`).

use super::pass::{PassState, Purpose};
use super::spans::{PendingSpan, SpanKind};
use super::stepper::Stepper;
use crate::backend::{Backend, CommRecord, Device, MarkOf, Queue};
use crate::batch::signals;
use crate::params::UnitId;
use crate::plan::Program;
use crate::plan::schedule::Instr;
use crate::telemetry::{CommClass, Track};

impl<B: Backend> Stepper<'_, B> {
    /// A pass over `program` before its first instruction.
    pub(super) fn begin_pass<'p>(
        &mut self,
        program: &'p Program,
        purpose: Purpose,
        has_batch: bool,
    ) -> PassState<'p, B> {
        let mut lists = std::mem::take(&mut self.scratch.pass);
        lists.reset(program);
        let began = self.device.mark(Queue::Compute);
        PassState { program, purpose, has_batch, at: 0, began, outer_phase: None, lists }
    }

    /// After the last instruction.
    pub(super) fn end_pass(&mut self, pass: PassState<'_, B>) {
        self.scratch.pass = pass.lists;
    }

    /// Before instruction `at`.
    pub(super) fn begin(&mut self, pass: &mut PassState<'_, B>, at: usize) {
        pass.at = at;
        if signals::report_wanted() {
            self.answer(pass);
        }
        pass.began = self.device.mark(Queue::Compute);
        let (program, instr) = (pass.program, pass.instr());
        let (what, unit) = program.describe(instr);
        self.flight.at(self.step_now, what, Some(unit));
        self.memory.ledger().set_label(what, Some(unit));
        if let Instr::Gather(_) = instr {
            // A start may block, too.
            self.flight.gathering(unit);
        }
        let is_idle = matches!(instr, Instr::Compute(_)) && !pass.has_batch;
        let phase = pass.purpose.phase_of(instr).filter(|_| !is_idle);
        pass.outer_phase = phase.map(|phase| self.timer.switch(phase));
    }

    /// After the instruction.
    pub(super) fn end(&mut self, pass: &mut PassState<'_, B>) {
        let (program, at, instr) = (pass.program, pass.at, pass.instr());
        let (what, unit) = program.describe(instr);
        if let Some(outer) = pass.outer_phase.take() {
            self.timer.switch(outer);
        }
        let mut released_bytes = 0;
        match instr {
            Instr::Wait(_) => {
                self.flight.gathered(unit);
                self.record_landed(pass, unit, Track::Gather, pass.purpose.gather_class());
            }
            Instr::ReduceWait(_) => {
                self.record_landed(pass, unit, Track::Reduce, CommClass::TrainReduceScatter)
            }
            Instr::Compute(visit) => {
                if let Some(g) = visit.gather {
                    pass.lists.last_use[g] = Some(self.device.mark(Queue::Compute));
                }
            }
            Instr::Release(g) => {
                self.flight.released(unit);
                released_bytes = program.gathered[g].iter().map(|&id| program.slots[id].bytes() as u64).sum();
                if let Some(used) = pass.lists.last_use[g].take() {
                    self.record(
                        SpanKind::UnusedParams { bytes: released_bytes },
                        unit,
                        used,
                        pass.purpose.is_training(),
                    );
                }
            }
            Instr::Gather(_) | Instr::Accumulate(_) | Instr::Round(_) | Instr::Reduce(_) => {}
        }
        if self.trace.is_on() {
            let ending_bytes: u64 = program.ends[at].iter().map(|&id| program.slots[id].bytes() as u64).sum();
            let live_bytes = self.memory.ledger().total_now() - ending_bytes;
            let kind = SpanKind::Instr { what, bytes: released_bytes, live_bytes };
            self.record(kind, unit, pass.began.clone(), false);
        }
    }

    /// Counts and times the collectives that the instruction has waited for, and the wait itself.
    fn record_landed(&mut self, pass: &mut PassState<'_, B>, unit: UnitId, track: Track, class: CommClass) {
        let counts = pass.purpose.is_training();
        for CommRecord { received_bytes: bytes, started, finished } in pass.lists.landed.drain(..) {
            self.volume.add(class, bytes);
            let kind = SpanKind::Collective { track, bytes, live_bytes: self.memory.ledger().total_now() };
            self.spans.push(PendingSpan { kind, unit, start: started, end: finished, counts });
        }
        self.record(SpanKind::Wait { on: track }, unit, pass.began.clone(), counts);
    }

    /// Records a span from `start` to now.
    fn record(&mut self, kind: SpanKind, unit: UnitId, start: MarkOf<B>, counts: bool) {
        let end = self.device.mark(Queue::Compute);
        self.spans.push(PendingSpan { kind, unit, start, end, counts });
    }
}

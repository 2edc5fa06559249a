//! A forward program from top to bottom: gather, visit, release, and nothing else.

use crate::backend::{Backend, Device, Queue};
use crate::error::Result;
use crate::plan::Program;
use crate::plan::schedule::Instr;
use crate::telemetry::{CommClass, MemKind};
use crate::train::step::Stepper;
use crate::train::visit::{Live, Visit, put, take};
use crate::zero::Gathers;

/// Executes a program, calling `visit` where it computes. Collective: every rank runs the same programs.
pub fn run<B: Backend>(
    stepper: &mut Stepper<'_, B>,
    program: &Program,
    mut visit: impl FnMut(&Stepper<'_, B>, Visit, &mut Live) -> Result<()>,
) -> Result<()> {
    let mut live: Live = (0..program.slots.len()).map(|_| None).collect();
    let mut gathers = Gathers::<B::Comm>::new(program.schedule.gathers.len());
    for (at, instr) in program.schedule.instrs.iter().enumerate() {
        let queue = if matches!(instr, Instr::Gather(_)) { Queue::Gather } else { Queue::Compute };
        for &id in &program.begins[at] {
            let slot = &program.slots[id];
            live[id] = Some(stepper.memory.take(stepper.device, slot, slot.kind_at(at), queue));
        }
        match *instr {
            Instr::Gather(g) => {
                let outs = take(&mut live, &program.gathered[g]);
                let after = stepper.device.record(Queue::Compute);
                gathers.start(g, &program.schedule.gathers[g], stepper.comm, after, &mut stepper.shards, outs);
            }
            Instr::Wait(g) => {
                let (bufs, records) = gathers.wait(g, &program.schedule.gathers[g], &mut stepper.shards)?;
                for record in records {
                    stepper.volume.add(CommClass::EvalAllGather, record.received_bytes);
                }
                for buf in &bufs {
                    stepper.memory.convert(buf, MemKind::Prefetched, MemKind::Gathered);
                }
                put(&mut live, &program.gathered[g], bufs);
            }
            Instr::Compute { unit, pass, gather } => visit(stepper, Visit { unit, pass, gather }, &mut live)?,
            Instr::Release(g) => gathers.release(g),
            other => panic!("a forward program has no {other:?}"),
        }
        for &id in &program.ends[at] {
            let buf = live[id].take().expect("a buffer is back in hand when its life ends");
            stepper.memory.give(stepper.device, buf, program.slots[id].kind_at(at));
        }
    }
    Ok(())
}

//! A forward program from top to bottom: gather, visit, release, and nothing else, by the executor of training.

use crate::backend::{Backend, Device, Queue};
use crate::error::{Error, Result};
use crate::plan::Program;
use crate::plan::schedule::Instr;
use crate::train::kept::{InHand, Live};
use crate::train::stepper::{Purpose, Stepper};
use crate::train::visit::Visit;

/// Executes a program, calling `visit` where it computes. Collective: every rank runs the same programs.
pub fn run<B: Backend>(
    stepper: &mut Stepper<'_, B>,
    program: &Program,
    mut visit: impl FnMut(&Stepper<'_, B>, Visit, &mut Live) -> Result<()>,
) -> Result<()> {
    let mut pass = std::mem::take(&mut stepper.kept.pass);
    pass.begin(program);
    let InHand { live, gathers, .. } = &mut pass;
    for (at, &instr) in program.schedule.instrs.iter().enumerate() {
        let began = stepper.device.mark(Queue::Compute);
        stepper.begin(program, at, instr, live);
        match instr {
            Instr::Gather(g) => stepper.start_gather(program, g, gathers, live),
            Instr::Wait(g) => stepper.land_gather(program, g, gathers, live, &began, Purpose::Evaluate)?,
            Instr::Compute { unit, pass, gather } => {
                assert!(gather.is_none_or(|g| gathers.is_live(g)), "unit {unit} is used after its gather landed");
                visit(stepper, Visit { unit, pass, gather }, live)?;
            }
            Instr::Release(g) => stepper.release_gather(program, g, gathers),
            other => panic!("a forward program has no {other:?}"),
        }
        stepper.end(program, at, live);
    }
    stepper.kept.pass = pass;
    stepper.settle()
}

/// Weights that compute `found` are of no use. Every rank has computed the same, so all leave together with
/// exit code 4.
pub fn refuse_non_finite(what: &str, found: Option<f64>) -> Result<()> {
    let Some(found) = found else { return Ok(()) };
    let why =
        format!("{what} is {found}: the model's weights are not finite, or too large; an earlier checkpoint may do");
    Err(Error::Agreed { rank: 0, error: Box::new(Error::NonFinite(why)) })
}

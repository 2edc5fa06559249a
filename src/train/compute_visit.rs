//! One visit of a unit: the planned buffers are passed in by role, the model computes, the buffers are
//! returned.
//!
//! Must not know: ranks, collectives, when a unit is visited.

use super::pass::{PassState, Purpose};
use super::scratch::{get, put, take};
use super::stepper::Stepper;
use crate::backend::{Backend, Buf, View};
use crate::model::{BackwardIo, Cached, ForwardIo, LossGrad, LossIo, Model};
use crate::params::{ParamId, PerTensor, UnitId, UnitRole};
use crate::plan::Program;
use crate::plan::schedule::{Pass, Visit};
use crate::plan::slots::SlotId;

impl<B: Backend> Stepper<'_, B> {
    /// Computes one visit of a unit by `model`, which the program was planned for; `cached` where its rows
    /// follow earlier ones.
    pub(super) fn compute(
        &self,
        model: &Model,
        visit: Visit,
        cached: Option<Cached<'_>>,
        state: &mut PassState<'_, B>,
    ) {
        let Visit { unit, pass, gather } = visit;
        let PassState { program, purpose, .. } = *state;
        let live = &mut state.lists.live;
        let (dev, spec) = (self.device, &model.spec);
        let unit_params = &spec.units[unit].params;
        let whole = gather.map(|g| take(live, &program.gathered[g])).unwrap_or_default();
        let gathered = gather.map_or(&[][..], |g| &program.schedule.gathers[g].params);
        // A visit that needs no parameters gets none.
        let needs_none = pass == Pass::Backward && spec.units[unit].role == UnitRole::Embedding;
        let params = if needs_none { PerTensor::new() } else { self.params_of(unit, gathered, &whole) };
        let work_ids =
            if pass == Pass::Forward { &program.forward_work[unit] } else { &program.backward_work[unit] };
        let mut work = take(live, work_ids);
        match pass {
            Pass::Forward => {
                let mut saved = take(live, &program.saved[unit]);
                let mut out = live[program.residual[unit]].take().expect("the output is live");
                let input = (unit > 0).then(|| get(live, program.residual[unit - 1]).view());
                let tokens = get(live, program.tokens).view();
                let io = ForwardIo {
                    tokens,
                    input,
                    out: out.view_mut(),
                    saved: &mut saved,
                    work: &mut work,
                    cached,
                };
                model.forward(dev, unit, &params, io);
                live[program.residual[unit]] = Some(out);
                put(live, &program.saved[unit], saved);
            }
            Pass::Loss => {
                let mut losses = live[program.losses].take().expect("losses are live");
                let mut dresidual = program.dresidual.map(|id| live[id].take().expect("dresidual is live"));
                let grad_ids = grad_ids(program, unit_params);
                let mut grads = take(live, &grad_ids);
                let backward = match (purpose, &mut dresidual) {
                    (Purpose::Train { dlogits_scale: scale, .. }, Some(dresidual)) => {
                        Some(LossGrad { scale, dresidual: dresidual.view_mut(), grads: &mut grads })
                    }
                    _ => None,
                };
                let targets = get(live, program.targets).view();
                let input = get(live, program.residual[unit - 1]).view();
                let io = LossIo { targets, input, losses: losses.view_mut(), work: &mut work, backward };
                model.loss(dev, &params, io);
                live[program.losses] = Some(losses);
                if let Some(id) = program.dresidual {
                    live[id] = dresidual;
                }
                put(live, &grad_ids, grads);
            }
            Pass::Backward => {
                let again = program.recomputed_out[unit];
                let saved_ids =
                    if again.is_some() { &program.recomputed[unit] } else { &program.saved[unit] };
                let mut saved = take(live, saved_ids);
                if let Some(out_id) = again {
                    // The same kernels on the same input: the same bits as the forward's.
                    let mut out = live[out_id].take().expect("the planned life covers this use");
                    let mut work = take(live, &program.recompute_work[unit]);
                    let input = (unit > 0).then(|| get(live, program.residual[unit - 1]).view());
                    let tokens = get(live, program.tokens).view();
                    let io = ForwardIo {
                        tokens,
                        input,
                        out: out.view_mut(),
                        saved: &mut saved,
                        work: &mut work,
                        cached: None,
                    };
                    model.forward(dev, unit, &params, io);
                    live[out_id] = Some(out);
                    put(live, &program.recompute_work[unit], work);
                }
                let dresidual_id = program.dresidual.expect("training has a gradient of the residual stream");
                let mut dresidual = live[dresidual_id].take().expect("dresidual is live");
                let grad_ids = grad_ids(program, unit_params);
                let mut grads = take(live, &grad_ids);
                let input = (unit > 0).then(|| get(live, program.residual[unit - 1]).view());
                let tokens = get(live, program.tokens).view();
                let (work, grads_io) = (&mut work[..], &mut grads[..]);
                let io = BackwardIo {
                    tokens,
                    input,
                    saved: &saved,
                    work,
                    dresidual: dresidual.view_mut(),
                    grads: grads_io,
                };
                model.backward(dev, unit, &params, io);
                live[dresidual_id] = Some(dresidual);
                put(live, saved_ids, saved);
                put(live, &grad_ids, grads);
            }
        }
        put(live, work_ids, work);
        drop(params);
        if let Some(g) = gather {
            put(live, &program.gathered[g], whole);
        }
    }

    /// The whole parameters of a unit, gathered for this visit or whole at rest. Padding never reaches a
    /// kernel.
    fn params_of<'a>(&'a self, unit: UnitId, gathered: &[ParamId], whole: &'a [Buf]) -> PerTensor<View<'a>> {
        let spec = &self.model.spec;
        let view = |&p: &ParamId| match gathered.iter().position(|&q| q == p) {
            Some(i) => whole[i].view().range(0..spec.params[p].numel()),
            None => self.shards.whole(p),
        };
        spec.units[unit].params.iter().map(view).collect()
    }
}

/// The full gradients of some parameters, in their order; none in evaluation.
pub(super) fn grad_ids(program: &Program, params: &[ParamId]) -> PerTensor<SlotId> {
    params.iter().filter_map(|&p| program.grads.get(p).copied()).collect()
}

/// What travels of some parameters' gradients: the full gradient, or its rounded copy where it is a sum of
/// parts.
pub(super) fn travelling_ids(program: &Program, params: &[ParamId]) -> PerTensor<SlotId> {
    params.iter().map(|&p| program.rounded[p].unwrap_or(program.grads[p])).collect()
}

//! The end of a step: exact gradient norm, clipping, learning rate, the optimizer's update of this rank's
//! slices.
//!
//! The only communication is that of the norm. Must not know: units, schedules, files.

pub mod lr_schedule;

use crate::backend::{Comm, Device};
use crate::config::OptimSection;
use crate::error::Result;
use crate::exact_sum::{DIGITS, ExactSum};
use crate::optimizers::{UpdateNow, UpdateStep};
use crate::params::{ModelSpec, ParamId, UnitId};
use crate::plan::State;
use crate::zero::{Shards, Updated};

/// The global gradient norm: the exact sum of the squares of every owned element, rounded once, then its
/// square root. NaN where any gradient is not finite. The same bits for every rank count.
pub fn grad_norm<D: Device, C: Comm>(device: &D, comm: &C, shards: &Shards, spec: &ModelSpec) -> Result<f64> {
    let grads = (0..spec.params.len()).map(|p| shards.owned(p, State::Grad));
    let mut words: [i64; DIGITS + 1] = device.sum_of_squares(grads)?.to_words();
    comm.control().all_reduce_sum(&mut words)?;
    Ok(ExactSum::from_words(&words).to_f64().sqrt())
}

/// The first parameter in the order of backward whose gradient is not finite on any rank. Collective.
pub fn first_non_finite<D: Device, C: Comm>(
    device: &D,
    comm: &C,
    shards: &Shards,
    spec: &ModelSpec,
) -> Result<Option<(UnitId, ParamId)>> {
    let flags = not_finite(device, comm, shards, State::Grad, spec)?;
    let backward =
        spec.units.iter().enumerate().rev().flat_map(|(u, unit)| unit.params.iter().map(move |&p| (u, p)));
    Ok(backward.into_iter().find(|&(_, p)| flags[p]))
}

/// The first parameter whose weights are not finite on any rank: then no learning rate helps. Collective.
pub fn first_non_finite_weight<D: Device, C: Comm>(
    device: &D,
    comm: &C,
    shards: &Shards,
    spec: &ModelSpec,
) -> Result<Option<ParamId>> {
    Ok(not_finite(device, comm, shards, State::Param, spec)?.iter().position(|&flag| flag))
}

/// For each parameter whether `state` is not finite on some rank. Collective.
fn not_finite<D: Device, C: Comm>(
    device: &D,
    comm: &C,
    shards: &Shards,
    state: State,
    spec: &ModelSpec,
) -> Result<Vec<bool>> {
    let of_param = |p| Ok(i64::from(device.sum_of_squares([shards.owned(p, state)])?.to_f64().is_nan()));
    let mut flags = (0..spec.params.len()).map(of_param).collect::<Result<Vec<i64>>>()?;
    comm.control().all_reduce_sum(&mut flags)?;
    Ok(flags.iter().map(|&n| n > 0).collect())
}

/// Factor of the gradient for a norm of at most `max_norm` (0 = no clipping): `min(1, c / (norm + 1e-6))`, in
/// f64, rounded once.
pub fn clip_factor(norm: f64, max_norm: f64) -> f32 {
    if max_norm == 0.0 { 1.0 } else { (max_norm / (norm + 1e-6)).min(1.0) as f32 }
}

/// Updates this rank's slices of every parameter by the deck's optimizer. `step` counts updates from 1.
pub fn update<D: Device>(
    device: &D,
    shards: &mut Shards,
    spec: &ModelSpec,
    o: &OptimSection,
    step: u64,
    lr: f64,
    grad_scale: f32,
) {
    let hyper = o.hyper();
    let [plain, decaying] = [false, true]
        .map(|decays| UpdateStep::new(o.kind, &hyper, &UpdateNow { step, lr, grad_scale, decays }));
    for (p, param) in spec.params.iter().enumerate() {
        let Updated { master, rounded, grad, states } = shards.updated(p);
        device.update(master, states, grad, if param.decay { &decaying } else { &plain }, rounded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_shrinks_long_gradients_only() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(4.0, 1.0), (1.0 / 4.000001f64) as f32);
        assert_eq!(clip_factor(4.0, 0.0), 1.0);
    }
}

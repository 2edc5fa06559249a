//! Every optimizer's kernel against its definition in f64, whatever the slice, the threads and the gradient's
//! type.

use crate::backend::Ops;
use crate::backend::buffer::Buf;
use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::test_memory::{buf_f32, buf_of, read};
use crate::backend::cpu::ops::test_support::*;
use crate::dtype::DType::{self, Bf16, F32};
use crate::optimizers::{Hyper, OptimState, OptimStates, OptimizerKind, UpdateNow, UpdateStep};
use half::bf16;

/// An optimizer with some hyperparameters.
#[derive(Debug, Clone, Copy)]
struct Case(OptimizerKind, Hyper);

impl Case {
    /// Every optimizer as it is by default, and what else it has a kernel for.
    fn all() -> Vec<Case> {
        let hyper = |kind: OptimizerKind| kind.default_hyper(0.1);
        let mut all: Vec<Case> = OptimizerKind::ALL.iter().map(|&kind| Case(kind, hyper(kind))).collect();
        let sgd = OptimizerKind::Sgd;
        all.push(Case(sgd, Hyper { nesterov: true, ..hyper(sgd) }));
        all.push(Case(sgd, Hyper { momentum: 0.0, ..hyper(sgd) }));
        all
    }

    /// Update `n`, counted from 1, of a parameter that decays.
    fn step(&self, n: u64) -> UpdateStep {
        UpdateStep::new(self.0, &self.1, &UpdateNow { step: n, lr: 1e-2, grad_scale: 0.5, decays: true })
    }

    fn states(&self) -> &'static [OptimState] {
        self.0.states(&self.1)
    }
}

/// Three updates; the weights, the rounded weights, and each state.
fn three_updates(
    device: &CpuDevice,
    case: Case,
    master: &[f32],
    grad: &Buf,
) -> (Vec<f32>, Vec<f32>, OptimStates<Vec<f32>>) {
    let n = master.len();
    let mut states = OptimStates::of(case.states(), |_| buf_f32(&vec![0.0; n]));
    let (mut p, mut param) = (buf_f32(master), nan_of(Bf16, n));
    for i in 1..=3 {
        let states = states.each_mut().map(|state| state.view_mut());
        device.update(p.view_mut(), states, grad.view(), &case.step(i), Some(param.view_mut()));
    }
    (read(&p), read(&param), states.map(|state| read(&state)))
}

#[test]
fn three_updates_equal_the_definition_and_thread_counts_agree() {
    for case in Case::all() {
        for n in [0, 1, 17, 40_003] {
            for grad_type in [F32, Bf16] {
                let (master, grad) = (random(n, 1), random_of(grad_type, n, 2));
                let run = |device: &CpuDevice, grad_type: DType| {
                    let (p, param, states) = three_updates(device, case, &master, &buf_of(grad_type, &grad));
                    [vec![p, param], states.iter().map(|(_, values)| values.clone()).collect()].concat()
                };
                let got = same_bits_on_1_2_3_threads(|device| run(device, grad_type));
                assert_eq!(got, run(&device(1), F32), "{case:?}: a bf16 gradient is its f32 value");
                let rounded: Vec<f32> = got[0].iter().map(|&x| <bf16 as Element>::store(x).load()).collect();
                assert_eq!(got[1], rounded, "{case:?}");

                let mut p = wide(&master);
                let mut want = OptimStates::of(case.states(), |_| vec![0.0; n]);
                (1..=3).for_each(|i| case.step(i).reference(&mut p, &mut want, &wide(&grad)));
                // A handful of roundings per step of numbers of size 1; what is added to a weight is about
                // lr.
                assert_close(&format!("{case:?}: weights"), &got[0], &p, 1e-6);
                for ((state, want), got) in want.iter().zip(&got[2..]) {
                    assert_close(&format!("{case:?}: {}", state.name()), got, want, 1e-6);
                }
            }
        }
    }
}

/// The vector body and the scalar tail round alike: a slice may begin anywhere.
#[test]
fn an_element_is_updated_alike_wherever_its_slice_begins() {
    let n = 67;
    let (master, grad) = (random(n, 3), random(n, 4));
    for case in Case::all() {
        let (whole, _, whole_states) = three_updates(&device(1), case, &master, &buf_f32(&grad));
        for at in 0..n {
            let (one, _, states) =
                three_updates(&device(1), case, &master[at..=at], &buf_f32(&grad[at..=at]));
            assert_eq!(one[0].to_bits(), whole[at].to_bits(), "{case:?}: weight {at}");
            for (state, values) in states.iter() {
                assert_eq!(
                    values[0].to_bits(),
                    whole_states[state][at].to_bits(),
                    "{case:?}: {} {at}",
                    state.name()
                );
            }
        }
    }
}

#[test]
fn a_zero_gradient_only_decays() {
    for case in Case::all() {
        let mut p = buf_f32(&[2.0]);
        let mut states = OptimStates::of(case.states(), |_| buf_f32(&[0.0]));
        let views = states.each_mut().map(|state| state.view_mut());
        device(1).update(p.view_mut(), views, buf_f32(&[0.0]).view(), &case.step(1), None);
        assert_eq!(read(&p), [2.0 * (1.0 - 1e-2 * 0.1)], "{case:?}");
        assert!(states.iter().all(|(_, state)| read(state) == [0.0]), "{case:?}");
    }
}

#[test]
#[should_panic(expected = "exp_avg of a slice of 2")]
fn states_of_another_length_are_refused() {
    let mut p = buf_f32(&[2.0, 3.0]);
    let mut states = OptimStates::of(&OptimState::ALL, |_| buf_f32(&[0.0]));
    let views = states.each_mut().map(|state| state.view_mut());
    device(1).update(p.view_mut(), views, buf_f32(&[0.0, 0.0]).view(), &Case::all()[0].step(1), None);
}

//! Every optimizer's kernel against its definition in f64, whatever the slice, the threads and the gradient's type.

use crate::backend::Ops;
use crate::backend::buffer::Buf;
use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::test_memory::{buf_f32, buf_of, read};
use crate::backend::cpu::ops::test_support::*;
use crate::dtype::DType::{self, Bf16, F32};
use crate::optimizers::{OptimState, OptimStates, OptimizerKind, UpdateNow, UpdateStep};
use half::bf16;

/// Update `n`, counted from 1, of a parameter that decays.
fn step(kind: OptimizerKind, n: u64) -> UpdateStep {
    UpdateStep::new(kind, &kind.default_hyper(0.1), &UpdateNow { step: n, lr: 1e-2, grad_scale: 0.5, decays: true })
}

/// Zeroed states of `n` elements.
fn states(kind: OptimizerKind, n: usize) -> OptimStates<Buf> {
    OptimStates::of(kind.states(&kind.default_hyper(0.1)), |_| buf_f32(&vec![0.0; n]))
}

/// Three updates; the weights, the rounded weights, and each state.
fn three_updates(
    device: &CpuDevice,
    kind: OptimizerKind,
    master: &[f32],
    grad: &Buf,
) -> (Vec<f32>, Vec<f32>, OptimStates<Vec<f32>>) {
    let n = master.len();
    let (mut p, mut states, mut param) = (buf_f32(master), states(kind, n), nan_of(Bf16, n));
    for i in 1..=3 {
        let states = states.each_mut().map(|state| state.view_mut());
        device.update(p.view_mut(), states, grad.view(), &step(kind, i), Some(param.view_mut()));
    }
    (read(&p), read(&param), states.map(|state| read(&state)))
}

#[test]
fn three_updates_equal_the_definition_and_thread_counts_agree() {
    for &kind in OptimizerKind::ALL {
        for n in [0, 1, 17, 40_003] {
            for grad_type in [F32, Bf16] {
                let (master, grad) = (random(n, 1), random_of(grad_type, n, 2));
                let run = |device: &CpuDevice, grad_type: DType| {
                    let (p, param, states) = three_updates(device, kind, &master, &buf_of(grad_type, &grad));
                    [vec![p, param], states.iter().map(|(_, values)| values.clone()).collect()].concat()
                };
                let got = same_bits_on_1_2_3_threads(|device| run(device, grad_type));
                assert_eq!(got, run(&device(1), F32), "{kind}: a bf16 gradient is its f32 value");
                let rounded: Vec<f32> = got[0].iter().map(|&x| <bf16 as Element>::store(x).load()).collect();
                assert_eq!(got[1], rounded, "{kind}");

                let mut p = wide(&master);
                let mut want = OptimStates::of(kind.states(&kind.default_hyper(0.1)), |_| vec![0.0; n]);
                (1..=3).for_each(|i| step(kind, i).reference(&mut p, &mut want, &wide(&grad)));
                // A handful of roundings per step of numbers of size 1; what is added to a weight is about lr.
                assert_close(&format!("{kind}: weights"), &got[0], &p, 1e-6);
                for ((state, want), got) in want.iter().zip(&got[2..]) {
                    assert_close(&format!("{kind}: {}", state.name()), got, want, 1e-6);
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
    for &kind in OptimizerKind::ALL {
        let (whole, _, whole_states) = three_updates(&device(1), kind, &master, &buf_f32(&grad));
        for at in 0..n {
            let (one, _, states) = three_updates(&device(1), kind, &master[at..=at], &buf_f32(&grad[at..=at]));
            assert_eq!(one[0].to_bits(), whole[at].to_bits(), "{kind}: weight {at}");
            for (state, values) in states.iter() {
                assert_eq!(values[0].to_bits(), whole_states[state][at].to_bits(), "{kind}: {} {at}", state.name());
            }
        }
    }
}

#[test]
fn a_zero_gradient_only_decays() {
    for &kind in OptimizerKind::ALL {
        let mut p = buf_f32(&[2.0]);
        let mut states = states(kind, 1);
        let views = states.each_mut().map(|state| state.view_mut());
        device(1).update(p.view_mut(), views, buf_f32(&[0.0]).view(), &step(kind, 1), None);
        assert_eq!(read(&p), [2.0 * (1.0 - 1e-2 * 0.1)], "{kind}");
        assert!(states.iter().all(|(_, state)| read(state) == [0.0]), "{kind}");
    }
}

#[test]
#[should_panic(expected = "exp_avg of a slice of 2")]
fn states_of_another_length_are_refused() {
    let mut p = buf_f32(&[2.0, 3.0]);
    let mut states = OptimStates::of(&OptimState::ALL, |_| buf_f32(&[0.0]));
    let views = states.each_mut().map(|state| state.view_mut());
    device(1).update(p.view_mut(), views, buf_f32(&[0.0, 0.0]).view(), &step(OptimizerKind::Adamw, 1), None);
}

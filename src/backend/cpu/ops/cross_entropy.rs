//! Softmax cross-entropy and its gradient, row by row. Must not know: views.

use super::embedding::check_tokens;
use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::math::{exp, ln};
use crate::backend::cpu::simd::{map_in_place_and_sum, max, simd, sum_map};

/// Elements of one task, about.
const TASK_NUMEL: usize = 16 * 1024;

pub fn cross_entropy(
    device: &CpuDevice,
    logits: &mut [f32],
    losses: &mut [f32],
    targets: &[u32],
    dlogits_scale: Option<f32>,
) {
    let rows = targets.len();
    assert_eq!(losses.len(), rows, "losses of {rows} targets");
    if rows == 0 {
        return;
    }
    assert!(logits.len().is_multiple_of(rows), "{} logits in {rows} rows", logits.len());
    let vocab = logits.len() / rows;
    check_tokens(targets, vocab);
    let task_rows = (TASK_NUMEL / vocab).max(1);
    let (logits, losses) = (Shared::new(logits), Shared::new(losses));
    device.for_each_task(rows.div_ceil(task_rows), |task| {
        let start = task * task_rows;
        let n = task_rows.min(rows - start);
        // SAFETY: rows belong to one task each.
        let (logits, losses) = unsafe { (logits.part(start * vocab, n * vocab), losses.part(start, n)) };
        let targets = &targets[start..][..n];
        match dlogits_scale {
            Some(scale) => losses_and_gradients(logits, losses, targets, scale),
            None => losses_only(logits, losses, targets),
        }
    });
}

simd! {
    fn losses_only(logits: &[f32], losses: &mut [f32], targets: &[u32]) {
        let vocab = logits.len() / targets.len();
        for ((row, loss), &target) in logits.chunks_exact(vocab).zip(losses).zip(targets) {
            let max = max(row);
            *loss = ln(sum_map(row, |x| exp(x - max))) + (max - row[target as usize]);
        }
    }
}

simd! {
    fn losses_and_gradients(logits: &mut [f32], losses: &mut [f32], targets: &[u32], scale: f32) {
        let vocab = logits.len() / targets.len();
        for ((row, loss), &target) in logits.chunks_exact_mut(vocab).zip(losses).zip(targets) {
            let max = max(row);
            let to_target = max - row[target as usize];
            let sum = map_in_place_and_sum(row, |x| exp(x - max));
            *loss = ln(sum) + to_target;
            let at_target = (row[target as usize] / sum - 1.0) * scale;
            let factor = scale / sum;
            row.iter_mut().for_each(|x| *x *= factor);
            row[target as usize] = at_target;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, buf_u32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::reference;

    #[test]
    fn losses_and_gradients_equal_the_reference_and_thread_counts_agree() {
        for (rows, v) in [(1, 1), (1, 97), (13, 2), (67, 257), (5, 5003), (300, 101)] {
            let logits: Vec<f32> = random(rows * v, 1).iter().map(|x| x * 8.0).collect();
            let targets = tokens(rows, v, 2);
            let scale = 1.0 / 48.0;
            let got = same_bits_on_1_2_3_threads(|device| {
                let (mut dlogits, mut losses, mut again) = (buf_f32(&logits), nan_buf(rows), nan_buf(rows));
                let targets = buf_u32(&targets);
                device.cross_entropy(dlogits.view_mut(), again.view_mut(), targets.view(), None);
                assert_eq!(read(&dlogits), logits, "without a scale the logits stay");
                device.cross_entropy(dlogits.view_mut(), losses.view_mut(), targets.view(), Some(scale));
                assert_eq!(
                    read(&losses),
                    read(&again),
                    "the loss does not depend on whether a gradient is wanted"
                );
                vec![read(&losses), read(&dlogits)]
            });
            let (losses, dlogits) = reference::cross_entropy(&wide(&logits), &targets, scale as f64);
            let name = format!("cross entropy {rows} x {v}");
            // Losses reach 25: a few roundings at 2e-6 each. Probabilities are relative to 1, then scaled.
            assert_close(&name, &got[0], &losses, 1e-6);
            let unscaled = |xs: &[f64]| xs.iter().map(|x| x / scale as f64).collect::<Vec<_>>();
            let got: Vec<f32> = unscaled(&wide(&got[1])).iter().map(|&x| x as f32).collect();
            assert_close(&name, &got, &unscaled(&dlogits), 1e-6);
        }
    }

    #[test]
    fn minus_infinity_is_a_probability_of_zero_and_huge_logits_do_not_overflow() {
        let mut logits = buf_f32(&[f32::NEG_INFINITY, 0.0, 0.0, 3e38, 3e38, -3e38]);
        let (mut losses, targets) = (nan_buf(2), buf_u32(&[1, 0]));
        device(1).cross_entropy(logits.view_mut(), losses.view_mut(), targets.view(), Some(1.0));
        let ln2 = std::f32::consts::LN_2;
        assert_eq!(read(&losses), [ln2, ln2]);
        assert_eq!(read(&logits), [0.0, -0.5, 0.5, -0.5, 0.5, 0.0]);
    }

    #[test]
    fn reference_gradient_is_the_central_difference() {
        let (rows, v, scale) = (3, 5, 0.25);
        let logits = wide(&random(rows * v, 1));
        let targets = tokens(rows, v, 2);
        let (_, dlogits) = reference::cross_entropy(&logits, &targets, scale);
        assert_gradient("dlogits", &logits, &dlogits, |x| {
            reference::cross_entropy(x, &targets, scale).0.iter().sum::<f64>() * scale
        });
    }

    #[test]
    #[should_panic(expected = "token 3 at 1, vocabulary 3")]
    fn a_target_outside_the_vocabulary_is_named() {
        device(1).cross_entropy(nan_buf(6).view_mut(), nan_buf(2).view_mut(), buf_u32(&[0, 3]).view(), None);
    }
}

//! Token and position embedding. Must not know: views.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::dtype::DType;

/// Columns of one task of the backward: tokens repeat, so rows cannot be shared out, columns can.
const STRIPE: usize = 64;

/// Rows of one task of the forward.
const ROWS_PER_TASK: usize = 64;

pub fn forward<A: Element, P: Element>(
    device: &CpuDevice,
    out: &mut [A],
    tokens: &[u32],
    wte: &[P],
    wpe: Option<&[P]>,
    t: usize,
) {
    let Some(c) = channels(out.len(), tokens, t) else { return };
    check_positions(wpe.map(<[P]>::len), t, c);
    check_tokens(tokens, wte.len() / c);
    let out = Shared::new(out);
    device.for_each_task(tokens.len().div_ceil(ROWS_PER_TASK), |task| {
        let start = task * ROWS_PER_TASK;
        for (row, &token) in (start..).zip(tokens[start..].iter().take(ROWS_PER_TASK)) {
            // SAFETY: rows belong to one task each.
            let out = unsafe { out.part(row * c, c) };
            let wte = &wte[token as usize * c..][..c];
            match wpe {
                Some(wpe) => {
                    for ((o, e), p) in out.iter_mut().zip(wte).zip(&wpe[(row % t) * c..][..c]) {
                        *o = A::store(e.load() + p.load());
                    }
                }
                None => out.iter_mut().zip(wte).for_each(|(o, e)| *o = A::store(e.load())),
            }
        }
    });
}

/// Scratch elements of [`backward`]: the order of rows by token; none where all is summed in place.
pub fn backward_work_numel(rows: usize, dwte: DType, dwpe: DType) -> usize {
    if (dwte, dwpe) == (DType::F32, DType::F32) { 0 } else { rows }
}

#[rustfmt::skip]
pub fn backward<E: Element, W: Element, A: Element>(
    device: &CpuDevice,
    dwte: &mut [E],         // (V, C), accumulated into
    dwpe: Option<&mut [W]>, // (T_max, C)
    dout: &[A],             // (rows, C)
    tokens: &[u32],         // (rows)
    work: &mut [u32],       // (rows) or none
    t: usize,
) {
    // Without positions there are none to sum.
    let has_positions = dwpe.is_some();
    let dwpe = dwpe.unwrap_or_default();
    let Some(c) = channels(dout.len(), tokens, t) else {
        dwpe.fill(W::store(0.0));
        return;
    };
    let rows = tokens.len();
    check_positions(has_positions.then_some(dwpe.len()), t, c);
    let needed = backward_work_numel(rows, E::DTYPE, W::DTYPE);
    assert!(work.len() >= needed, "scratch of {} elements, {needed} needed", work.len());
    check_tokens(tokens, dwte.len() / c);
    let stripes = c.div_ceil(STRIPE);
    let stripe = |task: usize| (task * STRIPE, STRIPE.min(c - task * STRIPE));
    if let (Some(dwte), Some(dwpe)) = (E::as_f32s_mut(dwte), W::as_f32s_mut(dwpe)) {
        let (dwte, dwpe) = (Shared::new(dwte), Shared::new(dwpe));
        device.for_each_task(stripes, |task| sum_in_place(dwte, dwpe, dout, tokens, t, c, stripe(task)));
        return;
    }
    let by_token = &mut work[..rows];
    by_token.iter_mut().zip(0..).for_each(|(slot, row)| *slot = row);
    by_token.sort_unstable_by_key(|&row| (tokens[row as usize], row));
    let by_token = &*by_token;
    let (dwte, dwpe) = (Shared::new(dwte), Shared::new(dwpe));
    device
        .for_each_task(stripes, |task| sum_and_round(dwte, dwpe, dout, tokens, by_token, t, c, stripe(task)));
}

/// One stripe of columns, sums kept in the gradients.
fn sum_in_place<A: Element>(
    dwte: Shared<'_>,
    dwpe: Shared<'_>,
    dout: &[A],
    tokens: &[u32],
    t: usize,
    c: usize,
    (start, n): (usize, usize),
) {
    for position in 0..dwpe.numel() / c {
        // SAFETY: columns [start, start + n) belong to this task in every row, here and below.
        unsafe { dwpe.part(position * c + start, n) }.fill(0.0);
    }
    for (row, &token) in tokens.iter().enumerate() {
        let dout = &dout[row * c + start..][..n];
        // SAFETY: as above.
        let dwte = unsafe { dwte.part(token as usize * c + start, n) };
        dwte.iter_mut().zip(dout).for_each(|(e, d)| *e += d.load());
        if dwpe.numel() > 0 {
            // SAFETY: as above.
            let dwpe = unsafe { dwpe.part((row % t) * c + start, n) };
            dwpe.iter_mut().zip(dout).for_each(|(p, d)| *p += d.load());
        }
    }
}

/// One stripe of columns, every sum complete in f32 before it is rounded. The order of additions is that of
/// [`sum_in_place`].
#[allow(clippy::too_many_arguments)]
fn sum_and_round<E: Element, W: Element, A: Element>(
    dwte: Shared<'_, E>,
    dwpe: Shared<'_, W>,
    dout: &[A],
    tokens: &[u32],
    by_token: &[u32],
    t: usize,
    c: usize,
    (start, n): (usize, usize),
) {
    let add_row = |sums: &mut [f32; STRIPE], row: usize| {
        sums.iter_mut().zip(&dout[row * c + start..][..n]).for_each(|(sum, d)| *sum += d.load());
    };
    for position in 0..dwpe.numel() / c {
        let mut sums = [0.0; STRIPE];
        if position < t {
            (position..tokens.len()).step_by(t).for_each(|row| add_row(&mut sums, row));
        }
        // SAFETY: columns [start, start + n) belong to this task in every row, here and below.
        let dwpe = unsafe { dwpe.part(position * c + start, n) };
        dwpe.iter_mut().zip(sums).for_each(|(p, sum)| *p = W::store(sum));
    }
    for rows in by_token.chunk_by(|&a, &b| tokens[a as usize] == tokens[b as usize]) {
        let token = tokens[rows[0] as usize] as usize;
        // SAFETY: as above.
        let dwte = unsafe { dwte.part(token * c + start, n) };
        let mut sums = [0.0; STRIPE];
        sums.iter_mut().zip(&*dwte).for_each(|(sum, e)| *sum = e.load());
        rows.iter().for_each(|&row| add_row(&mut sums, row as usize));
        dwte.iter_mut().zip(sums).for_each(|(e, sum)| *e = E::store(sum));
    }
}

/// The learned positions, where there are any, are as many as a sequence has.
fn check_positions(wpe_numel: Option<usize>, t: usize, c: usize) {
    if let Some(numel) = wpe_numel {
        assert!(numel >= t * c && numel.is_multiple_of(c), "wpe has {numel} elements, {t} positions of {c}");
    }
}

/// Columns of a (rows, C) matrix of `numel` elements; None where there are no rows.
fn channels(numel: usize, tokens: &[u32], t: usize) -> Option<usize> {
    let rows = tokens.len();
    assert!(t > 0 && rows.is_multiple_of(t), "{rows} tokens are not sequences of {t}");
    if rows == 0 {
        return None;
    }
    assert!(numel.is_multiple_of(rows) && numel > 0, "{numel} elements in {rows} rows");
    Some(numel / rows)
}

/// Every token has a row among `vocab`.
pub(super) fn check_tokens(tokens: &[u32], vocab: usize) {
    if let Some((row, &token)) = tokens.iter().enumerate().find(|&(_, &token)| token as usize >= vocab) {
        panic!("token {token} at {row}, vocabulary {vocab}");
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, buf_of, buf_u32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::reference;
    use crate::dtype::DType;

    const SHAPES: [(usize, usize, usize, usize, usize); 4] =
        [(1, 1, 1, 1, 1), (2, 3, 5, 7, 4), (3, 17, 101, 13, 17), (5, 64, 130, 11, 70)]; // b, t, c, v, t_max

    fn inputs(
        b: usize,
        t: usize,
        c: usize,
        v: usize,
        t_max: usize,
    ) -> (Vec<u32>, Vec<f32>, Vec<f32>, Vec<f32>) {
        (tokens(b * t, v, 1), random(v * c, 2), random(t_max * c, 3), random(b * t * c, 4))
    }

    #[test]
    fn forward_and_backward_equal_the_reference_and_thread_counts_agree() {
        for (b, t, c, v, t_max) in SHAPES {
            let (toks, wte, wpe, dout) = inputs(b, t, c, v, t_max);
            let start = random(v * c, 5);
            let got = same_bits_on_1_2_3_threads(|device| {
                let (mut out, mut dwte, mut dwpe) = (nan_buf(b * t * c), buf_f32(&start), nan_buf(t_max * c));
                let (toks, dout) = (buf_u32(&toks), buf_f32(&dout));
                let (wte, wpe) = (buf_f32(&wte), buf_f32(&wpe));
                device.embedding_forward(out.view_mut(), toks.view(), wte.view(), Some(wpe.view()), t);
                let mut work = buf_u32(&[]);
                device.embedding_backward(
                    dwte.view_mut(),
                    Some(dwpe.view_mut()),
                    dout.view(),
                    toks.view(),
                    work.view_mut(),
                    t,
                );
                vec![read(&out), read(&dwte), read(&dwpe)]
            });
            let name = format!("embedding b {b} t {t} c {c}");
            assert_close(
                &name,
                &got[0],
                &reference::embedding_forward(&toks, &wide(&wte), &wide(&wpe), c, t),
                1e-7,
            );
            let (mut dwte, dwpe) = reference::embedding_backward(&wide(&dout), &toks, v, t_max, c, t);
            dwte.iter_mut().zip(&start).for_each(|(d, &s)| *d += s as f64);
            // A row is a sum of at most b * t numbers below 1, each add rounds by half an ulp of the partial
            // sum.
            assert_close(&name, &got[1], &dwte, 1e-6);
            assert_close(&name, &got[2], &dwpe, 1e-6);
        }
    }

    #[test]
    fn without_positions_they_are_zeros_that_get_no_gradient() {
        for (b, t, c, v, _) in SHAPES {
            let (toks, wte, _, dout) = inputs(b, t, c, v, t);
            for dtype in [DType::F32, DType::Bf16] {
                let got = same_bits_on_1_2_3_threads(|device| {
                    let run = |positions: bool| {
                        let (mut out, mut dwte) = (nan_buf(b * t * c), buf_of(dtype, &vec![0.0; v * c]));
                        let (wte, wpe, mut dwpe) =
                            (buf_f32(&wte), buf_f32(&vec![0.0; t * c]), nan_buf(t * c));
                        let (toks, dout, mut work) =
                            (buf_u32(&toks), buf_f32(&dout), buf_u32(&vec![u32::MAX; b * t]));
                        let (wpe, dwpe) = (positions.then(|| wpe.view()), positions.then(|| dwpe.view_mut()));
                        device.embedding_forward(out.view_mut(), toks.view(), wte.view(), wpe, t);
                        let dwte_view = dwte.view_mut();
                        device.embedding_backward(
                            dwte_view,
                            dwpe,
                            dout.view(),
                            toks.view(),
                            work.view_mut(),
                            t,
                        );
                        [read(&out), read(&dwte)]
                    };
                    [run(false), run(true)].concat()
                });
                assert_eq!((&got[0], &got[1]), (&got[2], &got[3]), "b {b} t {t} c {c} {}", dtype.name());
            }
        }
    }

    #[test]
    fn reference_gradients_are_central_differences() {
        let (b, t, c, v, t_max) = (2, 3, 5, 7, 4);
        let (toks, wte, wpe, dout) = inputs(b, t, c, v, t_max);
        let (wte, wpe, dout) = (wide(&wte), wide(&wpe), wide(&dout));
        let (dwte, dwpe) = reference::embedding_backward(&dout, &toks, v, t_max, c, t);
        assert_gradient("dwte", &wte, &dwte, |x| {
            weighted(&reference::embedding_forward(&toks, x, &wpe, c, t), &dout)
        });
        assert_gradient("dwpe", &wpe, &dwpe, |x| {
            weighted(&reference::embedding_forward(&toks, &wte, x, c, t), &dout)
        });
    }

    #[test]
    #[should_panic(expected = "token 7 at 1, vocabulary 7")]
    fn a_token_outside_the_vocabulary_is_named() {
        let (mut out, toks, wte, wpe) = (nan_buf(6), buf_u32(&[6, 7]), nan_buf(21), nan_buf(6));
        device(1).embedding_forward(out.view_mut(), toks.view(), wte.view(), Some(wpe.view()), 2);
    }
}

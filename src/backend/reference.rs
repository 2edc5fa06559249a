//! Naive siblings of the kernels: f64, slow and obvious, straight from the formulas. For tests, and for
//! `zero3 device check`.
//!
//! Matrices come flat, as the kernels see them, and become `ndarray` arrays here.

use crate::backend::ops::{AttentionShape, LinearShape, Rotation};
use ndarray::{Array1, Array2, Array4, ArrayView1, ArrayView2, Axis, s};

fn matrix(xs: &[f64], rows: usize, cols: usize) -> ArrayView2<'_, f64> {
    ArrayView2::from_shape((rows, cols), xs).expect("rows * cols elements")
}

fn flat<D: ndarray::Dimension>(xs: ndarray::Array<f64, D>) -> Vec<f64> {
    xs.iter().copied().collect()
}

pub fn embedding_forward(tokens: &[u32], wte: &[f64], wpe: &[f64], c: usize, t: usize) -> Vec<f64> {
    let element = |row: usize, i: usize| wte[tokens[row] as usize * c + i] + wpe[(row % t) * c + i];
    (0..tokens.len()).flat_map(|row| (0..c).map(move |i| (row, i))).map(|(row, i)| element(row, i)).collect()
}

/// (dwte, dwpe), both overwritten.
pub fn embedding_backward(
    dout: &[f64],
    tokens: &[u32],
    v: usize,
    t_max: usize,
    c: usize,
    t: usize,
) -> (Vec<f64>, Vec<f64>) {
    let (mut dwte, mut dwpe) = (vec![0.0; v * c], vec![0.0; t_max * c]);
    for (row, &token) in tokens.iter().enumerate() {
        for i in 0..c {
            dwte[token as usize * c + i] += dout[row * c + i];
            dwpe[(row % t) * c + i] += dout[row * c + i];
        }
    }
    (dwte, dwpe)
}

/// Mean and 1 / standard deviation of a row.
fn statistics(row: ArrayView1<'_, f64>) -> (f64, f64) {
    let c = row.len() as f64;
    let mean = row.sum() / c;
    let var = row.mapv(|x| (x - mean).powi(2)).sum() / c;
    (mean, 1.0 / (var + 1e-5f32 as f64).sqrt())
}

/// (out, mean, rstd)
pub fn layer_norm_forward(inp: &[f64], weight: &[f64], bias: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let c = weight.len();
    let inp = matrix(inp, inp.len() / c, c);
    let (mean, rstd): (Vec<f64>, Vec<f64>) = inp.outer_iter().map(statistics).unzip();
    let out = Array2::from_shape_fn(inp.dim(), |(row, i)| {
        (inp[[row, i]] - mean[row]) * rstd[row] * weight[i] + bias[i]
    });
    (flat(out), mean, rstd)
}

/// (dinp, dweight, dbias), all overwritten.
pub fn layer_norm_backward(dout: &[f64], inp: &[f64], weight: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let c = weight.len();
    let (dout, inp) = (matrix(dout, dout.len() / c, c), matrix(inp, inp.len() / c, c));
    let mut dinp = Array2::zeros(inp.dim());
    let (mut dweight, mut dbias) = (Array1::<f64>::zeros(c), Array1::<f64>::zeros(c));
    for row in 0..inp.nrows() {
        let (mean, rstd) = statistics(inp.row(row));
        let norm = inp.row(row).mapv(|x| (x - mean) * rstd);
        let dnorm = &dout.row(row) * &ArrayView1::from(weight);
        let (dnorm_mean, dnorm_norm_mean) = (dnorm.sum() / c as f64, dnorm.dot(&norm) / c as f64);
        dinp.row_mut(row).assign(&((&dnorm - dnorm_mean - &norm * dnorm_norm_mean) * rstd));
        dweight += &(&dout.row(row) * &norm);
        dbias += &dout.row(row);
    }
    (flat(dinp), flat(dweight), flat(dbias))
}

pub fn linear_forward(inp: &[f64], weight: &[f64], bias: &[f64], shape: LinearShape) -> Vec<f64> {
    let LinearShape { rows, n_in, n_out } = shape;
    flat(matrix(inp, rows, n_in).dot(&matrix(weight, n_out, n_in).t()) + ArrayView1::from(bias))
}

/// (dinp, dweight, dbias), all overwritten.
pub fn linear_backward(
    dout: &[f64],
    inp: &[f64],
    weight: &[f64],
    shape: LinearShape,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let LinearShape { rows, n_in, n_out } = shape;
    let dout = matrix(dout, rows, n_out);
    (
        flat(dout.dot(&matrix(weight, n_out, n_in))),
        flat(dout.t().dot(&matrix(inp, rows, n_in))),
        flat(dout.sum_axis(Axis(0))),
    )
}

const GELU_SCALE: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

pub fn gelu_forward(inp: &[f64]) -> Vec<f64> {
    inp.iter().map(|&x| 0.5 * x * (1.0 + (GELU_SCALE * (x + 0.044715 * x.powi(3))).tanh())).collect()
}

pub fn gelu_backward(inp: &[f64], dout: &[f64]) -> Vec<f64> {
    let derivative = |x: f64| {
        let tanh = (GELU_SCALE * (x + 0.044715 * x.powi(3))).tanh();
        let dtanh = (1.0 - tanh * tanh) * GELU_SCALE * (1.0 + 3.0 * 0.044715 * x * x);
        0.5 * (1.0 + tanh) + 0.5 * x * dtanh
    };
    inp.iter().zip(dout).map(|(&x, &d)| d * derivative(x)).collect()
}

/// Probabilities of one head, (T, T), zero after the diagonal, and the log-sum-exp of each row.
fn probabilities(q: ArrayView2<'_, f64>, k: ArrayView2<'_, f64>) -> (Array2<f64>, Vec<f64>) {
    let (t, d) = q.dim();
    let mut probs = q.dot(&k.t()) / (d as f64).sqrt();
    let mut lse = Vec::new();
    for i in 0..t {
        probs.slice_mut(s![i, i + 1..]).fill(f64::NEG_INFINITY);
        let max = probs.row(i).fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        lse.push(max + probs.row(i).mapv(|x| (x - max).exp()).sum().ln());
        probs.row_mut(i).mapv_inplace(|x| (x - lse[i]).exp());
    }
    (probs, lse)
}

/// A head's slot of the (H + 2 Hkv) in a row of qkv: (q, k, v).
fn slots(shape: AttentionShape, head: usize) -> (usize, usize, usize) {
    let kv_head = head / (shape.n_heads / shape.n_kv_heads);
    (head, shape.n_heads + kv_head, shape.n_heads + shape.n_kv_heads + kv_head)
}

fn split_heads(xs: &[f64], shape: AttentionShape, n_slots: usize) -> Array4<f64> {
    Array4::from_shape_vec((shape.b, shape.t, n_slots, shape.d_head), xs.to_vec())
        .expect("B * T * row elements")
}

/// (out, lse)
pub fn attention_forward(qkv: &[f64], shape: AttentionShape) -> (Vec<f64>, Vec<f64>) {
    let qkv = split_heads(qkv, shape, shape.n_heads + 2 * shape.n_kv_heads);
    let mut out = Array4::zeros((shape.b, shape.t, shape.n_heads, shape.d_head));
    let mut lse = Vec::new();
    for b in 0..shape.b {
        for head in 0..shape.n_heads {
            let (q, k, v) = slots(shape, head);
            let (probs, head_lse) = probabilities(qkv.slice(s![b, .., q, ..]), qkv.slice(s![b, .., k, ..]));
            out.slice_mut(s![b, .., head, ..]).assign(&probs.dot(&qkv.slice(s![b, .., v, ..])));
            lse.extend(head_lse);
        }
    }
    (flat(out), lse)
}

/// dqkv, overwritten.
pub fn attention_backward(dout: &[f64], qkv: &[f64], shape: AttentionShape) -> Vec<f64> {
    let n_slots = shape.n_heads + 2 * shape.n_kv_heads;
    let (qkv, dout) = (split_heads(qkv, shape, n_slots), split_heads(dout, shape, shape.n_heads));
    let mut dqkv = Array4::zeros((shape.b, shape.t, n_slots, shape.d_head));
    for b in 0..shape.b {
        for head in 0..shape.n_heads {
            let (q, k, v) = slots(shape, head);
            let of = |slot: usize| qkv.slice(s![b, .., slot, ..]);
            let dout = dout.slice(s![b, .., head, ..]);
            let (probs, _) = probabilities(of(q), of(k));
            let dprobs = dout.dot(&of(v).t());
            // The Jacobian of softmax: ds_j = p_j * (dp_j - sum_i p_i dp_i).
            let delta = (&probs * &dprobs).sum_axis(Axis(1)).insert_axis(Axis(1));
            let dscores = &probs * &(&dprobs - &delta) / (shape.d_head as f64).sqrt();
            let mut add = |slot: usize, x: Array2<f64>| {
                let mut to = dqkv.slice_mut(s![b, .., slot, ..]);
                to += &x;
            };
            add(q, dscores.dot(&of(k)));
            add(k, dscores.t().dot(&of(q)));
            add(v, probs.t().dot(&dout));
        }
    }
    flat(dqkv)
}

/// (losses, dlogits)
pub fn cross_entropy(logits: &[f64], targets: &[u32], scale: f64) -> (Vec<f64>, Vec<f64>) {
    let rows = targets.len();
    let mut dlogits = matrix(logits, rows, logits.len() / rows).to_owned();
    let mut losses = Vec::new();
    for (mut row, &target) in dlogits.outer_iter_mut().zip(targets) {
        let max = row.fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        let lse = max + row.mapv(|x| (x - max).exp()).sum().ln();
        losses.push(lse - row[target as usize]);
        row.mapv_inplace(|x| (x - lse).exp());
        row[target as usize] -= 1.0;
        row *= scale;
    }
    (losses, flat(dlogits))
}

/// (out, rstd)
pub fn rms_norm_forward(inp: &[f64], weight: &[f64], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let c = weight.len();
    let rows = inp.chunks_exact(c);
    let rstd: Vec<f64> =
        rows.map(|row| 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / c as f64 + eps).sqrt()).collect();
    ((0..inp.len()).map(|i| inp[i] * rstd[i / c] * weight[i % c]).collect(), rstd)
}

/// (dinp, dweight), both overwritten.
pub fn rms_norm_backward(dout: &[f64], inp: &[f64], weight: &[f64], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let c = weight.len();
    let (_, rstd) = rms_norm_forward(inp, weight, eps);
    let norm = |i: usize| inp[i] * rstd[i / c];
    let mut dweight = vec![0.0; c];
    (0..inp.len()).for_each(|i| dweight[i % c] += dout[i] * norm(i));
    let dnorm_norm_mean: Vec<f64> = (0..rstd.len())
        .map(|row| {
            (row * c..(row + 1) * c).map(|i| dout[i] * weight[i % c] * norm(i)).sum::<f64>() / c as f64
        })
        .collect();
    let dinp = |i: usize| (dout[i] * weight[i % c] - norm(i) * dnorm_norm_mean[i / c]) * rstd[i / c];
    ((0..inp.len()).map(dinp).collect(), dweight)
}

/// The rotated projection.
pub fn rope(qkv: &[f64], shape: AttentionShape, rotation: Rotation) -> Vec<f64> {
    let AttentionShape { t, n_heads, n_kv_heads, d_head, .. } = shape;
    let (half, rotated) = (d_head / 2, (n_heads + n_kv_heads) * d_head);
    let mut out = qkv.to_vec();
    for (row, out) in out.chunks_exact_mut(shape.qkv_row()).enumerate() {
        for head in out[..rotated].chunks_exact_mut(d_head) {
            for i in 0..half {
                let frequency = f64::from(rotation.theta).powf(-2.0 * i as f64 / d_head as f64);
                let angle = (rotation.first + row % t) as f64 * frequency;
                let angle = if rotation.inverse { -angle } else { angle };
                let (a, b) = (head[i], head[half + i]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[half + i] = a * angle.sin() + b * angle.cos();
            }
        }
    }
    out
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `out` with `n` columns of every row replaced by those of `inp`; `to` and `from` say which: (elements of a
/// row, first column).
pub fn copy_columns(
    out: &[f64],
    to: (usize, usize),
    inp: &[f64],
    from: (usize, usize),
    n: usize,
) -> Vec<f64> {
    let mut out = out.to_vec();
    for (out, inp) in out.chunks_mut(to.0).zip(inp.chunks(from.0)) {
        out[to.1..to.1 + n].copy_from_slice(&inp[from.1..from.1 + n]);
    }
    out
}

pub fn swiglu_forward(gate_up: &[f64], f: usize) -> Vec<f64> {
    let row = |row: &[f64]| -> Vec<f64> { (0..f).map(|i| row[i] * sigmoid(row[i]) * row[f + i]).collect() };
    gate_up.chunks_exact(2 * f).flat_map(row).collect()
}

/// dgate_up, overwritten.
pub fn swiglu_backward(dout: &[f64], gate_up: &[f64], f: usize) -> Vec<f64> {
    let mut dgate_up = vec![0.0; gate_up.len()];
    for (row, d) in dgate_up.chunks_exact_mut(2 * f).enumerate() {
        let (gate, up) = gate_up[row * 2 * f..][..2 * f].split_at(f);
        for i in 0..f {
            let (s, dout) = (sigmoid(gate[i]), dout[row * f + i]);
            d[i] = dout * up[i] * s * (1.0 + gate[i] * (1.0 - s));
            d[f + i] = dout * gate[i] * s;
        }
    }
    dgate_up
}

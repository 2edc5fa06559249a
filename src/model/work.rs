//! The kernels of every visit, with FLOPs and bytes from the shapes: what `plan/forecast/` gives a time to. It follows the
//! forward and backward of each unit line by line; a test holds its products against `flops_per_token`.
//!
//! Must not know: how fast anything is.

use super::{Family, Model, logits};
use crate::dtype::DType;
use crate::params::{Precision, SHARED_GRAD, UnitRole};
use crate::work::{Attention, Kernel, Product, UnitWork, Work};

/// The kernels of each unit's visits.
pub fn of_model(model: &Model, precision: Precision) -> Vec<UnitWork> {
    // Blocks are alike.
    let (embedding, block, head) = (embedding(model, precision), block(model, precision), head(model, precision));
    let of = |role: UnitRole| match role {
        UnitRole::Embedding => &embedding,
        UnitRole::Block => &block,
        UnitRole::Head => &head,
    };
    model.spec.units.iter().map(|unit| of(unit.role).clone()).collect()
}

fn embedding(model: &Model, precision: Precision) -> UnitWork {
    let dims = &model.dims;
    let numel = dims.rows() * dims.c;
    let a = precision.activation;
    let mut backward = Vec::new();
    match &model.family {
        Family::Llama(shape) if !shape.tied => {
            let bytes = dims.vocab * dims.c * precision.grad.bytes();
            backward.push(Work::pass(Kernel::Stream, precision.grad, bytes));
        }
        _ => {}
    }
    let positions = if model.family == Family::Gpt2 { dims.t_max * dims.c * precision.grad.bytes() } else { 0 };
    let added = numel * (a.bytes() + 2 * SHARED_GRAD.bytes());
    backward.push(Work::pass(Kernel::EmbeddingBackward, a, added + positions));
    UnitWork { forward: vec![Work::pass(Kernel::EmbeddingForward, a, 2 * numel * a.bytes())], backward }
}

/// A linear layer of a block.
fn linear(forward: &mut Vec<Work>, backward: &mut Vec<Work>, precision: Precision, shape: Product) {
    let (param, a) = (precision.param, precision.activation.bytes());
    forward.push(shape.work(Kernel::LinearForward, param, a, false));
    backward.push(shape.work(Kernel::LinearBackwardWeight, param, a, false));
    backward.push(shape.work(Kernel::LinearBackwardInput, param, a, false));
}

fn block(model: &Model, precision: Precision) -> UnitWork {
    let (dims, a) = (&model.dims, precision.activation);
    let (rows, c) = (dims.rows(), dims.c);
    let attention = model.attention_shape();
    let attention = Attention {
        b: attention.b,
        t: attention.t,
        n_heads: attention.n_heads,
        n_kv_heads: attention.n_kv_heads,
        d_head: attention.d_head,
    };
    let (qkv_row, out_row) =
        ((attention.n_heads + 2 * attention.n_kv_heads) * attention.d_head, attention.n_heads * attention.d_head);
    let pass = |kernel, n_tensors: usize, width: usize| Work::pass(kernel, a, n_tensors * rows * width * a.bytes());
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    let product = |n_in, n_out| Product { rows, n_in, n_out };

    // Two norms, and two additions to the residual stream.
    forward.extend([pass(Kernel::NormForward, 2, c), pass(Kernel::NormForward, 2, c)]);
    forward.extend([pass(Kernel::Stream, 3, c), pass(Kernel::Stream, 3, c)]);
    backward.extend([pass(Kernel::NormBackward, 4, c), pass(Kernel::NormBackward, 4, c)]);

    linear(&mut forward, &mut backward, precision, product(c, qkv_row));
    forward.push(attention.work(Kernel::AttentionForward, a));
    backward.push(attention.work(Kernel::AttentionBackward, a));
    linear(&mut forward, &mut backward, precision, product(out_row, c));
    match &model.family {
        Family::Gpt2 => {
            linear(&mut forward, &mut backward, precision, product(c, 4 * c));
            linear(&mut forward, &mut backward, precision, product(4 * c, c));
            forward.push(pass(Kernel::ActivationForward, 2, 4 * c));
            backward.push(pass(Kernel::ActivationBackward, 3, 4 * c));
        }
        Family::Llama(shape) => {
            let f = shape.d_ff;
            linear(&mut forward, &mut backward, precision, product(c, 2 * f));
            linear(&mut forward, &mut backward, precision, product(f, c));
            forward.push(pass(Kernel::ActivationForward, 3, f));
            backward.push(pass(Kernel::ActivationBackward, 5, f));
            forward.push(pass(Kernel::Rope, 2, qkv_row));
            backward.push(pass(Kernel::Rope, 2, qkv_row));
        }
    }
    UnitWork { forward, backward }
}

/// The head multiplies chunk by chunk, and reads its matrix for each.
fn head(model: &Model, precision: Precision) -> UnitWork {
    let (dims, a) = (&model.dims, precision.activation);
    let (rows, c, vocab) = (dims.rows(), dims.c, dims.vocab);
    let pass = |kernel, n_tensors: usize| Work::pass(kernel, a, n_tensors * rows * c * a.bytes());
    let mut backward = vec![pass(Kernel::NormForward, 2), pass(Kernel::NormBackward, 4), pass(Kernel::Stream, 1)];
    let step = logits::chunk_rows(dims);
    for start in (0..rows).step_by(step) {
        let shape = Product { rows: step.min(rows - start), n_in: c, n_out: vocab };
        let wide = DType::F32.bytes();
        backward.push(shape.work(Kernel::LinearForward, precision.param, wide, false));
        backward.push(Work::pass(Kernel::CrossEntropy, DType::F32, 2 * shape.rows * vocab * wide));
        backward.push(shape.work(Kernel::LinearBackwardInput, precision.param, wide, false));
        backward.push(shape.work(Kernel::LinearBackwardWeight, precision.param, wide, true));
    }
    UnitWork { forward: Vec::new(), backward }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::CpuDevice;
    use crate::config::Deck;

    /// FLOPs of matrix products, attention apart.
    fn products(works: &[UnitWork]) -> f64 {
        let is_linear = |w: &&Work| {
            matches!(w.kernel, Kernel::LinearForward | Kernel::LinearBackwardInput | Kernel::LinearBackwardWeight)
        };
        works.iter().flat_map(|u| u.forward.iter().chain(&u.backward)).filter(is_linear).map(|w| w.flops).sum()
    }

    #[test]
    fn products_are_those_of_flops_per_token_and_attention_is_half_of_what_that_counts() {
        for family in ["gpt2", "llama"] {
            let deck = format!(
                "run.dir = 'r'\ndata.train = ['a.u16']\n[train]\nsteps = 1\nmicro_batch_size = 3\n[model]\nfamily = '{family}'\n\
                 n_layer = 3\nn_head = 4\nd_model = 32\nseq_len = 40\nvocab_size = 500"
            );
            let model = Model::of_deck::<CpuDevice>(&Deck::parse(&deck, &[], "a test").unwrap());
            let works = of_model(&model, Precision::F32);
            let tokens = model.spec.tokens_per_micro_batch as f64;
            let attention_as_counted = 12.0 * (3 * 40 * 32) as f64;
            assert_eq!(products(&works) / tokens, model.spec.flops_per_token - attention_as_counted, "{family}");
            // Seven products over half the square (and the diagonal), where flops_per_token has six over all of it.
            let computed: f64 = works
                .iter()
                .flat_map(|u| u.forward.iter().chain(&u.backward))
                .filter(|w| matches!(w.kernel, Kernel::AttentionForward | Kernel::AttentionBackward))
                .map(|w| w.flops)
                .sum();
            assert_eq!(computed / tokens, attention_as_counted * 7.0 / 6.0 * 41.0 / 80.0, "{family}");
        }
    }

    #[test]
    fn a_chunked_head_reads_its_matrix_for_each_chunk() {
        let deck = "run.dir = 'r'\ndata.train = ['a.u32']\n[train]\nsteps = 1\nmicro_batch_size = 1\n[model]\npreset = 'llama3-8b'";
        let model = Model::of_deck::<CpuDevice>(&Deck::parse(deck, &[], "a test").unwrap());
        let head = of_model(&model, Precision::F32).pop().unwrap();
        let forward: Vec<&Work> = head.backward.iter().filter(|w| w.kernel == Kernel::LinearForward).collect();
        assert_eq!(forward.len(), 8192usize.div_ceil(logits::chunk_rows(&model.dims)));
        assert!(forward.iter().all(|w| w.bytes > (128_256 * 4096 * 4) as f64));
    }
}

//! The kernels of every visit, with FLOPs and bytes: what `plan/forecast/` gives a time to. The model's own
//! forward and backward run on a device that only counts, so there is nothing here that could differ from
//! what a step computes.
//!
//! Must not know: how fast anything is, which families there are.

use super::{BackwardIo, ForwardIo, LossGrad, LossIo, Model};
use crate::backend::counting::Counting;
use crate::backend::{Buf, View};
use crate::dtype::DType;
use crate::params::{Precision, SHARED_GRAD, TensorSpec, UnitId, UnitRole};
use crate::work::UnitWork;

/// The kernels of each unit's visits.
pub fn of_model(model: &Model, precision: Precision) -> Vec<UnitWork> {
    let mut works: Vec<UnitWork> = Vec::new();
    for (u, unit) in model.spec.units.iter().enumerate() {
        // Blocks are alike.
        let like = u > 1 && unit.role == UnitRole::Block && model.spec.units[u - 1].role == UnitRole::Block;
        works.push(if like { works[u - 1].clone() } else { of_unit(model, u, precision) });
    }
    works
}

fn of_unit(model: &Model, unit: UnitId, precision: Precision) -> UnitWork {
    let (dev, spec) = (Counting::default(), &model.spec);
    let it = &spec.units[unit];
    let bufs = |specs: &[TensorSpec]| -> Vec<Buf> {
        specs.iter().map(|s| Counting::buf(s.numel, s.dtype)).collect()
    };
    let residual = || Counting::buf(spec.residual_numel, precision.activation);
    let ids = || Counting::buf(spec.tokens_per_micro_batch, DType::U32);
    let grad = |p: usize| if spec.is_summed(p) { SHARED_GRAD } else { precision.grad };
    let params: Vec<Buf> =
        it.params.iter().map(|&p| Counting::buf(spec.params[p].numel(), precision.param)).collect();
    let params: Vec<View<'_>> = params.iter().map(Buf::view).collect();
    let mut grads: Vec<Buf> =
        it.params.iter().map(|&p| Counting::buf(spec.params[p].numel(), grad(p))).collect();
    let (mut saved, mut work) = (bufs(&it.saved), bufs(&it.backward_work));
    let (input, tokens, mut out) = (residual(), ids(), residual());

    let mut forward = Vec::new();
    if it.role == UnitRole::Head {
        let backward = Some(LossGrad { scale: 1.0, dresidual: out.view_mut(), grads: &mut grads });
        let mut losses = Counting::buf(spec.tokens_per_micro_batch, DType::F32);
        let (targets, losses) = (tokens.view(), losses.view_mut());
        model.loss(&dev, &params, LossIo { targets, input: input.view(), losses, work: &mut work, backward });
    } else {
        let input = (unit > 0).then(|| input.view());
        let (tokens, out_view, forward_work) = (tokens.view(), out.view_mut(), &mut bufs(&it.forward_work));
        let io =
            ForwardIo { tokens, input, out: out_view, saved: &mut saved, work: forward_work, cached: None };
        model.forward(&dev, unit, &params, io);
        forward = dev.take();
        let (saved, work, dresidual, grads) = (&saved[..], &mut work[..], out.view_mut(), &mut grads[..]);
        model.backward(&dev, unit, &params, BackwardIo { tokens, input, saved, work, dresidual, grads });
    }
    UnitWork { forward, backward: dev.take() }
}

#[cfg(test)]
mod tests {
    use super::super::logits;
    use super::*;
    use crate::backend::cpu::CpuDevice;
    use crate::config::Deck;
    use crate::work::{Kernel, Work};

    /// FLOPs of matrix products, attention apart.
    fn products(works: &[UnitWork]) -> f64 {
        let is_linear = |w: &&Work| {
            matches!(
                w.kernel,
                Kernel::LinearForward | Kernel::LinearBackwardInput | Kernel::LinearBackwardWeight
            )
        };
        works
            .iter()
            .flat_map(|u| u.forward.iter().chain(&u.backward))
            .filter(is_linear)
            .map(|w| w.flops)
            .sum()
    }

    #[test]
    fn products_are_those_of_flops_per_token_and_attention_is_half_of_what_that_counts() {
        for family in ["gpt2", "llama", "qwen3"] {
            let deck = format!(
                "run.dir = 'r'\ndata.train = ['a.u16']\n[train]\nsteps = 1\nmicro_batch_size = \
                 3\n[model]\nfamily = '{family}'\nn_layer = 3\nn_head = 4\nd_model = 32\nseq_len = \
                 40\nvocab_size = 500"
            );
            let model = Model::of_deck::<CpuDevice>(&Deck::parse(&deck, &[], "a test").unwrap());
            let works = of_model(&model, Precision::F32);
            let tokens = model.spec.tokens_per_micro_batch as f64;
            let attention_as_counted = 12.0 * (3 * 40 * 32) as f64;
            assert_eq!(
                products(&works) / tokens,
                model.spec.flops_per_token - attention_as_counted,
                "{family}"
            );
            // Seven products over half the square (and the diagonal), where flops_per_token has six over all
            // of it.
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
        let deck = "run.dir = 'r'\ndata.train = ['a.u32']\n[train]\nsteps = 1\nmicro_batch_size = \
                    1\n[model]\npreset = 'llama3-8b'";
        let model = Model::of_deck::<CpuDevice>(&Deck::parse(deck, &[], "a test").unwrap());
        let head = of_model(&model, Precision::F32).pop().unwrap();
        let forward: Vec<&Work> =
            head.backward.iter().filter(|w| w.kernel == Kernel::LinearForward).collect();
        assert_eq!(forward.len(), 8192usize.div_ceil(logits::chunk_rows(&model.dims)));
        assert!(forward.iter().all(|w| w.bytes > (128_256 * 4096 * 4) as f64));
    }
}

//! Llama as data: parameters, units and initial values (arXiv:2302.13971, arXiv:2407.21783). Projections that read the same
//! rows are one parameter, `qkv_proj` and `gate_up_proj`, so that one product does each.
//!
//! Residual projections begin scaled by 1/sqrt(2 L), as this program's GPT-2 has them.

pub mod block;
pub mod embedding;
pub mod head;

use super::Dims;
use crate::backend::Ops;
use crate::params::{Init, ModelSpec, ParamId, ParamSpec, Precision, UnitRole, UnitSpec};

/// Standard deviation of initial weights.
const STD: f64 = 0.02;

/// What a Llama has beside [`Dims`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Key/value heads (Hkv); divides the attention heads.
    pub n_kv_heads: usize,
    /// Width of the hidden layer (F).
    pub d_ff: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// The head is the token embedding.
    pub tied: bool,
}

/// Llama of the given sizes and types.
pub fn spec<D: Ops>(dims: &Dims, shape: &Shape, precision: Precision) -> ModelSpec {
    let (c, l, f) = (dims.c, dims.n_layer, shape.d_ff);
    let attention = block::attention_shape(dims, shape);
    let (qkv_row, out_row) = (attention.qkv_row(), attention.out_row());
    let mut params = Vec::new();
    let mut add = |name: String, shape: &[usize], init: Init| -> ParamId {
        params.push(ParamSpec { name, shape: shape.to_vec(), init, decay: shape.len() >= 2 });
        params.len() - 1
    };
    let normal = Init::Normal { std: STD };
    let residual = Init::Normal { std: STD / ((2 * l) as f64).sqrt() };
    let wte = add("embed_tokens.weight".into(), &[dims.vocab, c], normal);
    let mut units = vec![UnitSpec {
        name: "embed".into(),
        role: UnitRole::Embedding,
        params: vec![wte],
        saved: Vec::new(),
        forward_work: Vec::new(),
        backward_work: embedding::backward_work::<D>(dims, shape, precision),
    }];
    for i in 0..l {
        let ids = vec![
            add(format!("layers.{i}.input_layernorm.weight"), &[c], Init::Ones),
            add(format!("layers.{i}.self_attn.qkv_proj.weight"), &[qkv_row, c], normal),
            add(format!("layers.{i}.self_attn.o_proj.weight"), &[c, out_row], residual),
            add(format!("layers.{i}.post_attention_layernorm.weight"), &[c], Init::Ones),
            add(format!("layers.{i}.mlp.gate_up_proj.weight"), &[2 * f, c], normal),
            add(format!("layers.{i}.mlp.down_proj.weight"), &[c, f], residual),
        ];
        units.push(UnitSpec {
            name: format!("layers.{i}"),
            role: UnitRole::Block,
            params: ids,
            saved: block::saved(dims, shape, precision),
            forward_work: block::forward_work::<D>(dims, shape, precision),
            backward_work: block::backward_work::<D>(dims, shape, precision),
        });
    }
    let norm = add("norm.weight".into(), &[c], Init::Ones);
    let output = match shape.tied {
        true => wte,
        false => add(HEAD.into(), &[dims.vocab, c], normal),
    };
    units.push(UnitSpec {
        name: "head".into(),
        role: UnitRole::Head,
        params: vec![norm, output],
        saved: Vec::new(),
        forward_work: Vec::new(),
        backward_work: head::work::<D>(dims, precision),
    });
    // 6 FLOPs per weight of a matrix multiplication and token, and 12 L T (H D) for attention scores and values (forward and
    // backward, without the causal discount), as in arXiv:2204.02311, appendix B. Embedding look-ups are no products.
    let multiplied = l * (qkv_row * c + c * out_row + 3 * f * c) + dims.vocab * c;
    ModelSpec {
        params,
        units,
        aliases: if shape.tied { vec![(HEAD.into(), wte)] } else { Vec::new() },
        activation_dtype: precision.activation,
        residual_numel: dims.rows() * c,
        tokens_per_micro_batch: dims.rows(),
        flops_per_token: 6.0 * multiplied as f64 + 12.0 * (l * dims.t) as f64 * out_row as f64,
    }
}

/// The output matrix, a parameter of its own or another name of the embedding.
pub const HEAD: &str = "lm_head.weight";

#[cfg(test)]
mod tests {
    use crate::backend::cpu::CpuDevice;
    use crate::config::Deck;
    use crate::model::Model;

    fn preset(name: &str) -> Model {
        let deck = format!("run.dir = 'r'\ndata.train = ['a.u32']\ntrain.steps = 1\nmodel.preset = '{name}'");
        Model::of_deck::<CpuDevice>(&Deck::parse(&deck, &[], "a test").unwrap())
    }

    #[test]
    fn presets_have_the_published_numbers_of_parameters() {
        // Meta's model cards say 8B and 1.23B; the digits are those of the published weights.
        assert_eq!(preset("llama3-8b").spec.numel(), 8_030_261_248);
        assert_eq!(preset("llama-1b").spec.numel(), 1_235_814_400);
        for (name, numel) in [
            ("llama-3b", 3_212_749_824),
            ("llama2-7b", 6_738_415_616),
            ("llama2-13b", 13_015_864_320),
            ("llama2-70b", 68_976_648_192),
            ("llama3-70b", 70_553_706_496),
        ] {
            assert_eq!(preset(name).spec.numel(), numel, "{name}");
        }
        assert_eq!(preset("llama-tiny").spec.numel(), 853_120);
    }

    #[test]
    fn only_a_tied_embedding_belongs_to_two_units() {
        for (name, n_tied) in [("llama3-8b", 0), ("llama-1b", 1)] {
            let spec = preset(name).spec;
            let tied: Vec<usize> = (0..spec.params.len()).filter(|&p| spec.users()[p].len() == 2).collect();
            assert!(spec.users().iter().all(|users| !users.is_empty()));
            assert_eq!((tied.len(), spec.aliases.len()), (n_tied, n_tied), "{name}");
            // The head's matrix is summed over chunks of rows either way.
            assert!(spec.is_summed(*spec.units.last().unwrap().params.last().unwrap()), "{name}");
        }
    }

    #[test]
    fn flops_count_every_product_once() {
        // Llama 3 8B at 8192 tokens: 7.5e9 weights in products, and 12 * 32 * 8192 * 4096 of attention.
        let (spec, weights) = (preset("llama3-8b").spec, 8_030_261_248u64 - 128_256 * 4096 - 65 * 4096);
        assert_eq!(spec.flops_per_token, 6.0 * weights as f64 + 12.0 * 32.0 * 8192.0 * 4096.0);
    }
}

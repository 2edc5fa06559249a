//! GPT-2 as data: parameters, units and initial values (Radford et al. 2019; residual projections scaled by
//! 1/sqrt(2 L)).

pub mod block;
pub mod embedding;
pub mod head;

use super::Dims;
use crate::backend::Ops;
use crate::params::{Init, ModelSpec, ParamSpec, Precision, UnitRole, UnitSpec};

/// Standard deviation of initial weights.
const STD: f64 = 0.02;

/// GPT-2 of the given sizes and types, head tied to the token embedding.
pub fn spec<D: Ops>(dims: &Dims, precision: Precision) -> ModelSpec {
    let (c, l) = (dims.c, dims.n_layer);
    let mut params = Vec::new();
    let mut add = |name: String, shape: &[usize], init: Init| {
        params.push(ParamSpec { name, shape: shape.to_vec(), init, decay: shape.len() >= 2 });
        params.len() - 1
    };
    let normal = Init::Normal { std: STD };
    let residual = Init::Normal { std: STD / ((2 * l) as f64).sqrt() };
    let wte = add("wte.weight".into(), &[dims.vocab, c], normal);
    let wpe = add("wpe.weight".into(), &[dims.t_max, c], normal);
    let mut units = vec![UnitSpec {
        name: "embed".into(),
        role: UnitRole::Embedding,
        params: vec![wte, wpe],
        saved: Vec::new(),
        forward_work: Vec::new(),
        backward_work: embedding::backward_work::<D>(dims, precision),
    }];
    for i in 0..l {
        let ids = vec![
            add(format!("h.{i}.ln_1.weight"), &[c], Init::Ones),
            add(format!("h.{i}.ln_1.bias"), &[c], Init::Zeros),
            add(format!("h.{i}.attn.c_attn.weight"), &[3 * c, c], normal),
            add(format!("h.{i}.attn.c_attn.bias"), &[3 * c], Init::Zeros),
            add(format!("h.{i}.attn.c_proj.weight"), &[c, c], residual),
            add(format!("h.{i}.attn.c_proj.bias"), &[c], Init::Zeros),
            add(format!("h.{i}.ln_2.weight"), &[c], Init::Ones),
            add(format!("h.{i}.ln_2.bias"), &[c], Init::Zeros),
            add(format!("h.{i}.mlp.c_fc.weight"), &[4 * c, c], normal),
            add(format!("h.{i}.mlp.c_fc.bias"), &[4 * c], Init::Zeros),
            add(format!("h.{i}.mlp.c_proj.weight"), &[c, 4 * c], residual),
            add(format!("h.{i}.mlp.c_proj.bias"), &[c], Init::Zeros),
        ];
        units.push(UnitSpec {
            name: format!("h.{i}"),
            role: UnitRole::Block,
            params: ids,
            saved: block::saved(dims, precision),
            forward_work: block::forward_work::<D>(dims, precision),
            backward_work: block::backward_work::<D>(dims, precision),
        });
    }
    let ln_f_w = add("ln_f.weight".into(), &[c], Init::Ones);
    let ln_f_b = add("ln_f.bias".into(), &[c], Init::Zeros);
    units.push(UnitSpec {
        name: "head".into(),
        role: UnitRole::Head,
        params: vec![ln_f_w, ln_f_b, wte],
        saved: Vec::new(),
        forward_work: Vec::new(),
        backward_work: head::work::<D>(dims, precision),
    });
    // 6 FLOPs per weight of a matrix multiplication and token, and 12 L T C for attention scores and values
    // (forward and backward, without the causal discount), as in arXiv:2204.02311, appendix B.
    let (lf, cf, tf, vf) = (l as f64, c as f64, dims.t as f64, dims.vocab as f64);
    ModelSpec {
        params,
        units,
        aliases: vec![("lm_head.weight".into(), wte)],
        activation_dtype: precision.activation,
        residual_numel: dims.rows() * c,
        tokens_per_micro_batch: dims.rows(),
        flops_per_token: 6.0 * (12.0 * lf * cf * cf + vf * cf) + 12.0 * lf * tf * cf,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::CpuDevice;

    #[test]
    fn gpt2_124m_has_the_published_number_of_parameters() {
        let dims = Dims { b: 1, t: 1024, t_max: 1024, c: 768, n_heads: 12, vocab: 50257, n_layer: 12 };
        assert_eq!(spec::<CpuDevice>(&dims, Precision::F32).numel(), 124_439_808);
    }

    #[test]
    fn every_parameter_belongs_to_a_unit_and_only_wte_to_two() {
        let spec =
            spec::<CpuDevice>(&Dims { b: 1, t: 8, t_max: 8, c: 8, n_heads: 2, vocab: 11, n_layer: 3 }, Precision::F32);
        for (p, param) in spec.params.iter().enumerate() {
            let users = spec.units.iter().filter(|u| u.params.contains(&p)).count();
            assert_eq!(users, if param.name == "wte.weight" { 2 } else { 1 }, "{}", param.name);
        }
    }
}

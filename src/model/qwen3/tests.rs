//! Qwen3's sizes. Its gradients are checked in `model/tests.rs`, and against PyTorch and `transformers` in
//! tests/golden.rs.

use crate::backend::cpu::CpuDevice;
use crate::config::{Deck, Family};
use crate::model::Model;

fn preset(name: &str) -> Model {
    let deck = format!("run.dir = 'r'\ndata.train = ['a.u32']\ntrain.steps = 1\nmodel.preset = '{name}'");
    Model::of_deck::<CpuDevice>(&Deck::parse(&deck, &[], "a test").unwrap())
}

#[test]
fn presets_have_the_published_numbers_of_parameters() {
    for (name, numel) in [
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
    ] {
        assert_eq!(preset(name).spec.numel(), numel, "{name}");
    }
}

#[test]
fn its_heads_are_as_wide_as_the_deck_says() {
    let model = preset("qwen3-0.6b");
    let shape = model.attention_shape();
    assert_eq!((model.dims.c, shape.n_heads, shape.n_kv_heads, shape.d_head), (1024, 16, 8, 128));
    let deck = "run.dir = 'r'\ndata.train = ['a.u16']\ntrain.steps = 1\n[model]\nfamily = 'qwen3'\nn_layer = \
                1\nn_head = 4\nd_model = 30\nseq_len = 8\nvocab_size = 11\nhead_dim = 6";
    let deck = Deck::parse(deck, &[], "a test").unwrap();
    assert_eq!((deck.model.family, deck.model.norm_eps, deck.model.rope_theta), (Family::Qwen3, 1e-6, 1e6));
    let model = Model::of_deck::<CpuDevice>(&deck);
    let shape_of = |name: &str| &model.spec.params.iter().find(|p| p.name == name).unwrap().shape;
    assert_eq!(*shape_of("layers.0.self_attn.qkv_proj.weight"), [3 * 4 * 6, 30]);
    assert_eq!(*shape_of("layers.0.self_attn.q_norm.weight"), [6]);
    assert_eq!(*shape_of("layers.0.self_attn.o_proj.weight"), [30, 24]);
}

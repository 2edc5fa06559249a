//! GPT-2 in the words of `transformers`: `GPT2LMHeadModel`.

use crate::config::ModelSection;
use crate::model::transformers::{Tensor, Theirs};
use crate::params::ParamSpec;
use serde_json::{Value, json};

/// The end-of-text token of its vocabulary.
const END: usize = 50256;

/// Linear layers are `Conv1D`, `[in, out]`.
pub fn tensor(param: usize, ours: &ParamSpec) -> Tensor {
    let is_linear = ours.name.contains(".attn.c_") || ours.name.contains(".mlp.c_");
    let is_transposed = is_linear && ours.shape.len() == 2;
    let mut shape = ours.shape.clone();
    if is_transposed {
        shape.reverse();
    }
    Tensor { name: format!("transformer.{}", ours.name), shape, param, rows: 0..ours.shape[0], is_transposed }
}

/// Its config.json.
pub fn config(model: &ModelSection) -> Value {
    let end = if model.vocab_size > END { json!(END) } else { Value::Null };
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_positions": model.seq_len,
        "n_embd": model.d_model,
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "n_inner": Value::Null,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "scale_attn_weights": true,
        "tie_word_embeddings": true,
        "bos_token_id": end,
        "eos_token_id": end,
    })
}

/// Reads its sizes.
pub fn read_config(theirs: &mut Theirs<'_>) {
    theirs.size("n_layer", "n_layer", None);
    theirs.size("n_head", "n_head", None);
    theirs.size("d_model", "n_embd", None);
    theirs.size("seq_len", "n_positions", None);
    theirs.size("vocab_size", "vocab_size", None);
    let hidden = json!(4 * theirs.config["n_embd"].as_u64().unwrap_or(0));
    for (key, default, good) in [
        ("activation_function", json!("gelu_new"), &[json!("gelu_new"), json!("gelu_pytorch_tanh")][..]),
        ("layer_norm_epsilon", json!(1e-5), &[json!(1e-5)]),
        ("n_inner", Value::Null, &[Value::Null, hidden]),
        ("scale_attn_weights", json!(true), &[json!(true)]),
        ("scale_attn_by_inverse_layer_idx", json!(false), &[json!(false)]),
        ("add_cross_attention", json!(false), &[json!(false)]),
        ("tie_word_embeddings", json!(true), &[json!(true)]),
    ] {
        theirs.fixed(key, default, good, "GPT-2");
    }
}

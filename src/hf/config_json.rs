//! The sizes of a model in the words of `transformers`: config.json, both ways.
//!
//! Must not know: files, tensors.

use crate::config::{Deck, ModelSection};
use crate::error::{Error, Result};
use serde_json::{Value, json};

/// The end-of-text token of GPT-2's vocabulary.
const GPT2_END: usize = 50256;

/// What `GPT2LMHeadModel.from_pretrained` needs. `dtype` is `float32` or `bfloat16`.
pub fn of_model(model: &ModelSection, dtype: &str) -> Value {
    let end = if model.vocab_size > GPT2_END { json!(GPT2_END) } else { Value::Null };
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
        "torch_dtype": dtype,
    })
}

/// The deck of a model that config.json describes: the sizes are its, all else is a stand-in, for a checkpoint must have one.
///
/// # Errors
/// Everything in it that this program's models do not have, at once.
pub fn to_deck(text: &[u8], origin: &str) -> Result<Deck> {
    let no = |why: String| Error::Input(format!("{origin}: {why}"));
    let config: Value = serde_json::from_slice(text).map_err(|e| no(format!("not JSON: {e}")))?;
    let mut faults = Vec::new();
    let mut overrides: Vec<(String, String)> = Vec::new();
    let mut size = |key: &str, theirs: &str, stands_for: Option<u64>| match config[theirs].as_u64().or(stands_for) {
        Some(n) => overrides.push((format!("model.{key}"), n.to_string())),
        None => faults.push(format!("{theirs} is {}, and must be a number", config[theirs])),
    };
    if config["model_type"] != "gpt2" {
        return Err(no(format!("model_type is {}; \"gpt2\" would do", config["model_type"])));
    }
    size("n_layer", "n_layer", None);
    size("n_head", "n_head", None);
    size("d_model", "n_embd", None);
    size("seq_len", "n_positions", None);
    size("vocab_size", "vocab_size", None);
    let d_model = config["n_embd"].as_u64().unwrap_or(0);
    // Absent keys have the values that transformers gives them.
    for (key, default, good) in [
        ("activation_function", json!("gelu_new"), vec![json!("gelu_new"), json!("gelu_pytorch_tanh")]),
        ("layer_norm_epsilon", json!(1e-5), vec![json!(1e-5)]),
        ("n_inner", Value::Null, vec![Value::Null, json!(4 * d_model)]),
        ("scale_attn_weights", json!(true), vec![json!(true)]),
        ("scale_attn_by_inverse_layer_idx", json!(false), vec![json!(false)]),
        ("add_cross_attention", json!(false), vec![json!(false)]),
        ("tie_word_embeddings", json!(true), vec![json!(true)]),
    ] {
        let value = config.get(key).unwrap_or(&default);
        if !good.contains(value) {
            faults.push(format!("{key} is {value}, and this program's GPT-2 has {}", good[0]));
        }
    }
    if !faults.is_empty() {
        return Err(no(faults.join("; ")));
    }
    // The longest vocabulary decides how wide a token is; the files are stand-ins.
    let (format, file) = match config["vocab_size"].as_u64().unwrap_or(0) > 1 << 16 {
        true => ("raw_u32", "imported.u32"),
        false => ("raw_u16", "imported.u16"),
    };
    let tokenizer = if config["vocab_size"] == json!(GPT2_END + 1) { "gpt2" } else { "none" };
    overrides.extend(
        [
            ("run.dir", "imported"),
            ("data.train", file),
            ("data.format", format),
            ("data.tokenizer", tokenizer),
            ("train.steps", "1"),
        ]
        .map(|(key, value)| (key.to_string(), value.to_string())),
    );
    Deck::parse("", &overrides, origin).map_err(|e| no(e.to_string()))
}

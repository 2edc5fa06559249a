//! Llama in the words of `transformers`: `LlamaForCausalLM`.

use crate::config::ModelSection;
use crate::model::transformers::{Theirs, gated_config};
use serde_json::{Value, json};

/// Its config.json.
pub fn config(model: &ModelSection) -> Value {
    let mut config = gated_config(model, "LlamaForCausalLM", "llama");
    config["mlp_bias"] = json!(false);
    config
}

/// Reads its sizes.
pub fn read_config(theirs: &mut Theirs<'_>) {
    theirs.size("seq_len", "max_position_embeddings", Some(2048));
    theirs.gated("Llama");
    let n_head = theirs.config["num_attention_heads"].as_u64();
    let head = theirs.config["hidden_size"].as_u64().zip(n_head).map(|(width, n)| json!(width / n.max(1)));
    for (key, default, good) in [
        ("mlp_bias", json!(false), &[json!(false)][..]),
        ("head_dim", Value::Null, &[head.unwrap_or(Value::Null), Value::Null]),
    ] {
        theirs.fixed(key, default, good, "Llama");
    }
}

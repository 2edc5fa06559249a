//! Qwen3 in the words of `transformers`: `Qwen3ForCausalLM`.

use crate::config::ModelSection;
use crate::model::transformers::{Theirs, gated_config};
use serde_json::{Value, json};

/// Its config.json.
pub fn config(model: &ModelSection) -> Value {
    let mut config = gated_config(model, "Qwen3ForCausalLM", "qwen3");
    config["use_sliding_window"] = json!(false);
    config
}

/// Reads its sizes.
pub fn read_config(theirs: &mut Theirs<'_>) {
    theirs.size("seq_len", "max_position_embeddings", Some(32768));
    theirs.size("head_dim", "head_dim", Some(128));
    theirs.gated("Qwen3");
    theirs.fixed("use_sliding_window", json!(false), &[json!(false)], "Qwen3");
    // The window of its layers, and from which layer on: they have none, whatever these say.
    theirs.read.extend(["sliding_window", "max_window_layers", "layer_types"].map(String::from));
    let layers = theirs.config["layer_types"].as_array();
    if layers.is_some_and(|layers| layers.iter().any(|layer| layer != "full_attention")) {
        theirs.faults.push("layer_types has other layers than \"full_attention\"".into());
    }
}

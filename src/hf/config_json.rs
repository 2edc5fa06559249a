//! A model's sizes in the form of `transformers`: config.json, both ways.
//!
//! Must not know: files, tensors.

use crate::config::{Deck, Family, ModelSection};
use crate::error::{Error, Result};
use crate::foreign::{not_json, without_bom};
use crate::model::AnyFamily;
use crate::model::transformers::Theirs;
use serde_json::{Value, json};

/// The end-of-text token of GPT-2's vocabulary.
const GPT2_END: usize = 50256;

/// The fields required by `from_pretrained` of the family's class. `dtype` is `float32` or `bfloat16`.
pub fn of_model(model: &ModelSection, dtype: &str) -> Value {
    let mut config = AnyFamily::transformers_config(model);
    config["torch_dtype"] = json!(dtype);
    config
}

/// The deck of a model that config.json describes: with its sizes, and placeholders for everything else,
/// because a checkpoint must have a deck.
///
/// # Errors
/// Everything in it that this program's models do not support, at once.
pub fn to_deck(text: &[u8], origin: &str) -> Result<Deck> {
    let no = |why: String| Error::Input(format!("{origin}: {why}"));
    let config: Value = serde_json::from_slice(without_bom(text)).map_err(|e| no(not_json(text, &e)))?;
    let mut theirs = Theirs { config: &config, read: Vec::new(), faults: Vec::new(), overrides: Vec::new() };
    let model_type = config["model_type"].as_str().unwrap_or_default();
    let Some(family) = Family::NAMES.iter().find(|&&name| name == model_type) else {
        let known = Family::NAMES.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or ");
        return Err(no(format!("model_type is {}, not {known}", config["model_type"])));
    };
    theirs.set("family", family.to_string());
    AnyFamily::read_transformers_config(family, &mut theirs);
    theirs.refuse_unknown();
    let Theirs { faults, mut overrides, .. } = theirs;
    if !faults.is_empty() {
        return Err(no(faults.join("; ")));
    }
    // The longest vocabulary determines the width of a token; the files are placeholders.
    let (format, file) = match config["vocab_size"].as_u64().unwrap_or(0) > 1 << 16 {
        true => ("raw_u32", "imported.u32"),
        false => ("raw_u16", "imported.u16"),
    };
    let is_gpt2 = config["model_type"] == "gpt2" && config["vocab_size"] == json!(GPT2_END + 1);
    let tokenizer = if is_gpt2 { "gpt2" } else { "none" };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn llama(words: &Value) -> Result<Deck> {
        let mut config = json!({
            "model_type": "llama", "vocab_size": 300, "hidden_size": 24, "intermediate_size": 31,
            "num_hidden_layers": 1,
            "num_attention_heads": 2, "max_position_embeddings": 16,
        });
        config.as_object_mut().unwrap().extend(words.as_object().unwrap().clone());
        to_deck(config.to_string().as_bytes(), "config.json")
    }

    #[test]
    fn the_rotation_is_read_wherever_it_stands_and_nothing_odd_becomes_a_default() {
        for (words, theta) in [
            (json!({}), 1e4),
            (json!({ "rope_theta": 5e5 }), 5e5),
            (json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 5e5 } }), 5e5),
            (json!({ "rope_parameters": { "rope_type": "default" }, "rope_theta": 5e5 }), 5e5),
            (json!({ "rope_scaling": { "rope_type": "default", "factor": null }, "rope_theta": 5e5 }), 5e5),
            (
                json!({
                    "sliding_window": null, "use_sliding_window": false, "_name_or_path": "x",
                    "use_cache": true
                }),
                1e4,
            ),
            (json!({ "max_sequence_length": 2048 }), 1e4),
        ] {
            assert_eq!(llama(&words).unwrap().model.rope_theta, theta, "{words}");
        }
        for (words, says) in [
            (json!({ "rope_theta": "5e5" }), "rope_theta is \"5e5\", and must be a number"),
            (json!({ "rms_norm_eps": "1e-5" }), "rms_norm_eps is"),
            (json!({ "tie_word_embeddings": "yes" }), "tie_word_embeddings is"),
            (json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } }), "partial_rotary_factor is 0.5"),
            (
                json!({ "rope_parameters": { "factor": 8.0, "rope_theta": 5e5 } }),
                "rope_parameters.factor is 8.0",
            ),
            (
                json!({
                    "rope_parameters": { "full_attention": { "rope_type": "default", "rope_theta": 5e5 } }
                }),
                "rope_parameters.full_attention is {",
            ),
            (
                json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }),
                "rope_scaling.type is \"linear\"",
            ),
            (
                json!({ "rope_scaling": { "rope_type": "default", "low_freq_factor": 1.0 } }),
                "low_freq_factor is 1.0",
            ),
            (json!({ "rope_scaling": "yarn" }), "rope_scaling is \"yarn\", and must be an object"),
            (json!({ "rope_parameters": [1] }), "rope_parameters is [1]"),
            (json!({ "rope_theta": 1e4, "rope_parameters": { "rope_theta": 5e5 } }), "in two places"),
            (json!({ "sliding_window": 4096 }), "sliding_window is 4096, and this program does not know"),
            (json!({ "quantization_config": { "bits": 4 } }), "quantization_config is {\"bits\":4}"),
            (json!({ "attn_logit_softcapping": 50.0 }), "attn_logit_softcapping is 50.0"),
        ] {
            let why = llama(&words).unwrap_err().to_string();
            assert!(why.contains(says), "{says:?} is not in {why}");
        }
    }

    #[test]
    fn the_published_config_of_a_larger_gpt2_has_no_key_that_is_unknown() {
        let config = json!({
            "model_type": "gpt2", "vocab_size": 50257, "n_layer": 24, "n_head": 16, "n_embd": 1024,
            "n_positions": 1024,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_special": 0,
            "predict_special_tokens": true, "summary_type": "cls_index", "summary_use_proj": true,
        });
        to_deck(config.to_string().as_bytes(), "config.json").unwrap();
    }
}

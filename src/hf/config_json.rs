//! The sizes of a model in the words of `transformers`: config.json, both ways.
//!
//! Must not know: files, tensors.

use crate::config::{Deck, Family, ModelSection};
use crate::error::{Error, Result};
use crate::foreign::{not_json, without_bom};
use serde_json::{Value, json};

/// The end-of-text token of GPT-2's vocabulary.
const GPT2_END: usize = 50256;

/// What `from_pretrained` of the family's class needs. `dtype` is `float32` or `bfloat16`.
pub fn of_model(model: &ModelSection, dtype: &str) -> Value {
    match model.family {
        Family::Gpt2 => of_gpt2(model, dtype),
        Family::Llama => of_llama(model, dtype),
    }
}

fn of_gpt2(model: &ModelSection, dtype: &str) -> Value {
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

fn of_llama(model: &ModelSection, dtype: &str) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.seq_len,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.n_layer,
        "num_attention_heads": model.n_head,
        "num_key_value_heads": model.n_kv_head,
        "head_dim": model.d_model / model.n_head,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": Value::Null,
        "attention_bias": false,
        "mlp_bias": false,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": model.tied,
        // Which tokens begin and end a text is its tokenizer's to say.
        "bos_token_id": Value::Null,
        "eos_token_id": Value::Null,
        "torch_dtype": dtype,
    })
}

/// The deck of a model that config.json describes: the sizes are its, all else is a stand-in, for a checkpoint must have one.
///
/// # Errors
/// Everything in it that this program's models do not have, at once.
pub fn to_deck(text: &[u8], origin: &str) -> Result<Deck> {
    let no = |why: String| Error::Input(format!("{origin}: {why}"));
    let config: Value = serde_json::from_slice(without_bom(text)).map_err(|e| no(not_json(text, &e)))?;
    let mut theirs = Theirs { config: &config, read: Vec::new(), faults: Vec::new(), overrides: Vec::new() };
    match config["model_type"].as_str() {
        Some("gpt2") => theirs.read_gpt2(),
        Some("llama") => theirs.read_llama(),
        _ => return Err(no(format!("model_type is {}; \"gpt2\" or \"llama\" would do", config["model_type"]))),
    }
    theirs.refuse_unknown();
    let Theirs { faults, mut overrides, .. } = theirs;
    if !faults.is_empty() {
        return Err(no(faults.join("; ")));
    }
    // The longest vocabulary decides how wide a token is; the files are stand-ins.
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

/// A config.json being read.
struct Theirs<'a> {
    config: &'a Value,
    /// Keys whose meaning is known.
    read: Vec<String>,
    faults: Vec<String>,
    overrides: Vec<(String, String)>,
}

impl Theirs<'_> {
    /// A size of ours is this key of theirs, or this where it is absent.
    fn size(&mut self, key: &str, theirs: &str, default: Option<u64>) {
        self.read.push(theirs.into());
        let value = &self.config[theirs];
        match value.as_u64().or(default.filter(|_| value.is_null())) {
            Some(n) => self.set(key, n.to_string()),
            None => self.faults.push(format!("{theirs} is {value}, and must be a number")),
        }
    }

    /// A number of ours is this value of theirs, or `default` where it is absent.
    fn number(&mut self, key: &str, theirs: &str, value: &Value, default: f64) {
        self.read.push(theirs.into());
        match value.as_f64().or(value.is_null().then_some(default)) {
            Some(x) => self.set(key, x.to_string()),
            None => self.faults.push(format!("{theirs} is {value}, and must be a number")),
        }
    }

    fn set(&mut self, key: &str, value: String) {
        self.overrides.push((format!("model.{key}"), value));
    }

    /// A key that this program has one value for. Absent keys have the value that transformers gives them.
    fn fixed(&mut self, key: &str, default: Value, good: &[Value], model: &str) {
        self.read.push(key.into());
        let value = self.config.get(key).unwrap_or(&default);
        if !good.contains(value) {
            self.faults.push(format!("{key} is {value}, and this program's {model} has {}", good[0]));
        }
    }

    fn read_gpt2(&mut self) {
        self.size("n_layer", "n_layer", None);
        self.size("n_head", "n_head", None);
        self.size("d_model", "n_embd", None);
        self.size("seq_len", "n_positions", None);
        self.size("vocab_size", "vocab_size", None);
        let hidden = json!(4 * self.config["n_embd"].as_u64().unwrap_or(0));
        for (key, default, good) in [
            ("activation_function", json!("gelu_new"), &[json!("gelu_new"), json!("gelu_pytorch_tanh")][..]),
            ("layer_norm_epsilon", json!(1e-5), &[json!(1e-5)]),
            ("n_inner", Value::Null, &[Value::Null, hidden]),
            ("scale_attn_weights", json!(true), &[json!(true)]),
            ("scale_attn_by_inverse_layer_idx", json!(false), &[json!(false)]),
            ("add_cross_attention", json!(false), &[json!(false)]),
            ("tie_word_embeddings", json!(true), &[json!(true)]),
        ] {
            self.fixed(key, default, good, "GPT-2");
        }
    }

    fn read_llama(&mut self) {
        self.set("family", "llama".into());
        self.size("n_layer", "num_hidden_layers", None);
        self.size("n_head", "num_attention_heads", None);
        let n_head = self.config["num_attention_heads"].as_u64();
        self.size("n_kv_head", "num_key_value_heads", n_head);
        self.size("d_model", "hidden_size", None);
        self.size("d_ff", "intermediate_size", None);
        self.size("seq_len", "max_position_embeddings", Some(2048));
        self.size("vocab_size", "vocab_size", None);
        self.number("norm_eps", "rms_norm_eps", &self.config["rms_norm_eps"], 1e-6);
        self.read_rotation("Llama");
        self.read.push("tie_word_embeddings".into());
        match &self.config["tie_word_embeddings"] {
            Value::Null => self.set("tied", "false".into()),
            Value::Bool(tied) => self.set("tied", tied.to_string()),
            other => self.faults.push(format!("tie_word_embeddings is {other}, and must be true or false")),
        }
        let head = self.config["hidden_size"].as_u64().zip(n_head).map(|(width, n)| json!(width / n.max(1)));
        for (key, default, good) in [
            ("hidden_act", json!("silu"), &[json!("silu")][..]),
            ("attention_bias", json!(false), &[json!(false)]),
            ("mlp_bias", json!(false), &[json!(false)]),
            ("head_dim", Value::Null, &[head.unwrap_or(Value::Null), Value::Null]),
        ] {
            self.fixed(key, default, good, "Llama");
        }
    }

    /// The frequencies of the rotation: they are not scaled, and whole heads are rotated. Newer files keep
    /// its parameters together.
    fn read_rotation(&mut self, model: &str) {
        let mut thetas: Vec<Value> = vec![self.config["rope_theta"].clone()];
        let partial = ("partial_rotary_factor".to_string(), self.config["partial_rotary_factor"].clone());
        let mut said = vec![partial];
        for place in ["rope_parameters", "rope_scaling"] {
            self.read.push(place.into());
            match &self.config[place] {
                Value::Null => {}
                Value::Object(parameters) => {
                    for (key, value) in parameters {
                        match key.as_str() {
                            "rope_theta" => thetas.push(value.clone()),
                            _ => said.push((format!("{place}.{key}"), value.clone())),
                        }
                    }
                }
                other => self.faults.push(format!("{place} is {}, and must be an object or null", brief(other))),
            }
        }
        self.read.push("partial_rotary_factor".into());
        thetas.retain(|theta| !theta.is_null());
        if let Some(other) = thetas.iter().find(|theta| **theta != thetas[0]) {
            self.faults.push(format!("rope_theta is {} and {} in two places", thetas[0], brief(other)));
        }
        let theta = thetas.into_iter().next().unwrap_or_default();
        self.number("rope_theta", "rope_theta", &theta, 10_000.0);
        for (key, value) in said.into_iter().filter(|(_, value)| !value.is_null()) {
            let is_plain = match key.rsplit('.').next() {
                Some("rope_type" | "type") => value == "default",
                Some("partial_rotary_factor") => value.as_f64() == Some(1.0),
                _ => false,
            };
            if !is_plain {
                self.faults.push(format!(
                    "{key} is {}, and this program's {model} rotates whole heads by frequencies that are not scaled",
                    brief(&value)
                ));
            }
        }
    }

    /// A key that nothing here knows may mean another model: everything but null is refused by name.
    fn refuse_unknown(&mut self) {
        for (key, value) in self.config.as_object().into_iter().flatten() {
            let is_known = self.read.contains(key) || OF_OTHERS.contains(&key.as_str()) || key.starts_with('_');
            if !is_known && !is_nothing(value) {
                self.faults.push(format!("{key} is {}, and this program does not know what it means", brief(value)));
            }
        }
    }
}

/// Null, false, an empty list or object: a key that asks for nothing.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

/// A value in a message.
fn brief(value: &Value) -> String {
    const MOST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Keys of `transformers` that do not change what weights compute: names, versions and types, special tokens,
/// dropout in training, how text is generated, what a call returns, heads of classifiers.
const OF_OTHERS: [&str; 76] = [
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "attn_pdrop",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cls_token_id",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "max_sequence_length",
    "min_length",
    "model_type",
    "n_ctx",
    "n_special",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "predict_special_tokens",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn llama(words: &Value) -> Result<Deck> {
        let mut config = json!({
            "model_type": "llama", "vocab_size": 300, "hidden_size": 24, "intermediate_size": 31, "num_hidden_layers": 1,
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
                json!({ "sliding_window": null, "use_sliding_window": false, "_name_or_path": "x", "use_cache": true }),
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
            (json!({ "rope_parameters": { "factor": 8.0, "rope_theta": 5e5 } }), "rope_parameters.factor is 8.0"),
            (
                json!({ "rope_parameters": { "full_attention": { "rope_type": "default", "rope_theta": 5e5 } } }),
                "rope_parameters.full_attention is {",
            ),
            (json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }), "rope_scaling.type is \"linear\""),
            (json!({ "rope_scaling": { "rope_type": "default", "low_freq_factor": 1.0 } }), "low_freq_factor is 1.0"),
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
            "model_type": "gpt2", "vocab_size": 50257, "n_layer": 24, "n_head": 16, "n_embd": 1024, "n_positions": 1024,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_special": 0,
            "predict_special_tokens": true, "summary_type": "cls_index", "summary_use_proj": true,
        });
        to_deck(config.to_string().as_bytes(), "config.json").unwrap();
    }
}

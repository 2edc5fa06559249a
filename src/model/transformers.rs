//! What a family says of itself in the words of the `transformers` package: names and shapes of tensors, keys
//! of config.json. `hf/` reads and writes the files.
//!
//! Must not know: files, values of tensors.

use crate::params::ParamSpec;
use serde_json::{Value, json};
use std::ops::Range;

/// One tensor of theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Their name.
    pub name: String,
    /// Their shape.
    pub shape: Vec<usize>,
    /// The parameter of ours it belongs to, by index.
    pub param: usize,
    /// The rows of ours that it is.
    pub rows: Range<usize>,
    /// Theirs is `[in, out]` where ours is `[out, in]`.
    pub is_transposed: bool,
}

impl Tensor {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Parameter number `param`, whose rows are several tensors of theirs one after the other: `parts` has their
/// names and numbers of rows.
pub fn rows_of(param: usize, ours: &ParamSpec, parts: &[(String, usize)]) -> Vec<Tensor> {
    let mut first = 0;
    let tensor = |(name, n): &(String, usize)| {
        let rows = first..first + n;
        first += n;
        let mut shape = ours.shape.clone();
        shape[0] = *n;
        Tensor { name: name.clone(), shape, param, rows, is_transposed: false }
    };
    parts.iter().map(tensor).collect()
}

/// The tensors of a parameter of a model with a gated hidden layer, whose layouts and rotation are ours; `q`
/// and `kv` are rows of queries, and of keys or values.
pub fn of_gated(param: usize, ours: &ParamSpec, q: usize, kv: usize) -> Vec<Tensor> {
    let parts: Vec<(String, usize)> = if let Some(layer) = ours.name.strip_suffix("qkv_proj.weight") {
        [("q", q), ("k", kv), ("v", kv)].map(|(part, n)| (format!("{layer}{part}_proj.weight"), n)).into()
    } else if let Some(layer) = ours.name.strip_suffix("gate_up_proj.weight") {
        ["gate", "up"].map(|part| (format!("{layer}{part}_proj.weight"), ours.shape[0] / 2)).into()
    } else {
        vec![(ours.name.clone(), ours.shape[0])]
    };
    let theirs = |(name, n): (String, usize)| match name.as_str() {
        "lm_head.weight" => (name, n),
        _ => (format!("model.{name}"), n),
    };
    rows_of(param, ours, &parts.into_iter().map(theirs).collect::<Vec<_>>())
}

/// config.json of a model with a gated hidden layer; `class` and `model_type` are its names.
pub fn gated_config(model: &crate::config::ModelSection, class: &str, model_type: &str) -> Value {
    json!({
        "architectures": [class],
        "model_type": model_type,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.seq_len,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.n_layer,
        "num_attention_heads": model.n_head,
        "num_key_value_heads": model.n_kv_head,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": Value::Null,
        "attention_bias": false,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": model.tied,
        // Which tokens begin and end a text is its tokenizer's to say.
        "bos_token_id": Value::Null,
        "eos_token_id": Value::Null,
    })
}

/// A config.json being read.
pub struct Theirs<'a> {
    /// What it holds.
    pub config: &'a Value,
    /// Keys whose meaning is known.
    pub read: Vec<String>,
    /// What this program's models do not have.
    pub faults: Vec<String>,
    /// Keys of a deck and their values.
    pub overrides: Vec<(String, String)>,
}

impl Theirs<'_> {
    /// A size of ours is this key of theirs, or this where it is absent.
    pub fn size(&mut self, key: &str, theirs: &str, default: Option<u64>) {
        self.read.push(theirs.into());
        let value = &self.config[theirs];
        match value.as_u64().or(default.filter(|_| value.is_null())) {
            Some(n) => self.set(key, n.to_string()),
            None => self.faults.push(format!("{theirs} is {value}, and must be a number")),
        }
    }

    /// A number of ours is this value of theirs, or `default` where it is absent.
    pub fn number(&mut self, key: &str, theirs: &str, value: &Value, default: f64) {
        self.read.push(theirs.into());
        match value.as_f64().or(value.is_null().then_some(default)) {
            Some(x) => self.set(key, x.to_string()),
            None => self.faults.push(format!("{theirs} is {value}, and must be a number")),
        }
    }

    /// A key of `[model]`.
    pub fn set(&mut self, key: &str, value: String) {
        self.overrides.push((format!("model.{key}"), value));
    }

    /// A key that this program has one value for. Absent keys have the value that transformers gives them.
    pub fn fixed(&mut self, key: &str, default: Value, good: &[Value], model: &str) {
        self.read.push(key.into());
        let value = self.config.get(key).unwrap_or(&default);
        if !good.contains(value) {
            self.faults.push(format!("{key} is {value}, and this program's {model} has {}", good[0]));
        }
    }

    /// The sizes of a model with a gated hidden layer and rotated, shared heads; `what` is its name in
    /// faults.
    pub fn gated(&mut self, what: &str) {
        self.size("n_layer", "num_hidden_layers", None);
        self.size("n_head", "num_attention_heads", None);
        let n_head = self.config["num_attention_heads"].as_u64();
        self.size("n_kv_head", "num_key_value_heads", n_head);
        self.size("d_model", "hidden_size", None);
        self.size("d_ff", "intermediate_size", None);
        self.size("vocab_size", "vocab_size", None);
        self.number("norm_eps", "rms_norm_eps", &self.config["rms_norm_eps"], 1e-6);
        self.read_rotation(what);
        self.read.push("tie_word_embeddings".into());
        match &self.config["tie_word_embeddings"] {
            Value::Null => self.set("tied", "false".into()),
            Value::Bool(tied) => self.set("tied", tied.to_string()),
            other => self.faults.push(format!("tie_word_embeddings is {other}, and must be true or false")),
        }
        for (key, default, good) in [
            ("hidden_act", json!("silu"), &[json!("silu")][..]),
            ("attention_bias", json!(false), &[json!(false)]),
        ] {
            self.fixed(key, default, good, what);
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
                other => {
                    self.faults.push(format!("{place} is {}, and must be an object or null", brief(other)))
                }
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
                    "{key} is {}, and this program's {model} rotates whole heads by frequencies that are not \
                     scaled",
                    brief(&value)
                ));
            }
        }
    }

    /// A key that nothing here knows may mean another model: everything but null is refused by name.
    pub fn refuse_unknown(&mut self) {
        for (key, value) in self.config.as_object().into_iter().flatten() {
            let is_known =
                self.read.contains(key) || OF_OTHERS.contains(&key.as_str()) || key.starts_with('_');
            if !is_known && !is_nothing(value) {
                self.faults
                    .push(format!("{key} is {}, and this program does not know what it means", brief(value)));
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

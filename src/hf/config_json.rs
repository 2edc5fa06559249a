//! The sizes of a model in the words of `transformers`: config.json, both ways.
//!
//! Must not know: files, tensors.

use crate::config::{Deck, Family, ModelSection};
use crate::error::{Error, Result};
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
    let config: Value = serde_json::from_slice(text).map_err(|e| no(format!("not JSON: {e}")))?;
    let mut theirs = Theirs { config: &config, faults: Vec::new(), overrides: Vec::new() };
    match config["model_type"].as_str() {
        Some("gpt2") => theirs.read_gpt2(),
        Some("llama") => theirs.read_llama(),
        _ => return Err(no(format!("model_type is {}; \"gpt2\" or \"llama\" would do", config["model_type"]))),
    }
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
    faults: Vec<String>,
    overrides: Vec<(String, String)>,
}

impl Theirs<'_> {
    /// A size of ours is this key of theirs, or this where it is absent.
    fn size(&mut self, key: &str, theirs: &str, default: Option<u64>) {
        let value = &self.config[theirs];
        match value.as_u64().or(default.filter(|_| value.is_null())) {
            Some(n) => self.set(key, n.to_string()),
            None => self.faults.push(format!("{theirs} is {value}, and must be a number")),
        }
    }

    /// A number of ours is this value of theirs, or `default` where it is absent.
    fn number(&mut self, key: &str, theirs: &str, value: &Value, default: f64) {
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
        // Newer files keep the rotation's parameters together.
        let rope = &self.config["rope_parameters"];
        let of_rope = |key: &str| if rope[key].is_null() { self.config[key].clone() } else { rope[key].clone() };
        let (theta, partial) = (of_rope("rope_theta"), of_rope("partial_rotary_factor"));
        self.number("norm_eps", "rms_norm_eps", &self.config["rms_norm_eps"], 1e-6);
        self.number("rope_theta", "rope_theta", &theta, 10_000.0);
        if !partial.is_null() && partial.as_f64() != Some(1.0) {
            self.faults
                .push(format!("partial_rotary_factor is {partial}, and this program's Llama rotates whole heads"));
        }
        match &self.config["tie_word_embeddings"] {
            Value::Null => self.set("tied", "false".into()),
            Value::Bool(tied) => self.set("tied", tied.to_string()),
            other => self.faults.push(format!("tie_word_embeddings is {other}, and must be true or false")),
        }
        for (key, place) in [("rope_parameters", rope), ("rope_scaling", &self.config["rope_scaling"])] {
            let kind = if place["rope_type"].is_null() { &place["type"] } else { &place["rope_type"] };
            if !kind.is_null() && *kind != "default" {
                self.faults
                    .push(format!("{key} is {place}, and this program's Llama has frequencies that are not scaled"));
            }
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
}

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
        ] {
            assert_eq!(llama(&words).unwrap().model.rope_theta, theta, "{words}");
        }
        for (words, says) in [
            (json!({ "rope_theta": "5e5" }), "rope_theta is \"5e5\", and must be a number"),
            (json!({ "rms_norm_eps": "1e-5" }), "rms_norm_eps is"),
            (json!({ "tie_word_embeddings": "yes" }), "tie_word_embeddings is"),
            (json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } }), "partial_rotary_factor is 0.5"),
        ] {
            let why = llama(&words).unwrap_err().to_string();
            assert!(why.contains(says), "{says:?} is not in {why}");
        }
    }
}

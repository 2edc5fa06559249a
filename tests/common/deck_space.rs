//! The decks that tests draw: for every key of the table the values that differ in what the program does, and
//! what cannot stand together. With them how a run goes: ranks, ranks of the resume, how it is interrupted.
//!
//! A new flag or choice joins by itself; a new key of another kind wants its values in [`values`]. Pure. Must
//! not know: MPI, files.

use super::covering::{Breaks, Factor, Hidden, Row, Rule, Space};
use std::path::Path;
use zero3::config::{Family, KEYS, Key, Kind, Origin, Preset};
use zero3::optimizers::OptimizerKind;

/// The value of a key that nobody writes.
pub const ABSENT: &str = "(absent)";
/// `zero.max_live_bytes`: the least that the plans accept.
pub const TIGHTEST: &str = "(tightest)";
/// `model.init_from`: a run of the same model.
pub const DONOR: &str = "(donor)";
/// `data.val`: a file of what `data.train` holds.
pub const OWN_VAL: &str = "(val)";
const MOST: &str = "9223372036854775807";

/// What is no key: each of them is a factor as the keys are.
pub const RANKS: &str = "ranks";
pub const RANKS_OF_RESUME: &str = "ranks of the resume";
pub const RANKS_PER_NODE: &str = "ranks per node";
pub const INTERRUPTION: &str = "interruption";
const NO_KEYS: [(&str, &[&str]); 4] = [
    (RANKS, &["1", "2", "3", "5", "7"]),
    (RANKS_OF_RESUME, &["1", "2", "3", "5", "7"]),
    (RANKS_PER_NODE, &["all", "2"]),
    (INTERRUPTION, &["none", "kill", "stop"]),
];

/// Keys (and ranks) that touch memory and collectives: every triple of their values meets.
const TRIPLES_OF: [&str; 13] = [
    "zero.stage",
    "zero.prefetch_units",
    "zero.max_live_bytes",
    "zero.persistence_threshold_bytes",
    "zero.gather_bucket_bytes",
    "zero.release_after_forward",
    "zero.overlap",
    "zero.param_dtype",
    "zero.reduce_dtype",
    "zero.activation_checkpointing",
    "zero.reduce",
    "checkpoint.async_save",
    RANKS,
];

/// The values drawn of a key; none where nobody has said which.
pub fn values(key: &Key) -> Option<Vec<&'static str>> {
    let given: &[&str] = match key.name {
        "run.dir" => &["run", "of ü b/run", "a=b,c"],
        "run.devices" => &["", "0"],
        "run.kernel_cache" => &["", "auto", "cache"],
        "run.threads_per_rank" => &["1", "3", "0"],
        "run.peak_gflops" => &["0", "0.5", "1e12"],
        "run.memory_budget_bytes" => &["0", "1073741824"],
        "run.time_limit" => &["", "1h", "02:00:00"],
        "run.stop_signals" => &["TERM,USR1", "SIGINT, HUP", "URG", ""],
        "run.timeout" => &["600", "3600", "0"],
        "model.n_layer" => &["1", "2", "3"],
        "model.n_head" => &["1", "2", "3"],
        "model.n_kv_head" => &[ABSENT, "1", "2"],
        "model.head_dim" => &[ABSENT, "4", "6"],
        "model.d_model" => &["7", "12", "20"],
        "model.d_ff" => &[ABSENT, "28", "48", "29"],
        "model.seq_len" => &["5", "8", "16"],
        "model.vocab_size" => &[ABSENT, "257", "263", "607"],
        "model.rope_theta" => &[ABSENT, "0", "500000"],
        "model.norm_eps" => &[ABSENT, "1e-5", "0.001"],
        "model.init_seed" => &["1", "0", MOST],
        "model.init_from" => &["", DONOR],
        "data.train" => &["text.txt", "part_*.txt", "tokens.bin", "tokens.u32", "tokens.llmc"],
        "data.val" => &["", OWN_VAL],
        "data.val_fraction" => &["0", "0.1", "0.5"],
        "data.tokenizer" => &[ABSENT, "bytes", "none", "tokenizer.json", "gpt2"],
        "data.seed" => &["1", "0", MOST],
        "data.stride" => &["0", "1", "11"],
        "data.val_stride" => &["0", "3", "100"],
        "train.steps" => &["3", "4", "5"],
        "train.micro_batch_size" => &["1", "2", "3"],
        "train.global_batch_size" => &["6", "7", "12", ABSENT],
        "train.eval_every" => &["0", "1", "2", MOST],
        "train.eval_batches" => &["1", "3", "8"],
        "train.sample_every" => &["0", "2", MOST],
        "train.sample_prompt" => &["The", "a", "né un"],
        "train.sample_tokens" => &["1", "7", "19"],
        "train.max_skipped_steps" => &["10", "1", MOST],
        "optim.lr" => &["1e-2", "1e-3", "0"],
        "optim.min_lr" => &["0", "5e-3"],
        "optim.warmup_steps" => &["0", "2", MOST],
        "optim.decay_steps" => &["0", "3", MOST],
        "optim.beta1" | "optim.beta2" => &[ABSENT, "0", "0.9"],
        "optim.eps" => &[ABSENT, "1e-6"],
        "optim.momentum" => &[ABSENT, "0", "0.5"],
        "optim.weight_decay" => &["0", "0.1"],
        "optim.grad_clip" => &["0", "1", "0.05"],
        "zero.stage" => &["0", "1", "2", "3"],
        "zero.prefetch_units" => &["0", "1", "1024"],
        "zero.prefetch_max_bytes" => &["0", "1000", MOST],
        "zero.max_live_bytes" => &["0", TIGHTEST, MOST],
        "zero.persistence_threshold_bytes" => &["0", "100", MOST],
        "zero.gather_bucket_bytes" => &["0", "1000", MOST],
        "zero.reduce_bucket_bytes" => &["4096", "33554432", MOST],
        "zero.activation_checkpointing" => &["none", "all", "every:2"],
        "checkpoint.every" => &["0", "1", "2", MOST],
        "checkpoint.keep_last" => &["0", "1", MOST],
        "checkpoint.keep_every" => &["0", "2", MOST],
        "log.every" => &["0", "1", MOST],
        "log.level" => &["info", "off", "debug", "trace", "warn,zero3::data=trace"],
        "log.trace" => &["", "2", "1..3", "2..=9223372036854775807"],
        _ => {
            let words: &[&str] = match key.kind {
                Kind::Flag => &["false", "true"],
                Kind::Choice(words) => words,
                _ => return None,
            };
            let absent = matches!(key.origin, Origin::Derived(_)).then_some(ABSENT);
            return Some(absent.into_iter().chain(words.iter().copied()).collect());
        }
    };
    Some(given.to_vec())
}

/// Values that a row takes only where it must: no such device is here; a vocabulary of 50257 takes time.
const RELUCTANT: [(&str, &str); 2] = [("run.backend", "cuda"), ("data.tokenizer", "gpt2")];

/// Every key of the deck, then what is no key.
pub fn space() -> Space {
    let keys = KEYS.iter().map(|key| (key.name, values(key).unwrap_or_default()));
    let others = NO_KEYS.iter().map(|(name, values)| (*name, values.to_vec()));
    let factors: Vec<Factor> = keys
        .chain(others)
        .map(|(name, values)| {
            let values: Vec<String> = values.into_iter().map(String::from).collect();
            let is_reluctant = |v: &usize| RELUCTANT.contains(&(name, values[*v].as_str()));
            let reluctant = (0..values.len()).filter(is_reluctant).collect();
            Factor { name: name.into(), values, reluctant }
        })
        .collect();
    let at = |name: &str| factor_named(&factors, name);
    let backend = at("run.backend");
    let value = factors[backend].values.iter().position(|v| v == "cuda").expect("a backend");
    let hidden = Hidden { factor: backend, value, shown: vec![backend, at("zero.deterministic")] };
    let rules = rules(&factors);
    Space { rules, triples_of: TRIPLES_OF.map(at).to_vec(), hidden, factors }
}

fn factor_named(factors: &[Factor], name: &str) -> usize {
    factors.iter().position(|f| f.name == name).unwrap_or_else(|| panic!("{name} is not a key"))
}

fn family(preset: &str, family: &str) -> Family {
    let of_preset = Preset::named(preset).and_then(Preset::family);
    Family::named(family).or(of_preset).unwrap_or_default()
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

/// Whether the files hold text, by format and name.
fn is_text(format: &str, train: &str) -> bool {
    format == "text" || (format == "auto" && train.ends_with(".txt"))
}

/// What the program refuses, said once more and in other words than its own; and what is not drawn.
fn rules(factors: &[Factor]) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut rule = |refused: bool, names: &[&str], breaks: Breaks| {
        let factors = names.iter().map(|name| factor_named(factors, name)).collect();
        rules.push(Rule { factors, breaks, refused });
    };
    const PRESET: &str = "model.preset";
    const FAMILY: &str = "model.family";
    const FORMAT: &str = "data.format";
    const TRAIN: &str = "data.train";
    const TOKENIZER: &str = "data.tokenizer";
    const VOCAB: &str = "model.vocab_size";

    rule(
        true,
        &[PRESET, FAMILY],
        Box::new(|v| {
            let of_preset = Preset::named(v[0]).and_then(Preset::family);
            v[1] != ABSENT && of_preset.is_some_and(|of_preset| of_preset != family("none", v[1]))
        }),
    );
    // Heads as wide as the width allows, where the family has no others.
    rule(
        true,
        &[PRESET, FAMILY, "model.d_model", "model.n_head"],
        Box::new(|v| {
            let (d_model, n_head) = (number(v[2]), number(v[3]));
            family(v[0], v[1]) != Family::Qwen3 && d_model.zip(n_head).is_some_and(|(c, n)| c % n != 0.0)
        }),
    );
    let sizes = [PRESET, FAMILY, "model.d_model", "model.n_head", "model.head_dim"];
    rule(
        true,
        &sizes,
        Box::new(|v| {
            let (Some(d_model), Some(n_head)) = (number(v[2]), number(v[3])) else { return false };
            let (by_width, family) = ((d_model / n_head).floor().max(1.0), family(v[0], v[1]));
            let divides = d_model % n_head == 0.0;
            let head_dim = number(v[4]).unwrap_or(by_width);
            match family {
                Family::Qwen3 => head_dim % 2.0 != 0.0,
                Family::Llama => divides && (head_dim != by_width || head_dim % 2.0 != 0.0),
                Family::Gpt2 => divides && head_dim != by_width,
            }
        }),
    );
    rule(
        true,
        &[PRESET, FAMILY, "model.n_head", "model.n_kv_head"],
        Box::new(|v| {
            let (Some(n_head), Some(n_kv_head)) = (number(v[2]), number(v[3])) else { return false };
            match family(v[0], v[1]) {
                Family::Gpt2 => n_kv_head != n_head,
                _ => n_head % n_kv_head != 0.0,
            }
        }),
    );
    let is_gpt2 = |v: &[&str]| family(v[0], v[1]) == Family::Gpt2;
    rule(
        true,
        &[PRESET, FAMILY, "model.d_model", "model.d_ff"],
        Box::new(move |v| is_gpt2(v) && number(v[2]).zip(number(v[3])).is_some_and(|(c, f)| f != 4.0 * c)),
    );
    rule(
        true,
        &[PRESET, FAMILY, "model.rope_theta"],
        Box::new(move |v| number(v[2]).is_some_and(|theta| is_gpt2(v) != (theta == 0.0))),
    );
    rule(
        true,
        &[PRESET, FAMILY, "model.norm_eps"],
        Box::new(move |v| is_gpt2(v) && number(v[2]).is_some_and(|eps| eps != 1e-5)),
    );
    rule(true, &[PRESET, FAMILY, "model.tied"], Box::new(move |v| is_gpt2(v) && v[2] == "false"));

    // What the files hold is what the deck says.
    rule(
        false,
        &[FORMAT, TRAIN],
        Box::new(|v| match v[0] {
            "auto" => v[1].ends_with(".llmc"),
            "text" => !v[1].ends_with(".txt"),
            "raw_u16" => !v[1].ends_with(".bin"),
            "raw_u32" => !v[1].ends_with(".u32"),
            _ => !v[1].ends_with(".llmc"),
        }),
    );
    rule(
        true,
        &[FORMAT, TRAIN, TOKENIZER],
        Box::new(|v| match v[2] {
            ABSENT => false,
            tokenizer => is_text(v[0], v[1]) != (tokenizer == "bytes"),
        }),
    );
    rule(true, &[TOKENIZER, VOCAB], Box::new(|v| v[0] == "gpt2" && v[1] != ABSENT));
    // Files of tokens whose tokenizer says no vocabulary: they would have a preset's, which takes time around
    // a tiny model and shows nothing, or none.
    rule(
        false,
        &[FORMAT, TRAIN, TOKENIZER, VOCAB],
        Box::new(|v| !is_text(v[0], v[1]) && v[2] != "gpt2" && v[3] == ABSENT),
    );
    // The prompt's tokens are the model's: 600 of this tokenizer.
    rule(
        false,
        &[TOKENIZER, VOCAB, "train.sample_every"],
        Box::new(|v| v[0] == "tokenizer.json" && v[1] != "607" && v[2] != "0"),
    );
    rule(
        true,
        &[FORMAT, TRAIN, TOKENIZER, "train.sample_every"],
        Box::new(|v| !is_text(v[0], v[1]) && [ABSENT, "none"].contains(&v[2]) && v[3] != "0"),
    );
    rule(
        true,
        &["train.eval_every", "data.val", "data.val_fraction"],
        Box::new(|v| v[0] != "0" && v[1].is_empty() && v[2] == "0"),
    );
    rule(
        true,
        &["train.micro_batch_size", "train.global_batch_size"],
        Box::new(|v| number(v[0]).zip(number(v[1])).is_some_and(|(micro, global)| global % micro != 0.0)),
    );

    for key in ["beta1", "beta2", "eps", "momentum"] {
        rule(
            true,
            &["optim.kind", &format!("optim.{key}")],
            Box::new(move |v| {
                let reads = OptimizerKind::ALL
                    .iter()
                    .any(|kind| kind.name() == v[0] && kind.keys().iter().any(|(name, _)| *name == key));
                !reads && number(v[1]).is_some_and(|n| n != 0.0)
            }),
        );
    }
    rule(
        true,
        &["optim.kind", "optim.momentum", "optim.nesterov"],
        Box::new(|v| v[2] == "true" && (v[0] != "sgd" || v[1] == "0")),
    );
    rule(
        true,
        &["optim.lr", "optim.min_lr"],
        Box::new(|v| number(v[0]).zip(number(v[1])).is_some_and(|(lr, min)| min > lr)),
    );
    rule(
        true,
        &["zero.reduce", "zero.reduce_dtype"],
        Box::new(|v| v[0] == "last_micro_step" && v[1] == "bf16"),
    );
    rule(true, &["run.backend", "zero.deterministic"], Box::new(|v| v[0] != "cuda" && v[1] == "false"));
    rules
}

/// A row as a deck and a way to run it.
#[derive(Debug, Clone)]
pub struct Drawn {
    /// Keys that are written, and their values.
    pub keys: Vec<(String, String)>,
    pub n_ranks: usize,
    pub n_ranks_of_resume: usize,
    /// Ranks that read each other's memory; none: all.
    pub per_node: Option<usize>,
    /// `none`, `kill` or `stop`.
    pub interruption: String,
}

impl Drawn {
    /// Data are in `files`, the run is in `runs`; a key that is [`TIGHTEST`] or [`DONOR`] stays so.
    pub fn new(space: &Space, row: &Row, files: &Path, runs: &Path) -> Self {
        let value = |name: &str| {
            let at = factor_named(&space.factors, name);
            space.factors[at].values[row[at]].clone()
        };
        let count = |name: &str| value(name).parse().unwrap_or(0);
        let path = |name: &str| files.join(name).display().to_string();
        let keys = (KEYS.iter().map(|key| (key.name, value(key.name))))
            .filter(|(_, value)| value != ABSENT)
            .map(|(name, text)| {
                let text = match (name, text.as_str()) {
                    // A path with a comma is one path.
                    ("run.dir", _) => format!("\"{}\"", runs.join(&text).display()),
                    ("data.train", _) | ("data.tokenizer", "tokenizer.json") => path(&text),
                    ("run.kernel_cache", "cache") => path(&text),
                    ("data.val", OWN_VAL) => {
                        let train = value("data.train");
                        path(&format!("val.{}", train.rsplit_once('.').expect("an ending").1))
                    }
                    _ => text,
                };
                (name.to_string(), text)
            })
            .collect();
        let n_ranks = count(RANKS);
        let per_node = value(RANKS_PER_NODE).parse().ok().filter(|&per_node| per_node < n_ranks);
        Drawn {
            keys,
            n_ranks,
            n_ranks_of_resume: count(RANKS_OF_RESUME),
            per_node,
            interruption: value(INTERRUPTION),
        }
    }

    /// The value of a key that is written.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.keys.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Sets a key.
    pub fn set(&mut self, name: &str, value: &str) {
        self.keys.retain(|(key, _)| key != name);
        self.keys.push((name.into(), value.into()));
    }

    /// As arguments.
    pub fn words(&self) -> Vec<String> {
        self.keys.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }
}

#[test]
fn every_key_of_the_table_has_values_to_draw() {
    for key in KEYS {
        let values = values(key).unwrap_or_else(|| {
            panic!("{}: tests/common/deck_space.rs wants values to draw for this new key", key.name)
        });
        assert!(values.len() >= 2, "{} has one value", key.name);
    }
}

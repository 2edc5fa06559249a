//! How the keys of a training deck depend on each other: derived values, and combinations that are rejected.
//!
//! Must not know: how a deck is read (`resolve.rs`), nor the ranges of single keys (`mod.rs`).

use super::choices::{BackendKind, CONTAINERS, DataFormat, ReduceWhen, Tokenizer};
use super::family::family_rules::{Numbers, PresetSizes};
use super::family::{Family, Preset};
use super::resolve::{Resolver, near_divisors, show};
use super::{Deck, TABLE};
use crate::dtype::DType;
use crate::error::Result;
use crate::optimizers::OptimizerKind;
use toml::Value;

/// Limit of the parameter count of a model, and of the elements of an activation, so that sizes in bytes do
/// not overflow.
const MAX_NUMEL: u128 = 1 << 44;

impl Deck {
    /// Resolves a deck's text; `origin` identifies it in syntax errors, e.g. `inputs/tiny.toml`.
    ///
    /// # Errors
    /// [`Error::Input`](crate::error::Error::Input) with line and column when the text is not TOML,
    /// [`Error::Deck`](crate::error::Error::Deck) with every fault otherwise.
    pub fn parse(text: &str, overrides: &[(String, String)], origin: &str) -> Result<Deck> {
        let mut resolver = Resolver::read(&TABLE, text, overrides, origin)?;
        resolver.check_paths();
        resolver.derive_model_and_data();
        resolver.derive_training();
        resolver.check_consistency();
        resolver.finish()
    }
}

/// Keys that hold a path, or a list of paths.
const PATH_KEYS: [&str; 6] =
    ["run.dir", "run.kernel_cache", "model.init_from", "data.train", "data.val", "data.tokenizer"];

/// Whether a shell would expand it. The program would create, or fail to find, a path with the literal text.
fn is_for_a_shell(path: &str) -> bool {
    let names_variable = |(at, _): (usize, &str)| {
        path[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '{')
    };
    // `~` and `~user` alone or before a slash: `~.txt` and `~1` are files.
    let names_home = path.strip_prefix('~').is_some_and(|rest| {
        let user = rest.split('/').next().unwrap_or("");
        user.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
            && !user.starts_with(|c: char| c.is_ascii_digit() || c == '-')
    });
    names_home || path.match_indices('$').any(names_variable)
}

impl Resolver {
    /// Paths are taken literally.
    fn check_paths(&mut self) {
        for key in PATH_KEYS {
            let one = self.choice::<String>(key).map(|path| vec![path]);
            let paths = one.or_else(|| self.paths(key)).unwrap_or_default();
            if let Some(path) = paths.iter().find(|path| is_for_a_shell(path)) {
                let wants = format!(
                    "a literal path: only a shell expands {} (write the path out, or let the shell expand \
                     it)",
                    show(path)
                );
                self.refuse(key, wants);
            }
        }
    }

    /// Format, then tokenizer, then sizes: each may depend on the one before.
    fn derive_model_and_data(&mut self) {
        let format = self.derive_format();
        if let Some(format) = format {
            let text = format == DataFormat::Text;
            if self.is_unset("data.tokenizer") {
                let tokenizer = if text { Tokenizer::Bytes } else { Tokenizer::None };
                self.set("data.tokenizer", Value::String(tokenizer.name().into()));
            }
            match self.choice::<Tokenizer>("data.tokenizer") {
                Some(Tokenizer::None) if text => {
                    self.refuse(
                        "data.tokenizer",
                        "\"bytes\" for text (data.format), which is not tokenized".into(),
                    );
                }
                Some(Tokenizer::Gpt2 | Tokenizer::File(_)) if text => {
                    let wants = "\"bytes\" for text (data.format); create token files with `zero3 data \
                                 tokenize` and train on those";
                    self.refuse("data.tokenizer", wants.into());
                }
                Some(Tokenizer::Bytes) if !text => {
                    let wants = format!(
                        "\"none\", \"gpt2\" or the path of a tokenizer.json for token files (data.format \
                         = \"{format}\")"
                    );
                    self.refuse("data.tokenizer", wants);
                }
                _ => {}
            }
        }

        // A faulty preset is one fault, not five missing sizes.
        let Some(preset) = self.choice::<Preset>("model.preset") else { return };
        let sizes = preset.sizes();
        self.derive_size("model.n_layer", sizes.map(|s: PresetSizes| s.n_layer));
        self.derive_size("model.n_head", sizes.map(|s| s.n_head));
        self.derive_size("model.d_model", sizes.map(|s| s.d_model));
        self.derive_size("model.seq_len", sizes.map(|s| s.seq_len));
        if let Some(tokenizer) = self.choice::<Tokenizer>("data.tokenizer") {
            self.derive_size("model.vocab_size", tokenizer.vocab_size().or(sizes.map(|s| s.vocab_size)));
        }
        self.derive_family(preset, sizes);
    }

    /// The family, and its defaults of unset sizes.
    fn derive_family(&mut self, preset: Preset, sizes: Option<PresetSizes>) {
        let of_preset = preset.family();
        if self.is_unset("model.family") {
            self.set("model.family", Value::String(of_preset.unwrap_or_default().name().into()));
        }
        let Some(family) = self.choice::<Family>("model.family") else { return };
        if of_preset.is_some_and(|of_preset| of_preset != family) {
            let wants = format!("\"{}\" with model.preset = \"{preset}\"", of_preset.unwrap_or_default());
            return self.refuse("model.family", wants);
        }
        // If the width of a preset was changed, the hidden layer follows the width.
        let (rules, d_model, n_head) =
            (family.rules(), self.integer("model.d_model"), self.integer("model.n_head"));
        let same_width = sizes.filter(|s| d_model == Some(s.d_model as i64));
        let same_heads = sizes.filter(|s| n_head == Some(s.n_head as i64));
        let d_ff = same_width.map(|s| s.d_ff as i64).or(d_model.map(rules.d_ff));
        self.derive("model.d_ff", d_ff.map(Value::Integer));
        let n_kv_head = same_heads.map(|s| s.n_kv_head as i64).or(n_head);
        self.derive("model.n_kv_head", n_kv_head.map(Value::Integer));
        let of_heads = n_head.zip(d_model).map(|(n, c)| (c / n).max(1));
        let head_dim = same_width.and(same_heads).map(|s| s.head_dim as i64).or(of_heads);
        self.derive("model.head_dim", head_dim.map(Value::Integer));
        let theta = sizes.map_or(rules.rope_theta, |s| s.rope_theta);
        self.derive("model.rope_theta", Some(Value::Float(theta)));
        self.derive("model.norm_eps", Some(Value::Float(rules.norm_eps)));
        self.derive("model.tied", Some(Value::Boolean(sizes.map_or(rules.tied, |s| s.tied))));
    }

    /// Keys the family does not support are rejected by name.
    fn check_family(&mut self) {
        let Some(family) = self.choice::<Family>("model.family") else { return };
        let rules = family.rules();
        if let (false, Some(n_head), Some(d_model)) =
            (rules.free_head_dim, self.integer("model.n_head"), self.integer("model.d_model"))
        {
            if d_model % n_head != 0 {
                let wants =
                    format!("a divisor of model.d_model = {d_model}, {}", near_divisors(d_model, n_head));
                self.refuse("model.n_head", wants);
            } else if self.integer("model.head_dim").is_some_and(|d| d != d_model / n_head) {
                let wants = format!("model.d_model / model.n_head = {}, as in {family}", d_model / n_head);
                self.refuse("model.head_dim", wants);
            }
        }
        (rules.check)(self);
    }

    /// The format that `auto` selects, from the names of all data paths; sets the key to it.
    fn derive_format(&mut self) -> Option<DataFormat> {
        let written = self.choice::<DataFormat>("data.format")?;
        if written != DataFormat::Auto {
            return Some(written);
        }
        let paths = [self.paths("data.train")?, self.paths("data.val")?].concat();
        let ending = |path: &str| path.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        let is_container = |path: &&String| ending(path).is_some_and(|e| CONTAINERS.contains(&e.as_str()));
        if let Some(path) = paths.iter().find(is_container) {
            let wants = format!(
                "files of text or bare tokens, unlike {}: unpack it, or set \"text\" to train on its bytes",
                show(path)
            );
            self.refuse("data.format", wants);
            return None;
        }
        let format = DataFormat::of_path(paths.first()?);
        if let Some(other) = paths.iter().find(|p| DataFormat::of_path(p) != format) {
            let wants = format!(
                "one format for all files: by name {} is {format} and {} is {}; set \"text\", \"raw_u16\" or \
                 \"raw_u32\"",
                show(&paths[0]),
                show(other),
                DataFormat::of_path(other)
            );
            self.refuse("data.format", wants);
            return None;
        }
        self.set("data.format", Value::String(format.name().into()));
        Some(format)
    }

    fn derive_size(&mut self, name: &'static str, known: Option<usize>) {
        if !self.is_unset(name) {
            return;
        }
        match known {
            Some(n) => self.set(name, Value::Integer(n as i64)),
            None => {
                let kind =
                    TABLE.keys.iter().find(|k| k.name == name).map(|k| k.kind.wants()).unwrap_or_default();
                self.refuse(name, format!("{kind}, or a model.preset that defines it"));
            }
        }
    }

    fn derive_training(&mut self) {
        if let (true, Some(micro)) =
            (self.is_unset("train.global_batch_size"), self.integer("train.micro_batch_size"))
        {
            self.set("train.global_batch_size", Value::Integer(8 * micro));
        }
        if let (true, Some(backend)) =
            (self.is_unset("zero.deterministic"), self.choice::<BackendKind>("run.backend"))
        {
            self.set("zero.deterministic", Value::Boolean(backend != BackendKind::Cuda));
        }
        self.derive_optimizer();
        for (name, stands_for) in [
            ("optim.decay_steps", "train.steps"),
            ("data.stride", "model.seq_len"),
            ("data.val_stride", "model.seq_len"),
        ] {
            if let (Some(0), Some(n)) = (self.integer(name), self.integer(stands_for)) {
                self.set(name, Value::Integer(n));
            }
        }
    }

    /// The optimizer's hyperparameters; those of other optimizers are 0, and rejected if set.
    fn derive_optimizer(&mut self) {
        let Some(kind) = self.choice::<OptimizerKind>("optim.kind") else { return };
        for name in ["optim.beta1", "optim.beta2", "optim.eps", "optim.momentum"] {
            let field = name.trim_start_matches("optim.");
            let default = kind.keys().iter().find(|(key, _)| *key == field).map(|(_, default)| *default);
            self.derive(name, Some(Value::Float(default.unwrap_or(0.0))));
            match (default, self.float(name)) {
                (None, Some(set)) if set != 0.0 => {
                    let reads: Vec<&str> = kind.keys().iter().map(|(key, _)| *key).collect();
                    let wants =
                        format!("0, or unset: optim.kind = \"{kind}\" uses only {}", reads.join(", "));
                    self.refuse(name, wants);
                }
                (Some(_), Some(0.0)) if name == "optim.eps" => {
                    self.refuse(name, "a number above 0, such as 1e-8".into())
                }
                _ => {}
            }
        }
        if self.choice::<bool>("optim.nesterov") == Some(true) {
            if !kind.keys().iter().any(|(key, _)| *key == "nesterov") {
                self.refuse(
                    "optim.nesterov",
                    format!("false with optim.kind = \"{kind}\", which has no Nesterov form"),
                );
            } else if self.float("optim.momentum") == Some(0.0) {
                self.refuse("optim.nesterov", "false, or optim.momentum above 0".into());
            }
        }
    }

    fn check_consistency(&mut self) {
        self.check_sizes();
        self.check_family();
        if let (Some(global), Some(micro)) =
            (self.integer("train.global_batch_size"), self.integer("train.micro_batch_size"))
            && global % micro != 0
        {
            let below = global / micro * micro;
            let near = if below == 0 { format!("{micro}") } else { format!("{below} or {}", below + micro) };
            let wants = format!("a multiple of train.micro_batch_size = {micro}, e.g. {near}");
            self.refuse("train.global_batch_size", wants);
        }
        if let (Some(ReduceWhen::LastMicroStep), Some(DType::Bf16)) =
            (self.choice("zero.reduce"), self.choice("zero.reduce_dtype"))
        {
            let wants = "\"f32\" with zero.reduce = \"last_micro_step\": gradients are accumulated and \
                         reduced as f32 sums";
            self.refuse("zero.reduce_dtype", wants.into());
        }
        if let (Some(BackendKind::Auto | BackendKind::Cpu), Some(false)) =
            (self.choice("run.backend"), self.choice("zero.deterministic"))
        {
            let wants = "true, or run.backend = \"cuda\": over MPI gradients are always added in a fixed \
                         order";
            self.refuse("zero.deterministic", wants.into());
        }
        let tokenizer = self.choice::<Tokenizer>("data.tokenizer");
        if let (Some(vocab), Some(tokenizer)) = (self.integer("model.vocab_size"), tokenizer)
            && let Some(smallest) = tokenizer.vocab_size().filter(|n| vocab < *n as i64)
        {
            let wants = format!("at least {smallest}, the vocabulary of data.tokenizer = \"{tokenizer}\"");
            self.refuse("model.vocab_size", wants);
        }
        if let (Some(1..), Some(Tokenizer::None)) =
            (self.integer("train.sample_every"), self.choice("data.tokenizer"))
        {
            let wants = "0 where data.tokenizer = \"none\": set the tokenizer the token files were made with";
            self.refuse("train.sample_every", wants.into());
        }
        if let (Some(1..), Some(val), Some(0.0)) =
            (self.integer("train.eval_every"), self.paths("data.val"), self.float("data.val_fraction"))
            && val.is_empty()
        {
            let wants = "validation data: set data.val, or data.val_fraction above 0; or 0 to never validate";
            self.refuse("train.eval_every", wants.into());
        }
        if let (Some(steps), Some(batch), Some(seq_len)) = (
            self.integer("train.steps"),
            self.integer("train.global_batch_size"),
            self.integer("model.seq_len"),
        ) && steps.checked_mul(batch).and_then(|n| n.checked_mul(seq_len)).is_none()
        {
            let wants = format!("a number that keeps all tokens ({batch} * {seq_len} per step) below 2^63");
            self.refuse("train.steps", wants);
        }
        if let (Some(min_lr), Some(lr)) = (self.float("optim.min_lr"), self.float("optim.lr"))
            && min_lr > lr
        {
            self.refuse("optim.min_lr", format!("at most optim.lr = {lr:?}"));
        }
    }

    /// No product of sizes overflows, here or later.
    fn check_sizes(&mut self) {
        let size = |key: &str| self.integer(key).map(|n| n as u128);
        if let (Some(layers), Some(c), Some(t), Some(v)) =
            (size("model.n_layer"), size("model.d_model"), size("model.seq_len"), size("model.vocab_size"))
        {
            let rules = self.choice::<Family>("model.family").unwrap_or_default().rules();
            let heads = size("model.n_head").zip(size("model.head_dim")).map_or(c, |(n, d)| n * d);
            let numbers = Numbers { layers, c, heads, f: size("model.d_ff").unwrap_or(4 * c), t, v };
            let numel = (rules.numel)(&numbers);
            if numel > MAX_NUMEL {
                let wants = format!(
                    "smaller: with the other sizes it gives {numel} parameters, at most 2^44 are supported"
                );
                self.refuse("model.d_model", wants);
            } else if let (Some(b), Some(n_eval)) =
                (size("train.micro_batch_size"), size("train.eval_batches"))
            {
                let hidden = (rules.widest)(&numbers);
                let (widest, key) = if v > hidden.0 { (v, "model.vocab_size") } else { hidden };
                if b * t * widest > MAX_NUMEL {
                    let wants = format!(
                        "smaller: with model.seq_len = {t} and {key} = {widest} a micro-batch has a tensor \
                         of {} elements, at most 2^44 are supported",
                        b * t * widest
                    );
                    self.refuse("train.micro_batch_size", wants);
                } else if n_eval * b * t > i64::MAX as u128 {
                    self.refuse(
                        "train.eval_batches",
                        "a number that keeps all tokens of a validation below 2^63".into(),
                    );
                }
            }
        }
    }
}

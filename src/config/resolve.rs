//! From text to a resolved deck: read, override, check each key, derive the rest, check keys against each other.
//!
//! Every fault is collected; a key that is faulty itself causes no second fault in the keys that depend on it.
//! Must not know: the ranges and defaults of single keys (`mod.rs` has them).

use super::choices::{BackendKind, DataFormat, Family, Preset, PresetSizes, ReduceWhen, Tokenizer};
use super::key::render;
use super::{Deck, Key, Origin, TABLE, Table, suggest};
use crate::data::CONTAINERS;
use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::Value;
use toml::de::{DeTable, DeValue};

/// Longer values are cut in messages.
const MAX_SHOWN_CHARS: usize = 60;

/// Parameters of the largest model, and elements of the largest activation, that sizes in bytes can be reckoned for.
const MAX_NUMEL: u128 = 1 << 44;

/// What both families add in their norms unless a Llama's deck says otherwise.
const NORM_EPS: f64 = 1e-5;

/// A value somebody wrote: the text, and what it means by the key's type (`None` = not of that type).
struct Written {
    text: String,
    value: Option<Value>,
}

/// Where a key stands.
enum Slot {
    /// Not written, and no fixed default: to be derived.
    Unset,
    /// Faulty: the fault is listed.
    Bad,
    /// Good, with the text to show for it.
    Set(Value, String),
}

pub(super) fn resolve(text: &str, overrides: &[(String, String)], origin: &str) -> Result<Deck> {
    let mut resolver = Resolver::read(&TABLE, text, overrides, origin)?;
    resolver.derive_model_and_data();
    resolver.derive_training();
    resolver.check_consistency();
    resolver.finish()
}

/// One message with line and column (both from 1, columns in characters) and the line itself.
fn syntax_error(text: &str, origin: &str, err: &toml::de::Error) -> Error {
    let message = err.message().trim().replace('\n', ", ");
    let Some(before) = err.span().and_then(|span| text.get(..span.start)) else {
        return Error::Input(format!("{origin} is not TOML: {message}"));
    };
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    let (line, column) = (before.matches('\n').count() + 1, text[line_start..before.len()].chars().count() + 1);
    let shown = show(text[line_start..].lines().next().unwrap_or_default());
    Error::Input(format!("{origin} is not TOML: line {line}, column {column}: {message}\n  {line} | {shown}"))
}

/// A text on one line, cut to a length that leaves the message readable.
fn show(text: &str) -> String {
    let one_line: String = text
        .trim()
        .chars()
        .take(MAX_SHOWN_CHARS + 1)
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    match one_line.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((cut, _)) => format!("{}...", &one_line[..cut]),
        None => one_line,
    }
}

fn show_source(text: &str, span: Range<usize>) -> String {
    show(text.get(span).unwrap_or_default())
}

/// Sorts what a deck says into known keys and faults, in the deck's order.
fn read_document(
    table: &'static Table,
    text: &str,
    document: &DeTable<'_>,
    written: &mut BTreeMap<&'static str, Written>,
    faults: &mut Vec<Fault>,
) {
    let mut found: Vec<(usize, Fault)> = Vec::new();
    for (section, value) in document {
        let (name, at) = (section.get_ref().as_ref(), section.span().start);
        let known = table.sections.iter().any(|s| s.0 == name);
        match value.get_ref() {
            DeValue::Table(fields) if known => {
                for (field, value) in fields {
                    let dotted = format!("{name}.{}", field.get_ref());
                    let shown = show_value(text, value);
                    match table.keys.iter().find(|k| k.name == dotted) {
                        Some(key) => {
                            let value = key.kind.read_toml(value.get_ref());
                            written.insert(key.name, Written { text: shown, value });
                        }
                        None => found.push((
                            field.span().start,
                            Fault { key: show(&dotted), value: shown, wants: suggest::for_key(table, &dotted) },
                        )),
                    }
                }
            }
            DeValue::Table(fields) => {
                let n_keys = fields.len();
                let value = format!("{n_keys} key{}", if n_keys == 1 { "" } else { "s" });
                let wants = suggest::for_section(table, name);
                found.push((at, Fault { key: format!("[{}]", show(name)), value, wants }));
            }
            _ => {
                let wants = if known { format!("a section, written [{name}]") } else { suggest::for_key(table, name) };
                found.push((at, Fault { key: show(name), value: show_value(text, value), wants }));
            }
        }
    }
    found.sort_by_key(|(at, _)| *at);
    faults.extend(found.into_iter().map(|(_, fault)| fault));
}

/// The divisors of `n` next to `near` on both sides, as the end of "wants a divisor, ...".
fn near_divisors(n: i64, near: i64) -> String {
    let divides = |d: &i64| n % d == 0;
    let found = [(1..near).rev().find(divides), (near..=n).find(divides)];
    format!("e.g. {}", found.iter().flatten().map(i64::to_string).collect::<Vec<_>>().join(" or "))
}

/// A value as the deck's text has it. A table's span may be its header alone, so tables are named, not shown.
fn show_value(text: &str, value: &Spanned<DeValue<'_>>) -> String {
    match value.get_ref() {
        DeValue::Table(_) => "a table".into(),
        DeValue::Array(items) if items.iter().any(|i| i.get_ref().is_table()) => "a list of tables".into(),
        _ => show_source(text, value.span()),
    }
}

/// Overrides beat the deck and each other, the last one counting.
fn read_overrides(
    table: &'static Table,
    overrides: &[(String, String)],
    written: &mut BTreeMap<&'static str, Written>,
    faults: &mut Vec<Fault>,
) {
    for (name, text) in overrides {
        match table.keys.iter().find(|k| k.name == name.trim()) {
            Some(key) => {
                let value = key.kind.read_override(text);
                let text = if text.trim().is_empty() { "empty".into() } else { show(text) };
                written.insert(key.name, Written { text, value });
            }
            None => {
                let wants = suggest::for_key(table, name.trim());
                faults.push(Fault { key: show(name), value: show(text), wants });
            }
        }
    }
}

/// A deck on its way from text to values.
pub(super) struct Resolver {
    table: &'static Table,
    slots: BTreeMap<&'static str, Slot>,
    faults: Vec<Fault>,
}

impl Resolver {
    /// Reads a deck's text and overrides and checks every key by itself. Fails where the text is not TOML.
    pub(super) fn read(
        table: &'static Table,
        text: &str,
        overrides: &[(String, String)],
        origin: &str,
    ) -> Result<Resolver> {
        let (document, syntax_errors) = DeTable::parse_recoverable(text);
        // The first in the text: the others mostly follow from it.
        if let Some(first) = syntax_errors.iter().min_by_key(|err| err.span().map_or(0, |span| span.start)) {
            return Err(syntax_error(text, origin, first));
        }
        let mut faults = Vec::new();
        let mut written = BTreeMap::new();
        read_document(table, text, document.get_ref(), &mut written, &mut faults);
        read_overrides(table, overrides, &mut written, &mut faults);
        let mut resolver = Resolver { table, slots: BTreeMap::new(), faults };
        for key in table.keys {
            resolver.check_key(key, written.remove(key.name));
        }
        Ok(resolver)
    }

    fn check_key(&mut self, key: &'static Key, written: Option<Written>) {
        let slot = match (written, key.origin) {
            (Some(written), _) => match key.complaint(written.value.as_ref()) {
                Some(wants) => {
                    self.faults.push(Fault { key: key.name.into(), value: written.text, wants });
                    Slot::Bad
                }
                None => written.value.map_or(Slot::Bad, |value| Slot::Set(value, written.text)),
            },
            (None, Origin::Required) => {
                self.faults.push(Fault { key: key.name.into(), value: "missing".into(), wants: key.kind.wants() });
                Slot::Bad
            }
            (None, Origin::Fixed(text)) => key.fixed_default().map_or(Slot::Bad, |v| Slot::Set(v, text.into())),
            (None, Origin::Derived(_)) => Slot::Unset,
        };
        self.slots.insert(key.name, slot);
    }

    fn value(&self, name: &str) -> Option<&Value> {
        match self.slots.get(name) {
            Some(Slot::Set(value, _)) => Some(value),
            Some(Slot::Unset | Slot::Bad) => None,
            None => panic!("{name} is no key of the table"),
        }
    }

    pub(super) fn integer(&self, name: &str) -> Option<i64> {
        self.value(name)?.as_integer()
    }

    fn float(&self, name: &str) -> Option<f64> {
        self.value(name)?.as_float()
    }

    pub(super) fn choice<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        self.value(name)?.clone().try_into().ok()
    }

    fn paths(&self, name: &str) -> Option<Vec<String>> {
        self.choice(name)
    }

    fn is_unset(&self, name: &str) -> bool {
        matches!(self.slots.get(name), Some(Slot::Unset))
    }

    fn set(&mut self, name: &'static str, value: Value) {
        let text = render(&value);
        self.slots.insert(name, Slot::Set(value, text));
    }

    /// Adds a fault of a key that is set, and marks it bad.
    pub(super) fn refuse(&mut self, name: &'static str, wants: String) {
        let value = match self.slots.insert(name, Slot::Bad) {
            Some(Slot::Set(_, text)) => text,
            _ => "missing".into(),
        };
        self.faults.push(Fault { key: name.into(), value, wants });
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
                    self.refuse("data.tokenizer", "\"bytes\" for text (data.format), which holds no tokens yet".into());
                }
                Some(Tokenizer::Gpt2 | Tokenizer::File(_)) if text => {
                    let wants = "\"bytes\" for text (data.format); make files of tokens with `zero3 data tokenize` and train \
                                 on those";
                    self.refuse("data.tokenizer", wants.into());
                }
                Some(Tokenizer::Bytes) if !text => {
                    let wants = format!(
                        "\"none\", \"gpt2\" or the path of a tokenizer.json for files of tokens (data.format = \"{format}\")"
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

    /// The family, and what it says of sizes that nobody wrote.
    fn derive_family(&mut self, preset: Preset, sizes: Option<PresetSizes>) {
        let of_preset = sizes.map(|s| s.family);
        if self.is_unset("model.family") {
            self.set("model.family", Value::String(of_preset.unwrap_or_default().name().into()));
        }
        let Some(family) = self.choice::<Family>("model.family") else { return };
        if of_preset.is_some_and(|of_preset| of_preset != family) {
            let wants = format!("\"{}\" with model.preset = \"{preset}\"", of_preset.unwrap_or_default());
            return self.refuse("model.family", wants);
        }
        // Of a preset whose width was changed the hidden layer follows the width.
        let d_model = self.integer("model.d_model");
        let of_width = |d: i64| {
            if family == Family::Gpt2 { 4 * d } else { (8 * d as u64).div_ceil(3).next_multiple_of(256) as i64 }
        };
        let preset_d_ff = sizes.filter(|s| d_model == Some(s.d_model as i64)).map(|s| s.d_ff as i64);
        let n_head = self.integer("model.n_head");
        let preset_n_kv_head = sizes.filter(|s| n_head == Some(s.n_head as i64)).map(|s| s.n_kv_head as i64);
        self.derive("model.n_kv_head", preset_n_kv_head.or(n_head).map(Value::Integer));
        self.derive("model.d_ff", preset_d_ff.or(d_model.map(of_width)).map(Value::Integer));
        let theta = sizes.map_or(if family == Family::Gpt2 { 0.0 } else { 10_000.0 }, |s| s.rope_theta);
        self.derive("model.rope_theta", Some(Value::Float(theta)));
        self.derive("model.norm_eps", Some(Value::Float(NORM_EPS)));
        self.derive("model.tied", Some(Value::Boolean(sizes.map_or(family == Family::Gpt2, |s| s.tied))));
    }

    /// Sets a key that nobody wrote; where what it depends on is faulty, that is fault enough.
    fn derive(&mut self, name: &'static str, value: Option<Value>) {
        if self.is_unset(name) {
            match value {
                Some(value) => self.set(name, value),
                None => _ = self.slots.insert(name, Slot::Bad),
            }
        }
    }

    /// What a family does not have is refused by name.
    fn check_family(&mut self) {
        let Some(family) = self.choice::<Family>("model.family") else { return };
        let (n_head, d_model) = (self.integer("model.n_head"), self.integer("model.d_model"));
        match family {
            Family::Gpt2 => {
                let or_llama = "or model.family = \"llama\"";
                if let (Some(n_head), Some(n)) = (n_head, self.integer("model.n_kv_head"))
                    && n != n_head
                {
                    let wants = format!("model.n_head = {n_head}, GPT-2 shares no key/value heads; {or_llama}");
                    self.refuse("model.n_kv_head", wants);
                }
                if let (Some(d_model), Some(n)) = (d_model, self.integer("model.d_ff"))
                    && n != 4 * d_model
                {
                    self.refuse(
                        "model.d_ff",
                        format!("4 * model.d_model = {}, as GPT-2 has it; {or_llama}", 4 * d_model),
                    );
                }
                if self.float("model.rope_theta").is_some_and(|theta| theta != 0.0) {
                    self.refuse("model.rope_theta", format!("0, GPT-2 learns its positions; {or_llama}"));
                }
                if self.float("model.norm_eps").is_some_and(|eps| eps != NORM_EPS) {
                    self.refuse("model.norm_eps", format!("{NORM_EPS:?}, as GPT-2 has it; {or_llama}"));
                }
                if self.choice::<bool>("model.tied") == Some(false) {
                    self.refuse("model.tied", format!("true, GPT-2's head is its embedding; {or_llama}"));
                }
            }
            Family::Llama => {
                if let (Some(n_head), Some(n)) = (n_head, self.integer("model.n_kv_head"))
                    && n_head % n != 0
                {
                    let wants = format!("a divisor of model.n_head = {n_head}, {}", near_divisors(n_head, n));
                    self.refuse("model.n_kv_head", wants);
                }
                if let (Some(n_head), Some(d_model)) = (n_head, d_model)
                    && d_model % n_head == 0
                    && (d_model / n_head) % 2 != 0
                {
                    let wants = format!(
                        "such that a head has an even number of channels to rotate in pairs; model.d_model / model.n_head \
                         is {}",
                        d_model / n_head
                    );
                    self.refuse("model.n_head", wants);
                }
                if self.float("model.rope_theta") == Some(0.0) {
                    self.refuse("model.rope_theta", "above 0, e.g. 10000, for model.family = \"llama\"".into());
                }
            }
        }
    }

    /// What `auto` stands for, by the names of all data paths; sets the key to it.
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
                "files of text or bare tokens, which {} is not by name: unpack it, or say \"text\" to train on its bytes",
                show(path)
            );
            self.refuse("data.format", wants);
            return None;
        }
        let format = DataFormat::of_path(paths.first()?);
        if let Some(other) = paths.iter().find(|p| DataFormat::of_path(p) != format) {
            let wants = format!(
                "one format for all files: by name {} is {format} and {} is {}; say \"text\", \"raw_u16\" or \
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
                let kind = self.table.keys.iter().find(|k| k.name == name).map(|k| k.kind.wants()).unwrap_or_default();
                self.refuse(name, format!("{kind}, or a model.preset that brings it"));
            }
        }
    }

    fn derive_training(&mut self) {
        if let (true, Some(micro)) = (self.is_unset("train.global_batch_size"), self.integer("train.micro_batch_size"))
        {
            self.set("train.global_batch_size", Value::Integer(8 * micro));
        }
        if let (true, Some(backend)) = (self.is_unset("zero.deterministic"), self.choice::<BackendKind>("run.backend"))
        {
            self.set("zero.deterministic", Value::Boolean(backend != BackendKind::Cuda));
        }
        for (name, stands_for) in [("optim.decay_steps", "train.steps"), ("data.stride", "model.seq_len")] {
            if let (Some(0), Some(n)) = (self.integer(name), self.integer(stands_for)) {
                self.set(name, Value::Integer(n));
            }
        }
    }

    fn check_consistency(&mut self) {
        self.check_sizes();
        if let (Some(n_head), Some(d_model)) = (self.integer("model.n_head"), self.integer("model.d_model"))
            && d_model % n_head != 0
        {
            let wants = format!("a divisor of model.d_model = {d_model}, {}", near_divisors(d_model, n_head));
            self.refuse("model.n_head", wants);
        }
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
            let wants = "\"f32\" with zero.reduce = \"last_micro_step\": gradients are held and travel as f32 sums";
            self.refuse("zero.reduce_dtype", wants.into());
        }
        if let (Some(BackendKind::Auto | BackendKind::Cpu), Some(false)) =
            (self.choice("run.backend"), self.choice("zero.deterministic"))
        {
            let wants = "true, or run.backend = \"cuda\": over MPI gradients are always added in one order";
            self.refuse("zero.deterministic", wants.into());
        }
        let tokenizer = self.choice::<Tokenizer>("data.tokenizer");
        if let (Some(vocab), Some(tokenizer)) = (self.integer("model.vocab_size"), tokenizer)
            && let Some(smallest) = tokenizer.vocab_size().filter(|n| vocab < *n as i64)
        {
            let wants = format!("at least {smallest}, the vocabulary of data.tokenizer = \"{tokenizer}\"");
            self.refuse("model.vocab_size", wants);
        }
        if let (Some(1..), Some(Tokenizer::None)) = (self.integer("train.sample_every"), self.choice("data.tokenizer"))
        {
            let wants = "0 where data.tokenizer = \"none\": name the tokenizer that the files of tokens were made with";
            self.refuse("train.sample_every", wants.into());
        }
        if let (Some(1..), Some(val), Some(0.0)) =
            (self.integer("train.eval_every"), self.paths("data.val"), self.float("data.val_fraction"))
            && val.is_empty()
        {
            let wants = "validation data: set data.val, or data.val_fraction above 0; or 0 to never validate";
            self.refuse("train.eval_every", wants.into());
        }
        if let (Some(steps), Some(batch), Some(seq_len)) =
            (self.integer("train.steps"), self.integer("train.global_batch_size"), self.integer("model.seq_len"))
            && steps.checked_mul(batch).and_then(|n| n.checked_mul(seq_len)).is_none()
        {
            let wants = format!("so few that all tokens ({batch} * {seq_len} per step) stay below 2^63");
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
            let llama = self.choice::<Family>("model.family") == Some(Family::Llama);
            let f = size("model.d_ff").unwrap_or(4 * c);
            // Of a Llama with as many key/value heads as it has heads; its head is another (V, C).
            let numel =
                if llama { layers * (4 * c + 3 * f) * c + 2 * v * c } else { layers * 12 * c * c + (t + v) * c };
            if numel > MAX_NUMEL {
                let wants =
                    format!("smaller: together with the other sizes it makes {numel} parameters, 2^44 would do");
                self.refuse("model.d_model", wants);
            } else if let (Some(b), Some(n_eval)) = (size("train.micro_batch_size"), size("train.eval_batches")) {
                let hidden = if llama { (2 * f, "2 * model.d_ff") } else { (4 * c, "4 * model.d_model") };
                let (widest, key) = if v > hidden.0 { (v, "model.vocab_size") } else { hidden };
                if b * t * widest > MAX_NUMEL {
                    let wants = format!(
                        "smaller: with model.seq_len = {t} and {key} = {widest} a micro-batch has a tensor of {} elements, \
                         2^44 would do",
                        b * t * widest
                    );
                    self.refuse("train.micro_batch_size", wants);
                } else if n_eval * b * t > i64::MAX as u128 {
                    self.refuse("train.eval_batches", "so few that all tokens of a validation stay below 2^63".into());
                }
            }
        }
    }

    /// The deck, or all faults.
    pub(super) fn finish<T: serde::de::DeserializeOwned>(self) -> Result<T> {
        if !self.faults.is_empty() {
            return Err(Error::Deck(self.faults));
        }
        let mut sections = toml::Table::new();
        for key in self.table.keys {
            let value = self.value(key.name).unwrap_or_else(|| panic!("{} was never derived", key.name)).clone();
            let section = sections.entry(key.section()).or_insert_with(|| Value::Table(toml::Table::new()));
            if let Value::Table(section) = section {
                section.insert(key.field().into(), value);
            }
        }
        sections.try_into().map_err(|err| Error::Internal(format!("the table of keys and the deck disagree: {err}")))
    }
}

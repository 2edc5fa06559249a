//! A key: its type, range, default and help; how a value is read, checked and printed.
//!
//! Must not know: which keys exist (`mod.rs` has the table), nor how keys depend on each other (`rules.rs`).

use super::choices::{ActivationCheckpointing, Tokenizer};
use super::limit::Limit;
use super::rate::MeasuredRate;
use super::values::{DeviceList, SignalSet, StepSet, TimeLimit, is_a};
use toml::Value;
use toml::de::DeValue;

/// All keys of one kind of deck.
#[derive(Debug)]
pub struct Table {
    /// Every section with its help, in the order they are printed.
    pub sections: &'static [(&'static str, &'static str)],
    /// Every key, in the order they are printed.
    pub keys: &'static [Key],
}

/// One row of the table of keys.
#[derive(Debug)]
pub struct Key {
    /// Dotted name, e.g. `train.steps`.
    pub name: &'static str,
    /// Type and range.
    pub kind: Kind,
    /// The source of its value if it is not set.
    pub origin: Origin,
    /// Its description, with the unit.
    pub help: &'static str,
}

/// The source of an unset key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// None: the key is required.
    Required,
    /// This text, parsed like an override.
    Fixed(&'static str),
    /// Derived from other keys, as described.
    Derived(&'static str),
}

/// Type and range of a key.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A string.
    Text {
        /// Whether the empty string is valid.
        may_be_empty: bool,
    },
    /// One of several words.
    Choice(&'static [&'static str]),
    /// `none`, `all` or `every:K`.
    Checkpointing,
    /// `bytes`, `none`, `gpt2` or the path of a tokenizer.json.
    Tokenizer,
    /// A level, or a filter of levels by module.
    LogFilter,
    /// Steps, as `log.trace` names them.
    Steps,
    /// A length of time.
    Duration,
    /// A reference and tolerances of a measurement.
    Limit,
    /// The cost of a kernel, if measured.
    Rate,
    /// Names of signals.
    Signals,
    /// CUDA ordinals.
    Devices,
    /// true or false.
    Flag,
    /// A whole number from `min` to `max`.
    Integer {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
    },
    /// A finite number from `min` to `max`.
    Float {
        /// Smallest value.
        min: f64,
        /// Largest value, or the first that is too large.
        max: f64,
        /// Whether `max` itself is too large.
        below_max: bool,
    },
    /// Paths or globs.
    Paths {
        /// Whether an empty list is valid.
        may_be_empty: bool,
    },
}

impl Key {
    /// The part before the dot.
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(section, _)| section)
    }

    /// The part after the dot.
    pub fn field(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, field)| field)
    }

    /// The fixed default, if the key has one.
    pub fn fixed_default(&self) -> Option<Value> {
        match self.origin {
            Origin::Fixed(text) => self.kind.read_override(text),
            Origin::Required | Origin::Derived(_) => None,
        }
    }

    /// A description of valid values if `value` is invalid, or `None`. A `None` value has the wrong type.
    pub fn complaint(&self, value: Option<&Value>) -> Option<String> {
        value.is_none_or(|v| !self.kind.admits(v)).then(|| self.kind.wants())
    }
}

impl Kind {
    /// Whether its values are strings.
    fn is_text(&self) -> bool {
        match self {
            Kind::Text { .. }
            | Kind::Choice(_)
            | Kind::Checkpointing
            | Kind::Tokenizer
            | Kind::LogFilter
            | Kind::Steps
            | Kind::Duration
            | Kind::Limit
            | Kind::Rate
            | Kind::Signals
            | Kind::Devices => true,
            Kind::Flag | Kind::Integer { .. } | Kind::Float { .. } | Kind::Paths { .. } => false,
        }
    }

    /// A description of valid values, as the end of the sentence "it wants ...".
    pub fn wants(&self) -> String {
        match *self {
            Kind::Text { may_be_empty: true } => "a string".into(),
            Kind::Text { may_be_empty: false } => "a non-empty string".into(),
            Kind::Choice(words) => {
                format!("one of {}", words.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(", "))
            }
            Kind::Checkpointing => "\"none\", \"all\" or \"every:K\" with K of at least 1".into(),
            Kind::Tokenizer => "\"bytes\", \"none\", \"gpt2\" or the path of a tokenizer.json".into(),
            Kind::LogFilter => "\"off\", \"error\", \"warn\", \"info\", \"debug\" or \"trace\", or a filter \
                                such as \"info,zero3::data=debug\""
                .into(),
            Kind::Steps => "a step such as 10, or a range such as 10..12 (12 excluded) or 10..=12".into(),
            Kind::Duration => {
                "a time such as \"1h30m\", \"90m\", \"5400\" (seconds) or \"01:30:00\"; empty for none".into()
            }
            Kind::Devices => "device ordinals separated by commas, such as \"0,1,2,3\", or \"\"".into(),
            Kind::Limit => "a reference and tolerances below or above it, such as \"40 -10%\", \"2.5 \
                            +20%\", \"-10%\" (of the baseline) or empty"
                .into(),
            Kind::Rate => {
                "a combination of us, GFLOP/s and GB/s, such as \"1.5 us, 210 GFLOP/s, 55 GB/s\"; empty = \
                 not measured"
                    .into()
            }
            Kind::Signals => {
                "signals out of TERM, USR1, INT, HUP, QUIT, XCPU, URG, separated by commas; empty for \
                 none"
                    .into()
            }
            Kind::Flag => "true or false".into(),
            Kind::Integer { min, max: i64::MAX } => format!("an integer from {min} to 2^63 - 1"),
            Kind::Integer { min, max } => format!("an integer from {min} to {max}"),
            Kind::Float { min, max, below_max: true } => {
                format!("a number from {} to below {}", bound(min), bound(max))
            }
            Kind::Float { min, max, below_max: false } => {
                format!("a number from {} to {}", bound(min), bound(max))
            }
            Kind::Paths { may_be_empty: true } => "a list of paths or globs, e.g. [\"val.txt\"]".into(),
            Kind::Paths { may_be_empty: false } => {
                "a list of at least one path or glob, e.g. [\"text/*.txt\", \"more.txt\"]".into()
            }
        }
    }

    /// Whether a value of the right type is in range.
    fn admits(&self, value: &Value) -> bool {
        match (*self, value) {
            (Kind::Text { may_be_empty }, Value::String(s)) => may_be_empty || !s.is_empty(),
            (Kind::Choice(words), Value::String(s)) => words.contains(&s.as_str()),
            (Kind::Checkpointing, Value::String(s)) => is_a::<ActivationCheckpointing>(s),
            (Kind::Tokenizer, Value::String(s)) => is_a::<Tokenizer>(s),
            (Kind::LogFilter, Value::String(s)) => is_log_filter(s),
            (Kind::Steps, Value::String(s)) => is_a::<StepSet>(s),
            (Kind::Duration, Value::String(s)) => is_a::<TimeLimit>(s),
            (Kind::Limit, Value::String(s)) => is_a::<Limit>(s),
            (Kind::Rate, Value::String(s)) => is_a::<MeasuredRate>(s),
            (Kind::Signals, Value::String(s)) => is_a::<SignalSet>(s),
            (Kind::Devices, Value::String(s)) => is_a::<DeviceList>(s),
            (Kind::Flag, Value::Boolean(_)) => true,
            (Kind::Integer { min, max }, Value::Integer(i)) => (min..=max).contains(i),
            (Kind::Float { min, max, below_max }, Value::Float(f)) => {
                f.is_finite() && *f >= min && if below_max { *f < max } else { *f <= max }
            }
            (Kind::Paths { may_be_empty }, Value::Array(paths)) => {
                (may_be_empty || !paths.is_empty())
                    && paths.iter().all(|p| p.as_str().is_some_and(|p| !p.is_empty()))
            }
            _ => false,
        }
    }

    /// A value of a deck as this type, or `None`. An integer is a valid float, but not vice versa.
    pub(super) fn read_toml(&self, value: &DeValue<'_>) -> Option<Value> {
        match (self, value) {
            (Kind::Flag, DeValue::Boolean(b)) => Some(Value::Boolean(*b)),
            (Kind::Integer { .. }, DeValue::Integer(i)) => {
                i64::from_str_radix(i.as_str(), i.radix()).ok().map(Value::Integer)
            }
            (Kind::Float { .. }, DeValue::Integer(i)) => {
                i128::from_str_radix(i.as_str(), i.radix()).ok().map(|i| Value::Float(i as f64))
            }
            (Kind::Float { .. }, DeValue::Float(f)) => f.as_str().parse().ok().map(float),
            (Kind::Paths { .. }, DeValue::Array(items)) => items
                .iter()
                .map(|item| item.get_ref().as_str().map(|s| Value::String(s.to_owned())))
                .collect::<Option<Vec<_>>>()
                .map(Value::Array),
            (kind, DeValue::String(s)) if kind.is_text() => Some(Value::String(s.to_string())),
            _ => None,
        }
    }

    /// The text of an override as this type, or `None`. Strings and lists may be unquoted.
    pub(super) fn read_override(&self, text: &str) -> Option<Value> {
        let as_toml = || self.read_toml(DeValue::parse(text.trim()).ok()?.get_ref());
        let quoted = |text: &str| text.starts_with(['"', '\'']);
        match self {
            Kind::Flag => match text.trim() {
                "true" | "on" | "yes" => Some(Value::Boolean(true)),
                "false" | "off" | "no" => Some(Value::Boolean(false)),
                _ => None,
            },
            Kind::Integer { .. } => as_toml(),
            Kind::Float { .. } => as_toml().or_else(|| text.trim().parse().ok().map(float)),
            Kind::Paths { .. } => {
                // `[ab]*.txt` is a glob and `["a", "b"]` a list: text that TOML parses as strings is a list,
                // and text that opens like one must be one.
                let literal = if text.starts_with('[') { as_toml() } else { None };
                if literal.is_some() || text.strip_prefix('[').is_some_and(|rest| quoted(rest.trim_start())) {
                    return literal;
                }
                let paths = text.split(',').filter(|_| !text.is_empty());
                Some(Value::Array(paths.map(|p| Value::String(p.to_owned())).collect()))
            }
            text_kind => {
                assert!(text_kind.is_text(), "{text_kind:?} has an arm of its own");
                let literal = if quoted(text) { as_toml() } else { None };
                literal.or_else(|| Some(Value::String(text.to_owned())))
            }
        }
    }

    /// A value of this type that represents "not set" without a known default.
    fn placeholder(&self) -> Value {
        match *self {
            Kind::Text { .. }
            | Kind::LogFilter
            | Kind::Steps
            | Kind::Duration
            | Kind::Limit
            | Kind::Rate
            | Kind::Signals
            | Kind::Devices => Value::String(String::new()),
            Kind::Choice(words) => Value::String(words[0].into()),
            Kind::Checkpointing => Value::String("none".into()),
            Kind::Tokenizer => Value::String("bytes".into()),
            Kind::Flag => Value::Boolean(false),
            Kind::Integer { .. } => Value::Integer(0),
            Kind::Float { .. } => Value::Float(0.0),
            Kind::Paths { .. } => Value::Array(Vec::new()),
        }
    }
}

/// One section with its fixed defaults; required and derived keys are empty, zero or the first choice.
pub(super) fn default_section<T: serde::de::DeserializeOwned>(keys: &[Key], section: &str) -> T {
    let fields = keys.iter().filter(|k| k.section() == section);
    let table: toml::Table = fields
        .map(|k| (k.field().to_owned(), k.fixed_default().unwrap_or_else(|| k.kind.placeholder())))
        .collect();
    match table.try_into() {
        Ok(value) => value,
        Err(err) => panic!("the defaults of [{section}] do not fit its struct: {err}"),
    }
}

/// A float value; negative zero becomes zero, so that equal decks have equal texts.
fn float(f: f64) -> Value {
    Value::Float(f + 0.0)
}

/// The bound of a range in readable form: `0`, `1000`, `1e12`.
fn bound(f: f64) -> String {
    if f == 0.0 || (1e-3..1e6).contains(&f) { f.to_string() } else { format!("{f:e}") }
}

/// Whether env_logger parses this filter without dropping a part of it. A bare word that is not a level is
/// rejected: it would be a module, and a misspelt level must not pass for one.
fn is_log_filter(text: &str) -> bool {
    let is_level = |word: &str| word.trim().parse::<log::LevelFilter>().is_ok();
    let is_module =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_:-".contains(c));
    let mut parts = text.split('/');
    let directives = parts.next().unwrap_or_default();
    parts.count() <= 1
        && directives.split(',').all(|directive| match directive.split_once('=') {
            None => is_level(directive),
            Some((module, level)) => is_module(module.trim()) && is_level(level),
        })
}

/// A value as TOML that parses to the same bits: floats in shortest round-trip form, strings quoted on one
/// line.
pub(super) fn render(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        Value::Float(f) => format!("{f:?}"),
        Value::Array(items) => format!("[{}]", items.iter().map(render).collect::<Vec<_>>().join(", ")),
        Value::Integer(i) => i.to_string(),
        Value::Boolean(b) => b.to_string(),
        Value::Datetime(_) | Value::Table(_) => unreachable!("no key holds a date or a table"),
    }
}

/// A TOML basic string.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

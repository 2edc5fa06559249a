//! Which setting to change first: the plan repeated with one changed at a time, and the gain of each.
//!
//! Changes that do not fit into the memory are listed separately, with the smallest further change that would
//! make them fit. Pure: the caller plans a changed deck.

use super::Forecast;
use crate::config::{ActivationCheckpointing, Deck, ReduceWhen};
use crate::dtype::DType;
use crate::error::Result;
use serde::Serialize;

/// Keys and values, as in an override.
pub type Overrides = Vec<(String, String)>;

/// Predicts the deck with some keys changed.
pub type Predict<'a> = dyn Fn(&[(String, String)]) -> Result<Forecast> + 'a;

/// Smaller gains are rounding.
const SMALLEST_GAIN: f64 = 5e-4;

/// A change that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Turn {
    /// As written on the command line.
    pub change: String,
    /// Its side effects other than time and memory; empty: none, the results are bitwise the same.
    pub costs: &'static str,
    /// Relative change of tokens per second, minus 1.
    pub gain: f64,
    /// The forecast with it.
    pub forecast: Forecast,
    /// If it does not fit: what would make it fit, and the gain of both.
    pub remedy: Option<Remedy>,
}

/// A further change that makes a change fit.
#[derive(Debug, Clone, Serialize)]
pub struct Remedy {
    /// As written on the command line.
    pub change: String,
    /// Gain of both changes together.
    pub gain: f64,
    /// Bytes per rank.
    pub memory_bytes: u64,
}

/// The changes that were tried.
#[derive(Debug, Clone, Serialize, Default)]
pub struct Advice {
    /// Those that fit, the largest gain first.
    pub fits: Vec<Turn>,
    /// Those that would be faster but do not fit, the largest gain first.
    pub too_large: Vec<Turn>,
}

/// Tries every setting of `deck` on `n_ranks` ranks; `base` is the deck's forecast.
pub fn advise(deck: &Deck, n_ranks: usize, base: &Forecast, predict: &Predict<'_>) -> Advice {
    let mut advice = Advice::default();
    for Candidate { overrides, costs } in candidates(deck, n_ranks) {
        // A deck that its own rules reject is not advice.
        let Ok(forecast) = predict(&overrides) else { continue };
        let gain = gain(&forecast, base);
        let mut turn = Turn { change: in_words(&overrides), costs, gain, remedy: None, forecast };
        if turn.forecast.fits {
            advice.fits.push(turn);
        } else if gain > SMALLEST_GAIN && base.fits {
            turn.remedy = remedy(deck, &overrides, base, predict);
            advice.too_large.push(turn);
        }
    }
    // Of equal ones, the one with the fewest side effects.
    let order = |a: &Turn, b: &Turn| {
        b.gain.total_cmp(&a.gain).then_with(|| a.forecast.memory_bytes.cmp(&b.forecast.memory_bytes))
    };
    advice.fits.sort_by(order);
    advice.too_large.sort_by(order);
    advice
}

impl Advice {
    /// The setting to change first, if any helps: one that keeps the results bitwise the same before one that
    /// does not.
    pub fn first(&self) -> Option<&Turn> {
        let gives = |turn: &&Turn| turn.gain > SMALLEST_GAIN;
        self.fits
            .iter()
            .filter(gives)
            .find(|turn| turn.costs.is_empty())
            .or_else(|| self.fits.iter().find(gives))
    }

    /// A change that does not fit alone together with one that makes it fit, if both give more than the first
    /// setting.
    pub fn pair(&self) -> Option<(&Turn, &Remedy)> {
        let least = self.first().map_or(0.0, |turn| turn.gain) + SMALLEST_GAIN;
        let pairs = self.too_large.iter().filter_map(|turn| Some((turn, turn.remedy.as_ref()?)));
        pairs.filter(|(_, remedy)| remedy.gain > least).max_by(|a, b| a.1.gain.total_cmp(&b.1.gain))
    }
}

fn gain(forecast: &Forecast, base: &Forecast) -> f64 {
    forecast.tokens_per_s / base.tokens_per_s - 1.0
}

/// `zero.stage=2 zero.overlap=true`.
fn in_words(overrides: &[(String, String)]) -> String {
    overrides.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

struct Candidate {
    overrides: Overrides,
    costs: &'static str,
}

/// One setting each, at values worth trying.
fn candidates(deck: &Deck, n_ranks: usize) -> Vec<Candidate> {
    const OTHER_BITS: &str = "other rounding";
    const OTHER_BATCH: &str = "a larger batch";
    let (zero, train) = (&deck.zero, &deck.train);
    let mut all: Vec<Candidate> = Vec::new();
    let mut add = |costs: &'static str, keys: &[(&str, String)]| {
        let overrides = keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        all.push(Candidate { overrides, costs });
    };
    for units in [0, 1, 2, 4].into_iter().filter(|&units| units != zero.prefetch_units) {
        add("", &[("zero.prefetch_units", units.to_string())]);
    }
    for stage in (0..=3).filter(|&stage| stage != zero.stage) {
        add("", &[("zero.stage", stage.to_string())]);
    }
    for again in
        [ActivationCheckpointing::None, ActivationCheckpointing::Every(2), ActivationCheckpointing::All]
    {
        if again != zero.activation_checkpointing {
            add("", &[("zero.activation_checkpointing", again.to_string())]);
        }
    }
    let b = train.micro_batch_size;
    let whole = |micro: usize| micro > 0 && micro != b && train.global_batch_size.is_multiple_of(micro);
    // Not so large that ranks would be idle.
    let busy = |micro: usize| train.global_batch_size / micro >= n_ranks || micro < b;
    for micro in [4 * b, 2 * b, b / 2].into_iter().filter(|&micro| whole(micro) && busy(micro)) {
        add(OTHER_BITS, &[("train.micro_batch_size", micro.to_string())]);
    }
    for times in [2, 4] {
        add(OTHER_BATCH, &[("train.global_batch_size", (times * train.global_batch_size).to_string())]);
        let keys = [
            ("train.micro_batch_size", times * b),
            ("train.global_batch_size", times * train.global_batch_size),
        ];
        add(OTHER_BATCH, &keys.map(|(key, value)| (key, value.to_string())));
    }
    let bf16 = || DType::Bf16.name().to_owned();
    if zero.reduce_dtype != DType::Bf16 {
        add(OTHER_BITS, &[("zero.reduce_dtype", bf16())]);
    }
    if zero.param_dtype != DType::Bf16 {
        let keys = ["zero.param_dtype", "zero.grad_dtype", "zero.reduce_dtype"];
        add(OTHER_BITS, &keys.map(|key| (key, bf16())));
        if !deck.run.tf32 {
            add(OTHER_BITS, &[("run.tf32", "true".into())]);
        }
    }
    for bytes in
        [0, 100_000, 1_000_000].into_iter().filter(|&bytes| bytes != zero.persistence_threshold_bytes)
    {
        add("", &[("zero.persistence_threshold_bytes", bytes.to_string())]);
    }
    if zero.reduce == ReduceWhen::EveryMicroStep {
        let keys = [("zero.reduce", ReduceWhen::LastMicroStep.name()), ("zero.reduce_dtype", "f32")];
        add(OTHER_BITS, &keys.map(|(key, value)| (key, value.to_owned())));
    }
    add("", &[("zero.release_after_forward", (!zero.release_after_forward).to_string())]);
    add("", &[("zero.overlap", (!zero.overlap).to_string())]);
    for times in [4, 16] {
        add("", &[("zero.reduce_bucket_bytes", (times * zero.reduce_bucket_bytes).to_string())]);
    }
    if zero.gather_bucket_bytes > 0 {
        add("", &[("zero.gather_bucket_bytes", "0".into())]);
    }
    let costs = if zero.deterministic { "bits depend on the rank count" } else { OTHER_BITS };
    add(costs, &[("zero.deterministic", (!zero.deterministic).to_string())]);
    all
}

/// The first further change, in order of cost, with which `overrides` fit.
fn remedy(
    deck: &Deck,
    overrides: &[(String, String)],
    base: &Forecast,
    predict: &Predict<'_>,
) -> Option<Remedy> {
    let half = deck.train.micro_batch_size / 2;
    let savers = [
        ("zero.reduce_bucket_bytes", "1048576".to_owned()),
        ("zero.prefetch_units", "0".to_owned()),
        ("zero.release_after_forward", "true".to_owned()),
        ("zero.stage", "2".to_owned()),
        ("zero.stage", "3".to_owned()),
        ("zero.activation_checkpointing", "every:2".to_owned()),
        ("zero.activation_checkpointing", "all".to_owned()),
        ("train.micro_batch_size", half.max(1).to_string()),
    ];
    savers.into_iter().filter(|(key, _)| overrides.iter().all(|(turned, _)| turned != key)).find_map(
        |(key, value)| {
            let saver = (key.to_owned(), value);
            let both: Overrides = overrides.iter().cloned().chain([saver.clone()]).collect();
            let forecast = predict(&both).ok().filter(|forecast| forecast.fits)?;
            let change = in_words(&[saver]);
            Some(Remedy { change, gain: gain(&forecast, base), memory_bytes: forecast.memory_bytes })
        },
    )
}

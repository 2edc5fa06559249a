//! Which knob to turn first: the plan again with one changed at a time, and what each would give.
//!
//! What does not fit the memory is listed apart, with the smallest further change that would make it fit.
//! Pure: how a changed deck is planned is the caller's.

use super::Forecast;
use crate::config::{ActivationCheckpointing, Deck, ReduceWhen};
use crate::dtype::DType;
use crate::error::Result;
use serde::Serialize;

/// Keys and values as an override has them.
pub type Overrides = Vec<(String, String)>;

/// Predicts the deck with some keys changed.
pub type Predict<'a> = dyn Fn(&[(String, String)]) -> Result<Forecast> + 'a;

/// Gains that are nothing but rounding.
const SMALLEST_GAIN: f64 = 5e-4;

/// A change that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Turn {
    /// As it would be written on the command line.
    pub change: String,
    /// What else it changes than time and memory; empty: nothing, the bits of the run stay.
    pub costs: &'static str,
    /// Tokens per second over those without it, less 1.
    pub gain: f64,
    /// With it.
    pub forecast: Forecast,
    /// Where it does not fit: what would make it fit, and the gain of both.
    pub remedy: Option<Remedy>,
}

/// What makes a change fit.
#[derive(Debug, Clone, Serialize)]
pub struct Remedy {
    /// As it would be written on the command line.
    pub change: String,
    /// Of both changes together.
    pub gain: f64,
    /// Bytes of a rank.
    pub memory_bytes: u64,
}

/// What was tried.
#[derive(Debug, Clone, Serialize, Default)]
pub struct Advice {
    /// What fits, the largest gain first.
    pub fits: Vec<Turn>,
    /// What would be faster and does not fit, the largest gain first.
    pub too_large: Vec<Turn>,
}

/// Tries every knob of `deck` on `n_ranks` ranks; `base` is the deck as it is.
pub fn advise(deck: &Deck, n_ranks: usize, base: &Forecast, predict: &Predict<'_>) -> Advice {
    let mut advice = Advice::default();
    for Candidate { overrides, costs } in candidates(deck, n_ranks) {
        // A deck that its own rules refuse is no advice.
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
    // Of equal ones the one that changes the least else.
    let order = |a: &Turn, b: &Turn| {
        b.gain.total_cmp(&a.gain).then_with(|| a.forecast.memory_bytes.cmp(&b.forecast.memory_bytes))
    };
    advice.fits.sort_by(order);
    advice.too_large.sort_by(order);
    advice
}

impl Advice {
    /// The first knob to turn, if any gives something: one that leaves the bits of the run alone before one
    /// that does not.
    pub fn first(&self) -> Option<&Turn> {
        let gives = |turn: &&Turn| turn.gain > SMALLEST_GAIN;
        self.fits
            .iter()
            .filter(gives)
            .find(|turn| turn.costs.is_empty())
            .or_else(|| self.fits.iter().find(gives))
    }

    /// A change that does not fit by itself and what makes it fit, where both together give more than the
    /// first knob.
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

/// One knob each, at the values worth a try.
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
    // Not so large that ranks would have nothing to do.
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

/// The first further change, in the order of what it costs, with which `overrides` fit.
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

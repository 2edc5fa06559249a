//! One key over several values: a forecast for each, as a table and as CSV.
//!
//! Must not know: how a value is planned.

use super::Forecast;
use crate::config::{self, hardware};
use crate::error::{Error, Result};
use crate::human;
use serde::Serialize;
use std::fmt;

/// Maximum number of values of a sweep.
const MAX_VALUES: usize = 256;

/// The varied key and its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// `ranks`, `ranks_per_node`, or a dotted key of the deck or of the hardware.
    pub key: String,
    /// Its values, as in an override.
    pub values: Vec<String>,
}

impl std::str::FromStr for Sweep {
    type Err = String;

    /// `ranks=8..4096` (doubling, the end included), or any key with a list: `micro_batch_size=1,2,4`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wants =
            "KEY=FROM..TO (doubling) or KEY=A,B,C, such as ranks=8..4096 or zero.prefetch_units=0,1,2";
        let (key, values) = text.split_once('=').ok_or(wants)?;
        let values = match values.split_once("..") {
            Some((first, last)) => doubling(first, last)
                .ok_or(format!("{values} is not an ascending range of counts: {wants}"))?,
            None => values.split(',').map(|value| value.trim().to_owned()).collect(),
        };
        if values.iter().any(String::is_empty) || values.len() > MAX_VALUES {
            return Err(format!(
                "{} values, up to {MAX_VALUES} and none of them empty: {wants}",
                values.len()
            ));
        }
        Ok(Sweep { key: full_key(key.trim())?, values })
    }
}

/// `8..4096` is 8, 16 ... 4096; an end that is not reached by doubling is the last value.
fn doubling(first: &str, last: &str) -> Option<Vec<String>> {
    let (first, last): (u64, u64) =
        (first.trim().parse().ok()?, last.trim().trim_start_matches('=').parse().ok()?);
    if first == 0 || last < first {
        return None;
    }
    let below = std::iter::successors(Some(first), |n| n.checked_mul(2)).take_while(|&n| n < last);
    Some(below.chain([last]).map(|n| n.to_string()).collect())
}

/// A key in the deck's form: the section may be omitted if only one section has such a key.
fn full_key(key: &str) -> std::result::Result<String, String> {
    if ["ranks", "ranks_per_node"].contains(&key) {
        return Ok(key.into());
    }
    let all = || config::KEYS.iter().chain(hardware::KEYS);
    let named: Vec<&str> = all().filter(|k| k.name == key || k.field() == key).map(|k| k.name).collect();
    match named.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => Err(format!("{key}: no such key; ranks, ranks_per_node, or one of docs/deck.md")),
        several => Err(format!("{key}: which one, {}?", several.join(" or "))),
    }
}

/// Result for one value.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The value.
    pub value: String,
    /// The forecast, or why it cannot be planned.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A forecast or an error.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The forecast.
    Forecast(Box<Forecast>),
    /// Why it cannot be planned.
    Refused(String),
}

/// All rows of a sweep.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// The varied key.
    pub key: String,
    /// In the order of the values.
    pub rows: Vec<Row>,
}

impl Table {
    /// Predicts each value.
    pub fn new(sweep: &Sweep, predict: impl Fn(&str) -> Result<Forecast>) -> Self {
        let outcome = |value: &String| match predict(value) {
            Ok(forecast) => Outcome::Forecast(Box::new(forecast)),
            Err(error) => Outcome::Refused(error.to_string()),
        };
        let rows =
            sweep.values.iter().map(|value| Row { value: value.clone(), outcome: outcome(value) }).collect();
        Table { key: sweep.key.clone(), rows }
    }

    /// Values that could be planned.
    pub fn planned(&self) -> impl Iterator<Item = (&str, &Forecast)> {
        self.rows.iter().filter_map(|row| match &row.outcome {
            Outcome::Forecast(forecast) => Some((row.value.as_str(), &**forecast)),
            Outcome::Refused(_) => None,
        })
    }

    /// The machine-readable table: seconds and bytes, one row per value; a value that cannot be planned has
    /// the reason in the last column.
    ///
    /// # Errors
    /// Only out of memory.
    pub fn to_csv(&self) -> Result<String> {
        let internal = |e: &dyn fmt::Display| Error::Internal(format!("CSV: {e}"));
        let mut writer = csv::Writer::from_writer(Vec::new());
        let header =
            [self.key.as_str()].into_iter().chain(COLUMNS.iter().map(|(name, _)| *name)).chain(["refused"]);
        writer.write_record(header).map_err(|e| internal(&e))?;
        for row in &self.rows {
            let (cells, refused) = match &row.outcome {
                Outcome::Forecast(f) => (COLUMNS.iter().map(|(_, cell)| cell(f)).collect(), String::new()),
                Outcome::Refused(why) => (vec![String::new(); COLUMNS.len()], why.clone()),
            };
            writer
                .write_record([row.value.clone()].into_iter().chain(cells).chain([refused]))
                .map_err(|e| internal(&e))?;
        }
        let bytes = writer.into_inner().map_err(|e| internal(&e))?;
        String::from_utf8(bytes).map_err(|e| internal(&e))
    }
}

type Column = (&'static str, fn(&Forecast) -> String);

/// Columns of the CSV after the varied key.
const COLUMNS: [Column; 21] = [
    ("world_size", |f| f.world_size.to_string()),
    ("n_nodes", |f| f.n_nodes.to_string()),
    ("micro_steps", |f| f.micro_steps.to_string()),
    ("idle_ranks", |f| f.idle_ranks.to_string()),
    ("tokens_per_step", |f| f.tokens_per_step.to_string()),
    ("step_s", |f| f.step_s.to_string()),
    ("compute_s", |f| f.compute_s.to_string()),
    ("recompute_s", |f| f.recompute_s.to_string()),
    ("gather_s", |f| f.gather_s.to_string()),
    ("reduce_s", |f| f.reduce_s.to_string()),
    ("optimizer_s", |f| f.optimizer_s.to_string()),
    ("exposed_comm_s", |f| f.exposed_comm_s.to_string()),
    ("tokens_per_s", |f| f.tokens_per_s.to_string()),
    ("mfu", |f| f.mfu.to_string()),
    ("hfu", |f| f.hfu.to_string()),
    ("memory_bytes", |f| f.memory_bytes.to_string()),
    ("fits", |f| f.fits.to_string()),
    ("all_gather_bytes", |f| f.all_gather_bytes.to_string()),
    ("reduce_scatter_bytes", |f| f.reduce_scatter_bytes.to_string()),
    ("leaving_node_all_gather_bytes", |f| f.leaving_node_all_gather_bytes.to_string()),
    ("leaving_node_reduce_scatter_bytes", |f| f.leaving_node_reduce_scatter_bytes.to_string()),
];

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.value.len()).chain([self.key.len()]).max().unwrap_or(0);
        writeln!(
            f,
            "  {:>width$} {:>10} {:>8} {:>10} {:>9} {:>6} {:>8} {:>10} {:>10} {:>6}",
            self.key,
            "step ms",
            "tokens/s",
            "per rank",
            "exposed",
            "MFU",
            "idle",
            "memory",
            "off node",
            "fits"
        )?;
        for row in &self.rows {
            let forecast = match &row.outcome {
                Outcome::Forecast(forecast) => forecast,
                Outcome::Refused(why) => {
                    writeln!(f, "  {:>width$} {}", row.value, why.replace('\n', " "))?;
                    continue;
                }
            };
            writeln!(
                f,
                "  {:>width$} {:>10.1} {:>8} {:>10} {:>8.1}% {:>5.1}% {:>8} {:>10} {:>10} {:>6}",
                row.value,
                forecast.step_s * 1e3,
                human::count(forecast.tokens_per_s),
                human::count(forecast.tokens_per_s / forecast.world_size as f64),
                100.0 * forecast.exposed_comm_s / forecast.step_s,
                100.0 * forecast.mfu,
                forecast.idle_ranks,
                human::bytes(forecast.memory_bytes),
                human::bytes(
                    forecast.leaving_node_all_gather_bytes + forecast.leaving_node_reduce_scatter_bytes
                ),
                if forecast.fits { "yes" } else { "NO" }
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_double_and_end_with_their_end() {
        let parsed = |text: &str| text.parse::<Sweep>();
        assert_eq!(parsed("ranks=8..64").unwrap().values, ["8", "16", "32", "64"]);
        assert_eq!(parsed("ranks=3..=7").unwrap().values, ["3", "6", "7"]);
        assert_eq!(parsed("ranks=5..5").unwrap().values, ["5"]);
        let micro = parsed("micro_batch_size=1,2, 4").unwrap();
        assert_eq!((micro.key.as_str(), micro.values.len()), ("train.micro_batch_size", 3));
        assert_eq!(parsed("network.gb_per_s=12.5,25").unwrap().key, "network.gb_per_s");
        for (text, says) in [
            ("ranks", "KEY=FROM..TO"),
            ("ranks=8..4", "is not an ascending range of counts"),
            ("ranks=0..4", "is not an ascending range of counts"),
            ("ranks=1,,2", "none of them empty"),
            ("rank=1,2", "no such key"),
            ("gb_per_s=1,2", "which one, node.gb_per_s or network.gb_per_s?"),
        ] {
            let said = parsed(text).unwrap_err();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}

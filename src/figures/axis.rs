//! Axes: the meaning of their numbers, and the positions of ticks.

use crate::human;

/// The meaning of an axis's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Plain numbers; the axis label has the unit.
    Plain,
    /// Counts (ranks, steps): ticks are integers, and powers of two on a logarithmic axis.
    Count,
    /// Bytes, shown as KiB, MiB and so on.
    Bytes,
}

/// One axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Its label, with a unit if numbers have none: `step time, ms`.
    pub label: String,
    /// The meaning of its numbers.
    pub unit: Unit,
    /// Logarithmic. Non-positive values are omitted.
    pub log: bool,
    /// The minimum range; data may extend it. Most bar-like quantities start at `Some((0.0, 0.0))`.
    pub spans: Option<(f64, f64)>,
    /// Whether it ends exactly at the data, without a margin.
    pub tight: bool,
    /// Minimum width of its numbers in px, so that stacked panels align.
    pub room: f64,
}

impl Axis {
    /// A linear axis of plain numbers that fits the data.
    pub fn new(label: impl Into<String>) -> Self {
        Axis { label: label.into(), unit: Unit::Plain, log: false, spans: None, tight: false, room: 0.0 }
    }

    /// Its numbers are counts.
    pub fn count(self) -> Self {
        Axis { unit: Unit::Count, ..self }
    }

    /// Its numbers are bytes.
    pub fn bytes(self) -> Self {
        Axis { unit: Unit::Bytes, ..self }
    }

    /// Logarithmic.
    pub fn log(self) -> Self {
        Axis { log: true, ..self }
    }

    /// At least from `low` to `high`.
    pub fn spanning(self, low: f64, high: f64) -> Self {
        Axis { spans: Some((low, high)), ..self }
    }

    /// With at least this many px for its numbers.
    pub fn with_room(self, room: f64) -> Self {
        Axis { room, ..self }
    }

    /// Without margins.
    pub fn tight(self) -> Self {
        Axis { tight: true, ..self }
    }

    /// Position of a value on a linear scale.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        match self.log {
            true => (value > 0.0 && value.is_finite()).then(|| value.log2()),
            false => value.is_finite().then_some(value),
        }
    }

    /// The value at a position.
    pub(super) fn value(&self, place: f64) -> f64 {
        if self.log { place.exp2() } else { place }
    }

    /// Ticks within a range of positions, about `n` of them, as positions.
    pub(super) fn places(&self, (low, high): (f64, f64), n: usize) -> Vec<f64> {
        let ticks = self.ticks(self.value(low), self.value(high), n);
        ticks.into_iter().filter_map(|v| self.place(v)).collect()
    }

    /// Ticks within `low..=high` (values), about `n` of them.
    fn ticks(&self, low: f64, high: f64, n: usize) -> Vec<f64> {
        if self.log {
            return log_ticks(low, high, n, self.unit);
        }
        let unit = match self.unit {
            Unit::Bytes => 1024f64.powf((high.abs().max(1.0).log2() / 10.0).floor()),
            Unit::Plain | Unit::Count => 1.0,
        };
        let least = if self.unit == Unit::Count { 1.0 } else { 0.0 };
        let step = nice_step((high - low) / unit / n as f64).max(least) * unit;
        let first = (low / step - 1e-9).ceil() as i64;
        (first..).map(|k| k as f64 * step).take_while(|&v| v <= high + step * 1e-9).collect()
    }

    pub(super) fn tick_label(&self, value: f64) -> String {
        match self.unit {
            Unit::Bytes => human::bytes(value.round() as u64).replace(".0 ", " "),
            Unit::Plain | Unit::Count => number(value),
        }
    }
}

/// Powers of two, thinned out; for plain numbers powers of ten, or 1, 2 and 5 times those if there are few.
fn log_ticks(low: f64, high: f64, n: usize, unit: Unit) -> Vec<f64> {
    let inside = |v: &f64| *v >= low * (1.0 - 1e-9) && *v <= high * (1.0 + 1e-9);
    let base: f64 = if unit == Unit::Plain { 10.0 } else { 2.0 };
    let power = |v: f64| v.log2() / base.log2();
    let (first, last) = (power(low).floor() as i32, power(high).ceil() as i32);
    let every = ((last - first) as usize).div_ceil(n.max(1)).max(1);
    let powers = (first..=last).filter(|k| k.rem_euclid(every as i32) == 0).map(|k| base.powi(k));
    match unit {
        Unit::Plain if last - first <= 3 => {
            powers.flat_map(|p| [p, 2.0 * p, 5.0 * p]).filter(inside).collect()
        }
        _ => powers.filter(inside).collect(),
    }
}

/// A round tick interval: the smallest of 1, 2, 5, 10, ... of at least `least`.
pub fn nice_step(least: f64) -> f64 {
    let least = if least.is_finite() && least > 0.0 { least } else { 1.0 };
    let decade = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|m| m * decade)
        .into_iter()
        .find(|s| *s >= least * (1.0 - 1e-9))
        .unwrap_or(10.0 * decade)
}

/// A number as a tick label: `0.25`, `1500`, `20k`, `1e-7`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e4 {
        let (short, letter) = match size {
            s if s >= 1e9 => (value / 1e9, "G"),
            s if s >= 1e6 => (value / 1e6, "M"),
            _ => (value / 1e3, "k"),
        };
        return format!("{}{letter}", (short * 100.0).round() / 100.0);
    }
    if size > 0.0 && size < 1e-4 {
        format!("{value:.0e}")
    } else {
        format!("{}", (value * 1e6).round() / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_whatever_the_numbers_are() {
        assert_eq!(Axis::new("").ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(Axis::new("").bytes().ticks(0.0, 5.0 * 1048576.0, 5).len(), 6);
        assert_eq!(Axis::new("").count().ticks(1.0, 3.0, 9), [1.0, 2.0, 3.0]);
        assert_eq!(Axis::new("").log().ticks(0.02, 1.2, 9), [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]);
        assert_eq!(["0.25", "20k", "1.5M", "1e-7", "0"], [0.25, 2e4, 1.5e6, 1e-7, 0.0].map(number));
    }
}

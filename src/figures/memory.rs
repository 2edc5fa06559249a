//! Memory of a rank at each instruction of a micro-step, planned and measured by its ledger.

use super::Figure;
use super::axis::Axis;
use super::chart::{Chart, Mark, Series, Stroke};
use super::sheet::{Anchor, Key, MARGIN, WIDTH};
use super::theme::NOTE_PX;
use crate::human;

/// One kind of memory, or several drawn as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// Bytes during each instruction.
    pub bytes: Vec<u64>,
}

/// A measurement of the ledger after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Index of the instruction.
    pub at: usize,
    /// Bytes of all kinds.
    pub bytes: u64,
    /// The plan's bytes after it.
    pub planned: u64,
}

/// A micro-step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// From the bottom up.
    pub layers: Vec<Layer>,
    /// Names of instructions, e.g. `forward h.0`.
    pub instructions: Vec<String>,
    /// The first instruction of each part, with its name.
    pub parts: Vec<(usize, String)>,
    /// Peak of the total over the whole step, from the plan.
    pub planned_peak: u64,
    /// The same from the run's ledger, if there is a summary.
    pub measured_peak: Option<u64>,
    /// From a trace; empty without one.
    pub measured: Vec<Measured>,
}

impl Memory {
    /// Draws it.
    pub fn figure(&self) -> Figure {
        let n = self.instructions.len();
        let sum = |at: usize| self.layers.iter().map(|l| l.bytes[at]).sum::<u64>();
        let peak = (0..n).max_by_key(|&at| (sum(at), n - at));
        let equal = self.measured.iter().filter(|m| m.bytes == m.planned).count();
        let mut caption = match peak {
            Some(at) => {
                format!(
                    "The peak of a micro-step, {}, is at `{}`",
                    human::bytes(sum(at)),
                    self.instructions[at]
                )
            }
            None => "Nothing is planned".into(),
        };
        caption += &match self.measured.len() {
            0 => "; only the plan is shown, log.trace = \"STEP\" makes a run measure it at each instruction."
                .to_string(),
            n if n == equal => {
                format!("; at all {n} traced instructions the ledger matched the plan to the byte.")
            }
            n => {
                format!("; at {equal} of {n} traced instructions the ledger matched the plan.")
            }
        };
        Figure::new("memory", "Live memory over a micro-step, planned and measured", caption, |sheet| {
            let theme = sheet.theme;
            let measured = match self.measured_peak {
                Some(bytes) => format!(", measured {} ({bytes} B)", human::bytes(bytes)),
                None => String::new(),
            };
            let y = sheet.subtitle(&format!(
                "One rank. Areas: the plan, by kind, during each of {n} instructions. Dots: the ledger after \
                 an instruction, from the trace. Peak of the run: planned {} ({} B){measured}.",
                human::bytes(self.planned_peak),
                self.planned_peak
            ));
            let chart = self.chart();
            let named = chart.series.iter().filter(|s| !s.name.is_empty());
            let mut keys: Vec<Key> = named.map(|s| s.key(theme)).collect();
            keys.reverse();
            let y = sheet.legend(y, &keys);
            let (width, height) = (WIDTH - 2.0 * MARGIN, 400.0);
            for (i, (_, name)) in self.parts.iter().enumerate() {
                let share = (self.parts[i].0 as f64 / n.max(1) as f64).min(1.0);
                let (left, right) = chart.span(width as u32);
                sheet.write(
                    (MARGIN + left + share * (right - left) + 2.0, y + 6.0),
                    name,
                    NOTE_PX,
                    theme.muted,
                    Anchor::Start,
                    false,
                );
            }
            sheet.paste((MARGIN, y + 6.0), &chart.draw(theme, (width as u32, height as u32)));
            y + height + MARGIN
        })
    }

    fn chart(&self) -> Chart {
        let n = self.instructions.len();
        let mut below = vec![0u64; n];
        let mut series = Vec::new();
        for (i, layer) in self.layers.iter().enumerate().filter(|(_, l)| l.bytes.iter().any(|&b| b > 0)) {
            let mut band = Vec::new();
            for (at, (base, &bytes)) in below.iter_mut().zip(&layer.bytes).enumerate() {
                let (low, high) = (*base as f64, (*base + bytes) as f64);
                band.extend([(at as f64, low, high), (at as f64 + 1.0, low, high)]);
                *base += bytes;
            }
            let color = Some([7, 4, 1, 3, 6, 2, 0, 5][i % 8]);
            series.push(Series {
                name: layer.name.clone(),
                color,
                stroke: Stroke::Layer,
                width: 0,
                points: Vec::new(),
                band,
            });
        }
        if !self.measured.is_empty() {
            let points = self.measured.iter().map(|m| (m.at as f64 + 1.0, m.bytes as f64)).collect();
            let name = "measured after an instruction".into();
            series.push(Series {
                name,
                color: None,
                stroke: Stroke::Dots,
                width: 1,
                points,
                band: Vec::new(),
            });
        }
        let marks =
            self.parts.iter().skip(1).map(|(at, _)| Mark { x: *at as f64, color: 7, dashed: true }).collect();
        Chart {
            x: Axis::new("instruction").count().spanning(0.0, n as f64).tight(),
            y: Axis::new("bytes per rank").bytes().spanning(0.0, 0.0),
            series,
            marks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(n: usize, measured: Vec<Measured>) -> Memory {
        Memory {
            layers: vec![
                Layer { name: "at rest".into(), bytes: vec![1 << 20; n] },
                Layer { name: "activations".into(), bytes: (0..n as u64).map(|i| i << 16).collect() },
                Layer { name: "staging".into(), bytes: vec![0; n] },
            ],
            instructions: (0..n).map(|i| format!("forward h.{i}")).collect(),
            parts: vec![(0, "forward".into()), (n / 2, "backward".into())],
            planned_peak: 1 << 21,
            measured_peak: Some(1 << 21),
            measured,
        }
    }

    #[test]
    fn plan_and_ledger_are_compared_in_words_and_both_are_drawn() {
        let dot = |at, planned| Measured { at, bytes: 1 << 20, planned };
        let figure = memory(9, vec![dot(0, 1 << 20), dot(3, 1 << 20)]).figure();
        assert!(
            figure.caption.contains("at `forward h.8`")
                && figure.caption.contains("all 2 traced instructions"),
            "{}",
            figure.caption
        );
        assert_eq!(figure.light.matches("<circle").count(), 3, "two in the picture, one in the legend");
        assert!(!figure.light.contains("staging"), "what is never held is not in the legend");
        let off = memory(9, vec![dot(0, 1 << 20), dot(3, 5)]).figure();
        assert!(off.caption.contains("at 1 of 2 traced instructions"), "{}", off.caption);
        for n in [0, 1, 500] {
            let plain = memory(n, vec![]).figure();
            roxmltree::Document::parse(&plain.dark).unwrap();
            assert!(plain.caption.contains("log.trace"), "{}", plain.caption);
        }
    }
}

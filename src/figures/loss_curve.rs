//! Loss, step time and tokens per second over a run, with its restores and skipped steps.

use super::Figure;
use super::axis::Axis;
use super::chart::{Chart, Mark, Point, Series, Spread, Stroke};
use super::sheet::{Key, Look, MARGIN, WIDTH};
use crate::human;

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CurveStep {
    /// Optimizer step.
    pub step: u64,
    /// Training loss, nats per token.
    pub loss: f64,
    /// Validation loss after it, if any.
    pub val_loss: Option<f64>,
    /// Time of the slowest rank, ms.
    pub step_ms: f64,
    /// Tokens per second of all ranks.
    pub tokens_per_s: f64,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LossCurve {
    /// Its steps.
    pub steps: Vec<CurveStep>,
    /// Steps at which it resumed from a checkpoint.
    pub restored_at: Vec<u64>,
    /// Steps during which an attempt was skipped.
    pub skipped_at: Vec<u64>,
}

/// Number of columns of a curve: about one per two px.
const COLUMNS: usize = 420;
const RESTORED: usize = 2;
const SKIPPED: usize = 5;

/// A curve of at most `columns` points: the median of the steps of each column, and their range.
fn thinned(points: &[Point], columns: usize) -> (Vec<Point>, Vec<Spread>) {
    let finite: Vec<(f64, f64)> = points.iter().copied().filter(|p| p.1.is_finite()).collect();
    if finite.len() <= columns {
        return (points.to_vec(), Vec::new());
    }
    let (mut medians, mut band) = (Vec::new(), Vec::new());
    let (first, last) = (finite[0].0, finite[finite.len() - 1].0);
    let column_of =
        |x: f64| (((x - first) / (last - first).max(1.0) * columns as f64) as usize).min(columns - 1);
    for column in finite.chunk_by(|a, b| column_of(a.0) == column_of(b.0)) {
        let x = column.iter().map(|p| p.0).sum::<f64>() / column.len() as f64;
        let mut ys: Vec<f64> = column.iter().map(|p| p.1).collect();
        ys.sort_by(f64::total_cmp);
        medians.push((x, ys[ys.len() / 2]));
        band.push((x, ys[0], ys[ys.len() - 1]));
    }
    (medians, band)
}

impl LossCurve {
    /// Draws it.
    pub fn figure(&self) -> Figure {
        let n = self.steps.len();
        let mut caption = match (self.steps.first(), self.steps.last()) {
            (Some(first), Some(last)) => format!(
                "The training loss went from {:.3} to {:.3} nats/token over {}",
                first.loss,
                last.loss,
                human::counted(n, "step")
            ),
            _ => "No step is in the log yet".into(),
        };
        caption += &format!(
            "; {}, {}.",
            human::counted(self.restored_at.len(), "restore"),
            human::counted(self.skipped_at.len(), "skipped attempt")
        );
        Figure::new("loss_curve", "Loss and speed of the run", caption, |sheet| {
            let theme = sheet.theme;
            let is_thinned = n > COLUMNS;
            let words = if is_thinned {
                "Lines are medians of neighbouring steps, shades show their range."
            } else {
                "One point per step."
            };
            let mut y = sheet.subtitle(words);
            let panels = self.panels();
            let mut keys: Vec<Key> = panels[0].series.iter().map(|s| s.key(theme)).collect();
            if !self.restored_at.is_empty() {
                keys.push(Key {
                    look: Look::Dashes(theme.color(RESTORED)),
                    name: "restored from a checkpoint".into(),
                });
            }
            if !self.skipped_at.is_empty() {
                keys.push(Key {
                    look: Look::Line(theme.color(SKIPPED)),
                    name: "skipped: loss or gradient not finite".into(),
                });
            }
            y = sheet.legend(y, &keys);
            for chart in &panels {
                sheet.paste((MARGIN, y), &chart.draw(theme, ((WIDTH - 2.0 * MARGIN) as u32, 230)));
                y += 236.0;
            }
            y + MARGIN - 6.0
        })
    }

    fn panels(&self) -> [Chart; 3] {
        let of = |pick: fn(&CurveStep) -> f64| -> Vec<(f64, f64)> {
            self.steps.iter().map(|s| (s.step as f64, pick(s))).collect()
        };
        let curve = |name: &str, color: usize, pick: fn(&CurveStep) -> f64| {
            let (points, band) = thinned(&of(pick), COLUMNS);
            Series { name: name.into(), color: Some(color), stroke: Stroke::Line, width: 2, points, band }
        };
        let validated: Vec<(f64, f64)> =
            self.steps.iter().filter_map(|s| Some((s.step as f64, s.val_loss?))).collect();
        let mut losses = vec![curve("training loss", 0, |s| s.loss)];
        if !validated.is_empty() {
            let stroke = if validated.len() > 60 { Stroke::Line } else { Stroke::Dotted };
            losses.push(Series::line("validation loss", 1, thinned(&validated, COLUMNS).0).drawn(stroke));
        }
        let restored =
            self.restored_at.iter().map(|&step| Mark { x: step as f64 + 0.5, color: RESTORED, dashed: true });
        // A skipped attempt is placed before the step that it did not complete.
        let skipped =
            self.skipped_at.iter().map(|&step| Mark { x: step as f64 - 0.5, color: SKIPPED, dashed: false });
        let marks: Vec<Mark> = restored.chain(skipped).collect();
        let chart = |label: &str, series: Vec<Series>, from_zero: bool| {
            let y = Axis::new(label).with_room(42.0);
            let y = if from_zero { y.spanning(0.0, 0.0) } else { y };
            Chart { x: Axis::new("step").count(), y, series, marks: marks.clone() }
        };
        [
            chart("loss, nats/token", losses, false),
            chart("step time, ms", vec![curve("", 0, |s| s.step_ms)], true),
            chart("tokens/s", vec![curve("", 0, |s| s.tokens_per_s)], true),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_thousand_steps_become_a_few_hundred_points_and_no_extreme_is_lost() {
        let mut points: Vec<(f64, f64)> = (0..50_000).map(|i| (f64::from(i), 1.0)).collect();
        points[31_415].1 = 99.0;
        points[40_000].1 = f64::NAN;
        let (medians, band) = thinned(&points, COLUMNS);
        assert!(medians.len() <= COLUMNS && medians.len() > COLUMNS / 2);
        assert!(medians.iter().all(|m| m.1 == 1.0), "the median is no outlier");
        assert_eq!(band.iter().filter(|b| b.2 == 99.0).count(), 1, "the band shows it");
        assert_eq!(thinned(&points[..COLUMNS], COLUMNS), (points[..COLUMNS].to_vec(), vec![]));
    }

    #[test]
    fn restores_and_skips_are_marked_in_each_panel_and_an_empty_log_is_no_fault() {
        let step = |step: u64| CurveStep {
            step,
            loss: 3.0 / step as f64,
            val_loss: (step == 4).then_some(1.0),
            step_ms: 5.0,
            tokens_per_s: 1e4,
        };
        let loss_curve =
            LossCurve { steps: (1..=9).map(step).collect(), restored_at: vec![4], skipped_at: vec![6] };
        let figure = loss_curve.figure();
        roxmltree::Document::parse(&figure.light).unwrap();
        for words in [
            "restored from a checkpoint",
            "skipped: loss",
            "validation loss",
            "loss, nats/token",
            "step time, ms",
            "tokens/s",
        ] {
            assert!(figure.light.contains(words), "{words}");
        }
        assert!(figure.caption.contains("9 steps; 1 restore, 1 skipped attempt."), "{}", figure.caption);
        let stroke = crate::figures::Theme::LIGHT.color(SKIPPED).hex().to_uppercase();
        assert_eq!(figure.light.matches(&format!("stroke=\"{stroke}\"")).count(), 3);
        let empty = LossCurve::default().figure();
        roxmltree::Document::parse(&empty.dark).unwrap();
        assert!(empty.caption.contains("No step is in the log"));
    }
}

//! Compute in a step by rank: every rank gathers every unit and computes its own micro-batches with it.
//!
//! Deliberately shows nothing about storage: which rank stores a slice and which computes with it are
//! separate questions.

use super::Figure;
use super::sheet::{Anchor, Fill, Frame, Key, Look, MARGIN, Sheet, WIDTH};
use super::text_width;
use super::theme::{Color, LABEL_PX, NOTE_PX, SMALL_PX, Theme};
use crate::human;

/// The purpose of a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Forward.
    Forward,
    /// The head: forward, loss and backward at once.
    Loss,
    /// Backward.
    Backward,
}

impl Pass {
    /// Its color in all figures.
    pub fn color(self, theme: &Theme) -> Color {
        theme.color(match self {
            Pass::Forward => 0,
            Pass::Loss => 2,
            Pass::Backward => 5,
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Loss => "loss",
            Pass::Backward => "backward",
        }
    }
}

/// Color of all-gathers in all figures.
pub fn gather_color(theme: &Theme) -> Color {
    theme.color(4)
}

/// Color of gradient reductions in all figures.
pub fn reduce_color(theme: &Theme) -> Color {
    theme.color(3)
}

/// One visit of a unit in a micro-step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    /// The unit.
    pub unit: String,
    /// The purpose.
    pub pass: Pass,
    /// Whether an all-gather fetches its parameters.
    pub gathers: bool,
    /// Whether a reduction of gradients follows it.
    pub reduces: bool,
}

/// A step according to the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compute {
    /// Ranks.
    pub world_size: usize,
    /// Micro-batches of a step; micro-batch j runs on rank j mod N.
    pub n_micro: usize,
    /// Visits of a micro-step, in order.
    pub visits: Vec<Visit>,
}

/// If there are more visits than this, only the first and last ones are shown.
const MAX_VISITS: usize = 40;
const LEFT: f64 = MARGIN + 236.0;

impl Compute {
    /// Draws it.
    pub fn figure(&self) -> Figure {
        let n = self.world_size;
        let micro_steps = self.n_micro.div_ceil(n);
        let in_last = self.n_micro - (micro_steps - 1) * n;
        let mut caption = if self.visits.iter().any(|v| v.gathers) {
            "Every rank runs through all units of the model, gathered whole for the visit, with data of its \
             own; a gather or a reduction (a bar from top to bottom) is between all ranks."
                .to_string()
        } else {
            "Every rank runs through all units of the model with data of its own; a reduction (a bar from \
             top to bottom) is between all ranks."
                .to_string()
        };
        if in_last < n {
            caption += &format!(
                " In the last micro-step ranks {in_last} and up have no micro-batch: they take part in the \
                 collectives and compute nothing."
            );
        }
        Figure::new("compute", "Compute: what each rank works on in a step", caption, |sheet| {
            let of = if micro_steps == 1 { "that one" } else { "each of them" };
            let y = sheet.subtitle(&format!(
                "A step of {} micro-batches on {} takes {}; micro-batch j runs on rank j mod {n}. Shown: \
                 {of}, from left to right; the order is true, the widths are not times.",
                self.n_micro,
                human::counted(n, "rank"),
                human::counted(micro_steps, "micro-step")
            ));
            let y = sheet.legend(y, &self.keys(sheet.theme));
            self.draw(sheet, y)
        })
    }

    fn keys(&self, theme: &Theme) -> Vec<Key> {
        let passes =
            [Pass::Forward, Pass::Loss, Pass::Backward].map(|p| Key::color(p.color(theme), p.name()));
        let collectives = [
            (
                self.visits.iter().any(|v| v.gathers),
                gather_color(theme),
                "AllGather of the unit's parameters",
            ),
            (self.visits.iter().any(|v| v.reduces), reduce_color(theme), "ReduceScatter of its gradients"),
        ];
        let collectives = collectives.into_iter().filter(|(is_there, ..)| *is_there && self.world_size > 1);
        passes
            .into_iter()
            .chain(collectives.map(|(_, color, name)| Key { look: Look::Line(color), name: name.into() }))
            .collect()
    }

    /// Indices of the visits shown; None is the gap.
    fn shown(&self) -> Vec<Option<usize>> {
        let n = self.visits.len();
        if n <= MAX_VISITS {
            return (0..n).map(Some).collect();
        }
        let half = MAX_VISITS / 2 - 2;
        (0..half).map(Some).chain([None]).chain((n - half..n).map(Some)).collect()
    }

    fn draw(&self, sheet: &mut Sheet<'_>, y: f64) -> f64 {
        let theme = sheet.theme;
        let shown = self.shown();
        let slot = (WIDTH - MARGIN - LEFT) / shown.len() as f64;
        let bar = (slot * 0.14).clamp(1.5, 5.0);
        let names = shown.iter().flatten().map(|&v| text_width::width(&self.visits[v].unit, SMALL_PX, false));
        let longest = names.fold(0.0, f64::max);
        let upright = longest + 4.0 > slot;
        let heads = if upright { longest + 10.0 } else { 20.0 };
        let top = y + 18.0 + heads;
        let row = (420.0 / self.world_size as f64).clamp(9.0, 26.0);
        let bottom = top + row * self.world_size as f64;

        let mut began: Option<Pass> = None;
        let x_of = |i: usize| LEFT + slot * i as f64;
        for (i, visit) in shown.iter().map(|v| v.map(|v| &self.visits[v])).enumerate() {
            let x = x_of(i);
            let pass = visit.map(|v| v.pass);
            if let Some(pass) = pass.filter(|&pass| began != Some(pass)) {
                began = Some(pass);
                let n_visits = shown.iter().flatten().filter(|&&v| self.visits[v].pass == pass).count();
                let name = text_width::fitted(pass.name(), NOTE_PX, slot * n_visits as f64 - 6.0);
                if name == pass.name() {
                    sheet.write((x, y + 12.0), &name, NOTE_PX, theme.muted, Anchor::Start, false);
                }
                sheet.line((x, y + 17.0), (x, bottom), theme.grid, 1.0, None);
            }
            let Some(visit) = visit else {
                sheet.write_up(
                    (x + slot / 2.0 + 4.0, bottom - 4.0),
                    &format!("{} more visits", self.visits.len() + 1 - shown.len()),
                    NOTE_PX,
                    Anchor::Start,
                );
                continue;
            };
            if upright {
                sheet.write_up((x + slot / 2.0 + 4.0, top - 6.0), &visit.unit, SMALL_PX, Anchor::Start);
            } else {
                sheet.write(
                    (x + slot / 2.0, top - 6.0),
                    &visit.unit,
                    SMALL_PX,
                    theme.muted,
                    Anchor::Middle,
                    false,
                );
            }
            for rank in 0..self.world_size {
                let frame = Frame::new(
                    x + bar + 1.0,
                    top + row * rank as f64 + 1.5,
                    slot - 2.0 * bar - 2.0,
                    row - 3.0,
                );
                let computes = rank < self.n_micro;
                let what =
                    if computes { "on its micro-batch" } else { "without a micro-batch: nothing to compute" };
                let words = format!("rank {rank}: {} of {} {what}", visit.pass.name(), visit.unit);
                let fill = if computes { Fill::Plain(visit.pass.color(theme)) } else { Fill::None };
                let data =
                    [("rank", rank.to_string()), ("visit", format!("{} {}", visit.unit, visit.pass.name()))];
                sheet.datum(frame, fill, (!computes).then_some(theme.grid), &words, &data);
            }
            if self.world_size == 1 {
                continue;
            }
            let band = |at: f64| Frame::new(at, top - 2.0, bar, bottom - top + 4.0);
            let unit = &visit.unit;
            if visit.gathers {
                let words = format!("AllGather of {unit} for {}", visit.pass.name());
                sheet.datum(
                    band(x),
                    Fill::Plain(gather_color(theme)),
                    None,
                    &words,
                    &[("all-gather", unit.clone())],
                );
            }
            if visit.reduces {
                let words = format!("ReduceScatter of gradients after {unit}");
                sheet.datum(
                    band(x + slot - bar),
                    Fill::Plain(reduce_color(theme)),
                    None,
                    &words,
                    &[("reduce-scatter", unit.clone())],
                );
            }
        }
        let every = (13.0 / row).ceil().max(1.0) as usize;
        for rank in (0..self.world_size).step_by(every) {
            let y = top + row * rank as f64 + row.min(13.0 * every as f64) / 2.0 + 4.5;
            let px = if row > 16.0 { LABEL_PX } else { SMALL_PX };
            sheet.write((MARGIN, y), &format!("rank {rank}"), px, theme.ink, Anchor::Start, false);
            let own = text_width::fitted(&self.micro_batches(rank), px.min(NOTE_PX), LEFT - MARGIN - 72.0);
            sheet.write((MARGIN + 64.0, y), &own, px.min(NOTE_PX), theme.muted, Anchor::Start, false);
        }
        bottom + MARGIN
    }

    /// A rank's micro-batches of a step, as text.
    fn micro_batches(&self, rank: usize) -> String {
        let own: Vec<usize> = (rank..self.n_micro).step_by(self.world_size).collect();
        match own.as_slice() {
            [] => "no micro-batch".into(),
            [one] => format!("micro-batch {one}"),
            [a, b] => format!("micro-batches {a}, {b}"),
            [a, b, c] => format!("micro-batches {a}, {b}, {c}"),
            [a, b, .., last] => format!("micro-batches {a}, {b}, ... {last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(n_blocks: usize, world_size: usize, n_micro: usize) -> Compute {
        let visit = |unit: &str, pass, gathers, reduces| Visit { unit: unit.into(), pass, gathers, reduces };
        let mut visits = vec![visit("embed", Pass::Forward, true, false)];
        visits.extend((0..n_blocks).map(|i| visit(&format!("h.{i}"), Pass::Forward, true, false)));
        visits.push(visit("head", Pass::Loss, true, true));
        visits.extend((0..n_blocks).rev().map(|i| visit(&format!("h.{i}"), Pass::Backward, true, true)));
        visits.push(visit("embed", Pass::Backward, false, true));
        Compute { world_size, n_micro, visits }
    }

    #[test]
    fn every_rank_makes_every_visit_and_collectives_are_between_all() {
        for (n, n_micro) in [(1, 3), (3, 4), (5, 3), (7, 7), (64, 8)] {
            let figure = step(2, n, n_micro).figure();
            for svg in [&figure.light, &figure.dark] {
                let document = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}\n{svg}"));
                let with =
                    |name: &str| document.descendants().filter(|node| node.has_attribute(name)).count();
                assert_eq!(with("data-visit"), 7 * n, "{n} ranks, 7 visits");
                let bars = if n == 1 { (0, 0) } else { (6, 4) };
                assert_eq!((with("data-all-gather"), with("data-reduce-scatter")), bars, "{n} ranks");
            }
            assert_eq!(figure.caption.contains("have no micro-batch"), n_micro % n != 0, "{n_micro} on {n}");
        }
        assert_eq!(step(2, 2, 9).micro_batches(1), "micro-batches 1, 3, ... 7");
        assert_eq!(step(2, 5, 3).micro_batches(4), "no micro-batch");
    }

    #[test]
    fn a_deep_model_says_how_many_visits_are_not_shown() {
        let compute = step(96, 2, 2);
        let figure = compute.figure();
        let shown = compute.shown().iter().flatten().count();
        assert_eq!(compute.visits.len(), 195);
        assert!(figure.light.contains(&format!("{} more visits", 195 - shown)));
    }
}

//! One traced step: collectives and compute, and how long each unit's whole parameters were held.

use super::Figure;
use super::axis::{nice_step, number};
use super::compute::{Pass, gather_color, reduce_color};
use super::sheet::{Anchor, Fill, Frame, Key, Look, MARGIN, Sheet, WIDTH};
use super::text_width;
use super::theme::{Color, LABEL_PX, NOTE_PX, SMALL_PX, Theme};

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Kernels of a visit.
    Compute(Pass),
    /// Compute waited for a gather.
    WaitGather,
    /// Compute waited for a reduction.
    WaitReduce,
    /// A gather was started.
    StartGather,
    /// Gathered parameters were released.
    Release,
    /// An all-gather on its queue.
    AllGather,
    /// A gradient reduction on its queue.
    ReduceScatter,
    /// Something else on the compute track.
    Other,
}

/// A span.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its kind.
    pub what: What,
    /// The unit's name.
    pub unit: String,
    /// Start, ms since the start of the step.
    pub start_ms: f64,
    /// Duration, ms.
    pub ms: f64,
    /// Payload of a collective.
    pub bytes: u64,
}

impl Span {
    fn end_ms(&self) -> f64 {
        self.start_ms + self.ms
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// Its number.
    pub step: u64,
    /// Ranks of the run; spans may be of fewer.
    pub world_size: usize,
    /// Spans of the first ranks, in order of their start.
    pub ranks: Vec<Vec<Span>>,
    /// Where the first micro-step of rank 0 ends, ms.
    pub first_micro_step_ms: f64,
}

/// Ranks drawn.
pub const MAX_RANKS: usize = 4;
const LEFT: f64 = MARGIN + 132.0;
const LANE: f64 = 17.0;

/// Whole parameters of one unit in memory, from the start of the gather to the release.
#[derive(Debug, Clone, PartialEq)]
struct Held {
    unit: String,
    start_ms: f64,
    landed_ms: f64,
    end_ms: f64,
}

/// From the spans of one rank: each gather with its wait and its release.
fn held(spans: &[Span]) -> Vec<Held> {
    let mut all: Vec<Held> = Vec::new();
    let mut open: Vec<Held> = Vec::new();
    for span in spans {
        let of_unit = |open: &[Held], landed: bool| {
            open.iter().position(|h| h.unit == span.unit && h.landed_ms.is_finite() == landed)
        };
        match span.what {
            What::StartGather => open.push(Held {
                unit: span.unit.clone(),
                start_ms: span.start_ms,
                landed_ms: f64::INFINITY,
                end_ms: f64::INFINITY,
            }),
            What::WaitGather => {
                if let Some(i) = of_unit(&open, false) {
                    open[i].landed_ms = span.end_ms();
                }
            }
            What::Release => {
                if let Some(i) = of_unit(&open, true) {
                    all.push(Held { end_ms: span.end_ms(), ..open.remove(i) });
                }
            }
            _ => {}
        }
    }
    all.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
    all
}

/// Assigns each interval the first row in which it does not overlap.
fn rows(held: &[Held]) -> Vec<usize> {
    let mut ends: Vec<f64> = Vec::new();
    let mut rows = Vec::new();
    for h in held {
        let free = ends.iter().position(|&end| end <= h.start_ms);
        let row = free.unwrap_or(ends.len());
        if row == ends.len() {
            ends.push(0.0);
        }
        ends[row] = h.end_ms;
        rows.push(row);
    }
    rows
}

/// A time scale across the sheet.
#[derive(Clone, Copy)]
struct Scale {
    from_ms: f64,
    to_ms: f64,
}

impl Scale {
    fn x(self, ms: f64) -> f64 {
        let share = (ms - self.from_ms) / (self.to_ms - self.from_ms);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - MARGIN - LEFT)
    }

    fn shows(self, span: &Span) -> bool {
        span.end_ms() > self.from_ms && span.start_ms < self.to_ms
    }
}

impl Timeline {
    /// Draws it.
    pub fn figure(&self) -> Figure {
        let own = self.ranks.first().map_or(&[][..], Vec::as_slice);
        let sum = |pick: fn(What) -> bool| own.iter().filter(|s| pick(s.what)).map(|s| s.ms).sum::<f64>();
        let comm = sum(|w| matches!(w, What::AllGather | What::ReduceScatter));
        let waited = sum(|w| matches!(w, What::WaitGather | What::WaitReduce));
        let caption = format!(
            "Traced step {}: on rank 0 collectives took {comm:.2} ms, and compute waited {waited:.2} ms \
             (hatched); below, each unit's whole parameters from the start of their gather to their release.",
            self.step
        );
        let caption = match own.iter().any(|s| s.what == What::StartGather) {
            true => caption,
            false => format!(
                "Traced step {}: the weights are whole, so visits need no gathers; on rank 0 collectives \
                 took {comm:.2} ms, and compute waited {waited:.2} ms (hatched).",
                self.step
            ),
        };
        Figure::new("timeline", "One step: AllGather, compute, ReduceScatter", caption, |sheet| {
            let theme = sheet.theme;
            let all = match self.world_size > self.ranks.len() {
                true => format!("The first {} of {} ranks.", self.ranks.len(), self.world_size),
                false => String::new(),
            };
            let y = sheet.subtitle(&format!(
                "Step {} from the run's trace. Each rank has three tracks: compute, the gather queue, the \
                 reduce queue. {all}",
                self.step
            ));
            let y = sheet.legend(y, &self.keys(theme));
            let end = self.ranks.iter().flatten().map(Span::end_ms).fold(1e-3, f64::max);
            let y = self.whole(sheet, y, Scale { from_ms: 0.0, to_ms: end });
            self.magnified(sheet, y + 26.0, Scale { from_ms: 0.0, to_ms: self.first_micro_step_ms.max(1e-3) })
        })
    }

    fn keys(&self, theme: &Theme) -> Vec<Key> {
        let hatch = |color, name: &str| Key { look: Look::Box(Fill::Hatch(color)), name: name.into() };
        let mut keys: Vec<Key> = [Pass::Forward, Pass::Loss, Pass::Backward]
            .map(|p| Key::color(p.color(theme), p.name()))
            .to_vec();
        keys.push(hatch(theme.ink, "waiting"));
        let all = [
            (What::AllGather, gather_color(theme), "AllGather"),
            (What::ReduceScatter, reduce_color(theme), "ReduceScatter"),
        ];
        let there = |what: What| self.ranks.iter().flatten().any(|s| s.what == what);
        keys.extend(
            all.into_iter().filter(|(what, ..)| there(*what)).map(|(_, color, name)| Key::color(color, name)),
        );
        keys
    }

    /// All ranks, the whole step.
    fn whole(&self, sheet: &mut Sheet<'_>, y: f64, scale: Scale) -> f64 {
        let mut y = self.heading(sheet, y, "The whole step");
        for (rank, spans) in self.ranks.iter().enumerate() {
            sheet.write(
                (MARGIN, y + 13.0),
                &format!("rank {rank}"),
                LABEL_PX,
                sheet.theme.ink,
                Anchor::Start,
                false,
            );
            y = lanes(sheet, y, rank, spans, scale, false) + 8.0;
        }
        axis(sheet, y, scale)
    }

    /// The first micro-step of rank 0.
    fn magnified(&self, sheet: &mut Sheet<'_>, y: f64, scale: Scale) -> f64 {
        let y = self.heading(sheet, y, "The first micro-step of rank 0, magnified");
        let Some(spans) = self.ranks.first() else { return y };
        let theme = sheet.theme;
        let y = lanes(sheet, y, 0, spans, scale, true) + 6.0;
        let held: Vec<Held> = held(spans).into_iter().filter(|h| h.start_ms < scale.to_ms).collect();
        if held.is_empty() {
            return axis(sheet, y, scale) + MARGIN - 8.0;
        }
        let rows = rows(&held);
        let n_rows = rows.iter().max().map_or(0, |r| r + 1);
        sheet.note((LEFT - 8.0, y + 12.5), "whole in memory", Anchor::End);
        for (h, row) in held.iter().zip(&rows) {
            let y = y + LANE * *row as f64;
            let (x0, x1, x2) = (scale.x(h.start_ms), scale.x(h.landed_ms), scale.x(h.end_ms));
            let words = format!(
                "{}: started at {:.3} ms, complete at {:.3}, released at {:.3}",
                h.unit, h.start_ms, h.landed_ms, h.end_ms
            );
            let color = gather_color(theme);
            let data = [("held", h.unit.clone())];
            sheet.datum(
                Frame::new(x0, y, (x1 - x0).max(0.5), LANE - 3.0),
                Fill::Hatch(color),
                Some(color),
                &words,
                &data,
            );
            sheet.frame(Frame::new(x1, y, (x2 - x1).max(0.5), LANE - 3.0), Fill::Plain(color), None);
            let room = text_width::width(&h.unit, SMALL_PX, false) + 6.0;
            if room <= x2 - x1 {
                sheet.write((x1 + 3.0, y + 11.0), &h.unit, SMALL_PX, color.ink_on(), Anchor::Start, false);
            } else if room + 4.0 <= x1 - x0 {
                // On the hatching, on a patch of the page color.
                let patch = Frame::new(x1 - room - 1.0, y + 1.0, room - 1.0, LANE - 5.0);
                sheet.frame(patch, Fill::Plain(theme.page), None);
                sheet.write((x1 - room + 2.0, y + 11.0), &h.unit, SMALL_PX, theme.ink, Anchor::Start, false);
            }
        }
        let y = y + LANE * n_rows as f64;
        sheet.note(
            (LEFT, y + 13.0),
            "hatched: in flight, prefetched while another unit computes; filled: in use, until its release",
            Anchor::Start,
        );
        axis(sheet, y + 20.0, scale) + MARGIN - 8.0
    }

    fn heading(&self, sheet: &mut Sheet<'_>, y: f64, words: &str) -> f64 {
        sheet.write((MARGIN, y + 12.0), words, LABEL_PX, sheet.theme.ink, Anchor::Start, true);
        y + 22.0
    }
}

/// The three tracks of one rank; returns their lower end.
fn lanes(sheet: &mut Sheet<'_>, y: f64, rank: usize, spans: &[Span], scale: Scale, labels: bool) -> f64 {
    let theme = sheet.theme;
    for (lane, name) in ["compute", "gather", "reduce"].into_iter().enumerate() {
        let y = y + LANE * lane as f64;
        sheet.note((LEFT - 8.0, y + 12.0), name, Anchor::End);
        sheet.line((LEFT, y + LANE - 2.5), (WIDTH - MARGIN, y + LANE - 2.5), theme.grid, 1.0, None);
    }
    for span in spans.iter().filter(|s| scale.shows(s)) {
        let (lane, fill, color): (usize, Fill, Color) = match span.what {
            What::Compute(pass) => (0, Fill::Plain(pass.color(theme)), pass.color(theme)),
            What::WaitGather | What::WaitReduce => (0, Fill::Hatch(theme.ink), theme.page),
            What::AllGather => (1, Fill::Plain(gather_color(theme)), gather_color(theme)),
            What::ReduceScatter => (2, Fill::Plain(reduce_color(theme)), reduce_color(theme)),
            What::StartGather | What::Release | What::Other => continue,
        };
        let (x0, x1) = (scale.x(span.start_ms), scale.x(span.end_ms()));
        let frame = Frame::new(x0, y + LANE * lane as f64, (x1 - x0).max(0.4), LANE - 3.0);
        let bytes = if span.bytes > 0 { format!(", {} bytes", span.bytes) } else { String::new() };
        let kind = match span.what {
            What::Compute(pass) => pass.name(),
            What::WaitGather => "waiting for the gather",
            What::WaitReduce => "waiting for the reduction",
            What::AllGather => "AllGather",
            _ => "ReduceScatter",
        };
        let words = format!("rank {rank}: {kind} of {}, {:.3} ms{bytes}", span.unit, span.ms);
        sheet.datum(frame, fill, None, &words, &[("rank", rank.to_string()), ("span", kind.into())]);
        let fits = text_width::width(&span.unit, SMALL_PX, false) + 6.0 <= x1 - x0;
        if labels && fits && matches!(fill, Fill::Plain(_)) {
            sheet.write(
                (x0 + 3.0, frame.y + 11.0),
                &span.unit,
                SMALL_PX,
                color.ink_on(),
                Anchor::Start,
                false,
            );
        }
    }
    y + 3.0 * LANE
}

/// A time axis; returns its lower end.
fn axis(sheet: &mut Sheet<'_>, y: f64, scale: Scale) -> f64 {
    let theme = sheet.theme;
    sheet.line((LEFT, y), (WIDTH - MARGIN, y), theme.muted, 1.0, None);
    let step = nice_step((scale.to_ms - scale.from_ms) / 9.0);
    for k in 0.. {
        let ms = scale.from_ms + step * f64::from(k);
        if ms > scale.to_ms {
            break;
        }
        let x = scale.x(ms);
        sheet.line((x, y), (x, y + 4.0), theme.muted, 1.0, None);
        let last_has_room = x < WIDTH - MARGIN - 40.0;
        if last_has_room {
            sheet.write((x, y + 17.0), &number(ms), NOTE_PX, theme.muted, Anchor::Middle, false);
        }
    }
    sheet.note((WIDTH - MARGIN, y + 17.0), "ms", Anchor::End);
    y + 22.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(what: What, unit: &str, start_ms: f64, ms: f64) -> Span {
        Span { what, unit: unit.into(), start_ms, ms, bytes: 0 }
    }

    /// h.1 is asked for before h.0 computes, and released right after its own visit.
    fn spans() -> Vec<Span> {
        let forward = What::Compute(Pass::Forward);
        vec![
            span(What::StartGather, "h.0", 0.0, 0.1),
            span(What::AllGather, "h.0", 0.1, 0.9),
            span(What::WaitGather, "h.0", 0.1, 1.0),
            span(What::StartGather, "h.1", 1.1, 0.1),
            span(What::AllGather, "h.1", 1.2, 1.0),
            span(forward, "h.0", 1.2, 3.0),
            span(What::Release, "h.0", 4.2, 0.1),
            span(What::WaitGather, "h.1", 4.3, 0.1),
            span(forward, "h.1", 4.4, 3.0),
            span(What::Release, "h.1", 7.4, 0.1),
        ]
    }

    #[test]
    fn prefetch_and_release_are_read_from_the_trace() {
        let held = held(&spans());
        assert_eq!(held.len(), 2);
        let h1 = &held[1];
        assert!(
            h1.start_ms == 1.1 && (h1.landed_ms - 4.4).abs() < 1e-9 && (h1.end_ms - 7.5).abs() < 1e-9,
            "{h1:?}"
        );
        assert_eq!(rows(&held), [0, 1], "both are in memory for a while");
        assert!(
            super::held(&[span(What::Release, "x", 0.0, 1.0)]).is_empty(),
            "a trace that begins in the middle"
        );
    }

    #[test]
    fn each_rank_has_its_spans_and_odd_traces_draw() {
        for ranks in [vec![], vec![vec![]], vec![spans()], vec![spans(); 3], vec![spans(); MAX_RANKS]] {
            let timeline =
                Timeline { step: 7, world_size: 64, ranks: ranks.clone(), first_micro_step_ms: 7.5 };
            let figure = timeline.figure();
            for svg in [&figure.light, &figure.dark] {
                let document = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}\n{svg}"));
                for (rank, spans) in ranks.iter().enumerate().filter(|(_, spans)| !spans.is_empty()) {
                    let rank_name = rank.to_string();
                    let of = document
                        .descendants()
                        .filter(|n| n.attribute("data-rank") == Some(rank_name.as_str()));
                    let want =
                        spans.iter().filter(|s| !matches!(s.what, What::StartGather | What::Release)).count();
                    // Rank 0 is shown twice.
                    assert_eq!(of.count(), want * if rank == 0 { 2 } else { 1 });
                }
                assert!(!svg.contains("NaN") && !svg.contains("inf"));
            }
        }
    }
}

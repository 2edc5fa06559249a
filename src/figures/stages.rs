//! Memory and communication of each ZeRO stage: at the run's rank count, and over rank counts.

use super::Figure;
use super::axis::Axis;
use super::chart::{Chart, Series};
use super::compute::{gather_color, reduce_color};
use super::sheet::{Anchor, Fill, Frame, Key, MARGIN, Sheet, WIDTH};
use super::text_width;
use super::theme::{Color, LABEL_PX, SMALL_PX, Theme};
use crate::human;

/// One stage on one rank count; bytes per rank (of communication: of the rank that receives most).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// ZeRO stage, 0 to 3.
    pub stage: u8,
    /// Ranks.
    pub n_ranks: usize,
    /// Held between steps: parameters, master weights, gradients, optimizer state.
    pub resident: [u64; 4],
    /// Received in all-gathers of one step.
    pub all_gather_bytes: u64,
    /// Received in gradient reductions of one step.
    pub reduce_scatter_bytes: u64,
}

impl Point {
    fn resident_bytes(&self) -> u64 {
        self.resident.iter().sum()
    }

    fn moved_bytes(&self) -> u64 {
        self.all_gather_bytes + self.reduce_scatter_bytes
    }
}

/// Names of [`Point::resident`].
const STATES: [&str; 4] = ["parameters", "master weights", "gradients", "optimizer state"];

fn state_color(theme: &Theme, state: usize) -> Color {
    theme.color([0, 7, 1, 2][state])
}

/// A part of a bar.
struct Part {
    name: &'static str,
    color: Color,
    bytes: u64,
}

/// Draws it: `here` are the stages at the run's rank count, `over` the stages at others. `n_micro` is the
/// number of micro-batches of a step, `own` the run's stage.
pub fn figure(here: &[Point], over: &[Point], n_micro: usize, own: u8) -> Figure {
    let n = here.first().map_or(1, |p| p.n_ranks);
    let of = |stage: u8| here.iter().find(|p| p.stage == stage);
    let caption = match (of(0), of(3)) {
        (Some(zero), Some(three)) => format!(
            "On {} stage 3 keeps {} where stage 0 keeps {}, and receives {} a step where stage 0 receives \
             {}; this run was of stage {own}.",
            human::counted(n, "rank"),
            human::bytes(three.resident_bytes()),
            human::bytes(zero.resident_bytes()),
            human::bytes(three.moved_bytes()),
            human::bytes(zero.moved_bytes())
        ),
        _ => String::new(),
    };
    Figure::new("stages", "What each stage keeps and moves", caption, |sheet| {
        let y = sheet.subtitle(&format!(
            "Bytes of one rank, by the plan of this model with each stage. Above: on {}. Below: over rank \
             counts, with the same {n_micro} micro-batches in a step. Movement is payload received in one \
             step.",
            human::counted(n, "rank")
        ));
        let half = (WIDTH - 3.0 * MARGIN) / 2.0;
        let right = 2.0 * MARGIN + half;
        let theme = sheet.theme;
        let kept = |p: &Point| -> Vec<Part> {
            let parts = p.resident.iter().zip(STATES).enumerate();
            parts.map(|(i, (&bytes, name))| Part { name, color: state_color(theme, i), bytes }).collect()
        };
        let moved = |p: &Point| {
            let (gather, reduce) = (gather_color(theme), reduce_color(theme));
            vec![
                Part { name: "AllGather", color: gather, bytes: p.all_gather_bytes },
                Part { name: "ReduceScatter", color: reduce, bytes: p.reduce_scatter_bytes },
            ]
        };
        let left_end = bars(sheet, (MARGIN, y), half, "Kept between steps", "resident", here, own, kept);
        let right_end = bars(sheet, (right, y), half, "Received in one step", "moved", here, own, moved);
        let y = left_end.max(right_end) + 20.0;
        let series = |of: fn(&Point) -> u64| -> Vec<Series> {
            (0..4u8)
                .map(|stage| {
                    let points = over.iter().filter(|p| p.stage == stage);
                    let points = points.map(|p| (p.n_ranks as f64, of(p) as f64)).collect();
                    // Coinciding curves are drawn with different widths so that all remain visible.
                    let (color, width) = [(7, 8), (1, 6), (2, 3), (0, 2)][stage as usize];
                    let name = format!("stage {stage}{}", if stage == own { " (this run)" } else { "" });
                    Series { width, ..Series::line(name, color, points) }
                })
                .collect()
        };
        let panels = [
            (
                MARGIN,
                Axis::new("kept between steps").bytes().log(),
                Point::resident_bytes as fn(&Point) -> u64,
            ),
            (right, Axis::new("received in one step").bytes().spanning(0.0, 0.0), Point::moved_bytes),
        ];
        let mut end = y;
        for (x, y_axis, of) in panels {
            let chart = Chart {
                x: Axis::new("ranks").count().log(),
                y: y_axis,
                series: series(of),
                marks: Vec::new(),
            };
            let keys: Vec<Key> = chart.series.iter().map(|s| s.key(theme)).collect();
            let y = sheet.legend_within(x, x + half, y, &keys);
            sheet.paste((x, y), &chart.draw(theme, (half as u32, 300)));
            end = y + 300.0;
        }
        end + MARGIN
    })
}

/// One bar per stage, to one scale.
#[allow(clippy::too_many_arguments)]
fn bars(
    sheet: &mut Sheet<'_>,
    (x, y): (f64, f64),
    width: f64,
    title: &str,
    key: &str,
    points: &[Point],
    own: u8,
    parts: impl Fn(&Point) -> Vec<Part>,
) -> f64 {
    let theme = sheet.theme;
    sheet.write((x, y + 14.0), title, LABEL_PX, theme.ink, Anchor::Start, true);
    let used = |i: usize| points.iter().any(|p| parts(p)[i].bytes > 0);
    let all = points.first().map(&parts).unwrap_or_default();
    let keys: Vec<Key> =
        all.iter().enumerate().filter(|(i, _)| used(*i)).map(|(_, p)| Key::color(p.color, p.name)).collect();
    let top = sheet.legend_within(x, x + width, y + 22.0, &keys);
    let sum = |p: &Point| parts(p).iter().map(|part| part.bytes).sum::<u64>();
    let most = points.iter().map(sum).max().unwrap_or(0).max(1);
    let left = x + 74.0;
    let room = width - 74.0 - text_width::width("1023.9 KiB", LABEL_PX, false) - 8.0;
    for (i, point) in points.iter().enumerate() {
        let y = top + 28.0 * i as f64;
        let is_own = point.stage == own;
        let name = format!("{}stage {}", if is_own { "\u{25b8} " } else { "" }, point.stage);
        sheet.write((left - 8.0, y + 15.0), &name, LABEL_PX, theme.ink, Anchor::End, is_own);
        let mut at = left;
        for part in parts(point).into_iter().filter(|part| part.bytes > 0) {
            let length = room * part.bytes as f64 / most as f64;
            let words = format!("stage {}: {} {} bytes", point.stage, part.name, part.bytes);
            let data = [("stage", point.stage.to_string()), (key, part.bytes.to_string())];
            sheet.datum(Frame::new(at, y, length, 20.0), Fill::Plain(part.color), None, &words, &data);
            let label = human::bytes(part.bytes);
            if text_width::width(&label, SMALL_PX, false) + 8.0 <= length {
                sheet.write(
                    (at + 4.0, y + 14.0),
                    &label,
                    SMALL_PX,
                    part.color.ink_on(),
                    Anchor::Start,
                    false,
                );
            }
            at += length;
        }
        sheet.write(
            (at + 6.0, y + 15.0),
            &human::bytes(sum(point)),
            LABEL_PX,
            theme.ink,
            Anchor::Start,
            false,
        );
    }
    top + 28.0 * points.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(stage: u8, n_ranks: usize) -> Point {
        let n = n_ranks as u64;
        let resident = match stage {
            0 => [4000, 0, 4000, 8000],
            1 => [4000, 0, 4000, 8000 / n],
            2 => [4000, 0, 4000 / n, 8000 / n],
            _ => [4000 / n, 0, 4000 / n, 8000 / n],
        };
        Point {
            stage,
            n_ranks,
            resident,
            all_gather_bytes: 1000 * (n - 1),
            reduce_scatter_bytes: 500 * (n - 1),
        }
    }

    #[test]
    fn every_stage_has_its_bars_with_the_bytes_it_was_given() {
        for n in [1, 3, 64] {
            let here: Vec<Point> = (0..4).map(|stage| point(stage, n)).collect();
            let over: Vec<Point> = (0..4).flat_map(|stage| [1, 2, 4].map(|n| point(stage, n))).collect();
            let figure = figure(&here, &over, 6, 2);
            for svg in [&figure.light, &figure.dark] {
                let document = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}\n{svg}"));
                for p in &here {
                    let sum = |name: &str| -> u64 {
                        let stage = p.stage.to_string();
                        let of = document
                            .descendants()
                            .filter(|node| node.attribute("data-stage") == Some(stage.as_str()));
                        of.filter_map(|node| node.attribute(name)).map(|v| v.parse::<u64>().unwrap()).sum()
                    };
                    assert_eq!(
                        (sum("data-resident"), sum("data-moved")),
                        (p.resident_bytes(), p.moved_bytes()),
                        "{p:?}"
                    );
                }
                assert!(
                    !svg.contains("NaN") && !svg.contains("master weights"),
                    "what nobody keeps is not in the legend"
                );
            }
            assert!(figure.caption.contains("this run was of stage 2"));
        }
    }
}

//! The figures of `report.html`, drawn by `figures/`.

use crate::accept::facts::AcceptanceFacts;
use crate::accept::verdict::Ending;
use crate::figures::chart::Stroke;
use crate::figures::sheet::{Anchor, Fill, Frame, MARGIN, WIDTH};
use crate::figures::theme::NOTE_PX;
use crate::figures::{Axis, Chart, Figure, LineFigure, Series, Unit};

/// The figures of what was measured, in the order of the sections.
pub fn all(facts: &AcceptanceFacts) -> Vec<Figure> {
    [busbw(facts), steps(facts), scaling(facts), timeline(facts)].into_iter().flatten().collect()
}

/// An axis for values from `low` to `high`: logarithmic where they are far enough apart for several ticks.
fn axis(label: &str, low: f64, high: f64) -> Axis {
    if is_wide(low, high) { Axis::new(format!("{label} (logarithmic)")).log() } else { Axis::new(label) }
}

fn is_wide(low: f64, high: f64) -> bool {
    high >= 20.0 * low
}

/// Bus bandwidth of collectives over all ranks, by size.
fn busbw(facts: &AcceptanceFacts) -> Option<Figure> {
    let points: Vec<_> =
        facts.collectives.points.iter().filter(|p| p.scope == "all" && p.busbw > 0.0).collect();
    let mut ops = Vec::new();
    for p in &points {
        if !ops.contains(&p.op) {
            ops.push(p.op);
        }
    }
    let curve = |(i, op)| {
        let of_op = points.iter().filter(|p| p.op == op).map(|p| (p.bytes as f64, p.busbw)).collect();
        Series::line(op.name(), i, of_op).drawn(Stroke::Dotted)
    };
    let series: Vec<Series> = ops.into_iter().enumerate().map(curve).collect();
    let figure = LineFigure {
        name: "busbw".into(),
        title: "Bus bandwidth of collectives".into(),
        subtitle: format!("all {} ranks; both axes logarithmic", facts.job.n_ranks),
        caption: "Small messages are bound by latency, large ones by bandwidth: each curve should rise and \
                  then level off at the bandwidth of the network. A curve below its neighbours at the right \
                  end limits training."
            .into(),
        chart: Chart {
            x: Axis::new("size of the whole vector").bytes().log(),
            y: Axis::new("bus bandwidth, GB/s").log(),
            series,
            marks: Vec::new(),
        },
    };
    (!points.is_empty()).then(|| figure.draw())
}

/// Bins of the histogram of step times.
const N_BINS: usize = 40;
/// Ranks that are drawn; of more, the fastest and the slowest by their median.
const N_DRAWN: usize = 8;

/// Histogram of each rank's compute time in a step.
fn steps(facts: &AcceptanceFacts) -> Option<Figure> {
    let run = facts.reference_run.as_ref().filter(|run| !run.losses.is_empty())?;
    let all = || run.compute_ms.iter().flatten().copied().filter(|ms| *ms > 0.0);
    let (low, high) =
        all().fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), ms| (low.min(ms), high.max(ms)));
    // Bins have the same width on the axis that is drawn.
    let (factor, width) = ((high / low).powf(1.0 / N_BINS as f64), ((high - low) / N_BINS as f64).max(1e-6));
    let bin = |ms: f64| if is_wide(low, high) { (ms / low).ln() / factor.ln() } else { (ms - low) / width };
    let edge =
        |i: usize| if is_wide(low, high) { low * factor.powi(i as i32) } else { low + width * i as f64 };
    let histogram = |times: &[f64]| -> Vec<(f64, f64)> {
        let mut bins = [0.0; N_BINS];
        for t in times.iter().filter(|t| **t > 0.0) {
            bins[(bin(*t) as usize).min(N_BINS - 1)] += 1.0;
        }
        // Outlines, because bars of several ranks would hide each other.
        let steps = bins.iter().enumerate().flat_map(|(i, &n)| [(edge(i), n), (edge(i + 1), n)]);
        std::iter::once((low, 0.0)).chain(steps).chain([(edge(N_BINS), 0.0)]).collect()
    };
    let mut order: Vec<usize> = (0..run.compute_ms.len()).collect();
    let middle = |&r: &usize| crate::quantile::median(&run.compute_ms[r]);
    let subtitle = if order.len() > N_DRAWN {
        order.sort_by(|a, b| middle(a).total_cmp(&middle(b)));
        let n = order.len();
        order = order[..N_DRAWN / 2].iter().chain(&order[n - N_DRAWN / 2..]).copied().collect();
        format!(
            "the {0} fastest and the {0} slowest of {n} ranks by their median; without waits for other ranks",
            N_DRAWN / 2
        )
    } else {
        "each rank; without waits for other ranks".into()
    };
    let series = order
        .iter()
        .enumerate()
        .map(|(i, &rank)| Series::line(format!("rank {rank}"), i, histogram(&run.compute_ms[rank])));
    let figure = LineFigure {
        name: "steps".into(),
        title: "Compute time of a step, by rank".into(),
        subtitle,
        caption: format!(
            "{} steps of the reference run. The curves of healthy ranks coincide; a rank further to the \
             right delays all others, and a long tail to the right means that other processes ran on the \
             node.",
            run.losses.len()
        ),
        chart: Chart {
            x: axis("compute in a step, ms", low, high),
            y: Axis::new("steps").count().spanning(0.0, 1.0),
            series: series.collect(),
            marks: Vec::new(),
        },
    };
    (low.is_finite()).then(|| figure.draw())
}

/// Tokens per second by ranks, beside the ideal.
fn scaling(facts: &AcceptanceFacts) -> Option<Figure> {
    let points = &facts.scaling;
    let most = points.iter().map(|p| p.n_ranks).max()? as f64;
    let rates = points.iter().map(|p| p.tokens_per_s);
    let (least, largest) =
        rates.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    let mut series = Vec::new();
    for (i, mode) in ["strong", "weak"].into_iter().enumerate() {
        let of_mode: Vec<(f64, f64)> =
            points.iter().filter(|p| p.mode == mode).map(|p| (p.n_ranks as f64, p.tokens_per_s)).collect();
        let Some(first) = of_mode.first().copied() else { continue };
        let ideal = vec![first, (most, first.1 * most / first.0)];
        series.push(Series::line(mode, i, of_mode).drawn(Stroke::Dotted));
        series.push(Series::line(format!("{mode}, ideal"), i, ideal).drawn(Stroke::Dashes));
    }
    let figure = LineFigure {
        name: "scaling".into(),
        title: "Scaling over ranks of this job".into(),
        subtitle: "strong: the same batch on more ranks; weak: the batch grows with the ranks".into(),
        caption:
            "The distance to the dashed line is lost to communication, or to work that does not divide by \
             the ranks."
                .into(),
        chart: Chart {
            x: Axis { unit: Unit::Count, ..axis("ranks", 1.0, most) },
            y: if is_wide(least, largest) {
                axis("tokens per second", least, largest)
            } else {
                Axis::new("tokens per second").spanning(0.0, 0.0)
            },
            series,
            marks: Vec::new(),
        },
    };
    Some(figure.draw())
}

/// Height of a section's bar, px.
const BAR: f64 = 20.0;
/// Width of the sections' names, px.
const NAMES: f64 = 120.0;

/// When each section ran.
fn timeline(facts: &AcceptanceFacts) -> Option<Figure> {
    let total_s = facts.seconds.max(1e-3);
    let caption =
        "Sections run one after another; crossed ones were skipped, failed, or found wrong results.";
    let figure = Figure::new("timeline", "When each section ran", caption, |sheet| {
        let (left, right) = (MARGIN + NAMES, WIDTH - MARGIN - 70.0);
        let x = |seconds: f64| left + (right - left) * (seconds / total_s).min(1.0);
        let mut y = sheet.subtitle(&format!("{total_s:.0} seconds in total"));
        for (i, result) in facts.sections.iter().enumerate().filter(|(_, s)| s.ending != Ending::NotAsked) {
            let theme = sheet.theme;
            sheet.write(
                (left - 10.0, y + 15.0),
                result.section.name(),
                NOTE_PX,
                theme.ink,
                Anchor::End,
                false,
            );
            let fill = match result.is_sound() {
                true => Fill::Plain(theme.color(i)),
                false => Fill::Cross(theme.wrong),
            };
            let end = x(result.began_s + result.took_s);
            let frame = Frame::new(x(result.began_s), y, (end - x(result.began_s)).max(2.0), BAR);
            let words = match result.ending {
                Ending::Skipped | Ending::NotAsked => "skipped".to_string(),
                Ending::UnderWay => "not over".to_string(),
                Ending::Completed | Ending::Failed => format!("{:.1} s", result.took_s),
            };
            let tooltip = format!("{}: from {:.1} s on, {words}", result.section, result.began_s);
            sheet.datum(frame, fill, None, &tooltip, &[("section", result.section.to_string())]);
            sheet.note((end.max(frame.x + 2.0) + 6.0, y + 15.0), &words, Anchor::Start);
            y += BAR + 8.0;
        }
        y + MARGIN
    });
    (!facts.sections.is_empty()).then_some(figure)
}

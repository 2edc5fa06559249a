//! `report.html`: the verdict, every metric, and four plots as SVG within the page; it needs no network and no script.

use super::Report;
use crate::accept::metric::{Source, show};
use crate::accept::verdict::Ending;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::fmt::Write;

type Failed = Box<dyn std::error::Error>;

const SIZE: (u32, u32) = (720, 400);
const STYLE: &str = "body{font:15px sans-serif;max-width:1200px;margin:2em auto;color:#222}table{border-collapse:collapse}\
    td,th{padding:.2em .6em;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}td.n{text-align:right}\
    .PASS{color:#17692a}.FAIL{color:#b00020;font-weight:bold}.SKIPPED,.INFO{color:#666}svg{max-width:100%;height:auto}";

/// The whole page.
pub fn page(report: &Report) -> Result<String, Failed> {
    let mut out = String::new();
    let line = report.verdict.line();
    write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>zero3 accept: {line}</title><style>{STYLE}</style></head><body>"
    )?;
    let class = if report.verdict.accepted { "PASS" } else { "FAIL" };
    write!(out, "<h1 class=\"{class}\">{line}</h1><p>{} ranks, {:.0} s</p><ul>", report.n_ranks, report.seconds)?;
    for reason in &report.verdict.reasons {
        write!(out, "<li>{}</li>", escape(reason))?;
    }
    out += "</ul>";
    for (title, plot) in [
        ("Bus bandwidth over size", busbw(report)?),
        ("Scaling", scaling(report)?),
        ("Compute time of a step, by rank", steps(report)?),
        ("Timeline", timeline(report)?),
    ] {
        match plot {
            Some(svg) => write!(out, "<h2>{title}</h2>{svg}")?,
            None => write!(out, "<h2>{title}</h2><p>not measured</p>")?,
        }
    }
    for section in &report.sections {
        write!(out, "<h2>{}</h2>", section.name)?;
        if section.ending != Ending::Completed {
            write!(out, "<p class=\"FAIL\">{}</p>", escape(&section.reason))?;
        }
        out += "<table><tr><th></th><th>metric</th><th>value</th><th>unit</th><th>held against</th><th>why</th></tr>";
        for m in &section.metrics {
            let value = m.value.map_or(String::new(), show);
            let source = m.source.map_or("", Source::name);
            let reference = m.reference.map_or(String::new(), |r| format!("{source} {}", show(r)));
            let (s, name, why) = (m.status.name(), &m.name, escape(&m.reason));
            write!(
                out,
                "<tr><td class=\"{s}\">{s}</td><td>{name}</td><td class=\"n\">{value}</td><td>{}</td><td>{reference}</td><td>{why}</td></tr>",
                m.unit
            )?;
        }
        out += "</table>";
    }
    out += "<h2>Ranks</h2><table>";
    for (rank, facts) in report.ranks.iter().enumerate() {
        let said: Vec<String> = facts.iter().map(|(k, v)| format!("{}: {}", escape(k), escape(v))).collect();
        write!(out, "<tr><td class=\"n\">{rank}</td><td>{}</td></tr>", said.join("<br>"))?;
    }
    write!(out, "</table><h2>Deck</h2><pre>{}</pre></body></html>", escape(&report.deck))?;
    Ok(out + "\n")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// An SVG picture.
fn draw(
    paint: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Failed>,
) -> Result<Option<String>, Failed> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        paint(&area)?;
        area.present()?;
    }
    Ok(Some(svg))
}

/// The largest of some numbers, above 0.
fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.filter(|v| v.is_finite()).fold(f64::MIN_POSITIVE, f64::max)
}

fn busbw(report: &Report) -> Result<Option<String>, Failed> {
    let points: Vec<_> = report.collectives.points.iter().filter(|p| p.scope == "all").collect();
    if points.is_empty() {
        return Ok(None);
    }
    let bytes = points.iter().map(|p| p.bytes as f64);
    let (first, last) = (bytes.clone().fold(f64::INFINITY, f64::min), largest(bytes));
    let top = largest(points.iter().map(|p| p.busbw)) * 1.1;
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d((first..last * 1.01).log_scale(), 0.0..top)?;
        chart.configure_mesh().x_desc("bytes").y_desc("bus bandwidth, GB/s").draw()?;
        let mut ops = Vec::new();
        for p in &points {
            if !ops.contains(&p.op) {
                ops.push(p.op);
            }
        }
        for (i, op) in ops.into_iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            let of_op = points.iter().filter(|p| p.op == op).map(|p| (p.bytes as f64, p.busbw));
            chart
                .draw_series(LineSeries::new(of_op, color.stroke_width(2)))?
                .label(op.name())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        Ok(())
    })
}

fn scaling(report: &Report) -> Result<Option<String>, Failed> {
    let points = &report.scaling;
    let Some(most) = points.iter().map(|p| p.n_ranks).max() else { return Ok(None) };
    let first = |mode: &str| points.iter().find(|p| p.mode == mode).map_or(0.0, |p| p.tokens_per_s);
    let ideal = |mode: &str| first(mode) * most as f64;
    let top = largest(points.iter().map(|p| p.tokens_per_s).chain(["strong", "weak"].map(ideal))) * 1.1;
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(1.0..most as f64 * 1.01, 0.0..top)?;
        chart.configure_mesh().x_desc("ranks").y_desc("tokens per second").draw()?;
        for (i, mode) in ["strong", "weak"].into_iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            let of_mode: Vec<_> =
                points.iter().filter(|p| p.mode == mode).map(|p| (p.n_ranks as f64, p.tokens_per_s)).collect();
            chart
                .draw_series(LineSeries::new(of_mode, color.stroke_width(2)).point_size(3))?
                .label(mode)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
            let line = [(1.0, first(mode)), (most as f64, ideal(mode))];
            chart
                .draw_series(LineSeries::new(line, color.mix(0.4)))?
                .label(format!("{mode}, ideal"))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.mix(0.4)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        Ok(())
    })
}

/// Bins of the histogram.
const N_BINS: usize = 30;

fn steps(report: &Report) -> Result<Option<String>, Failed> {
    let Some(run) = report.reference_run.as_ref().filter(|run| !run.losses.is_empty()) else { return Ok(None) };
    let all = || run.compute_ms.iter().flatten().copied();
    let (low, high) = (all().fold(f64::INFINITY, f64::min), largest(all()));
    let width = ((high - low) / N_BINS as f64).max(1e-6);
    let count = |times: &[f64]| {
        let mut bins = vec![0.0; N_BINS];
        times.iter().for_each(|t| bins[(((t - low) / width) as usize).min(N_BINS - 1)] += 1.0);
        bins
    };
    let ranks: Vec<Vec<f64>> = run.compute_ms.iter().map(|times| count(times)).collect();
    let top = largest(ranks.iter().flatten().copied()) * 1.1;
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d(low..low + width * N_BINS as f64, 0.0..top)?;
        chart.configure_mesh().x_desc("ms").y_desc("steps").draw()?;
        for (rank, bins) in ranks.iter().enumerate() {
            let color = Palette99::pick(rank).to_rgba();
            // As outlines: bars of many ranks would hide each other.
            let outline = bins.iter().enumerate().flat_map(|(i, &n)| {
                let left = low + width * i as f64;
                [(left, n), (left + width, n)]
            });
            let series = chart.draw_series(LineSeries::new(outline, color.stroke_width(2)))?;
            if rank < 16 {
                series
                    .label(format!("rank {rank}"))
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
            }
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).draw()?;
        Ok(())
    })
}

fn timeline(report: &Report) -> Result<Option<String>, Failed> {
    let n = report.sections.len();
    if n == 0 {
        return Ok(None);
    }
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .build_cartesian_2d(0.0..report.seconds.max(0.001), 0.0..n as f64)?;
        chart.configure_mesh().disable_y_mesh().x_desc("seconds").draw()?;
        for (i, s) in report.sections.iter().enumerate() {
            let (top, bottom) = ((n - i) as f64 - 0.15, (n - i) as f64 - 0.85);
            let color = if s.is_sound() { Palette99::pick(i).to_rgba() } else { RED.to_rgba() };
            chart.draw_series([Rectangle::new([(s.began_s, top), (s.began_s + s.took_s, bottom)], color.filled())])?;
            chart.draw_series([Text::new(
                format!("{} {:.1} s", s.name, s.took_s),
                (s.began_s, top),
                ("sans-serif", 14),
            )])?;
        }
        Ok(())
    })
}

//! Curves on axes: drawn by `plotters`, with ticks and labels of this module.
//!
//! A [`Chart`] is a bare panel; [`LineFigure`] is a complete figure with title, legend and one panel.

use super::Figure;
use super::axis::Axis;
use super::sheet::{Key, Look, MARGIN, Sheet, WIDTH};
use super::text_width;
use super::theme::{Color, NOTE_PX, Theme};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::Color as _;
use std::ops::Range;

/// A point of a curve: x and y.
pub type Point = (f64, f64);
/// The band of a curve at an x: x, lowest, highest.
pub type Spread = (f64, f64, f64);

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// A line.
    Line,
    /// A dashed line.
    Dashes,
    /// A line with a dot at each point.
    Dotted,
    /// Dots only.
    Dots,
    /// Only the band, in full color: a layer of a stack.
    Layer,
}

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name in the legend; none if empty.
    pub name: String,
    /// Index into the theme's series colors, or the ink color if None.
    pub color: Option<usize>,
    /// How it is drawn.
    pub stroke: Stroke,
    /// Width of its line, px.
    pub width: u32,
    /// From left to right. Non-finite values interrupt it.
    pub points: Vec<Point>,
    /// Lowest and highest around each point, shaded; none if empty.
    pub band: Vec<Spread>,
}

impl Series {
    /// A line in color `color`.
    pub fn line(name: impl Into<String>, color: usize, points: Vec<(f64, f64)>) -> Self {
        Series {
            name: name.into(),
            color: Some(color),
            stroke: Stroke::Line,
            width: 2,
            points,
            band: Vec::new(),
        }
    }

    /// The same in another style.
    pub fn drawn(self, stroke: Stroke) -> Self {
        Series { stroke, ..self }
    }

    fn ink(&self, theme: &Theme) -> Color {
        self.color.map_or(theme.ink, |i| theme.color(i))
    }

    /// Its entry in a legend.
    pub fn key(&self, theme: &Theme) -> Key {
        let color = self.ink(theme);
        let look = match self.stroke {
            Stroke::Line | Stroke::Dotted => Look::Line(color),
            Stroke::Dashes => Look::Dashes(color),
            Stroke::Dots => Look::Dot(color),
            Stroke::Layer => Look::Box(super::sheet::Fill::Plain(color)),
        };
        Key { look, name: self.name.clone() }
    }
}

/// An event at a position of the x axis: a vertical line.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The position.
    pub x: f64,
    /// Index into the theme's series.
    pub color: usize,
    /// Whether it is dashed.
    pub dashed: bool,
}

/// A linear scale with given ticks.
struct Ruler {
    scale: RangedCoordf64,
    ticks: Vec<f64>,
}

impl Ruler {
    fn new((low, high): (f64, f64), ticks: Vec<f64>) -> Self {
        Ruler { scale: (low..high).into(), ticks }
    }
}

impl Ranged for Ruler {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, limit: (i32, i32)) -> i32 {
        self.scale.map(place, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.scale.range()
    }
}

/// One panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The axis below.
    pub x: Axis,
    /// The axis on the left.
    pub y: Axis,
    /// Curves, the first one lowest.
    pub series: Vec<Series>,
    /// Moments.
    pub marks: Vec<Mark>,
}

/// Blank space at the right of a plot, for the last tick.
const RIGHT: f64 = 24.0;

/// The layout of a chart, computed before drawing.
struct Layout {
    /// Positions, not values.
    x_range: (f64, f64),
    y_range: (f64, f64),
    y_ticks: Vec<f64>,
    /// Width of the labels of the y axis.
    left: f64,
}

/// Minimum and maximum of positions, made distinct.
fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match () {
        () if low > high => (0.0, 1.0),
        () if low == high => (low - 0.5, high + 0.5),
        () => (low, high),
    }
}

impl Chart {
    /// Positions (not values) that an axis must span.
    fn range(&self, axis: &Axis, of: impl Fn(&Series) -> Vec<f64>, room: f64) -> (f64, f64) {
        let data: Vec<f64> =
            self.series.iter().flat_map(of).chain(axis.spans.into_iter().flat_map(|s| [s.0, s.1])).collect();
        let (low, high) = extent(data.iter().filter_map(|&v| axis.place(v)));
        let slack = if axis.tight { 0.0 } else { (high - low) * room };
        // An axis that starts at 0 has no margin there.
        let low = if axis.spans.is_some_and(|s| axis.place(s.0) == Some(low)) { low } else { low - slack };
        (low, high + slack)
    }

    /// The panel as an SVG document of `size` px.
    ///
    /// # Panics
    /// Never: the backend writes to a string.
    pub fn draw(&self, theme: &Theme, size: (u32, u32)) -> String {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            self.paint(theme, size, &area).expect("drawing into a string");
            area.present().expect("drawing into a string");
        }
        svg
    }

    /// Left and right edges of the plot, in px of a panel `width` px wide.
    pub fn span(&self, width: u32) -> (f64, f64) {
        (self.layout((width, 400)).left.floor(), f64::from(width) - RIGHT)
    }

    fn layout(&self, size: (u32, u32)) -> Layout {
        let xs = |s: &Series| s.points.iter().map(|p| p.0).chain(s.band.iter().map(|b| b.0)).collect();
        let ys =
            |s: &Series| s.points.iter().map(|p| p.1).chain(s.band.iter().flat_map(|b| [b.1, b.2])).collect();
        let (x_range, y_range) = (self.range(&self.x, xs, 0.02), self.range(&self.y, ys, 0.06));
        let y_ticks = self.y.places(y_range, (size.1 as usize / 45).max(2));
        let widest =
            y_ticks.iter().map(|&t| text_width::width(&self.y.tick_label(self.y.value(t)), NOTE_PX, false));
        let left = widest.fold(self.y.room, f64::max) + 36.0;
        Layout { x_range, y_range, y_ticks, left }
    }

    fn paint(
        &self,
        theme: &Theme,
        size: (u32, u32),
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let Layout { x_range, y_range, y_ticks, left } = self.layout(size);
        let x_ticks = self.x.places(x_range, ((f64::from(size.0) - left) as usize / 75).max(2));
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(RIGHT as u32)
            .x_label_area_size(44)
            .y_label_area_size(left as u32)
            .build_cartesian_2d(Ruler::new(x_range, x_ticks), Ruler::new(y_range, y_ticks))?;
        let rgb = |color: Color| RGBColor::from(color);
        // The backend divides sizes by 1.24.
        let letters = (text_width::FAMILY, 1.24 * NOTE_PX).into_font().color(&rgb(theme.muted));
        chart
            .configure_mesh()
            .axis_style(rgb(theme.muted))
            .bold_line_style(rgb(theme.grid))
            .light_line_style(TRANSPARENT)
            .label_style(letters.clone())
            .axis_desc_style(letters)
            .x_label_formatter(&|place| self.x.tick_label(self.x.value(*place)))
            .y_label_formatter(&|place| self.y.tick_label(self.y.value(*place)))
            .x_desc(self.x.label.as_str())
            .y_desc(self.y.label.as_str())
            .draw()?;
        for mark in &self.marks {
            let Some(x) = self.x.place(mark.x).filter(|x| (x_range.0..=x_range.1).contains(x)) else {
                continue;
            };
            let style = rgb(theme.color(mark.color)).stroke_width(2);
            let line = [(x, y_range.0), (x, y_range.1)];
            match mark.dashed {
                true => chart.draw_series(DashedLineSeries::new(line, 5, 4, style)).map(|_| ())?,
                false => chart.draw_series(LineSeries::new(line, style)).map(|_| ())?,
            }
        }
        for series in &self.series {
            let color = series.ink(theme);
            let place = |x: f64, y: f64| Some((self.x.place(x)?, self.y.place(y)?));
            let edge = |pick: fn(&(f64, f64, f64)) -> f64| {
                series.band.iter().filter_map(move |b| place(b.0, pick(b)))
            };
            let outline: Vec<(f64, f64)> = {
                let upper: Vec<_> = edge(|b| b.2).collect();
                edge(|b| b.1).chain(upper.into_iter().rev()).collect()
            };
            let shade = if series.stroke == Stroke::Layer { color } else { color.towards(theme.page, 0.7) };
            if outline.len() > 3 {
                chart.draw_series([Polygon::new(outline, rgb(shade))])?;
            }
            // A missing point interrupts the line.
            let points: Vec<Option<(f64, f64)>> = series.points.iter().map(|&(x, y)| place(x, y)).collect();
            let style = rgb(color).stroke_width(series.width);
            for run in points.split(Option::is_none).filter(|run| !run.is_empty()) {
                let run: Vec<(f64, f64)> = run.iter().flatten().copied().collect();
                let alone = run.len() == 1;
                if alone || matches!(series.stroke, Stroke::Dotted | Stroke::Dots) {
                    let dots =
                        run.iter().map(|&at| Circle::new(at, 1 + series.width as i32, rgb(color).filled()));
                    chart.draw_series(dots)?;
                }
                match series.stroke {
                    _ if alone => {}
                    Stroke::Dots | Stroke::Layer => {}
                    Stroke::Dashes => _ = chart.draw_series(DashedLineSeries::new(run, 6, 4, style))?,
                    Stroke::Line | Stroke::Dotted => _ = chart.draw_series(LineSeries::new(run, style))?,
                }
            }
        }
        Ok(())
    }
}

/// A complete figure with one panel.
#[derive(Debug, Clone, PartialEq)]
pub struct LineFigure {
    /// File name without an extension.
    pub name: String,
    /// Title.
    pub title: String,
    /// Subtitle, in small letters.
    pub subtitle: String,
    /// Caption.
    pub caption: String,
    /// The panel.
    pub chart: Chart,
}

impl LineFigure {
    /// Draws it, with a legend if a series has a name.
    pub fn draw(&self) -> Figure {
        Figure::new(&self.name, &self.title, self.caption.as_str(), |sheet: &mut Sheet<'_>| {
            let theme = sheet.theme;
            let y = sheet.subtitle(&self.subtitle);
            let named = self.chart.series.iter().filter(|s| !s.name.is_empty());
            let keys: Vec<Key> = named.map(|s| s.key(theme)).collect();
            let y = sheet.legend(y, &keys);
            sheet.paste((MARGIN, y), &self.chart.draw(theme, ((WIDTH - 2.0 * MARGIN) as u32, 380)));
            y + 380.0 + MARGIN
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}\n{svg}"));
        document
            .descendants()
            .filter(|n| n.has_tag_name("text"))
            .map(|n| n.text().unwrap_or("").trim().into())
            .collect()
    }

    fn chart(x: Axis, y: Axis, points: Vec<(f64, f64)>) -> Chart {
        Chart { x, y, series: vec![Series::line("loss", 0, points)], marks: Vec::new() }
    }

    #[test]
    fn ticks_are_round_and_labels_have_units() {
        let ranks = Axis::new("ranks").count().log();
        let points = (0..7).map(|k| (f64::from(1 << k), 3e6 / f64::from(1 << k))).collect();
        let svg = chart(ranks, Axis::new("at rest").bytes().log(), points).draw(&Theme::LIGHT, (700, 400));
        let labels = labels(&svg);
        for want in ["1", "8", "64", "ranks", "at rest", "64 KiB", "2 MiB"] {
            assert!(labels.iter().any(|label| label == want), "{want} is not in {labels:?}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out_and_nothing_breaks() {
        let nan = f64::NAN;
        let odd: [Vec<(f64, f64)>; 5] = [
            vec![],
            vec![(1.0, 2.0)],
            vec![(1.0, 5.0), (2.0, 5.0)],
            vec![(1.0, nan), (2.0, f64::INFINITY)],
            vec![(0.0, -1.0), (1.0, 3.0), (2.0, nan), (3.0, 4.0)],
        ];
        for points in odd {
            for log in [false, true] {
                let axis = |name: &str| Axis { log, ..Axis::new(name) };
                let mut chart = chart(axis("step"), axis("loss"), points.clone());
                chart.marks.push(Mark { x: 1.0, color: 5, dashed: true });
                chart.marks.push(Mark { x: nan, color: 5, dashed: false });
                let svg = chart.draw(&Theme::DARK, (300, 200));
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{points:?}\n{svg}");
                assert!(labels(&svg).contains(&"step".to_string()));
            }
        }
    }

    #[test]
    fn a_gap_interrupts_a_line_and_a_lone_point_is_a_dot() {
        let points = vec![
            (0.0, 1.0),
            (1.0, 2.0),
            (2.0, f64::NAN),
            (3.0, 1.5),
            (4.0, f64::NAN),
            (5.0, 1.0),
            (6.0, 2.0),
        ];
        let svg = chart(Axis::new("x"), Axis::new("y"), points).draw(&Theme::LIGHT, (300, 200));
        let color = Theme::LIGHT.color(0).hex().to_uppercase();
        assert_eq!(svg.matches("<circle").count(), 1);
        assert_eq!(svg.lines().filter(|l| l.contains("<polyline") && l.contains(&color)).count(), 2, "{svg}");
    }

    #[test]
    fn a_figure_has_its_words_in_both_themes() {
        let figure = LineFigure {
            name: "sweep".into(),
            title: "Step time over ranks".into(),
            subtitle: "7.5B parameters".into(),
            caption: "It falls.".into(),
            chart: chart(Axis::new("ranks"), Axis::new("ms"), vec![(1.0, 2.0), (2.0, 1.0)]),
        }
        .draw();
        for svg in [&figure.light, &figure.dark] {
            let labels = labels(svg);
            for want in ["Step time over ranks", "7.5B parameters", "loss", "ranks", "ms"] {
                assert!(labels.iter().any(|label| label == want), "{want} is not in {labels:?}");
            }
        }
        assert_ne!(figure.light, figure.dark);
    }
}

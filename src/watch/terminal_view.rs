//! Draws a view on a terminal of any size.
//!
//! Must not know: files, keys.

use super::plain_view::{Columns, headline, memory_head, memory_rows, rank_in_words, speed};
use super::view::{Counts, Mood, RankLine, View};
use crate::foreign::on_a_line;
use crate::human;
use crate::records::step_reader::LoggedStep;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph, Sparkline};

/// Below this size only lines are shown.
const SMALLEST: (u16, u16) = (72, 20);
/// From this width on all columns of memory fit.
const WIDE: u16 = 110;

/// Whether colors may be used; see <https://no-color.org>.
#[derive(Debug, Clone, Copy)]
pub struct Colors(pub bool);

impl Colors {
    fn fg(self, color: Color) -> Style {
        if self.0 { Style::default().fg(color) } else { Style::default() }
    }

    /// Moods also differ in weight, not in color alone.
    fn of(self, mood: Mood) -> Style {
        match mood {
            Mood::Good => self.fg(Color::Green),
            Mood::Odd => self.fg(Color::Yellow).add_modifier(Modifier::BOLD),
            Mood::Bad => self.fg(Color::Red).add_modifier(Modifier::BOLD | Modifier::REVERSED),
        }
    }
}

/// Draws the whole view.
pub fn draw(frame: &mut Frame<'_>, view: &View<'_>, colors: Colors) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        return frame.render_widget(Paragraph::new(few_lines(view, colors)), area);
    }
    let n_ranks = (view.ranks.len().max(1) as u16).min(area.height / 5);
    let n_events = if area.height < 34 { 1 } else { area.height / 6 };
    let [head, body, ranks, events] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Min(9),
        Constraint::Length(n_ranks + 2),
        Constraint::Length(n_events + 2),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head_lines(view, colors)), head);
    let memory_width = if area.width < WIDE { 40 } else { 56 };
    let [steps, memory] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(memory_width)]).areas(body);
    let [loss, pace] = Layout::vertical([Constraint::Fill(2), Constraint::Fill(1)]).areas(steps);
    draw_loss(frame, view, colors, loss);
    draw_pace(frame, view, colors, pace);
    draw_memory(frame, view, colors, memory);
    let mut lines: Vec<Line<'_>> = view.ranks.iter().map(|rank| rank_line(rank, colors)).collect();
    if lines.is_empty() {
        lines.push(Line::raw("none has a heartbeat"));
    }
    panel(frame, &format!("ranks ({}): last operation, units gathered", view.world_size), lines, ranks);
    let faults = view.faults.iter().map(|fault| plain(fault, colors.of(Mood::Odd)));
    let title = format!("events: {}", view.counts_in_words());
    panel(frame, &title, faults.chain(event_lines(view)).collect(), events);
}

fn panel(frame: &mut Frame<'_>, title: &str, lines: Vec<Line<'_>>, area: Rect) {
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(on_a_line(&format!(" {title} ")).into_owned())),
        area,
    );
}

/// A line of text that may contain external input.
fn plain(text: &str, style: Style) -> Line<'static> {
    Line::styled(on_a_line(text).into_owned(), style)
}

/// Run and status, progress and speed, time.
fn head_lines<'v>(view: &'v View<'_>, colors: Colors) -> Vec<Line<'v>> {
    let (status, mood) = view.status_in_words();
    let bold = Style::default().add_modifier(Modifier::BOLD);
    let first = Line::from(vec![
        Span::styled(on_a_line(&format!("{}  ", view.run)).into_owned(), bold),
        Span::styled(on_a_line(&status).into_owned(), colors.of(mood)),
        Span::raw(on_a_line(&format!("  {}", headline(view))).into_owned()),
    ]);
    let second = match view.total_steps {
        Some(total) => {
            let done = (view.step as f64 / total as f64).min(1.0);
            let bar = "=".repeat((done * 40.0) as usize);
            Line::raw(format!("[{bar:<40}] {:.1} %    q quits", 100.0 * done))
        }
        None => Line::raw("q quits"),
    };
    let time = match view.time_in_words() {
        Some((words, mood)) => {
            plain(&words, if mood == Mood::Good { Style::default() } else { colors.of(mood) })
        }
        None => Line::default(),
    };
    vec![first, second, Line::raw(speed(view)), time]
}

/// The loss of all steps, a point per column; validation as dots.
fn draw_loss(frame: &mut Frame<'_>, view: &View<'_>, colors: Colors, area: Rect) {
    let last = view.rows.last().map_or("no step yet".into(), |row| format!("{:.4}", row.loss));
    let val = view.val_loss.map_or(String::new(), |(_, loss)| format!(", validation (dots) {loss:.4}"));
    let title = format!(" loss in nats/token: {last}{val} ");
    let n_columns = 2 * area.width.saturating_sub(10).max(1) as usize;
    let losses = thinned(view.rows.iter().map(|r| (r.step as f64, r.loss)), view.rows.len(), n_columns);
    let val_losses: Vec<(f64, f64)> = view
        .rows
        .iter()
        .filter_map(|r| r.val_loss.map(|loss| (r.step as f64, loss)))
        .filter(|p| p.1.is_finite())
        .collect();
    let all = || losses.iter().chain(&val_losses);
    let (x_min, x_max) = range(view.rows.iter().map(|r| r.step as f64));
    let (y_min, y_max) = range(all().map(|p| p.1));
    let datasets = vec![
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(colors.fg(Color::Cyan))
            .data(&losses),
        Dataset::default()
            .marker(Marker::Dot)
            .graph_type(GraphType::Scatter)
            .style(colors.fg(Color::Yellow))
            .data(&val_losses),
    ];
    let labels = |min: f64, max: f64, text: fn(f64) -> String| [text(min), text(max)];
    let chart = Chart::new(datasets)
        .block(Block::bordered().title(title))
        .legend_position(None)
        .x_axis(
            Axis::default().bounds([x_min, x_max]).labels(labels(x_min, x_max, |x| format!("step {x:.0}"))),
        )
        .y_axis(Axis::default().bounds([y_min, y_max]).labels(labels(y_min, y_max, |y| format!("{y:.2}"))));
    frame.render_widget(chart, area);
}

/// Tokens per second, and step time if it fits; the newest at the right.
fn draw_pace(frame: &mut Frame<'_>, view: &View<'_>, colors: Colors, area: Rect) {
    let areas = Layout::horizontal([Constraint::Fill(1); 2]).split(area);
    let (rate, time) = if area.width < 60 { (area, None) } else { (areas[0], Some(areas[1])) };
    let last = view.rows.last();
    let title = last.map_or("tokens/s".into(), |r| format!("tokens/s: {}", human::count(r.tokens_per_s)));
    draw_line(frame, view, &title, |r| r.tokens_per_s, colors.fg(Color::Green), rate);
    if let Some(time) = time {
        let title = view
            .step_ms
            .map_or("ms/step".into(), |(median, p95)| format!("ms/step: median {median:.1}, p95 {p95:.1}"));
        draw_line(frame, view, &title, |r| r.step_ms_max, colors.fg(Color::Magenta), time);
    }
}

fn draw_line(
    frame: &mut Frame<'_>,
    view: &View<'_>,
    title: &str,
    of: fn(&LoggedStep) -> f64,
    style: Style,
    area: Rect,
) {
    let width = area.width.saturating_sub(2) as usize;
    let newest = &view.rows[view.rows.len().saturating_sub(width)..];
    // Bars are whole numbers.
    let data: Vec<u64> =
        newest.iter().map(of).map(|x| if x.is_finite() { (100.0 * x) as u64 } else { 0 }).collect();
    frame.render_widget(
        Sparkline::default().data(data).style(style).block(Block::bordered().title(format!(" {title} "))),
        area,
    );
}

fn draw_memory(frame: &mut Frame<'_>, view: &View<'_>, colors: Colors, area: Rect) {
    if view.memory.kinds.is_empty() {
        return panel(frame, "memory by kind", vec![Line::raw("not known yet")], area);
    }
    // Peaks are omitted if they do not fit, except for a finished run.
    let columns = match (area.width > 50, view.memory.is_live) {
        (true, _) => Columns::All,
        (false, true) => Columns::NowAndPlanned,
        (false, false) => Columns::PeakAndPlanned,
    };
    let head = Line::styled(memory_head(&view.memory, columns), Style::default().add_modifier(Modifier::DIM));
    let rows = memory_rows(&view.memory, columns).into_iter().map(|(name, held, is_over)| {
        let style = if is_over { colors.of(Mood::Bad) } else { Style::default() };
        Line::styled(format!("{name:<18}{held}"), style)
    });
    // The total comes first: it matters most if only few lines fit.
    let mut rows: Vec<Line<'_>> = rows.collect();
    rows.rotate_right(1);
    panel(frame, "memory by kind", std::iter::once(head).chain(rows).collect(), area);
}

fn rank_line(rank: &RankLine, colors: Colors) -> Line<'static> {
    let style = if rank.is_live == Some(false) { colors.of(Mood::Bad) } else { Style::default() };
    plain(&rank_in_words(rank), style)
}

fn event_lines<'v>(view: &'v View<'_>) -> impl Iterator<Item = Line<'v>> {
    view.happened.iter().map(|(ago, words)| {
        plain(&format!("{:>7} ago  {words}", human::seconds(ago.max(0.0))), Style::default())
    })
}

/// The most important facts, for a small terminal: a line each, truncated at its edge.
fn few_lines<'v>(view: &'v View<'_>, colors: Colors) -> Vec<Line<'v>> {
    let (status, mood) = view.status_in_words();
    let mut lines = vec![plain(&status, colors.of(mood))];
    if let Some(row) = view.rows.last() {
        let val = view.val_loss.map_or(String::new(), |(_, loss)| format!(" val {loss:.4}"));
        lines.push(Line::raw(format!("loss {:.4}{val}", row.loss)));
        lines.push(Line::raw(format!(
            "{} tokens/s {:.1} ms/step",
            human::count(row.tokens_per_s),
            row.step_ms_max
        )));
    }
    if let Some((words, mood)) = view.time_in_words() {
        lines.push(plain(&words, if mood == Mood::Good { Style::default() } else { colors.of(mood) }));
    }
    if !view.memory.kinds.is_empty() {
        let total = view.memory.total;
        let (peak, planned) = (human::bytes(total.peak), human::bytes(total.planned));
        lines.push(Line::raw(format!("memory peak {peak} of {planned}")));
    }
    let Counts { restores, skipped, chronic, one_off } = view.counts;
    lines.push(Line::raw(format!("{restores} restored {skipped} skipped {} slow", chronic + one_off)));
    lines.extend(view.faults.iter().map(|fault| plain(fault, colors.of(Mood::Odd))));
    lines.extend(view.ranks.iter().map(|rank| rank_line(rank, colors)));
    lines.push(plain(&view.run, Style::default()));
    lines
}

/// At most `n_columns` points: the mean of each group of steps; non-numeric points are omitted.
fn thinned(points: impl Iterator<Item = (f64, f64)>, n_points: usize, n_columns: usize) -> Vec<(f64, f64)> {
    let stretch = n_points.div_ceil(n_columns).max(1);
    let finite: Vec<(f64, f64)> = points.filter(|p| p.1.is_finite()).collect();
    let mean = |chunk: &[(f64, f64)]| {
        let n = chunk.len() as f64;
        (chunk.iter().map(|p| p.0).sum::<f64>() / n, chunk.iter().map(|p| p.1).sum::<f64>() / n)
    };
    finite.chunks(stretch).map(mean).collect()
}

/// Minimum and maximum, made distinct; 0 to 1 if empty.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (min, max) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), x| (min.min(x), max.max(x)));
    match (min.is_finite(), min < max) {
        (false, _) => (0.0, 1.0),
        (true, true) => (min, max),
        (true, false) => (min, min + min.abs().max(1e-3) * 1e-3),
    }
}

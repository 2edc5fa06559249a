//! Progress display of a run: a bar on a terminal, plain aligned lines elsewhere.
//!
//! Lines go to stdout, the bar to stderr, so that a redirected stdout contains only the lines. A closed
//! stdout (`| head`) does not end a run. Under a launcher both are pipes that it copies to its terminal, in
//! no defined order: there lines go to stderr too, above the bar. Must not know: what a step does.

use std::io::{self, IsTerminal, Write as _};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use crate::telemetry::step_row::StepRow;
use crate::{human, say};

/// Number of lines between headers.
const LINES_PER_HEADER: u64 = 50;

/// Progress of training, on rank 0.
#[derive(Debug)]
pub struct Progress {
    total_steps: u64,
    start_step: u64,
    started: Instant,
    /// None without a terminal.
    bar: Option<ProgressBar>,
    /// The terminal is the launcher's.
    is_forwarded: bool,
    n_lines: u64,
}

impl Progress {
    /// A run that has done `start_step` of `total_steps`. `is_terminal`: stderr is a terminal, or is copied
    /// to one.
    pub fn new(total_steps: u64, start_step: u64, is_terminal: bool) -> Self {
        let is_forwarded = is_terminal && !io::stderr().is_terminal();
        let bar = is_terminal.then(|| {
            let target = match is_forwarded {
                true => ProgressDrawTarget::term_like_with_hz(Box::new(Forwarded), 10),
                false => ProgressDrawTarget::stderr(),
            };
            let bar = ProgressBar::with_draw_target(Some(total_steps), target).with_position(start_step);
            bar.set_style(style(&format!("{} {{pos}}/{{len}} steps  {{msg}}", colored_bar())));
            bar.tick();
            bar
        });
        Progress { total_steps, start_step, started: Instant::now(), bar, is_forwarded, n_lines: 0 }
    }

    /// Step `row.step` is done; `print` requests its line.
    pub fn step(&mut self, row: &StepRow, print: bool) {
        let eta = self.eta_seconds(row.step, self.started.elapsed().as_secs_f64());
        if let Some(bar) = &self.bar {
            let rate = human::count(row.tokens_per_s());
            bar.set_message(format!("loss {:.4}  {rate} tokens/s  {} left", row.loss, human::seconds(eta)));
            bar.set_position(row.step);
        }
        if print {
            if self.n_lines.is_multiple_of(LINES_PER_HEADER) {
                self.note(&header());
            }
            self.note(&line(row, eta));
            self.n_lines += 1;
        }
    }

    /// Prints a line without breaking the bar.
    pub fn note(&self, text: &str) {
        let print = || {
            // The reader may be gone; the files have everything.
            match self.is_forwarded {
                true => say::err(text),
                false => _ = say::out(text),
            }
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar. The lines stay.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Remaining time at the mean pace of this process, including evaluation and checkpoints; NaN before its
    /// first step.
    fn eta_seconds(&self, step: u64, elapsed_seconds: f64) -> f64 {
        let n_done = step.saturating_sub(self.start_step);
        elapsed_seconds / n_done as f64 * self.total_steps.saturating_sub(step) as f64
    }
}

/// A bar over bytes, for the scan of a large data set; nothing for a small one or without a terminal.
#[derive(Debug)]
pub struct BytesBar(Option<ProgressBar>);

impl BytesBar {
    /// Smaller scans are too fast to show.
    const SHOWN_FROM_BYTES: u64 = 256 << 20;

    /// `title` describes the operation.
    pub fn new(title: &'static str, n_bytes: u64, is_terminal: bool) -> Self {
        Self::any_size(title, n_bytes, is_terminal && n_bytes >= Self::SHOWN_FROM_BYTES)
    }

    /// For operations that are slow even on few bytes.
    pub fn any_size(title: &'static str, n_bytes: u64, is_terminal: bool) -> Self {
        BytesBar(is_terminal.then(|| {
            let bar = ProgressBar::new(n_bytes).with_message(title);
            bar.set_style(style(&format!(
                "{} {{msg}} {{bytes}} of {{total_bytes}}, {{eta}} left",
                colored_bar()
            )));
            bar
        }))
    }

    /// `n_bytes` are done. May be called from any thread, in any order.
    pub fn set(&self, n_bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(n_bytes.max(bar.position()));
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a constant template").progress_chars("=> ")
}

/// See <https://no-color.org>.
fn colored_bar() -> &'static str {
    let no_color = crate::environment::variable_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if no_color { "[{bar:30}]" } else { "[{bar:30.cyan}]" }
}

/// A terminal behind a launcher: control sequences pass through, its size is unknown here.
/// here.
#[derive(Debug)]
struct Forwarded;

impl Forwarded {
    fn put(text: std::fmt::Arguments<'_>) -> io::Result<()> {
        io::stderr().write_fmt(text)
    }

    fn move_cursor(n: usize, direction: char) -> io::Result<()> {
        if n == 0 { Ok(()) } else { Self::put(format_args!("\x1b[{n}{direction}")) }
    }
}

impl TermLike for Forwarded {
    fn width(&self) -> u16 {
        79 // padded to this width, which fits a usual terminal
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        Self::move_cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        Self::move_cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        Self::move_cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        Self::move_cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        Self::put(format_args!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        Self::put(format_args!("{text}"))
    }

    fn clear_line(&self) -> io::Result<()> {
        Self::put(format_args!("\r\x1b[2K"))
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The header of [`line()`].
fn header() -> String {
    format!(
        "{:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>7}",
        "step", "loss", "val loss", "grad norm", "lr", "ms/step", "tokens/s", "wait ms", "live peak", "left"
    )
}

/// One step in one line. Times and peak are maxima over ranks; `wait ms` is exposed communication.
fn line(row: &StepRow, eta_seconds: f64) -> String {
    let slowest = &row.ranks.max;
    format!(
        "{:>8} {:>9.4} {:>9} {:>9.4} {:>9.3e} {:>9.2} {:>9} {:>9.2} {:>10} {:>7}",
        row.step,
        row.loss,
        row.val_loss.map_or("-".into(), |loss| format!("{loss:.4}")),
        row.grad_norm,
        row.lr,
        slowest.step_ms,
        human::count(row.tokens_per_s()),
        slowest.exposed_comm_ms,
        human::bytes(slowest.live_peak_bytes as u64),
        human::seconds(eta_seconds),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::step_row::{RankStep, combine};

    fn row(step: u64) -> StepRow {
        let rank = RankStep {
            step_ms: 250.0,
            exposed_comm_ms: 1.5,
            live_peak_bytes: 3.0 * 1048576.0,
            ..RankStep::default()
        };
        StepRow {
            step,
            tokens: 8192,
            loss: 5.54321,
            grad_norm: 1.25,
            lr: 3e-4,
            ranks: combine(&[rank]),
            ..StepRow::default()
        }
    }

    #[test]
    fn a_line_stands_under_its_header_even_with_odd_numbers() {
        let mut odd = row(99_999_999);
        (odd.loss, odd.grad_norm, odd.val_loss) = (f64::NAN, f64::INFINITY, Some(11.0));
        for row in [row(1), odd] {
            assert_eq!(line(&row, 90_061.0).len(), header().len(), "{}\n{}", header(), line(&row, 90_061.0));
        }
        let shown = line(&row(12), 75.0);
        for part in
            ["12", "5.5432", " - ", "1.2500", "3.000e-4", "250.00", "32.8k", "1.50", "3.0 MiB", "1m15s"]
        {
            assert!(shown.contains(part), "{part:?} is not in {shown}");
        }
    }

    #[test]
    fn the_time_left_follows_the_pace_since_the_resume() {
        let progress = Progress::new(100, 40, false);
        assert_eq!(progress.eta_seconds(50, 20.0), 100.0);
        assert_eq!(progress.eta_seconds(100, 20.0), 0.0);
        assert!(!progress.eta_seconds(40, 1.0).is_finite());
    }

    #[test]
    fn bars_without_a_terminal_are_silent() {
        let mut progress = Progress::new(10, 0, true);
        progress.step(&row(1), false);
        progress.finish();
        let bar = BytesBar::new("reading", 1 << 40, false);
        bar.set(5);
        bar.finish();
        assert!(bar.0.is_none());
    }
}

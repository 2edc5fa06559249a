//! A forecast as text. Must not know: how it was computed.

use super::Forecast;
use super::advice::{Advice, Turn};
use crate::human;
use std::fmt;

/// Maximum number of changes listed.
const MAX_LISTED: usize = 12;

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let basis = match self.measured {
            true => "figures measured on such a machine by --calibrate",
            false => "data sheets and assumptions, not verified on such a machine",
        };
        writeln!(f, "forecast for {}: {basis}", self.hardware)?;
        writeln!(
            f,
            "  {} on {} of {}; {}, {} tokens a step",
            human::counted(self.world_size, "rank"),
            human::counted(self.n_nodes, "node"),
            self.ranks_per_node,
            human::counted(self.micro_steps, "micro-step"),
            self.tokens_per_step
        )?;
        if self.idle_ranks > 0 {
            writeln!(
                f,
                "  {} without a micro-batch in the last micro-step: raise train.global_batch_size, or use \
                 fewer ranks",
                human::counted(self.idle_ranks, "rank")
            )?;
        }
        writeln!(f, "\nmemory per rank")?;
        let verdict = if self.fits { "fits" } else { "DOES NOT FIT" };
        writeln!(
            f,
            "  needed       {:>20}  {:>10}  of {}: {verdict}",
            self.memory_bytes,
            human::bytes(self.memory_bytes),
            human::bytes(self.memory_limit_bytes)
        )?;
        writeln!(f, "\nbytes per step             received by a rank            leaving a node")?;
        for (name, received, leaving) in [
            ("all-gather", self.all_gather_bytes, self.leaving_node_all_gather_bytes),
            ("reduce-scatter", self.reduce_scatter_bytes, self.leaving_node_reduce_scatter_bytes),
        ] {
            let (r, l) = (human::bytes(received), human::bytes(leaving));
            writeln!(f, "  {name:<14} {received:>16} {r:>10}  {leaving:>16} {l:>10}")?;
        }
        writeln!(f, "\ntime per step")?;
        let mut row = |name: &str, seconds: f64, words: &str| {
            let share = 100.0 * seconds / self.step_s;
            writeln!(f, "  {name:<20} {:>12.3} ms {share:>6.1} %  {words}", seconds * 1e3)
        };
        row("compute", self.compute_s, "forward and backward alone")?;
        if self.recompute_s > 0.0 {
            row("  of it recomputed", self.recompute_s, "zero.activation_checkpointing")?;
        }
        row("all-gathers", self.gather_s, "alone")?;
        row("reductions", self.reduce_s, "alone")?;
        row("optimizer", self.optimizer_s, "norm, update, and refresh of whole parameters")?;
        row("exposed", self.exposed_comm_s, "compute waits for collectives")?;
        row("step", self.step_s, "")?;
        write!(
            f,
            "  {} tokens/s, {} a rank; MFU {:.1} %, HFU {:.1} %",
            human::count(self.tokens_per_s),
            human::count(self.tokens_per_s / self.world_size as f64),
            100.0 * self.mfu,
            100.0 * self.hfu
        )
    }
}

/// `+12.3 %`, and its side effects.
fn row(f: &mut fmt::Formatter<'_>, turn: &Turn, width: usize) -> fmt::Result {
    let Turn { change, costs, gain, forecast, remedy } = turn;
    write!(
        f,
        "  {change:<width$} {:>+7.1} % {:>10.1} {:>8.1}% {:>6.1}% {:>10}",
        100.0 * gain,
        forecast.step_s * 1e3,
        100.0 * forecast.exposed_comm_s / forecast.step_s,
        100.0 * forecast.mfu,
        human::bytes(forecast.memory_bytes)
    )?;
    if !costs.is_empty() {
        write!(f, "  {costs}")?;
    }
    if let Some(remedy) = remedy {
        let (gain, bytes) = (100.0 * remedy.gain, human::bytes(remedy.memory_bytes));
        write!(f, "  fits with {}: {gain:+.1} %, {bytes}", remedy.change)?;
    }
    writeln!(f)
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed: Vec<&Turn> = self.fits.iter().take(MAX_LISTED).collect();
        let large: Vec<&Turn> = self.too_large.iter().take(MAX_LISTED).collect();
        let width = listed.iter().chain(&large).map(|turn| turn.change.len()).max().unwrap_or(0);
        match self.first() {
            Some(turn) => writeln!(
                f,
                "change first: {}, for {:+.1} % tokens/s{}",
                turn.change,
                100.0 * turn.gain,
                if turn.costs.is_empty() { "; the results are bitwise the same" } else { "" }
            )?,
            None => writeln!(f, "no single change that fits makes it faster")?,
        }
        if let Some((turn, remedy)) = self.pair() {
            let gain = 100.0 * remedy.gain;
            writeln!(f, "or both of: {} {}, for {gain:+.1} % tokens/s", turn.change, remedy.change)?;
        }
        writeln!(
            f,
            "  {:<width$} {:>9} {:>10} {:>9} {:>7} {:>10}",
            "one key changed", "tokens/s", "step ms", "exposed", "MFU", "memory"
        )?;
        for turn in listed {
            row(f, turn, width)?;
        }
        if self.fits.len() > MAX_LISTED {
            let rest = self.fits.len() - MAX_LISTED;
            writeln!(f, "  and {rest} with no further gain: --json lists all")?;
        }
        if !large.is_empty() {
            writeln!(f, "faster, but too large for the memory")?;
            for turn in large {
                row(f, turn, width)?;
            }
        }
        Ok(())
    }
}

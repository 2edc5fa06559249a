//! A view as plain lines, for pipes, logs and `--once`.

use super::view::{Memory, RankLine, View};
use crate::foreign::on_a_line;
use crate::human;
use crate::liveness::heartbeat::Held;
use std::fmt::Write as _;

/// Number of ranks and events listed; the rest is counted.
const N_LISTED: usize = 8;

/// The whole view, without colours.
pub fn snapshot(view: &View<'_>) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: &str| {
        writeln!(out, "{:<12}{}", on_a_line(label), on_a_line(text)).expect("writing to a String")
    };
    line(&view.run, "");
    line("status", &view.status_in_words().0);
    line("job", &headline(view));
    if let Some(row) = view.rows.last() {
        let val = view
            .val_loss
            .map_or(String::new(), |(step, loss)| format!(", validation {loss:.4} at step {step}"));
        line("loss", &format!("{:.4} nats/token{val}; gradient norm {:.4}", row.loss, row.grad_norm));
        line("speed", &speed(view));
    }
    if let Some((words, _)) = view.time_in_words() {
        line("time", &words);
    }
    line("so far", &view.counts_in_words());
    if !view.memory.kinds.is_empty() {
        line("memory", &memory_head(&view.memory, Columns::All));
        for (name, held, _) in memory_rows(&view.memory, Columns::All) {
            line("", &format!("{name:<18}{held}"));
        }
    }
    for (i, rank) in view.ranks.iter().take(N_LISTED).enumerate() {
        line(if i == 0 { "ranks" } else { "" }, &rank_in_words(rank));
    }
    more(&mut line, view.ranks.len(), "ranks");
    for (i, (ago, words)) in view.happened.iter().take(N_LISTED).enumerate() {
        line(
            if i == 0 { "events" } else { "" },
            &format!("{:>7} ago  {words}", human::seconds(ago.max(0.0))),
        );
    }
    more(&mut line, view.happened.len(), "events");
    for fault in view.faults {
        line("unreadable", fault);
    }
    while out.ends_with('\n') {
        out.pop();
    }
    out.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

fn more(line: &mut impl FnMut(&str, &str), n: usize, what: &str) {
    if n > N_LISTED {
        line("", &format!("and {} more {what}", n - N_LISTED));
    }
}

/// Rank count and job id.
pub fn headline(view: &View<'_>) -> String {
    let ranks = match view.world_size {
        0 => "no rank seen yet".into(),
        n => human::counted(n, "rank"),
    };
    view.job_id.map_or(ranks.clone(), |job| format!("{ranks}, job {job}"))
}

/// Step time, tokens and waits in one line.
pub fn speed(view: &View<'_>) -> String {
    let Some(row) = view.rows.last() else { return "-".into() };
    let mut words = format!("{} tokens/s, {:.2} ms/step", human::count(row.tokens_per_s), row.step_ms_max);
    if let Some((median, p95)) = view.step_ms {
        write!(words, " (median {median:.2}, p95 {p95:.2})").expect("writing to a String");
    }
    if let Some(share) = view.exposed {
        write!(words, ", {:.0} % waiting for collectives", 100.0 * share).expect("writing to a String");
    }
    if let Some(mfu) = row.mfu {
        write!(words, ", MFU {:.1} %", 100.0 * mfu).expect("writing to a String");
    }
    if let Some(goodput) = view.goodput {
        write!(words, ", goodput {:.0} %", 100.0 * goodput).expect("writing to a String");
    }
    words
}

/// Which columns of memory fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "watch"), allow(dead_code))]
pub enum Columns {
    /// Current, peak and planned bytes.
    All,
    /// Without the peak.
    NowAndPlanned,
    /// Without the current bytes.
    PeakAndPlanned,
}

/// The columns of a line.
fn columns(which: Columns, [now, peak, planned]: [&str; 3]) -> String {
    match which {
        Columns::All => format!("{now:>10} {peak:>10} {planned:>10}"),
        Columns::NowAndPlanned => format!("{now:>9} {planned:>9}"),
        Columns::PeakAndPlanned => format!("{peak:>9} {planned:>9}"),
    }
}

/// The header of the columns of memory.
pub fn memory_head(memory: &Memory, which: Columns) -> String {
    let now = if memory.is_live { "now" } else { "" };
    format!("{:<18}{}", "fullest rank", columns(which, [now, "peak", "planned"]))
}

/// Name, columns, and whether it exceeds the plan: of each kind, and in total.
pub fn memory_rows(memory: &Memory, which: Columns) -> Vec<(String, String, bool)> {
    let row = |name: &str, held: &Held| {
        let now = if memory.is_live { human::bytes(held.now) } else { String::new() };
        let is_over = held.peak > held.planned;
        let text = columns(which, [&now, &human::bytes(held.peak), &human::bytes(held.planned)]);
        (name.to_string(), text + if is_over { " OVER" } else { "" }, is_over)
    };
    let kinds = memory.kinds.iter().map(|(kind, held)| row(kind.name(), held));
    kinds.chain([row("total", &memory.total)]).collect()
}

/// Names of units, truncated to the first ones.
pub fn few(units: &[String]) -> String {
    const N_NAMED: usize = 4;
    match units.len() {
        0 => "none".into(),
        1..=N_NAMED => units.join(" "),
        n => format!("{} and {} more", units[..N_NAMED - 1].join(" "), n + 1 - N_NAMED),
    }
}

/// One rank: its position, and its gathered units.
pub fn rank_in_words(rank: &RankLine) -> String {
    match rank.is_live {
        None => format!("{:>4}  not seen yet", rank.rank),
        Some(false) => format!(
            "{:>4}  no heartbeat for {}: on {}, last at `{}` of step {}",
            rank.rank,
            human::seconds(rank.age),
            rank.host,
            rank.what,
            rank.step
        ),
        Some(true) => {
            let stands = if rank.seconds >= 1.0 {
                format!(" for {}", human::seconds(rank.seconds))
            } else {
                String::new()
            };
            format!(
                "{:>4}  step {} {}{stands}; gathered: {}; in flight: {}",
                rank.rank,
                rank.step,
                rank.what,
                few(&rank.gathered),
                few(&rank.gathering)
            )
        }
    }
}

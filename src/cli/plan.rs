//! `zero3 plan`: the plan of a deck, and its predicted time. No MPI, no data, no device.

use super::args::{PlanArgs, PlanOf};
use super::planner::{PlannedDeck, Planner};
use crate::config::Deck;
use crate::config::hardware::Hardware;
use crate::error::{Error, Result};
use crate::files;
use crate::human;
use crate::model::Model;
use crate::plan::Plan;
use crate::plan::forecast::Forecast;
use crate::plan::forecast::advice::{Advice, advise};
use crate::plan::forecast::formula::Formula;
use crate::plan::forecast::model_size::{RULE, Shape as Sizes};
use crate::plan::forecast::sweep::{Sweep, Table};
use crate::plan::plan_table::{Paper, Shape};
use crate::train::for_kind;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// The plan of a deck's model on `n_ranks` ranks, within the deck's budget. `run.backend = "auto"` is planned
/// for CPUs; the devices of this node are not considered.
pub fn of_deck(deck: &Deck, n_ranks: usize) -> Result<(Model, Plan)> {
    let kind = deck.run.backend;
    let (model, plan) = for_kind::plan(kind, deck, n_ranks)?;
    for_kind::check_budget(kind, deck, &plan)?;
    Ok((model, plan))
}

/// The same for a deck without a rank count: its budget must be satisfied by some rank count.
pub fn of_deck_on_any_ranks(deck: &Deck) -> Result<(Model, Plan)> {
    let keeps = |&n: &usize| of_deck(deck, n).is_ok();
    let n_ranks = (0..=16).map(|k| 1 << k).find(keeps);
    of_deck(deck, n_ranks.unwrap_or(1))
}

/// The output of `--json`: the plan and its predictions.
#[derive(Serialize)]
struct Everything<'a> {
    #[serde(flatten)]
    paper: &'a Paper,
    /// The published formulas.
    formula: &'a Formula,
    /// Sizes chosen for `--params`.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen_shape: Option<Sizes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forecast: Option<&'a Forecast>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'a Advice>,
    /// If it does not fit, what would.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_fit: Option<&'a str>,
}

/// The printed plan or sweep, as text or JSON.
pub fn run(args: &PlanArgs) -> Result<String> {
    let planner = Planner::new(&args.subject, args.hardware.as_deref(), args.micro_batches_per_rank)?;
    if let Some(sweep) = &args.sweep {
        return self::sweep(args, &planner, sweep);
    }
    let n_ranks = args.n_ranks.expect("required without --sweep");
    let hardware = planner.hardware(&[])?;
    let planned = planner.plan(n_ranks, hardware.as_ref(), &[])?;
    planned.check_budget()?;
    let per_node = per_node(args.ranks_per_node, hardware.as_ref(), n_ranks);
    let paper = Paper::new(
        &planned.model.spec,
        &planned.plan,
        Shape { n_micro: planned.deck.train.n_micro(), ranks_per_node: per_node },
    );
    let formula = formula(&planner, &planned);
    let forecast = hardware.as_ref().map(|hardware| planned.forecast(hardware, per_node)).transpose()?;
    let advice = match (&hardware, &forecast) {
        (Some(hardware), Some(base)) => Some(advise(&planned.deck, n_ranks, base, &|more| {
            // A single key is varied: the batch stays as it is, wherever it is set.
            let batch =
                ("train.global_batch_size".to_owned(), planned.deck.train.global_batch_size.to_string());
            let more: Vec<_> = [batch].into_iter().chain(more.iter().cloned()).collect();
            planner.plan(n_ranks, Some(hardware), &more)?.forecast(hardware, per_node)
        })),
        _ => None,
    };
    let would_fit = forecast.as_ref().filter(|f| !f.fits).map(|f| planned.what_fits(f.memory_limit_bytes));
    if args.json {
        let everything = Everything {
            paper: &paper,
            formula: &formula,
            chosen_shape: planner.shape()?,
            forecast: forecast.as_ref(),
            advice: advice.as_ref(),
            would_fit: would_fit.as_deref(),
        };
        return Ok(serde_json::to_string_pretty(&everything).expect("plain data"));
    }
    // A deck without predictions is shown in full; with predictions the lists of parameters and instructions
    // are omitted.
    let mut text = match (&args.subject.of, &forecast) {
        (PlanOf::Deck(_), None) => paper.to_string(),
        _ => brief(&planner, &planned, &paper)?,
    };
    if !matches!(args.subject.of, PlanOf::Deck(_)) || forecast.is_some() {
        write!(text, "\n\n{formula}").expect("a string takes all");
    }
    if let Some(forecast) = &forecast {
        write!(text, "\n\n{forecast}").expect("as above");
    }
    if let Some(words) = &would_fit {
        write!(
            text,
            "\n\nto fit {}: {words}",
            human::bytes(forecast.as_ref().map_or(0, |f| f.memory_limit_bytes))
        )
        .expect("as above");
    }
    // If nothing fits there is nothing to compare.
    if let Some(advice) = advice.as_ref().filter(|advice| would_fit.is_none() || !advice.fits.is_empty()) {
        write!(text, "\n\n{}", advice.to_string().trim_end()).expect("as above");
    }
    if forecast.is_none() && !matches!(args.subject.of, PlanOf::Deck(_)) {
        text += "\n\n--hardware h100 (or another, or a file) adds times and advice; --json lists every \
                 parameter and instruction";
    }
    Ok(text)
}

/// Ranks per node: as given, or the hardware's device count, or all.
fn per_node(said: Option<usize>, hardware: Option<&Hardware>, n_ranks: usize) -> usize {
    said.unwrap_or_else(|| hardware.map_or(n_ranks, |hardware| hardware.node.devices.min(n_ranks)))
}

fn formula(planner: &Planner<'_>, planned: &PlannedDeck) -> Formula {
    let PlannedDeck { model, plan, .. } = planned;
    let bound = plan.bound(planned.deck.train.n_micro());
    let n_params = planner.count().unwrap_or(model.spec.numel() as u64);
    Formula::new(n_params, plan.world_size, &plan.knobs, bound.all_gathers, bound.reductions)
}

/// The subject of the plan, and its memory by kind.
fn brief(planner: &Planner<'_>, planned: &PlannedDeck, paper: &Paper) -> Result<String> {
    let (m, train, zero) = (&planned.deck.model, &planned.deck.train, &planned.deck.zero);
    let mut text = format!(
        "plan for {}: {} with {} parameters; {} blocks, width {}, {} heads, {} tokens a sequence, vocabulary \
         {}",
        human::counted(paper.world_size, "rank"),
        m.family,
        paper.n_params,
        m.n_layer,
        m.d_model,
        m.n_head,
        m.seq_len,
        m.vocab_size
    );
    if let (Some(count), Some(_)) = (planner.count(), planner.shape()?) {
        let off = 100.0 * (paper.n_params as f64 / count as f64 - 1.0);
        write!(text, "\n  chosen for {count} parameters, {off:+.2} %: {RULE}").expect("a string takes all");
    }
    write!(
        text,
        "\n  global batch {} in micro-batches of {}; stage {}, parameters {}, gradients {}, reduced as {}",
        train.global_batch_size,
        train.micro_batch_size,
        zero.stage,
        zero.param_dtype.name(),
        zero.grad_dtype.name(),
        zero.reduce_dtype.name()
    )
    .expect("as above");
    text += "\n\nmemory per rank, at peak";
    let row = |name: &str, bytes: u64| format!("\n  {name:<18} {bytes:>16}  {:>10}", human::bytes(bytes));
    for kind in &paper.peak_bytes_by_kind {
        text += &row(kind.kind, kind.bytes);
    }
    text += &format!("{}  at {}", row("total", paper.peak_bytes), paper.peak_at);
    text += &row("arena", paper.arena_bytes);
    text += &row("at rest", paper.resident_bytes);
    Ok(text)
}

/// Several values of one key.
fn sweep(args: &PlanArgs, planner: &Planner<'_>, sweep: &Sweep) -> Result<String> {
    let n_ranks = |value: &str| -> Result<usize> {
        let range = 1..=super::args::MAX_RANKS as usize;
        let parsed = value.parse().ok().filter(|n| range.contains(n));
        parsed.ok_or_else(|| {
            Error::Input(format!("--sweep {}={value}: a count from 1 to {}", sweep.key, range.end()))
        })
    };
    let table = match sweep.key.as_str() {
        "ranks" => {
            let hardware = planner.hardware(&[])?.expect("--sweep asks for --hardware");
            sweep.values.iter().try_for_each(|value| n_ranks(value).map(|_| ()))?;
            Table::new(sweep, |value| {
                let n = n_ranks(value)?;
                planner
                    .plan(n, Some(&hardware), &[])?
                    .forecast(&hardware, per_node(args.ranks_per_node, Some(&hardware), n))
            })
        }
        key => {
            let n = args.n_ranks.ok_or_else(|| {
                Error::Input(format!("--sweep {key}=... requires a rank count: pass --ranks N"))
            })?;
            Table::new(sweep, |value| {
                let of_node = key == "ranks_per_node";
                let more = if of_node { Vec::new() } else { vec![(key.to_owned(), value.to_owned())] };
                let hardware = planner.hardware(&more)?.expect("--sweep asks for --hardware");
                let said = if of_node { Some(n_ranks(value)?) } else { args.ranks_per_node };
                planner
                    .plan(n, Some(&hardware), &more)?
                    .forecast(&hardware, per_node(said, Some(&hardware), n))
            })
        }
    };
    if let Some(path) = &args.csv {
        files::write_output(path, table.to_csv()?.as_bytes())?;
    }
    let hardware = planner.hardware(&[])?.expect("--sweep asks for --hardware");
    if let Some(path) = &args.figure {
        draw_sweep(&table, &hardware, path)?;
    }
    if args.json {
        return Ok(serde_json::to_string_pretty(&table).expect("plain data"));
    }
    let basis = if hardware.hardware.measured {
        "measured by --calibrate"
    } else {
        "data sheets and assumptions, not verified on such a machine"
    };
    Ok(format!(
        "sweep of {} on {}: {basis}\n{}",
        sweep.key,
        hardware.hardware.name,
        table.to_string().trim_end()
    ))
}

/// The chart of a sweep as SVG, or as PNG where the file's name ends so.
#[cfg(feature = "figures")]
fn draw_sweep(table: &Table, hardware: &Hardware, path: &Path) -> Result<()> {
    let svg = table.figure(&hardware.hardware.name, hardware.hardware.measured)?.light;
    let is_png = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png"));
    files::write_output(path, &if is_png { crate::figures::png::of_svg(&svg)? } else { svg.into_bytes() })
}

#[cfg(not(feature = "figures"))]
fn draw_sweep(_: &Table, _: &Hardware, _: &Path) -> Result<()> {
    Err(crate::features::Feature::Figures.missing("zero3 plan with --figure"))
}

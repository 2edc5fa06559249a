//! The figures and the page of a run as files.
//!
//! Must not know: how a figure is drawn, what the answers are.

use super::page::Page;
use super::recorded_run::RecordedRun;
use super::wanted::Wanted;
use super::{pictures, questions};
use crate::error::{Error, Result};
use crate::figures::{Figure, png};
use crate::files;
use crate::records::Summary;
use std::path::{Path, PathBuf};

/// Writes what is wanted, once all of it is made, and returns what is said on stdout.
///
/// # Errors
/// As of [`run`](super::run).
pub fn write(run_dir: &Path, wanted: &Wanted) -> Result<String> {
    let run = RecordedRun::read(run_dir)?;
    let (figures, missing) = pictures::draw(&run)?;
    let mut files: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    if let Some(dir) = &wanted.figures {
        for figure in &figures {
            files.extend(files_of(figure, dir, wanted.png)?);
        }
    }
    if let Some(path) = &wanted.html {
        files.push((path.clone(), page_of(run_dir, &run, &figures, &missing).into_bytes()));
    }
    if let Some(dir) = &wanted.figures {
        std::fs::create_dir_all(dir).map_err(|e| Error::io("mkdir", dir, &e))?;
    }
    let mut said = match &run.summary {
        Some(summary) => questions::in_words(summary) + "\n",
        None => format!("{}: {}\n", run_dir.display(), no_summary(&run)),
    };
    for why in &missing {
        said += &format!("\nnot plotted: {why}");
    }
    for (path, bytes) in &files {
        files::write_output(path, bytes)?;
        said += &format!("\nwrote {}", path.display());
    }
    Ok(said)
}

fn files_of(figure: &Figure, dir: &Path, with_png: bool) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    for (suffix, svg) in [("", &figure.light), ("-dark", &figure.dark)] {
        let path = |ending: &str| dir.join(format!("{}{suffix}.{ending}", figure.name));
        files.push((path("svg"), svg.clone().into_bytes()));
        if with_png {
            files.push((path("png"), png::of_svg(svg)?));
        }
    }
    Ok(files)
}

fn no_summary(run: &RecordedRun) -> String {
    format!(
        "the run has no summary: it is still running, or it was killed (its log ends at step {} of {}); the \
         answers are available after its end, and SIGUSR2 makes a running job report",
        run.steps.last().map_or(0, |s| s.step),
        run.deck.train.steps
    )
}

fn page_of(run_dir: &Path, run: &RecordedRun, figures: &[Figure], missing: &[String]) -> String {
    let summary: Option<&Summary> = run.summary.as_ref();
    let five = summary.map(questions::five);
    let why = no_summary(run);
    let heading = summary.map_or_else(|| run_dir.display().to_string(), questions::heading);
    let z = &run.deck.zero;
    let mut facts: Vec<(String, String)> = vec![
        ("ranks".into(), run.world_size.to_string()),
        ("backend".into(), run.backend.name().into()),
        ("ZeRO stage".into(), z.stage.to_string()),
    ];
    if let Some(s) = summary {
        let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.4}"));
        facts.extend([
            ("parameters".into(), s.resident.n_params.to_string()),
            ("training loss, nats/token".into(), number(s.loss)),
            ("validation loss, nats/token".into(), number(s.val_loss)),
            ("tokens/s".into(), s.tokens_per_s.map_or("-".into(), |x| format!("{x:.0}"))),
            ("steps whose bytes differed from the plan".into(), s.steps_off_plan.to_string()),
            ("deck digest".into(), s.deck.clone()),
        ]);
    }
    Page {
        heading: &heading,
        facts: &facts,
        answers: five.as_ref().map_or(Err(why.as_str()), |five| Ok(five.as_slice())),
        figures,
        missing,
        deck: &run.deck.to_toml(),
    }
    .html()
}

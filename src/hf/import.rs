//! Weights of other programs as a checkpoint of step 0, for any number of ranks.
//!
//! \[Note: imported\] Its optimizer states are zero, its deck is a placeholder with the model's sizes, and
//! its data digest is empty: a run that restores it starts at step 0 with any data and settings.
//!
//! Must not know: the command line.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::names::Tensor;
use super::tensors::{self, TensorFiles};
use super::{config_json, names};
use crate::backend::Ops;
use crate::checkpoint::manifest::Optimizer;
use crate::checkpoint::write::{Values, write_file};
use crate::checkpoint::{self, Kind, Manifest, Target, check_free_space, estimate_bytes, master, prepare};
use crate::config::Locking;
use crate::error::{Error, Result};
use crate::files;
use crate::human;
use crate::model::Model;
use crate::optimizers::BYTES_PER_STATE;
use crate::params::ModelSpec;
use crate::plan::slice::owned_slices;

/// Elements of a tied head compared at once.
const BLOCK: usize = 1 << 20;

/// The result.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The source.
    pub from: PathBuf,
    /// The new step directory.
    pub to: PathBuf,
    /// Its rank count.
    pub n_ranks: usize,
    /// Parameters.
    pub psi: usize,
}

/// Writes the weights of a Hugging Face directory, or of one safetensors file with config.json beside it,
/// into the run directory `run_dir`, which may not hold checkpoints yet. `progress` is told the bytes of
/// values written and of all, optimizer states included.
///
/// # Errors
/// Every tensor that is missing, unexpected or of a wrong shape or type, at once; a head that differs from
/// the token embedding it is tied to; `run_dir` cannot be written, and then contains no checkpoint.
pub fn import<D: Ops>(
    source: &Path,
    run_dir: &Path,
    n_ranks: usize,
    progress: &dyn Fn(u64, u64),
) -> Result<Imported> {
    let dir = if source.is_dir() { source } else { source.parent().unwrap_or(Path::new(".")) };
    let config_path = dir.join("config.json");
    let config = files::read(&config_path, files::MAX_RECORD_BYTES).map_err(|e| {
        Error::Input(format!("{}: {e}; the model's config.json is required", config_path.display()))
    })?;
    let deck = config_json::to_deck(&config, &config_path.display().to_string())?;
    let model = Model::of_deck::<D>(&deck);
    let spec = &model.spec;
    let files = TensorFiles::open(source)?;
    let tensors = names::of_model(&model);
    let found = matched(source, &files, spec, &tensors)?;
    checkpoint::refuse_used(run_dir)?;
    fs::create_dir_all(run_dir).map_err(|e| Error::io("mkdir", run_dir, &e))?;
    let partial = prepare(run_dir, 0)?;

    let states = deck.optim.kind.states(&deck.optim.hyper());
    let kinds = Kind::all(states);
    let slices = |rank| owned_slices(spec.names_and_shapes(), n_ranks, rank);
    let write_all = || -> Result<PathBuf> {
        check_free_space(
            &partial,
            (0..n_ranks).map(|rank| estimate_bytes(&slices(rank), kinds.len())).sum(),
        )?;
        let mut stream = Stream {
            files: &files,
            spec,
            tensors: &tensors,
            found: &found,
            starts: Vec::new(),
            buffer: Vec::new(),
            done: 0,
            total: (kinds.len() * BYTES_PER_STATE * spec.numel()) as u64,
            progress,
        };
        let mut records = Vec::new();
        for rank in 0..n_ranks {
            let slices = slices(rank);
            stream.starts = slices.iter().map(|s| s.start).collect();
            let (dir, kinds) = (partial.as_path(), kinds.as_slice());
            let target = Target { dir, rank, world_size: n_ranks, step: 0, kinds, locking: Locking::Off };
            records.push(write_file(&target, &slices, &mut stream)?);
        }
        let optimizer = Optimizer::of(deck.optim.kind, states, 0);
        let manifest =
            Manifest { deck: deck.to_toml(), ..Manifest::of_model(spec, optimizer, n_ranks, records) };
        master::finish(run_dir, manifest)
    };
    match write_all() {
        Ok(to) => Ok(Imported { from: source.to_path_buf(), to, n_ranks, psi: spec.numel() }),
        Err(error) => {
            checkpoint::clean_up(run_dir).ok();
            Err(error)
        }
    }
}

/// The file entries of each tensor, in order; every fault at once.
fn matched(
    source: &Path,
    files: &TensorFiles,
    spec: &ModelSpec,
    tensors: &[Tensor],
) -> Result<Vec<tensors::Entry>> {
    let (mut faults, mut found) = (Vec::new(), Vec::new());
    let mut extra: Vec<&str> =
        files.entries.keys().map(String::as_str).filter(|name| !names::is_derived(name)).collect();
    let mut tied = Vec::new();
    for tensor in tensors {
        let names = [Some(tensor.name.as_str()), names::without_prefix(&tensor.name)];
        let Some((name, entry)) =
            names.into_iter().flatten().find_map(|name| files.entries.get_key_value(name))
        else {
            faults.push(format!("{} is missing", tensor.name));
            continue;
        };
        extra.retain(|other| other != name);
        if entry.shape != tensor.shape {
            faults.push(format!(
                "{name} is of shape {:?}, but {:?} according to config.json",
                entry.shape, tensor.shape
            ));
        } else if !tensors::is_float(entry.dtype) {
            faults.push(format!("{name} is of type {:?}, not F32, BF16, F16 or F64", entry.dtype));
        } else {
            // A tied head that is saved anyway must equal the tensor it is tied to.
            for (alias, _) in spec.aliases.iter().filter(|(_, param)| *param == tensor.param) {
                if let Some(other) = files.entries.get(alias) {
                    extra.retain(|name| name != alias);
                    tied.push((alias.as_str(), other, name.as_str(), entry));
                }
            }
            found.push(entry.clone());
        }
    }
    faults.extend(
        extra.iter().map(|name| format!("{name} is unexpected: the model of config.json has no such tensor")),
    );
    for (alias, a, name, b) in tied {
        if !tensors::is_float(a.dtype) || a.shape != b.shape || !are_equal(files, a, b)? {
            faults.push(format!("{alias} differs from {name}, to which config.json ties it"));
        }
    }
    if faults.is_empty() {
        return Ok(found);
    }
    let n = faults.len();
    Err(Error::Input(format!(
        "{} does not match its config.json; {n} tensors are wrong:\n  {}",
        source.display(),
        faults.join("\n  ")
    )))
}

fn are_equal(files: &TensorFiles, a: &tensors::Entry, b: &tensors::Entry) -> Result<bool> {
    let numel: usize = a.shape.iter().product();
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for from in (0..numel).step_by(BLOCK) {
        let range = from..numel.min(from + BLOCK);
        x.clear();
        y.clear();
        files.read(a, range.clone(), &mut x)?;
        files.read(b, range, &mut y)?;
        if x.iter().zip(&y).any(|(a, b)| a.to_bits() != b.to_bits()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Produces blocks of our files from theirs, through one buffer of a block.
struct Stream<'a> {
    files: &'a TensorFiles,
    spec: &'a ModelSpec,
    tensors: &'a [Tensor],
    found: &'a [tensors::Entry],
    /// First element of each parameter's slice in the file being written.
    starts: Vec<usize>,
    buffer: Vec<f32>,
    done: u64,
    /// Bytes of all values, optimizer states included.
    total: u64,
    progress: &'a dyn Fn(u64, u64),
}

impl Values for Stream<'_> {
    fn block(&mut self, slice_idx: usize, kind: Kind, range: Range<usize>) -> Result<&[f32]> {
        self.buffer.clear();
        match kind {
            Kind::Weight => {
                let start = self.starts[slice_idx];
                self.weights(slice_idx, start + range.start..start + range.end)?;
            }
            Kind::Optim(_) => self.buffer.resize(range.len(), 0.0),
        }
        self.done += 4 * range.len() as u64;
        (self.progress)(self.done, self.total);
        Ok(&self.buffer)
    }
}

impl Stream<'_> {
    /// Elements `range` of one of our parameters, appended to the buffer, from the tensors that contain its
    /// rows.
    fn weights(&mut self, param: usize, range: Range<usize>) -> Result<()> {
        let columns: usize = self.spec.params[param].shape[1..].iter().product();
        for (tensor, entry) in self.tensors.iter().zip(self.found).filter(|(t, _)| t.param == param) {
            let first = tensor.rows.start * columns;
            let from = range.start.max(first);
            let to = range.end.min(tensor.rows.end * columns);
            if from < to {
                self.part(tensor, entry, columns, from - first..to - first)?;
            }
        }
        Ok(())
    }

    fn part(
        &mut self,
        tensor: &Tensor,
        entry: &tensors::Entry,
        columns: usize,
        range: Range<usize>,
    ) -> Result<()> {
        if !tensor.is_transposed {
            let first = self.buffer.len();
            self.files.read(entry, range.clone(), &mut self.buffer)?;
            return refuse_non_finite(tensor, range.start, &self.buffer[first..]);
        }
        // Our rows are their columns: the few in the range are read from each of their rows.
        let rows = tensor.rows.len();
        let (first, end) = (range.start / columns, range.end.div_ceil(columns));
        let mut theirs = Vec::with_capacity((end - first) * columns);
        for j in 0..columns {
            let from = theirs.len();
            self.files.read(entry, j * rows + first..j * rows + end, &mut theirs)?;
            refuse_non_finite(tensor, j * rows + first, &theirs[from..])?;
        }
        let n = end - first;
        self.buffer.extend(range.map(|at| theirs[(at % columns) * n + at / columns - first]));
        Ok(())
    }
}

/// A model with a NaN value computes only NaN. `values` are elements `first` onward of their tensor.
fn refuse_non_finite(tensor: &Tensor, first: usize, values: &[f32]) -> Result<()> {
    match values.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => Err(Error::Input(format!(
            "{}: element {} is {}; a model requires finite values (of f32): export it again, from a \
             checkpoint before it diverged",
            tensor.name,
            first + at,
            values[at]
        ))),
    }
}

impl fmt::Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Imported { from, to, n_ranks, psi } = self;
        write!(
            f,
            "{} -> {}: {psi} parameters, step 0, for {}\ncontinue from it with --resume {} or \
             model.init_from={}",
            from.display(),
            to.display(),
            human::counted(*n_ranks, "rank"),
            to.display(),
            to.display()
        )
    }
}

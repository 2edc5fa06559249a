//! The state of a run: fresh or restored, and how a checkpoint represents it (`save.rs` writes one). Slices
//! move between the arena and `checkpoint/`; ranks agree on each stage.

use super::batches::Batches;
use super::changes::{Verdict, changes};
use super::stepper::Stepper;
use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm, Device};
use crate::checkpoint::manifest::{
    BY_NCCL, BY_NCCL_OF_RANKS, BY_RANK, FileRecord, IN_ORDER, Optimizer, Seeds,
};
use crate::checkpoint::{self, Kind, Manifest, Reader, Stored, WeightsFile};
use crate::config::{Deck, ReduceWhen};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::model::init;
use crate::params::{ModelSpec, ParamId};
use crate::plan::slice::owned_slices;
use crate::plan::{Plan, Slice, State};
use crate::telemetry::CommClass;
use crate::test_hooks;
use crate::zero::Shards;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Where a run starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// The newest complete checkpoint of the run directory, or from scratch.
    Auto,
    /// From scratch; existing files of the run directory are archived.
    Scratch,
    /// A run or step directory.
    Path(PathBuf),
}

/// Progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Optimizer updates made.
    pub step: u64,
    /// Steps tried, skipped ones included.
    pub attempts: u64,
    /// Next global sample index.
    pub samples: u64,
    /// Tokens seen.
    pub tokens: u64,
}

/// The states of each parameter in a checkpoint of this run.
pub(super) fn stored(plan: &Plan) -> Vec<Kind> {
    Kind::all(plan.knobs.optim_states)
}

/// Where a rank stores a checkpoint's `kind`: weights are the fp32 masters if there are any.
fn state_of(kind: Kind, shards: &Shards, param: ParamId) -> State {
    match kind {
        Kind::Weight if shards.exists(param, State::Master) => State::Master,
        Kind::Weight => State::Param,
        Kind::Optim(state) => State::Optim(state),
    }
}

/// Fills the owned elements of each of `kinds`, parameter by parameter: `read` is given the slice and as many
/// values to overwrite as it has elements. Parameters of lower precision are rounded from fp32.
///
/// # Errors
/// The first one of `read` or of the device; the states are then part old, part new.
pub(super) fn for_each_owned_slice<B: Backend>(
    stepper: &mut Stepper<'_, B>,
    kinds: &[Kind],
    mut read: impl FnMut(ParamId, Slice<'_>, Kind, &mut [f32]) -> Result<()>,
) -> Result<()> {
    let (model, world_size, rank) = (stepper.model, stepper.comm.size(), stepper.comm.rank());
    let mut values = Vec::new();
    for (p, slice) in owned_slices(model.spec.names_and_shapes(), world_size, rank).into_iter().enumerate() {
        values.clear();
        values.resize(slice.numel(), 0.0);
        for &kind in kinds {
            read(p, slice, kind, &mut values)?;
            fill(stepper, p, kind, &values)?;
        }
    }
    Ok(())
}

/// Fills the owned elements of a state, and the parameter that is computed with from its master.
fn fill<B: Backend>(stepper: &mut Stepper<'_, B>, param: ParamId, kind: Kind, values: &[f32]) -> Result<()> {
    let Stepper { device, shards, .. } = stepper;
    let state = state_of(kind, shards, param);
    let owned = shards.owned_mut(param, state);
    match owned.dtype() {
        // A model that does not train has no masters.
        DType::Bf16 => {
            let rounded: Vec<half::bf16> = values.iter().map(|&x| half::bf16::from_f32(x)).collect();
            device.upload(owned, bytemuck::cast_slice(&rounded))?;
        }
        _ => device.upload(owned, bytemuck::cast_slice(values))?,
    }
    if state == State::Master {
        shards.round_master(*device, param);
    }
    Ok(())
}

/// Completes what every rank holds whole, after the owned elements of every state have been filled.
/// Collective.
fn make_whole<B: Backend>(stepper: &mut Stepper<'_, B>) -> Result<()> {
    State::ALL
        .into_iter()
        .filter(|&state| state != State::Grad)
        .try_for_each(|state| stepper.refresh(state, CommClass::Control))
}

/// A file or directory that records a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedStep {
    /// The step directory of a checkpoint, or a file.
    #[serde(with = "crate::foreign::paths::exact")]
    pub path: PathBuf,
    /// Optimizer updates made so far.
    pub step: u64,
}

/// The checkpoint to restore; none for a start from scratch.
///
/// # Errors
/// The checkpoint that `start` names does not exist, is incomplete, or is damaged.
pub fn find(run_dir: &Path, start: &Start) -> Result<Option<RecordedStep>> {
    let dir = match start {
        Start::Auto => checkpoint::newest(run_dir)?.map(|(_, dir)| dir),
        Start::Scratch => None,
        Start::Path(path) => Some(checkpoint::resolve(path)?),
    };
    dir.map(|path| {
        let step = checkpoint::find::read_manifest(&path)?.step;
        Ok(RecordedStep { path, step })
    })
    .transpose()
}

/// Checks, for a dry run, that the checkpoint to start from exists and fits.
///
/// # Errors
/// It does not exist, is damaged, or is of a different model, different data or a different sequence of
/// samples.
pub fn check_start(deck: &Deck, start: &Start, spec: &ModelSpec, data_digest: &str) -> Result<()> {
    match find(Path::new(&deck.run.dir), start)? {
        Some(found) if found.step >= deck.train.steps => Ok(()),
        Some(RecordedStep { path, .. }) => {
            check_fits(&path, &checkpoint::find::read_manifest(&path)?, spec, deck, data_digest)
        }
        None if deck.model.init_from.is_empty() => Ok(()),
        None => open_weights(&deck.model.init_from, spec).map(|_| ()),
    }
}

/// The source of initial weights, other than the generator.
enum Weights {
    /// An HDF5 file of another program.
    File(WeightsFile),
    /// A checkpoint, and the kind of values to read: weights, unless another group of its `model.h5` was
    /// named.
    Checkpoint(Box<Reader>, Kind),
}

impl Weights {
    fn read(&mut self, name: &str, range: std::ops::Range<usize>, out: &mut [f32]) -> Result<()> {
        match self {
            Weights::File(file) => file.read(name, range, out),
            Weights::Checkpoint(reader, kind) => reader.read(name, *kind, range, out),
        }
    }
}

fn open_weights(from: &str, spec: &ModelSpec) -> Result<Weights> {
    let of_checkpoint = match Path::new(from).is_dir() {
        true => Some((checkpoint::resolve(Path::new(from))?, Kind::Weight)),
        false => checkpoint::weights_file::view_of_checkpoint(from),
    };
    if let Some((dir, kind)) = of_checkpoint {
        let reader = Reader::open(&dir)?;
        let faults = unlike(reader.manifest(), spec);
        return match faults.is_empty() {
            true => Ok(Weights::Checkpoint(Box::new(reader), kind)),
            false => Err(Error::Input(format!(
                "model.init_from = {from}: different model:\n  {}",
                faults.join("\n  ")
            ))),
        };
    }
    let wanted: Vec<(&str, &[usize])> = spec.names_and_shapes().collect();
    WeightsFile::open(from, &wanted).map(Weights::File)
}

/// Fills the slices with initial weights: from `model.init_from`, or from the generator.
///
/// # Errors
/// `model.init_from` does not exist, is damaged, or is of a different model: the same on every rank.
pub fn initialise<B: Backend>(stepper: &mut Stepper<'_, B>, deck: &Deck) -> Result<()> {
    let spec = &stepper.model.spec;
    let from = &deck.model.init_from;
    let mut file = if from.is_empty() {
        None
    } else {
        let mut file = None;
        all_or_none(stepper.comm, open_weights(from, spec).map(|f| _ = file.insert(f)))?;
        file
    };
    let filled = for_each_owned_slice(stepper, &[Kind::Weight], |p, slice, _, values| match &mut file {
        Some(file) => file.read(slice.param, slice.range(), values),
        None => {
            init::fill(&spec.params[p], deck.model.init_seed, slice.range(), values);
            Ok(())
        }
    });
    all_or_none(stepper.comm, filled)?;
    make_whole(stepper)
}

/// Reads this rank's slices from a checkpoint of any rank count.
///
/// # Errors
/// Those of [`check_start`], and damage found while values are read: the same on every rank.
pub fn restore<B: Backend>(
    stepper: &mut Stepper<'_, B>,
    deck: &Deck,
    batches: &Batches,
    dir: &Path,
) -> Result<Position> {
    let mut reader = None;
    all_or_none(stepper.comm, Reader::open_with(dir, deck.checkpoint.locking).map(|r| _ = reader.insert(r)))?;
    let mut reader = reader.expect("no rank failed");
    let manifest = reader.manifest().clone();
    check_fits(dir, &manifest, &stepper.model.spec, deck, &batches.digest)?;
    let read = restore_slices(stepper, &mut reader).map_err(|error| match error {
        Error::Checkpoint(why) => {
            Error::Checkpoint(format!("{why}; {}", checkpoint::find::instead_of(dir, manifest.step)))
        }
        other => other,
    });
    let read_bytes = all_or_none(stepper.comm, read.map(|()| reader.bytes_read()))?;
    make_whole(stepper)?;
    if stepper.comm.rank() == 0 {
        let is_imported = is_imported(&manifest);
        let other_data = manifest.data_digest != batches.digest && !is_imported;
        if other_data {
            log::warn!(
                "the data differ from those the checkpoint was trained on; allowed by data.allow_changed"
            );
        }
        log::info!(
            "restored step {} from {} (written by {} ranks; {} bytes of values read, at most {} by one rank)",
            manifest.step,
            dir.display(),
            manifest.world_size,
            read_bytes.iter().sum::<u64>(),
            read_bytes.iter().max().expect("this rank at least")
        );
        for change in changes(&manifest.deck, deck).into_iter().filter(|_| !is_imported) {
            match change.verdict {
                // Paths do not matter, but the files have changed.
                Verdict::Free if other_data && change.key == "data.train" => {
                    log::warn!("deck changed since the checkpoint, allowed by data.allow_changed: {change}")
                }
                Verdict::Free => {
                    log::info!("deck changed since the checkpoint, with no effect on the result: {change}")
                }
                Verdict::Course => {
                    log::info!("deck changed since the checkpoint, the new value applies: {change}")
                }
                Verdict::Data | Verdict::Model => {
                    log::warn!("deck changed since the checkpoint, allowed by data.allow_changed: {change}")
                }
            }
        }
    }
    test_hooks::add_to_job(manifest.test_hooks.iter().cloned());
    let Manifest { step, attempts, samples, tokens, .. } = manifest;
    Ok(Position { step, attempts, samples, tokens })
}

/// A state missing from the checkpoint remains zero, as before the first update.
fn restore_slices<B: Backend>(stepper: &mut Stepper<'_, B>, reader: &mut Reader) -> Result<()> {
    let held = reader.manifest().kinds();
    let kinds: Vec<Kind> = stored(stepper.plan).into_iter().filter(|kind| held.contains(kind)).collect();
    for_each_owned_slice(stepper, &kinds, |_, slice, kind, values| {
        reader.read(slice.param, kind, slice.range(), values)
    })
}

/// Weights not trained by this program yet: \[Note: imported\] in hf/import.rs.
fn is_imported(manifest: &Manifest) -> bool {
    manifest.step == 0 && manifest.data_digest.is_empty()
}

/// The checkpoint is of this model and, unless the deck allows otherwise, of these data.
fn check_fits(
    dir: &Path,
    manifest: &Manifest,
    spec: &ModelSpec,
    deck: &Deck,
    data_digest: &str,
) -> Result<()> {
    let mut faults = unlike(manifest, spec);
    let is_imported = is_imported(manifest);
    let (kind, theirs) = (deck.optim.kind, &manifest.optimizer.name);
    // Untrained weights have no state to lose.
    if kind.name() != theirs && !is_imported {
        faults.push(format!(
            "optim.kind is {kind}, but the checkpoint has the optimizer state of {theirs}: set \
             optim.kind={theirs}, or start a new run of {kind} from its weights with a different run.dir and \
             model.init_from={}",
            dir.display()
        ));
    }
    if manifest.data_digest != data_digest && !deck.data.allow_changed && !is_imported {
        faults.push(format!(
            "the data differ: digest {data_digest} now, {} in the checkpoint; restore the files, or set \
             data.allow_changed=true",
            manifest.data_digest
        ));
    }
    for change in changes(&manifest.deck, deck) {
        match change.verdict {
            Verdict::Free | Verdict::Course => {}
            Verdict::Data if deck.data.allow_changed || is_imported => {}
            Verdict::Data => faults.push(format!(
                "{change}: different sequence of samples; restore the value, or set data.allow_changed=true"
            )),
            Verdict::Model => {
                faults.push(format!("{change}: different model; restore the value, or start a new run"))
            }
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(Error::Checkpoint(format!(
        "{} does not fit this run:\n  {}\nset a different run.dir, restore the deck of the checkpoint, or \
         start over with --resume none",
        dir.display(),
        faults.join("\n  ")
    )))
}

/// Parameters that differ between the checkpoint and the model.
pub(super) fn unlike(manifest: &Manifest, spec: &ModelSpec) -> Vec<String> {
    let mut faults = Vec::new();
    for param in &spec.params {
        match manifest.params.iter().find(|p| p.name == param.name) {
            None => faults.push(format!("{} is not in the checkpoint", param.name)),
            Some(p) if p.global_shape != param.shape => {
                faults.push(format!(
                    "{} is {:?} in the checkpoint and {:?} in the deck",
                    param.name, p.global_shape, param.shape
                ));
            }
            Some(_) => {}
        }
    }
    for p in manifest.params.iter().filter(|p| !spec.params.iter().any(|q| q.name == p.name)) {
        faults.push(format!("{} is in the checkpoint but not in the deck's model", p.name));
    }
    faults
}

/// Bytes that `rank` writes in a save.
pub fn saved_bytes(plan: &Plan, rank: usize) -> u64 {
    let bytes = plan.saved_bytes_per_param();
    plan.partitions.iter().map(|p| (bytes * p.shard_range(rank).len()) as u64).sum()
}

/// This rank's part of a checkpoint, by parameter: borrowed if the host can access it.
pub(super) fn owned<'a, B: Backend>(stepper: &'a Stepper<'_, B>) -> Result<Vec<Stored<Cow<'a, [f32]>>>> {
    let kinds = stored(stepper.plan);
    let read = |p, kind| stepper.device.read(stepper.shards.owned(p, state_of(kind, &stepper.shards, p)));
    let params = 0..stepper.model.spec.params.len();
    params.map(|p| Stored::of(&kinds, |kind| read(p, kind)).transposed()).collect()
}

/// How a step of this deck adds gradient contributions on `world_size` ranks. A rank with at most one
/// micro-batch has nothing to add up locally.
fn reduction_order(deck: &Deck, world_size: usize) -> &'static str {
    let n_micro = deck.train.n_micro();
    let ranks_first = deck.zero.reduce == ReduceWhen::LastMicroStep && world_size < n_micro;
    match (deck.zero.deterministic, world_size) {
        (_, 1) => IN_ORDER,
        (true, _) if ranks_first => BY_RANK,
        (true, _) => IN_ORDER,
        (false, _) if ranks_first => BY_NCCL_OF_RANKS,
        (false, _) => BY_NCCL,
    }
}

/// Everything in a checkpoint except its values.
pub(super) fn manifest(
    spec: &ModelSpec,
    world_size: usize,
    deck: &Deck,
    batches: &Batches,
    at: Position,
    files: Vec<FileRecord>,
) -> Manifest {
    let states = deck.optim.kind.states(&deck.optim.hyper());
    let optimizer = Optimizer::of(deck.optim.kind, states, at.step);
    Manifest {
        step: at.step,
        attempts: at.attempts,
        samples: at.samples,
        tokens: at.tokens,
        data_digest: batches.digest.clone(),
        seeds: Seeds { init_seed: deck.model.init_seed, data_seed: deck.data.seed },
        deck: deck.to_toml(),
        reduction_order: reduction_order(deck, world_size).into(),
        test_hooks: test_hooks::of_job(),
        ..Manifest::of_model(spec, optimizer, world_size, files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_order_of_reduction_is_the_one_that_is_run() {
        let text = "
            run.dir = 'runs/a'
            data.train = ['a.txt']
            train.steps = 10
            [model]
            n_layer = 2
            n_head = 2
            d_model = 8
            seq_len = 8
        ";
        // 3 micro-batches: on 3 ranks and more none has two of them.
        let batch = [("train.global_batch_size", "6"), ("train.micro_batch_size", "2")];
        let batch = batch.map(|(key, value)| (key.to_string(), value.to_string()));
        let mut deck = Deck::parse(text, &batch, "a test").unwrap();
        let mut orders = |reduce, deterministic| {
            (deck.zero.reduce, deck.zero.deterministic) = (reduce, deterministic);
            [1, 2, 3, 5].map(|n| reduction_order(&deck, n))
        };
        assert_eq!(orders(ReduceWhen::EveryMicroStep, true), [IN_ORDER; 4]);
        assert_eq!(orders(ReduceWhen::LastMicroStep, true), [IN_ORDER, BY_RANK, IN_ORDER, IN_ORDER]);
        assert_eq!(orders(ReduceWhen::EveryMicroStep, false), [IN_ORDER, BY_NCCL, BY_NCCL, BY_NCCL]);
        assert_eq!(orders(ReduceWhen::LastMicroStep, false), [IN_ORDER, BY_NCCL_OF_RANKS, BY_NCCL, BY_NCCL]);
    }
}

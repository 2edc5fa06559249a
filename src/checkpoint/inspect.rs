//! The contents of a checkpoint, as a table for users and as JSON for scripts.
//!
//! Must not know: HDF5. The manifest and the sizes on disk contain everything.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::find;
use super::manifest::{Alias, ExtraFile, MeshDim, Optimizer, Seeds, Writer};
use crate::error::Result;

/// The contents of a complete checkpoint, without the values. `Display` is the table, `Serialize` the JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// The step directory.
    #[serde(with = "crate::foreign::paths::lossy")]
    pub path: PathBuf,
    /// Version of the format.
    pub format_version: u32,
    /// Features a reader must support.
    pub required_features: Vec<String>,
    /// The program that wrote it.
    pub writer: Option<Writer>,
    /// Optimizer step.
    pub step: u64,
    /// Training attempts, skipped steps included.
    pub attempts: u64,
    /// Global sample index reached.
    pub samples: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Digest of the training data.
    pub data_digest: String,
    /// Seeds.
    pub seeds: Seeds,
    /// Parameters Psi, without padding.
    pub psi: usize,
    /// Ranks N of the shard group that wrote it.
    pub world_size: usize,
    /// The mesh.
    pub mesh: Vec<MeshDim>,
    /// Order in which gradient contributions were added.
    pub reduction_order: String,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Parameters, in the model's order.
    pub params: Vec<InspectedParam>,
    /// Second names of parameters.
    pub aliases: Vec<Alias>,
    /// Files.
    pub files: Vec<InspectedFile>,
    /// Files not required by a restore.
    pub extra_files: Vec<ExtraFile>,
    /// Bytes of all files with slices.
    pub total_bytes: u64,
    /// The resolved deck as TOML text.
    pub deck: String,
}

/// One parameter.
#[derive(Debug, Clone, Serialize)]
pub struct InspectedParam {
    /// Name.
    pub name: String,
    /// Shape of the whole parameter.
    pub shape: Vec<usize>,
    /// Elements.
    pub numel: usize,
    /// Slices that are not empty.
    pub n_slices: usize,
    /// Weight decay applies.
    pub decay: bool,
}

/// One rank's file.
#[derive(Debug, Clone, Serialize)]
pub struct InspectedFile {
    /// File name.
    pub name: String,
    /// Rank that wrote it.
    pub rank: usize,
    /// Size.
    pub bytes: u64,
    /// Parameter elements in it.
    pub numel: usize,
}

/// Inspects the checkpoint that `path` refers to: a step, checkpoints or run directory. Values are not read.
///
/// # Errors
/// There is no complete checkpoint.
pub fn inspect(path: &Path) -> Result<Inspection> {
    find::retrying(path, find::resolve, inspect_step)
}

fn inspect_step(dir: &Path) -> Result<Inspection> {
    let dir = dir.to_path_buf();
    let m = find::check_complete(&dir)?;
    let placed = m.placed();
    let params = m
        .params
        .iter()
        .map(|p| InspectedParam {
            name: p.name.clone(),
            shape: p.global_shape.clone(),
            numel: p.numel,
            n_slices: placed[p.name.as_str()].len(),
            decay: p.decay,
        })
        .collect();
    let files: Vec<InspectedFile> = m
        .files
        .iter()
        .map(|f| InspectedFile {
            name: f.name.clone(),
            rank: f.rank,
            bytes: f.bytes,
            numel: f.slices.iter().map(|s| s.numel()).sum(),
        })
        .collect();
    Ok(Inspection {
        path: dir,
        params,
        total_bytes: files.iter().map(|f| f.bytes).sum(),
        files,
        extra_files: m.extra_files,
        format_version: m.format_version,
        required_features: m.required_features,
        writer: m.writer,
        step: m.step,
        attempts: m.attempts,
        samples: m.samples,
        tokens: m.tokens,
        data_digest: m.data_digest,
        seeds: m.seeds,
        psi: m.psi,
        world_size: m.world_size,
        mesh: m.mesh,
        reduction_order: m.reduction_order,
        optimizer: m.optimizer,
        aliases: m.aliases,
        deck: m.deck,
    })
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mesh: Vec<String> = self.mesh.iter().map(|d| format!("{} {}", d.dim, d.extent)).collect();
        let writer =
            self.writer.as_ref().map_or("unknown".to_string(), |w| format!("{} {}", w.program, w.version));
        writeln!(f, "checkpoint   {}", self.path.display())?;
        writeln!(f, "format       version {}, written by {writer}", self.format_version)?;
        if !self.required_features.is_empty() {
            writeln!(f, "requires     {}", self.required_features.join(", "))?;
        }
        writeln!(f, "step         {} ({} attempts)", self.step, self.attempts)?;
        writeln!(f, "data         {} samples, {} tokens", self.samples, self.tokens)?;
        let kept: Vec<&str> = self.optimizer.states.iter().map(|state| state.name()).collect();
        let kept = if kept.is_empty() { "nothing".into() } else { kept.join(", ") };
        writeln!(f, "optimizer    {}, {} updates, states: {kept}", self.optimizer.name, self.optimizer.step)?;
        writeln!(f, "parameters   {} (Psi) in {}", self.psi, self.params.len())?;
        writeln!(f, "ranks        {} (mesh: {})", self.world_size, mesh.join(", "))?;
        writeln!(f, "reduction    {}", self.reduction_order)?;

        let shapes: Vec<String> = self.params.iter().map(|p| format!("{:?}", p.shape)).collect();
        let width =
            |texts: &mut dyn Iterator<Item = usize>, least: usize| texts.max().unwrap_or(0).max(least);
        let name_width = width(&mut self.params.iter().map(|p| p.name.chars().count()), 9);
        let shape_width = width(&mut shapes.iter().map(String::len), 5);
        writeln!(f)?;
        writeln!(
            f,
            "{:name_width$}  {:shape_width$}  {:>12}  {:>6}  decay",
            "parameter", "shape", "numel", "slices"
        )?;
        for (param, shape) in self.params.iter().zip(&shapes) {
            writeln!(
                f,
                "{:name_width$}  {shape:shape_width$}  {:>12}  {:>6}  {}",
                param.name,
                param.numel,
                param.n_slices,
                if param.decay { "yes" } else { "no" }
            )?;
        }
        for alias in &self.aliases {
            writeln!(f, "{:name_width$}  = {}", alias.name, alias.param)?;
        }

        let file_width = width(&mut self.files.iter().map(|f| f.name.chars().count()), 5);
        writeln!(f)?;
        writeln!(f, "{:file_width$}  {:>12}  {:>14}", "file", "numel", "bytes")?;
        for file in &self.files {
            writeln!(f, "{:file_width$}  {:>12}  {:>14}", file.name, file.numel, file.bytes)?;
        }
        write!(f, "{:file_width$}  {:>12}  {:>14}", "total", self.psi, self.total_bytes)
    }
}

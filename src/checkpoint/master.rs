//! `model.h5`: every parameter whole, for standard HDF5 tools. Virtual datasets over the rank files; it
//! contains no values.
//!
//! \[Note: never for the loader\] A virtual dataset reads as zeros, without an error, if a source file is
//! missing or truncated. So this program never reads it, a restore does not require it, and its loss does not
//! damage the state.
//!
//! The sources are named without a directory, and HDF5 (1.10.2 and later) looks for them next to the master
//! file: it may be opened from anywhere, and the step directory may be moved.

use std::path::Path;

use hdf5::{Hyperslab, SliceOrIndex};

use super::manifest::{ExtraFile, Manifest, Param};
use super::slice_map::Placed;
use super::weights_file::boxes;
use super::{Kind, MASTER_FILE, commit, h5, write};
use crate::error::{Error, Result};
use crate::files;
use crate::test_hooks::write_point;
use hdf5::types::VarLenUnicode;
use std::path::PathBuf;

/// Maximum number of mappings: with thousands of ranks the master file would cost more than it is worth.
pub const MAX_MAPPINGS: usize = 200_000;

/// Size of a virtual dataset on disk: object header, attributes, its entry in the group.
const BYTES_PER_DATASET: u64 = 1024;
/// Size of a mapping: the names of file and dataset, and two selections.
const BYTES_PER_MAPPING: u64 = 256;
/// Size of the rest of the file.
const BYTES_PER_FILE: u64 = 16 << 10;

/// The last step of a save, on rank 0, when every rank's file is durable: writes the master file, then
/// commits ([`commit`](mod@super::commit)). Returns the step directory.
///
/// # Errors
/// Failures of the file system.
pub fn finish(run_dir: &Path, mut manifest: Manifest) -> Result<PathBuf> {
    let partial = super::partial_dir(run_dir, manifest.step);
    manifest.extra_files.clear();
    manifest.extra_files.extend(write_master(&partial, &manifest)?);
    commit::commit(run_dir, &manifest)
}

/// Writes `dir/model.h5` and returns its record once it is durable; None if it would require more than
/// [`MAX_MAPPINGS`] mappings.
pub fn write_master(dir: &Path, manifest: &Manifest) -> Result<Option<ExtraFile>> {
    let (placed, n_kinds) = (manifest.placed(), manifest.kinds().len());
    let n_mappings: usize = manifest
        .params
        .iter()
        .map(|p| placed[p.name.as_str()].len() * (2 * p.global_shape.len()).saturating_sub(1).max(1))
        .sum::<usize>()
        * n_kinds;
    if n_mappings > MAX_MAPPINGS {
        log::info!(
            "no {MASTER_FILE}: up to {n_mappings} mappings would be required, more than \
                    {MAX_MAPPINGS}"
        );
        return Ok(None);
    }
    let path = dir.join(MASTER_FILE);
    let failed = |what: String| {
        let n_datasets = (n_kinds * manifest.params.len()) as u64;
        let needed_bytes =
            BYTES_PER_FILE + BYTES_PER_DATASET * n_datasets + BYTES_PER_MAPPING * n_mappings as u64;
        Error::Io(format!(
            "writing checkpoint file {} (up to about {needed_bytes} bytes): {what}",
            path.display()
        ))
    };
    make(&path, manifest, &placed).map_err(|e| failed(h5::one_line(&e)))?;
    let mut file = files::open(&path).map_err(|e| failed(e.to_string()))?;
    let (bytes, digest) = write::digest_file(&mut file).map_err(|e| failed(e.to_string()))?;
    write_point("master.written", 0, manifest.step).map_err(|e| failed(e.to_string()))?;
    files::sync(&file, &path).map_err(|e| failed(e.to_string()))?;
    Ok(Some(ExtraFile { name: MASTER_FILE.to_string(), bytes, digest }))
}

fn make(
    path: &Path,
    manifest: &Manifest,
    placed: &std::collections::HashMap<&str, Vec<Placed>>,
) -> hdf5::Result<()> {
    let file = h5::create(path)?;
    let about = format!(
        "zero3 checkpoint, step {}: every parameter whole, mapped from the rank files next to this file \
         (zeros if one is missing)",
        manifest.step
    );
    let about: VarLenUnicode = about.parse().expect("letters and numbers hold no NUL");
    file.new_attr::<VarLenUnicode>().create("about")?.write_scalar(&about)?;
    file.new_attr::<u64>().create("step")?.write_scalar(&manifest.step)?;
    for kind in manifest.kinds() {
        let group = h5::create_group(&file, kind.group())?;
        for param in &manifest.params {
            show(&group, manifest, kind, param, &placed[param.name.as_str()])?;
        }
        for alias in &manifest.aliases {
            group.link_hard(&alias.param, &alias.name)?;
        }
    }
    file.flush()?;
    file.close()
}

/// One virtual dataset. Each slice becomes the few boxes of the parameter that make up its flat range.
fn show(
    group: &hdf5::Group,
    manifest: &Manifest,
    kind: Kind,
    param: &Param,
    placed: &[Placed],
) -> hdf5::Result<()> {
    // A virtual dataset cannot be a scalar.
    let shape = if param.global_shape.is_empty() { vec![1] } else { param.global_shape.clone() };
    let mut builder = group.new_dataset::<f32>();
    if placed.is_empty() {
        builder.shape(shape).create(param.name.as_str())?;
        return Ok(());
    }
    let source = format!("{}/{}", kind.group(), param.name);
    for slice in placed {
        let file = manifest.files[slice.file_idx].name.as_str();
        let mut at = 0;
        for window in boxes(&shape, slice.start..slice.end) {
            let numel: usize = window.iter().map(|r| r.len()).product();
            let slab: Vec<SliceOrIndex> = window.into_iter().map(SliceOrIndex::from).collect();
            let from = Hyperslab::from(at..at + numel);
            builder = builder.virtual_map(
                file,
                source.as_str(),
                slice.end - slice.start,
                from,
                shape.clone(),
                Hyperslab::from(slab),
            );
            at += numel;
        }
    }
    builder.shape(shape).create(param.name.as_str())?;
    Ok(())
}

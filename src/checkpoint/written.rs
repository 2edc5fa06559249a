//! Whether the values of somebody's dataset are there. HDF5 gives zeros, without an error, for chunks that were never written, and for
//! whatever a virtual dataset shows of files that are missing or cut short.
//!
//! Must not know: whose dataset it is, and for what it is read.

use std::path::{Path, PathBuf};

use hdf5::plist::dataset_create::{Layout, VirtualMapping};

use super::h5;

/// The library reads a chunk as a whole; one that is longer than this, and than all of its dataset, is not read at all.
const MAX_CHUNK_BYTES: u64 = 64 << 20;
/// Virtual datasets of virtual datasets, at most so deep.
const MAX_DEPTH: usize = 8;

/// Fails where a value of `dataset` was never written, or lies in a file that is missing, cut short or of another shape: with what is
/// missing, and in which file.
pub(super) fn check(dataset: &hdf5::Dataset) -> Result<(), String> {
    check_to_depth(dataset, 0)
}

fn check_to_depth(dataset: &hdf5::Dataset, depth: usize) -> Result<(), String> {
    let said = |e: hdf5::Error| h5::one_line(&e);
    let shape = dataset.space().map_err(said)?.shape();
    let numel = numel_of(&shape).ok_or_else(|| format!("shape {shape:?} overflows"))?;
    if numel == 0 {
        return Ok(());
    }
    let value_bytes = dataset.dtype().map_err(said)?.size() as u64;
    let properties = dataset.dcpl().map_err(said)?;
    if let Some(file) = properties.external().first() {
        return Err(format!(
            "its values are in another file, {}, without a name in this one; copy them in with h5repack",
            file.name
        ));
    }
    match properties.layout() {
        Layout::Contiguous | Layout::Compact => match dataset.storage_size() {
            stored if stored >= numel as u64 * value_bytes => Ok(()),
            0 => Err("declared, and never written".into()),
            stored => Err(format!("{stored} of {} bytes are stored", numel as u64 * value_bytes)),
        },
        Layout::Chunked => {
            let chunk = properties.chunk().ok_or("the library does not say how it is chunked")?;
            let chunk_bytes = chunk.iter().try_fold(value_bytes, |n, &d| n.checked_mul(d as u64)).unwrap_or(u64::MAX);
            if chunk_bytes > MAX_CHUNK_BYTES && chunk_bytes > numel as u64 * value_bytes {
                return Err(format!(
                    "its chunks have {chunk_bytes} bytes, more than all of its {} bytes; h5repack can cut it anew",
                    numel as u64 * value_bytes
                ));
            }
            let expected: usize = shape.iter().zip(&chunk).map(|(&n, &c)| n.div_ceil(c.max(1))).product();
            match dataset.num_chunks().unwrap_or(0) {
                found if found >= expected => Ok(()),
                0 => Err("declared, and never written".into()),
                found => Err(format!("{found} of its {expected} chunks were written")),
            }
        }
        Layout::Virtual => check_sources(dataset, numel, properties.virtual_map(), depth),
    }
}

fn check_sources(
    dataset: &hdf5::Dataset,
    numel: usize,
    mappings: Vec<VirtualMapping>,
    depth: usize,
) -> Result<(), String> {
    if depth == MAX_DEPTH {
        return Err(format!("a view of a view, {MAX_DEPTH} times over"));
    }
    let here = PathBuf::from(dataset.filename());
    let dir = here.parent().unwrap_or(Path::new("."));
    let mut n_shown = 0usize;
    for mapping in mappings {
        let path = if mapping.src_filename == "." { here.clone() } else { dir.join(&mapping.src_filename) };
        let no = |why: String| format!("shown from {} of {}: {why}", mapping.src_dataset, path.display());
        let shown = mapping.vds_selection.out_shape(mapping.vds_extents.dims()).map_err(|e| no(h5::one_line(&e)))?;
        n_shown = n_shown.saturating_add(numel_of(&shown).unwrap_or(usize::MAX));
        let file = h5::open(&path).map_err(|e| no(h5::one_line(&e)))?;
        let source = file.dataset(&mapping.src_dataset).map_err(|_| no("there is no such dataset".into()))?;
        // The mapping need not say the shape of a source that was never opened: what it takes has to be there.
        let found = source.shape();
        let taken = mapping.src_selection.out_shape(&found).ok().and_then(|taken| numel_of(&taken));
        if taken != numel_of(&shown) {
            return Err(no(format!("of shape {found:?}, too small for what the view shows")));
        }
        check_to_depth(&source, depth + 1).map_err(no)?;
    }
    match n_shown >= numel {
        true => Ok(()),
        false => Err(format!("a view that shows {n_shown} of its {numel} elements")),
    }
}

/// Elements of a shape, unless they overflow.
fn numel_of(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

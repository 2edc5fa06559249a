//! Whether the values of a foreign dataset exist. HDF5 reads zeros, without an error, for chunks that were
//! never written, and for the parts of a virtual dataset whose files are missing or truncated.
//!
//! Must not know: the origin and use of the dataset.

use std::path::Path;

use hdf5::plist::DatasetCreate;
use hdf5::plist::dataset_create::Layout;

use super::h5;
use super::validate::checked_numel;

/// The library reads a chunk as a whole; a chunk longer than this, and longer than its whole dataset, is not
/// read at all.
const MAX_CHUNK_BYTES: u64 = 64 << 20;

/// Why a view is refused: a file that it shows and that is missing comes first.
fn of_view(dataset: &hdf5::Dataset, properties: &DatasetCreate) -> String {
    let shown = properties.get_virtual_map().unwrap_or_default();
    // As the library looks for them: where the view is, then in the working directory.
    let beside = Path::new(&dataset.filename()).parent().map(Path::to_path_buf).unwrap_or_default();
    let is_there = |name: &str| name == "." || beside.join(name).exists() || Path::new(name).exists();
    let missing = shown.iter().map(|mapping| mapping.src_filename.as_str()).find(|name| !is_there(name));
    match missing {
        Some(name) => format!(
            "a view of other files, and {} is missing: the library would give zeros for its values; put the \
             file back and copy the values into one (h5repack)",
            beside.join(name).display()
        ),
        None => {
            "a view of other files, which shows zeros where one is missing or cut short; copy its values \
                 into a file (h5repack), or name the checkpoint that it belongs to"
                .into()
        }
    }
}

/// Fails where a value of `dataset` was never written, or may lie in another file: says what is missing.
pub(super) fn check(dataset: &hdf5::Dataset) -> Result<(), String> {
    let said = |e: hdf5::Error| h5::one_line(&e);
    let shape = dataset.space().map_err(said)?.shape();
    let numel = checked_numel(&shape).ok_or_else(|| format!("shape {shape:?} overflows"))?;
    if numel == 0 {
        return Ok(());
    }
    let value_bytes = dataset.dtype().map_err(said)?.size() as u64;
    let properties = dataset.dcpl().map_err(said)?;
    if let Some(file) = properties.external().first() {
        return Err(format!(
            "its values are in another file, {}; copy them into this one with h5repack",
            file.name
        ));
    }
    match properties.layout() {
        Layout::Contiguous | Layout::Compact => match dataset.storage_size() {
            stored if stored >= numel as u64 * value_bytes => Ok(()),
            0 => Err("declared but never written".into()),
            stored => Err(format!("{stored} of {} bytes are stored", numel as u64 * value_bytes)),
        },
        Layout::Chunked => {
            let chunk = properties.chunk().ok_or("the library does not say how it is chunked")?;
            let chunk_bytes =
                chunk.iter().try_fold(value_bytes, |n, &d| n.checked_mul(d as u64)).unwrap_or(u64::MAX);
            if chunk_bytes > MAX_CHUNK_BYTES && chunk_bytes > numel as u64 * value_bytes {
                return Err(format!(
                    "its chunks have {chunk_bytes} bytes, more than its {} bytes in total; rechunk it with \
                     h5repack",
                    numel as u64 * value_bytes
                ));
            }
            let expected: usize = shape.iter().zip(&chunk).map(|(&n, &c)| n.div_ceil(c.max(1))).product();
            match dataset.num_chunks().unwrap_or(0) {
                found if found >= expected => Ok(()),
                0 => Err("declared but never written".into()),
                found => Err(format!("only {found} of its {expected} chunks were written")),
            }
        }
        Layout::Virtual => Err(of_view(dataset, &properties)),
    }
}

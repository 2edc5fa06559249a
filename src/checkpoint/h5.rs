//! The only place that opens HDF5 files: library version, locks, and checks before a byte is read.
//!
//! \[Note: library format\] Files are written in the 1.10 format (`H5F_LIBVER_V110`), where superblock,
//! object headers and group indices carry checksums: a flipped bit in them is an error instead of a wrong
//! size or a wrong address. It is the newest format that every HDF5 in use on clusters still reads.
//!
//! HDF5 would take a lock with flock on open, which some network file systems refuse; its locks are disabled
//! (see `lock.rs`).
//!
//! The crate disables the library's own error output; errors reach users only through `Error`.

use std::ops::Range;
use std::path::Path;

use crate::files;
use hdf5::plist::dataset_create::Layout;
use hdf5::types::{FloatSize, TypeDescriptor};

/// The library's message on one line, without the line break after a time. For a failed system call only the
/// system's message is retained.
pub(super) fn one_line(err: &hdf5::Error) -> String {
    let text = err.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let system = text.split_once("error message = '").and_then(|(_, rest)| rest.split('\'').next());
    match (system, text.split_once(": time = ")) {
        (Some(system), Some((call, _))) => format!("{call}: {system}"),
        _ => text,
    }
}

/// Creates a file that must not exist yet. It contains no timestamps: the same state gives the same bytes.
pub(super) fn create(path: &Path) -> hdf5::Result<hdf5::File> {
    hdf5::File::with_options()
        .with_fapl(|fapl| fapl.libver_v110().file_locking(false))
        .with_fcpl(|fcpl| fcpl.obj_track_times(false))
        .create_excl(path)
}

/// Creates a group of such a file.
pub(super) fn create_group(file: &hdf5::File, name: &str) -> hdf5::Result<hdf5::Group> {
    file.create_group_builder().obj_track_times(false).create(name)
}

/// Opens a regular file for reading: the library would block on a FIFO.
pub(super) fn open(path: &Path) -> hdf5::Result<hdf5::File> {
    files::open(path).map_err(|e| hdf5::Error::Internal(e.to_string()))?;
    hdf5::File::with_options().with_fapl(|fapl| fapl.file_locking(false)).open(path)
}

/// The dataset, if it is valid in a rank file: f32, 1-D of `numel` elements, contiguous, fully allocated.
/// Nothing is allocated on the word of the header; a header that differs is an error.
pub(super) fn slice_dataset(file: &hdf5::File, name: &str, numel: usize) -> Result<hdf5::Dataset, String> {
    let dataset = file.dataset(name).map_err(|e| format!("cannot be opened: {}", one_line(&e)))?;
    let dtype = dataset.dtype().and_then(|t| t.to_descriptor()).map_err(|e| one_line(&e))?;
    if dtype != TypeDescriptor::Float(FloatSize::U4) {
        return Err(format!("has type {dtype}, not 32-bit float"));
    }
    let shape = dataset.space().map_err(|e| one_line(&e))?.shape();
    if shape != [numel] {
        return Err(format!("has shape {shape:?}, the manifest specifies [{numel}]"));
    }
    let layout = dataset.dcpl().map_err(|e| one_line(&e))?.layout();
    if layout != Layout::Contiguous {
        return Err(format!("has layout {layout:?}, not contiguous"));
    }
    let (stored, expected) = (dataset.storage_size(), numel as u64 * 4);
    if stored != expected {
        return Err(format!("stores {stored} bytes, the manifest specifies {expected}"));
    }
    Ok(dataset)
}

/// Reads a range of a 1-D f32 dataset. The crate allocates an array, so callers bound the range.
pub(super) fn read_range(dataset: &hdf5::Dataset, range: Range<usize>, out: &mut [f32]) -> hdf5::Result<()> {
    let values = dataset.read_slice_1d::<f32, _>(range)?;
    out.copy_from_slice(values.as_slice().expect("a fresh 1-D array is contiguous"));
    Ok(())
}

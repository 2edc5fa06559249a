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
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::{files, limits};
use hdf5::plist::dataset_create::Layout;
use hdf5::types::{FloatSize, TypeDescriptor};
use hdf5::{MajorErrorCode, MinorErrorCode};

/// The library's message on one line, without the line break after a time. For a failed system call only the
/// system's message is retained.
pub(super) fn one_line(err: &hdf5::Error) -> String {
    let text = err.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let is_silent = ["unknown library error", "Could not get error"].iter().any(|words| text.contains(words));
    if is_silent || got_no_memory(err) {
        let bounds = limits::bounds_of_memory().join(", ");
        let bounds = if bounds.is_empty() { bounds } else { format!(" (bounds of this process: {bounds})") };
        return match is_silent {
            true => format!("the HDF5 library failed without a reason, as where it gets no memory{bounds}"),
            false => format!("the HDF5 library got no memory: {text}{bounds}"),
        };
    }
    let system = text.split_once("error message = '").and_then(|(_, rest)| rest.split('\'').next());
    match (system, text.split_once(": time = ")) {
        (Some(system), Some((call, _))) => format!("{call}: {system}"),
        _ => text,
    }
}

/// Whether an allocation failed somewhere down the library's stack of errors.
fn got_no_memory(err: &hdf5::Error) -> bool {
    err.stack().is_some_and(|stack| {
        let mut codes = stack.major_codes().zip(stack.minor_codes());
        codes.any(|codes| codes == (MajorErrorCode::Resource, MinorErrorCode::NoSpace))
    })
}

/// Creates a file that must not exist yet. Nothing in it says when: the same state gives the same bytes.
pub(super) fn create(path: &Path) -> hdf5::Result<hdf5::File> {
    at_utf8(path, |path| {
        hdf5::File::with_options()
            .with_fapl(|fapl| fapl.libver_v110().file_locking(false))
            .with_fcpl(|fcpl| fcpl.obj_track_times(false))
            .create_excl(path)
    })
}

/// Opens a file by a path that is UTF-8, since the crate takes no other. Names of files are; where one of a
/// directory is not, the directory is opened and named by its descriptor.
fn at_utf8(path: &Path, open: impl FnOnce(&Path) -> hdf5::Result<hdf5::File>) -> hdf5::Result<hdf5::File> {
    if path.to_str().is_some() {
        return open(path);
    }
    let dir = files::open_dir(files::parent(path)).map_err(|e| hdf5::Error::Internal(e.to_string()))?;
    let name = path.file_name().unwrap_or_default();
    // The library has the file open when this returns, and needs its path no more.
    open(&Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name))
}

/// Creates a group of such a file.
pub(super) fn create_group(file: &hdf5::File, name: &str) -> hdf5::Result<hdf5::Group> {
    file.create_group_builder().obj_track_times(false).create(name)
}

/// Opens a regular file for reading: the library would block on a FIFO.
pub(super) fn open(path: &Path) -> hdf5::Result<hdf5::File> {
    files::open(path).map_err(|e| hdf5::Error::Internal(e.to_string()))?;
    at_utf8(path, |path| hdf5::File::with_options().with_fapl(|fapl| fapl.file_locking(false)).open(path))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_does_not_say_becomes_a_sentence() {
        // What the crate makes of an empty stack of errors.
        let silent = hdf5::Error::Internal("unknown library error".into());
        let said = one_line(&silent);
        assert!(
            said.starts_with("the HDF5 library failed without a reason, as where it gets no memory"),
            "{said}"
        );
        let said = one_line(&hdf5::File::open("/not/there.h5").unwrap_err());
        assert!(said.contains("No such file") && !said.contains("memory"), "{said}");
    }
}

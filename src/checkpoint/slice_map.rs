//! Where the slices of a parameter are stored, and which pieces of them make up a requested range.
//!
//! Must not know: the file system, HDF5, the requester.

use std::collections::HashMap;
use std::ops::Range;

use super::manifest::Manifest;

/// Location of a slice of one parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Index into [`Manifest::files`].
    pub file_idx: usize,
    /// Index into that file's slices.
    pub slice_idx: usize,
    /// First element.
    pub start: usize,
    /// One past the last element.
    pub end: usize,
}

/// A piece of a requested range: its location and destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Index into [`Manifest::files`].
    pub file_idx: usize,
    /// Index into that file's slices.
    pub slice_idx: usize,
    /// Elements within the dataset.
    pub file_range: Range<usize>,
    /// Elements within the output.
    pub out_range: Range<usize>,
}

impl Manifest {
    /// The slices of every parameter, by name, sorted by their start; empty ones omitted.
    pub fn placed(&self) -> HashMap<&str, Vec<Placed>> {
        let mut by_param: HashMap<&str, Vec<Placed>> =
            self.params.iter().map(|p| (p.name.as_str(), Vec::new())).collect();
        for (file_idx, file) in self.files.iter().enumerate() {
            for (slice_idx, slice) in file.slices.iter().enumerate() {
                if slice.start < slice.end {
                    by_param.entry(slice.param.as_str()).or_default().push(Placed {
                        file_idx,
                        slice_idx,
                        start: slice.start,
                        end: slice.end,
                    });
                }
            }
        }
        by_param.values_mut().for_each(|placed| placed.sort_by_key(|p| p.start));
        by_param
    }
}

/// Splits `range` by the slices that contain it. `placed` is sorted by `start`, as [`Manifest::placed`]
/// returns it; every element of `range` in some slice is visited once, in order.
pub fn ranges(placed: &[Placed], range: Range<usize>) -> Vec<Part> {
    let first = placed.partition_point(|p| p.end <= range.start);
    placed[first..]
        .iter()
        .take_while(|p| p.start < range.end)
        .filter_map(|p| {
            let (from, to) = (p.start.max(range.start), p.end.min(range.end));
            (from < to).then(|| Part {
                file_idx: p.file_idx,
                slice_idx: p.slice_idx,
                file_range: from - p.start..to - p.start,
                out_range: from - range.start..to - range.start,
            })
        })
        .collect()
}

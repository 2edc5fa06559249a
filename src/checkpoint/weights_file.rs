//! Initial weights from an HDF5 file of any origin: whole parameters, one dataset each, with the model's
//! names.
//!
//! Must not know: the layout of checkpoints.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hdf5::types::{FloatSize, H5Type, TypeDescriptor};
use hdf5::{Hyperslab, SliceOrIndex};

use super::validate::checked_numel;
use super::{Kind, MANIFEST_FILE, MASTER_FILE, h5, written};
use crate::error::{Error, Result};

/// Elements read at once.
const MAX_READ: usize = 1 << 20;

/// An open file whose datasets have been checked against the model's parameters.
pub struct WeightsFile {
    label: String,
    params: HashMap<String, Entry>,
}

struct Entry {
    dataset: hdf5::Dataset,
    shape: Vec<usize>,
    numel: usize,
    f64: bool,
}

impl WeightsFile {
    /// Opens `FILE` or `FILE:GROUP` and checks that it contains a dataset of f32 or f64 for each (name,
    /// shape). The error lists all that are missing or of a wrong shape or type.
    pub fn open<N: AsRef<str>, S: AsRef<[usize]>>(spec: &str, params: &[(N, S)]) -> Result<Self> {
        let (path, group_name) = split_spec(spec);
        let no = |why: String| Error::Input(format!("{}: {why}", path.display()));
        if !path.is_file() {
            return Err(no("no such file; expected FILE or FILE:GROUP of an HDF5 file".to_string()));
        }
        let file =
            h5::open(&path).map_err(|e| no(format!("not a readable HDF5 file: {}", h5::one_line(&e))))?;
        let group = match &group_name {
            None => file.as_group().map_err(|e| no(e.to_string()))?,
            Some(name) => file.group(name).map_err(|_| no(format!("there is no group {name}")))?,
        };
        let label = match &group_name {
            None => path.display().to_string(),
            Some(name) => format!("{}:{name}", path.display()),
        };
        let mut entries = HashMap::with_capacity(params.len());
        let mut faults = Vec::new();
        for (name, shape) in params {
            match entry(&group, name.as_ref(), shape.as_ref()) {
                Ok(entry) => {
                    entries.insert(name.as_ref().to_string(), entry);
                }
                Err(why) => faults.push(format!("  {}: {why}", name.as_ref())),
            }
        }
        if faults.is_empty() {
            return Ok(WeightsFile { label, params: entries });
        }
        Err(Error::Input(format!(
            "{label} does not contain the weights of this model; {} of {} parameters are missing or do not \
             match:\n{}",
            faults.len(),
            params.len(),
            faults.join("\n")
        )))
    }

    /// Reads elements `range` of the flattened (row-major) parameter into `out`, which it overwrites; f64 is
    /// rounded to f32.
    ///
    /// # Errors
    /// The file is not readable there.
    pub fn read(&self, name: &str, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        let entry = self.params.get(name).ok_or_else(|| {
            Error::Internal(format!("{name} was not among the parameters {} was opened for", self.label))
        })?;
        assert!(
            range.start <= range.end && range.end <= entry.numel,
            "range {range:?} of {name} with {} elements",
            entry.numel
        );
        assert_eq!(out.len(), range.len(), "output for {range:?} of {name}");
        let read = if entry.f64 {
            entry.read::<f64>(range, out, |x| x as f32)
        } else {
            entry.read::<f32>(range, out, |x| x)
        };
        read.map_err(|e| Error::Input(format!("{}: reading {name}: {e}", self.label)))
    }
}

impl Entry {
    fn read<T: H5Type + Copy>(
        &self,
        range: Range<usize>,
        out: &mut [f32],
        to_f32: impl Fn(T) -> f32,
    ) -> hdf5::Result<()> {
        let mut filled = 0;
        let mut put = |values: ndarray::ArrayD<T>| {
            for value in values {
                out[filled] = to_f32(value);
                filled += 1;
            }
        };
        let mut from = range.start;
        while from < range.end {
            let to = range.end.min(from + MAX_READ);
            if self.shape.is_empty() {
                put(self.dataset.read_dyn::<T>()?);
            } else {
                for window in boxes(&self.shape, from..to) {
                    let slab: Vec<SliceOrIndex> = window.into_iter().map(SliceOrIndex::from).collect();
                    put(self.dataset.read_slice(Hyperslab::from(slab))?);
                }
            }
            from = to;
        }
        Ok(())
    }
}

/// The checkpoint, and the kind of its values, if `spec` names its `model.h5`, which maps them: they are read
/// from the checkpoint itself, and verified.
pub fn view_of_checkpoint(spec: &str) -> Option<(PathBuf, Kind)> {
    let (path, group) = split_spec(spec);
    let group = group?;
    let kind = Kind::named(group.trim_matches('/'))?;
    let dir = crate::files::parent(&path);
    let is_view = path.file_name()? == MASTER_FILE && dir.join(MANIFEST_FILE).exists();
    is_view.then(|| (dir.to_path_buf(), kind))
}

/// `FILE` or `FILE:GROUP`; a colon in the name of an existing file belongs to the name.
fn split_spec(spec: &str) -> (PathBuf, Option<String>) {
    let parts = spec.match_indices(':').map(|(at, _)| (&spec[..at], &spec[at + 1..]));
    // Both names may contain colons, so the existing file determines the split; if none exists, the whole is
    // the missing file's name.
    let found = parts.rev().find(|(file, group)| !group.is_empty() && Path::new(file).is_file());
    match found.filter(|_| !Path::new(spec).exists()) {
        Some((file, group)) => (PathBuf::from(file), Some(group.to_string())),
        None => (PathBuf::from(spec), None),
    }
}

fn entry(group: &hdf5::Group, name: &str, shape: &[usize]) -> std::result::Result<Entry, String> {
    if !group.link_exists(name) {
        return Err("missing".to_string());
    }
    let dataset = group.dataset(name).map_err(|_| "not a dataset".to_string())?;
    let dtype = dataset.dtype().and_then(|t| t.to_descriptor()).map_err(|e| e.to_string())?;
    let f64 = match dtype {
        TypeDescriptor::Float(FloatSize::U4) => false,
        TypeDescriptor::Float(FloatSize::U8) => true,
        other => return Err(format!("of type {other}, not float32 or float64")),
    };
    let found = dataset.space().map_err(|e| e.to_string())?.shape();
    if found != shape {
        return Err(format!("of shape {found:?}, the model has {shape:?}"));
    }
    let numel = checked_numel(shape).ok_or_else(|| format!("shape {shape:?} overflows"))?;
    written::check(&dataset)?;
    Ok(Entry { dataset, shape: shape.to_vec(), numel, f64 })
}

/// The boxes that make up a flat row-major range, in order: at most `2 * rank - 1` of them.
pub(super) fn boxes(shape: &[usize], range: Range<usize>) -> Vec<Vec<Range<usize>>> {
    if range.is_empty() {
        return Vec::new();
    }
    let [_, inner @ ..] = shape else { return vec![Vec::new()] };
    let row: usize = inner.iter().product();
    let within = |i: usize, part: Range<usize>| {
        boxes(inner, part).into_iter().map(move |tail| {
            let row = i..i + 1;
            std::iter::once(row).chain(tail).collect()
        })
    };
    let (first, last) = (range.start / row, range.end / row);
    let (head, rest) = (range.start % row, range.end % row);
    if first == last {
        return within(first, head..rest).collect();
    }
    let mut found = Vec::new();
    let mut from = first;
    if head > 0 {
        found.extend(within(first, head..row));
        from += 1;
    }
    if from < last {
        let rows = from..last;
        found.push(std::iter::once(rows).chain(inner.iter().map(|&d| 0..d)).collect());
    }
    found.extend(within(last, 0..rest));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_colon_parts_file_and_group_where_there_is_such_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("a:b.h5"), "").unwrap();
        let split = |spec: String| {
            let (file, group) = split_spec(&spec);
            (file.display().to_string(), group)
        };
        assert_eq!(split(path("a:b.h5")), (path("a:b.h5"), None));
        assert_eq!(split(path("a:b.h5:weight")), (path("a:b.h5"), Some("weight".into())));
        assert_eq!(split(path("a:b.h5:g:h")), (path("a:b.h5"), Some("g:h".into())));
        // What is not there is named as it was written.
        assert_eq!(split(path("DIR:with:colon")), (path("DIR:with:colon"), None));
    }

    /// Flat indices of a box, slowly.
    fn flat(shape: &[usize], window: &[Range<usize>]) -> Vec<usize> {
        let mut indices = vec![0];
        for (d, range) in shape.iter().zip(window) {
            indices = indices.iter().flat_map(|i| range.clone().map(move |j| i * d + j)).collect();
        }
        indices
    }

    proptest! {
        #[test]
        fn boxes_are_the_flat_range_in_order(
            shape in prop::collection::vec(1usize..6, 1..5),
            cut in (0usize..1000, 0usize..1000),
        ) {
            let numel: usize = shape.iter().product();
            let (a, b) = (cut.0 % (numel + 1), cut.1 % (numel + 1));
            let range = a.min(b)..a.max(b);
            let found = boxes(&shape, range.clone());
            prop_assert!(found.len() < 2 * shape.len());
            let indices: Vec<usize> = found.iter().flat_map(|w| flat(&shape, w)).collect();
            prop_assert_eq!(indices, range.collect::<Vec<_>>());
        }
    }
}

//! safetensors files: their headers by the crate `safetensors`, their values read and written in place.
//!
//! Must not know: models. Format: <https://huggingface.co/docs/safetensors>, eight bytes of length, a JSON
//! header, the values.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::files;
use crate::foreign::{guarded, kind_of, not_json, start_of, without_bom};

/// The name of a single file.
pub const SINGLE: &str = "model.safetensors";
/// The name of the index of several files.
pub const INDEX: &str = "model.safetensors.index.json";
/// The suffix of an index's name.
const INDEX_END: &str = ".safetensors.index.json";
/// Maximum header size.
const MAX_HEADER_BYTES: u64 = 100 << 20;
/// Elements read at once.
const BLOCK: usize = 1 << 20;

/// One tensor in a file.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Index of the file.
    file: usize,
    /// First byte in the file.
    offset: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<usize>,
}

/// Tensors of one or several files, by name.
pub struct TensorFiles {
    files: Vec<(PathBuf, File)>,
    /// The tensors.
    pub entries: BTreeMap<String, Entry>,
}

impl TensorFiles {
    /// Opens a file, the files in an index, or whichever of both a directory has.
    ///
    /// # Errors
    /// A directory that has both; all files that are missing, not safetensors files or truncated, and tensors
    /// in two files: at once.
    pub fn open(path: &Path) -> Result<Self> {
        let (paths, listed) = find(path)?;
        let mut found = TensorFiles { files: Vec::new(), entries: BTreeMap::new() };
        let mut faults = Vec::new();
        for path in paths {
            match header(&path) {
                Err(why) => faults.push(format!("{}: {why}", path.display())),
                Ok((file, start, metadata)) => {
                    for (name, info) in metadata.tensors() {
                        let offset = start + info.data_offsets.0 as u64;
                        let entry = Entry {
                            file: found.files.len(),
                            offset,
                            dtype: info.dtype,
                            shape: info.shape.clone(),
                        };
                        if found.entries.insert(name.clone(), entry).is_some() {
                            faults.push(format!("{}: {name} is also in another file", path.display()));
                        }
                    }
                    found.files.push((path, file));
                }
            }
        }
        if faults.is_empty() {
            let absent = listed.iter().filter(|(name, _)| !found.entries.contains_key(*name));
            faults.extend(
                absent.map(|(name, file)| {
                    format!("{file}: {name} is missing, although the index lists it here")
                }),
            );
        }
        match faults.is_empty() {
            true => Ok(found),
            false => Err(Error::Input(faults.join("\n"))),
        }
    }

    /// Elements `range` of a flattened tensor as f32, appended to `out`.
    ///
    /// # Errors
    /// The file is not readable there.
    pub fn read(&self, entry: &Entry, range: std::ops::Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        let (path, file) = &self.files[entry.file];
        let width = entry.dtype.bitsize() / 8;
        let mut bytes = Vec::new();
        for from in range.clone().step_by(BLOCK) {
            bytes.resize(width * BLOCK.min(range.end - from), 0);
            let at = entry.offset + (from * width) as u64;
            file.read_exact_at(&mut bytes, at)
                .map_err(|e| Error::Input(format!("reading {} at byte {at}: {e}", path.display())))?;
            widen(entry.dtype, &bytes, out);
        }
        Ok(())
    }
}

/// Whether values of this type can be read.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F64)
}

fn widen(dtype: Dtype, bytes: &[u8], out: &mut Vec<f32>) {
    match dtype {
        Dtype::F32 => out.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
        Dtype::BF16 => out.extend(bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32())),
        Dtype::F16 => out.extend(bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32())),
        Dtype::F64 => out.extend(bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32)),
        other => panic!("{other:?} was rejected when the tensors were matched"),
    }
}

/// The files that a path refers to, and the location of each tensor according to an index.
fn find(path: &Path) -> Result<(Vec<PathBuf>, BTreeMap<String, String>)> {
    let (single, index) = match path.is_dir() {
        true => (path.join(SINGLE), path.join(INDEX)),
        false if path.to_string_lossy().ends_with(INDEX_END) => (PathBuf::new(), path.to_path_buf()),
        false => (path.to_path_buf(), PathBuf::new()),
    };
    match (single.is_file(), index.is_file()) {
        (true, false) => Ok((vec![single], BTreeMap::new())),
        (false, true) => listed(&index),
        // transformers reads the single file, other programs the index: they may be of different models.
        (true, true) => Err(Error::Input(format!(
            "{} has both {SINGLE} and {INDEX}, which may be of different models; name one of them, or remove \
             the other",
            path.display()
        ))),
        (false, false) => Err(Error::Input(format!(
            "{}: no such file; expected a safetensors file, or a directory with {SINGLE} or {INDEX}",
            if path.is_dir() { single.display() } else { path.display() }
        ))),
    }
}

/// The files in an index, and their tensors.
fn listed(index: &Path) -> Result<(Vec<PathBuf>, BTreeMap<String, String>)> {
    let no = |why: &dyn std::fmt::Display| Error::Input(format!("{}: {why}", index.display()));
    let bytes = files::read(index, MAX_HEADER_BYTES).map_err(|e| no(&e))?;
    let parsed: Value = serde_json::from_slice(without_bom(&bytes)).map_err(|e| no(&not_json(&bytes, &e)))?;
    let map = parsed["weight_map"].as_object().ok_or_else(|| no(&"it has no weight_map"))?;
    let mut listed = BTreeMap::new();
    for (name, file) in map {
        let file =
            file.as_str().filter(|f| !f.contains('/')).ok_or_else(|| no(&format!("{name} is in {file}")))?;
        listed.insert(name.clone(), file.to_string());
    }
    let names: std::collections::BTreeSet<&String> = listed.values().collect();
    Ok((names.into_iter().map(|name| index.with_file_name(name)).collect(), listed))
}

/// The file, the offset of its values, and its tensors.
fn header(path: &Path) -> std::result::Result<(File, u64, Metadata), String> {
    let file = files::open(path).map_err(|e| e.to_string())?;
    let n_bytes = file.metadata().map_err(|e| e.to_string())?.len();
    let mut length = [0; 8];
    // The length of a header may look like the magic number of another format: other kinds are only
    // considered if it is not a safetensors file.
    let but = || {
        let kind = start_of(path).ok().and_then(|start| kind_of(&start));
        kind.map(|kind| format!("not a safetensors file but {}; {}", kind.name, kind.remedy))
    };
    file.read_exact_at(&mut length, 0).map_err(|_| {
        but().unwrap_or(format!("not a safetensors file: it has {n_bytes} bytes; copy it again"))
    })?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES || length + 8 > n_bytes {
        return Err(but().unwrap_or(format!(
            "not a safetensors file, or truncated: its header length is {length}, but it has {n_bytes} \
             bytes; copy it again"
        )));
    }
    let mut json = vec![0; length as usize];
    file.read_exact_at(&mut json, 8).map_err(|e| e.to_string())?;
    let parsed = guarded(|| serde_json::from_slice::<Metadata>(&json).map_err(|e| e.to_string()));
    let metadata = parsed.flatten().map_err(|e| but().unwrap_or(format!("not a safetensors file: {e}")))?;
    let wanted = 8 + length + metadata.data_len() as u64;
    if wanted != n_bytes {
        return Err(format!("its header requires {wanted} bytes, but it has {n_bytes}; copy it again"));
    }
    Ok((file, 8 + length, metadata))
}

/// A file being written: the header first, then the values of each tensor in order.
pub struct TensorWriter {
    path: PathBuf,
    file: std::io::BufWriter<File>,
    dtype: Dtype,
}

impl TensorWriter {
    /// Starts a file with tensors of these names and shapes.
    ///
    /// # Errors
    /// Failures of the file system, here and below.
    pub fn create(path: &Path, dtype: Dtype, tensors: &[(&str, &[usize])]) -> Result<Self> {
        let mut at = 0;
        let info = |(name, shape): &(&str, &[usize])| {
            let from = at;
            at += shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (name.to_string(), TensorInfo { dtype, shape: shape.to_vec(), data_offsets: (from, at) })
        };
        let about = HashMap::from([("format".to_string(), "pt".to_string())]);
        let infos = tensors.iter().map(info).collect();
        let metadata =
            Metadata::new(Some(about), infos).map_err(|e| Error::Internal(format!("safetensors: {e}")))?;
        let mut json =
            serde_json::to_vec(&metadata).map_err(|e| Error::Internal(format!("safetensors: {e}")))?;
        // Values start at a multiple of eight bytes.
        json.resize(json.len().next_multiple_of(8), b' ');
        let file = files::create_new(path).map_err(|e| Error::io("create", path, &e))?;
        let mut file = std::io::BufWriter::with_capacity(1 << 20, file);
        file.write_all(&(json.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&json))
            .map_err(|e| Error::io("write", path, &e))?;
        Ok(TensorWriter { path: path.to_path_buf(), file, dtype })
    }

    /// The next values, rounded to nearest even for a narrower type.
    pub fn write(&mut self, values: &[f32]) -> Result<()> {
        let written = match self.dtype {
            Dtype::F32 => self.file.write_all(bytemuck::cast_slice(values)),
            Dtype::BF16 => {
                let narrow: Vec<half::bf16> = values.iter().map(|&x| half::bf16::from_f32(x)).collect();
                self.file.write_all(bytemuck::cast_slice(&narrow))
            }
            other => panic!("{other:?} is not written"),
        };
        written.map_err(|e| Error::io("write", &self.path, &e))
    }

    /// Makes the file durable.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(|e| Error::io("write", &self.path, &e))?;
        files::sync(self.file.get_ref(), &self.path)
    }
}

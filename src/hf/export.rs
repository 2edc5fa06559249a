//! A checkpoint's weights as a directory that `transformers` loads.
//!
//! Must not know: the command line.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::Dtype;
use serde_json::json;

use super::names::Tensor;
use super::tensors::{INDEX, SINGLE, TensorWriter};
use super::{config_json, names};
use crate::backend::Ops;
use crate::checkpoint::{Kind, Reader, find};
use crate::config::Deck;
use crate::dtype::DType;
use crate::error::Result;
use crate::files::{self, NewDir};
use crate::human;
use crate::model::Model;
use crate::params::{ModelSpec, ParamSpec};

/// The file that describes the model.
const CONFIG: &str = "config.json";

/// The result.
#[derive(Debug, Clone, PartialEq)]
pub struct Exported {
    /// The checkpoint that was read.
    pub from: PathBuf,
    /// The directory written.
    pub to: PathBuf,
    /// Files with tensors.
    pub n_files: usize,
    /// Tensors.
    pub n_tensors: usize,
    /// Bytes of their values.
    pub bytes: u64,
    /// Element type.
    pub dtype: DType,
}

/// Writes the weights of a step directory, or of the newest of a run directory, to `out_dir`, which must not
/// contain a model: safetensors files of at most `max_shard_bytes` of values (but at least one tensor) each,
/// an index if there are several, config.json. `progress` receives the bytes written.
///
/// # Errors
/// The checkpoint is damaged or of an unknown model; the directory contains a model; it cannot be written,
/// and then does not exist.
pub fn export<D: Ops>(
    source: &Path,
    out_dir: &Path,
    dtype: DType,
    max_shard_bytes: u64,
    progress: &dyn Fn(u64),
) -> Result<Exported> {
    find::retrying(source, find::resolve, |dir| {
        let mut reader = Reader::open(dir)?;
        export_step::<D>(&mut reader, out_dir, dtype, max_shard_bytes, progress)
    })
}

fn export_step<D: Ops>(
    reader: &mut Reader,
    out_dir: &Path,
    dtype: DType,
    max_shard_bytes: u64,
    progress: &dyn Fn(u64),
) -> Result<Exported> {
    let origin = format!("the deck in {}", reader.dir().display());
    let deck = Deck::parse(&reader.manifest().deck, &[], &origin)?;
    let model = Model::of_deck::<D>(&deck);
    let tensors = names::of_model(&model);
    let dir = NewDir::begin(out_dir)?;
    let files = shards(&tensors, dtype.bytes() as u64, max_shard_bytes);
    let bytes = write(reader, &deck, &model.spec, &files, dir.path(), dtype, progress)?;
    // Without it the other files are not a model.
    dir.finish(CONFIG)?;
    Ok(Exported {
        from: reader.dir().to_path_buf(),
        to: out_dir.to_path_buf(),
        n_files: files.len(),
        n_tensors: tensors.len(),
        bytes,
        dtype,
    })
}

/// Writes everything into `dir`; returns the bytes of the values.
fn write(
    reader: &mut Reader,
    deck: &Deck,
    spec: &ModelSpec,
    files: &[Vec<&Tensor>],
    dir: &Path,
    dtype: DType,
    progress: &dyn Fn(u64),
) -> Result<u64> {
    let is_bf16 = dtype == DType::Bf16;
    let theirs = if is_bf16 { Dtype::BF16 } else { Dtype::F32 };
    let (mut done, mut weight_map) = (0, serde_json::Map::new());
    for (i, file) in files.iter().enumerate() {
        let name = match files.len() {
            1 => SINGLE.to_string(),
            n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
        };
        let shapes: Vec<(&str, &[usize])> =
            file.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect();
        let mut writer = TensorWriter::create(&dir.join(&name), theirs, &shapes)?;
        for tensor in file {
            let values = read(reader, &spec.params[tensor.param], tensor)?;
            writer.write(&values)?;
            done += (dtype.bytes() * values.len()) as u64;
            progress(done);
            weight_map.insert(tensor.name.clone(), json!(name));
        }
        writer.finish()?;
    }
    let json_file = |name: &str, value: &serde_json::Value| {
        let path = dir.join(name);
        let text = serde_json::to_string_pretty(value).expect("plain data") + "\n";
        files::replace(&path, |out| out.write_all(text.as_bytes()))
    };
    if files.len() > 1 {
        json_file(INDEX, &json!({ "metadata": { "total_size": done }, "weight_map": weight_map }))?;
    }
    json_file(CONFIG, &config_json::of_model(&deck.model, if is_bf16 { "bfloat16" } else { "float32" }))?;
    Ok(done)
}

/// Tensors in order, as many per file as fit.
fn shards(tensors: &[Tensor], width: u64, max_bytes: u64) -> Vec<Vec<&Tensor>> {
    let (mut files, mut bytes): (Vec<Vec<&Tensor>>, u64) = (Vec::new(), u64::MAX);
    for tensor in tensors {
        let n = width * tensor.numel() as u64;
        match files.last_mut() {
            Some(file) if bytes + n <= max_bytes => {
                file.push(tensor);
                bytes += n;
            }
            _ => {
                files.push(vec![tensor]);
                bytes = n;
            }
        }
    }
    files
}

/// A tensor's values in order.
fn read(reader: &mut Reader, ours: &ParamSpec, tensor: &Tensor) -> Result<Vec<f32>> {
    let row: usize = ours.shape[1..].iter().product();
    let range = tensor.rows.start * row..tensor.rows.end * row;
    let mut values = vec![0.0; range.len()];
    reader.read(&ours.name, Kind::Weight, range, &mut values)?;
    Ok(if tensor.is_transposed { transposed(&values, tensor.rows.len(), row) } else { values })
}

/// Transposes `(rows, columns)` to `(columns, rows)`.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for j in 0..columns {
        out.extend((0..rows).map(|i| values[i * columns + j]));
    }
    out
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exported { from, to, n_files, n_tensors, bytes, dtype } = self;
        let (from, to) = (from.display(), to.display());
        let files = human::counted(*n_files, "file");
        write!(f, "{from} -> {to}: {n_tensors} tensors, {bytes} bytes of {} in {files}", dtype.name())
    }
}

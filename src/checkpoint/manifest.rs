//! The manifest: the contents of a checkpoint, their location, and their encoding on disk.
//!
//! \[Note: manifest digest\] The file is JSON whose last member is `"digest"`. The digest is the xxh3-64 of
//! every byte before that member, so no canonical form is required: a flip anywhere, white space included, is
//! detected. Members unknown to a reader are covered by the digest and ignored.
//!
//! \[Note: block digests\] A slice is digested in blocks of `digest_block` elements. A reader on another rank
//! count verifies what it reads by reading at most one additional block at each end of its range, never the
//! whole slice of the old owner.
//!
//! Must not know: the file system, HDF5. What makes one unacceptable is in `validate.rs`, where its slices
//! lie in `slice_map.rs`.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::Kind;
use crate::backend::mesh::{Dim, Mesh};
use crate::error::{Error, Result};
use crate::human;
use crate::optimizers::{OptimState, OptimizerKind};
use crate::params::{ModelSpec, ParamId};

/// The format this program writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;
/// The feature of a manifest that stores other states than [`ADAM_STATES`]: a reader must evaluate
/// `optimizer.states`.
pub const OPTIMIZER_STATES: &str = "optimizer_states";
/// Features this program supports. A manifest that requires another one is rejected by name.
pub const KNOWN_FEATURES: [&str; 1] = [OPTIMIZER_STATES];
/// The stored states if the manifest does not list them.
pub const ADAM_STATES: [OptimState; 2] = [OptimState::ExpAvg, OptimState::ExpAvgSq];
/// [`Manifest::reduction_order`] if contributions are added one by one, independent of the rank count.
pub const IN_ORDER: &str = "left fold over micro-batch index";
/// [`Manifest::reduction_order`] if each rank adds up its own micro-batches before any communication.
pub const BY_RANK: &str = "left fold over ranks of each rank's left fold over micro-batch index";
/// [`Manifest::reduction_order`] if NCCL adds the contributions of a micro-step in its own order.
pub const BY_NCCL: &str = "left fold over micro-step index of sums by NCCL";
/// [`Manifest::reduction_order`] if NCCL adds the local sums of each rank.
pub const BY_NCCL_OF_RANKS: &str = "sum by NCCL of each rank's left fold over micro-batch index";
/// Every order that this program writes and reads.
pub const REDUCTION_ORDERS: [&str; 4] = [IN_ORDER, BY_RANK, BY_NCCL, BY_NCCL_OF_RANKS];
/// The digest of blocks and files.
pub const HASH: &str = "xxh3-64";
/// Maximum elements per digest block that this program writes, and elements written or read at once: 4 MiB of
/// f32.
pub const DIGEST_BLOCK: usize = 1 << 20;
/// Minimum elements per digest block that this program writes: a page of f32.
const MIN_DIGEST_BLOCK: usize = 1 << 10;
/// Target number of digests, apart from one for each short slice: half a megabyte of manifest.
const N_DIGESTS: usize = 1 << 15;
/// Maximum size of a manifest, written or read. Sufficient for 4096 ranks of 500 parameters.
pub const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// Everything needed to restore, except the values themselves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format; see `docs/checkpoint_format.md`.
    pub format_version: u32,
    /// Features a reader must support to read this checkpoint correctly.
    pub required_features: Vec<String>,
    /// The program that wrote it. Informational; readers do not act on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<Writer>,
    /// Optimizer step after which the state was saved.
    pub step: u64,
    /// Training attempts: steps taken plus steps skipped.
    pub attempts: u64,
    /// Global sample index reached: the next sample to train on.
    pub samples: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Digest of the training data.
    pub data_digest: String,
    /// Seeds of the counter-based generators. With `samples` they are the whole random state.
    pub seeds: Seeds,
    /// The resolved deck as TOML text.
    pub deck: String,
    /// Number of parameters Psi, without padding; aliases count once.
    pub psi: usize,
    /// Ranks N of the shard group that wrote it.
    pub world_size: usize,
    /// Dimensions of the mesh.
    pub mesh: Vec<MeshDim>,
    /// Order in which gradient contributions were added.
    pub reduction_order: String,
    /// The optimizer whose states are stored.
    pub optimizer: Optimizer,
    /// Digest algorithm of blocks and files.
    pub hash: String,
    /// Elements per digest block; see \[Note: block digests\].
    pub digest_block: usize,
    /// Every parameter, once.
    pub params: Vec<Param>,
    /// Aliases of parameters stored under another name.
    pub aliases: Vec<Alias>,
    /// Every file, with its slices.
    pub files: Vec<FileRecord>,
    /// Files not required by a restore, e.g. the master file for standard HDF5 tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_files: Vec<ExtraFile>,
    /// Faults injected by tests in the runs that made this state; normally none. Informational.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub test_hooks: Vec<String>,
}

/// The program that wrote a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Writer {
    /// Program name.
    pub program: String,
    /// Program version.
    pub version: String,
}

/// Seeds of the counter-based generators.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seeds {
    /// Seed of the initial weights.
    pub init_seed: u64,
    /// Seed of the sample order.
    pub data_seed: u64,
}

/// One dimension of the mesh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeshDim {
    /// Name, e.g. `shard`.
    pub dim: String,
    /// Number of ranks along it.
    pub extent: usize,
}

/// The optimizer whose states are stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// Name, e.g. `adamw`.
    pub name: String,
    /// Updates taken: the `t` of the bias correction.
    pub step: u64,
    /// The stored states, in file order; absent if they are [`ADAM_STATES`].
    #[serde(default = "adam_states", skip_serializing_if = "is_adam_states")]
    pub states: Vec<OptimState>,
}

fn adam_states() -> Vec<OptimState> {
    ADAM_STATES.into()
}

fn is_adam_states(states: &[OptimState]) -> bool {
    *states == ADAM_STATES
}

impl Default for Optimizer {
    fn default() -> Self {
        Optimizer { name: String::new(), step: 0, states: adam_states() }
    }
}

impl Optimizer {
    /// An optimizer of this program after `step` updates.
    pub fn of(kind: OptimizerKind, states: &[OptimState], step: u64) -> Self {
        Optimizer { name: kind.name().into(), step, states: states.into() }
    }

    /// Features a reader must support for it.
    pub fn required_features(&self) -> Vec<String> {
        if is_adam_states(&self.states) { Vec::new() } else { vec![OPTIMIZER_STATES.into()] }
    }
}

/// One stored parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Param {
    /// Name in the model's conventions.
    pub name: String,
    /// Shape of the whole parameter, row-major.
    pub global_shape: Vec<usize>,
    /// The box of it that this shard group stores. Format 1: all of it.
    pub local_box: LocalBox,
    /// Elements of the box, unpadded.
    pub numel: usize,
    /// Weight decay applies.
    pub decay: bool,
}

impl Param {
    /// A parameter stored whole by the shard group.
    pub fn whole(name: &str, global_shape: &[usize], decay: bool) -> Self {
        Param {
            name: name.to_string(),
            global_shape: global_shape.to_vec(),
            local_box: LocalBox { starts: vec![0; global_shape.len()], lengths: global_shape.to_vec() },
            numel: global_shape.iter().product(),
            decay,
        }
    }
}

/// A box of a parameter: the part a shard group stores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LocalBox {
    /// First index along each dimension.
    pub starts: Vec<usize>,
    /// Extent along each dimension.
    pub lengths: Vec<usize>,
}

/// An alias of a stored parameter, e.g. a tied head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alias {
    /// The alias.
    pub name: String,
    /// The parameter it refers to.
    pub param: String,
}

/// One rank's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Rank that wrote it.
    pub rank: usize,
    /// File name within the step directory.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Digest of the whole file.
    pub digest: String,
    /// Which part of it is structure; None in files of programs that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structure: Option<Structure>,
    /// Slices in it, empty ones included.
    pub slices: Vec<SliceRecord>,
}

/// Everything of a file except its values. A reader verifies it before the HDF5 library opens the file: it is
/// small, and the library is not robust against damaged files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Structure {
    /// Disjoint byte ranges `(start, end)` of values, in order. All other bytes are structure.
    pub values: Vec<(u64, u64)>,
    /// Digest of the bytes of the structure, in the order of the file.
    pub digest: String,
}

impl Structure {
    /// Byte ranges of the structure of a file of `bytes` bytes.
    pub fn ranges(&self, bytes: u64) -> Vec<Range<u64>> {
        let starts = std::iter::once(0).chain(self.values.iter().map(|&(_, end)| end));
        let ends = self.values.iter().map(|&(start, _)| start).chain([bytes]);
        starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty()).collect()
    }
}

/// A file not required by a restore.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExtraFile {
    /// File name within the step directory.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Digest of the whole file.
    pub digest: String,
}

/// A slice of a parameter in one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SliceRecord {
    /// Parameter name.
    pub param: String,
    /// First element, in the flattened unpadded box.
    pub start: usize,
    /// One past the last element; `start == end` is a normal, empty slice.
    pub end: usize,
    /// Digests of its datasets.
    pub digests: SliceDigests,
}

impl SliceRecord {
    /// Elements in it.
    pub fn numel(&self) -> usize {
        self.end - self.start
    }
}

/// Digests of a slice's datasets, one per started block. In JSON an object with a member per kind, in file
/// order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SliceDigests(Vec<(Kind, Vec<String>)>);

impl SliceDigests {
    /// Empty lists for `kinds`.
    pub(super) fn empty(kinds: &[Kind]) -> Self {
        SliceDigests(kinds.iter().map(|&kind| (kind, Vec::new())).collect())
    }

    /// The digests of one kind; None if there is no such member.
    pub fn of(&self, kind: Kind) -> Option<&[String]> {
        self.0.iter().find(|(of, _)| *of == kind).map(|(_, digests)| digests.as_slice())
    }

    /// The digests of one kind, mutable.
    pub(super) fn of_mut(&mut self, kind: Kind) -> &mut Vec<String> {
        &mut self.0.iter_mut().find(|(of, _)| *of == kind).expect("one of the kinds it was made for").1
    }
}

impl Serialize for SliceDigests {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(kind, digests)| (kind.group(), digests)))
    }
}

impl<'de> Deserialize<'de> for SliceDigests {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = SliceDigests;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of lists of digests")
            }

            /// Members of other names are ignored.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<SliceDigests, A::Error> {
                let mut digests = SliceDigests::default();
                while let Some(name) = map.next_key::<Cow<'_, str>>()? {
                    match Kind::named(&name) {
                        Some(kind) if digests.of(kind).is_some() => {
                            return Err(serde::de::Error::custom(format!("duplicate field `{name}`")));
                        }
                        Some(kind) => digests.0.push((kind, map.next_value()?)),
                        None => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(digests)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// A digest in text form: 16 lower-case hex digits.
pub fn hex(digest: u64) -> String {
    format!("{digest:016x}")
}

impl Default for Manifest {
    /// An empty manifest of the current format, to be filled in.
    fn default() -> Self {
        Manifest {
            format_version: FORMAT_VERSION,
            required_features: Vec::new(),
            writer: Some(Writer {
                program: env!("CARGO_PKG_NAME").to_string(),
                version: env!("CARGO_PKG_VERSION").to_string(),
            }),
            step: 0,
            attempts: 0,
            samples: 0,
            tokens: 0,
            data_digest: String::new(),
            seeds: Seeds::default(),
            deck: String::new(),
            psi: 0,
            world_size: 1,
            mesh: Vec::new(),
            reduction_order: IN_ORDER.to_string(),
            optimizer: Optimizer::default(),
            hash: HASH.to_string(),
            digest_block: DIGEST_BLOCK,
            params: Vec::new(),
            aliases: Vec::new(),
            files: Vec::new(),
            extra_files: Vec::new(),
            test_hooks: Vec::new(),
        }
    }
}

/// Elements per digest block for `n_kinds` values of each of `psi` parameters: a power of two, as small as
/// the space for digests permits, since a reader whose range starts or ends within a block reads the whole
/// block.
pub fn digest_block(psi: usize, n_kinds: usize) -> usize {
    let wanted = (n_kinds * psi).div_ceil(N_DIGESTS);
    wanted.next_power_of_two().clamp(MIN_DIGEST_BLOCK, DIGEST_BLOCK)
}

/// The members that determine whether the rest can be understood.
#[derive(Deserialize)]
struct Header {
    format_version: u32,
    #[serde(default)]
    required_features: Vec<String>,
}

/// The last member of the file, closing brace included.
fn digest_tail(head: &[u8]) -> String {
    format!("\"digest\": \"{}\"\n}}\n", hex(xxh3_64(head)))
}

impl Manifest {
    /// What a checkpoint of a model says that follows from the model, the optimizer and the files of
    /// `world_size` ranks: fill in the position in training, seeds, data and deck.
    pub fn of_model(
        spec: &ModelSpec,
        optimizer: Optimizer,
        world_size: usize,
        files: Vec<FileRecord>,
    ) -> Self {
        let mesh = Mesh::sharded(world_size);
        let alias =
            |(name, p): &(String, ParamId)| Alias { name: name.clone(), param: spec.params[*p].name.clone() };
        let mut manifest = Manifest {
            required_features: optimizer.required_features(),
            psi: spec.numel(),
            mesh: Dim::ALL.map(|dim| MeshDim { dim: dim.name().into(), extent: mesh.extent(dim) }).into(),
            optimizer,
            params: spec.params.iter().map(|p| Param::whole(&p.name, &p.shape, p.decay)).collect(),
            aliases: spec.aliases.iter().map(alias).collect(),
            ..Manifest::default()
        };
        manifest.set_files(world_size, files);
        manifest
    }

    /// The same state in the files of `world_size` ranks, digested as this program does it.
    pub fn set_files(&mut self, world_size: usize, files: Vec<FileRecord>) {
        self.world_size = world_size;
        self.mesh.iter_mut().filter(|d| d.dim == Dim::Shard.name()).for_each(|d| d.extent = world_size);
        self.digest_block = digest_block(self.psi, self.kinds().len());
        self.files = files;
    }

    /// The bytes of `manifest.json`. Errors: a manifest that [`Manifest::from_bytes`] would refuse.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.validate().map_err(|why| Error::Internal(format!("manifest to write: {why}")))?;
        let mut bytes =
            serde_json::to_vec_pretty(self).map_err(|e| Error::Internal(format!("manifest to JSON: {e}")))?;
        let closing = bytes.split_off(bytes.len() - "\n}".len());
        assert_eq!(closing, b"\n}", "a JSON object ends with its brace");
        bytes.extend_from_slice(b",\n  ");
        let tail = digest_tail(&bytes);
        bytes.extend_from_slice(tail.as_bytes());
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(Error::Checkpoint(format!(
                "the manifest would have {} bytes; format {FORMAT_VERSION} allows {MAX_MANIFEST_BYTES}",
                bytes.len()
            )));
        }
        Ok(bytes)
    }

    /// Parses and validates `manifest.json`. Error messages omit the path, which the caller knows. Memory use
    /// is bounded by a small multiple of the size of the input.
    pub fn from_bytes(bytes: &[u8]) -> std::result::Result<Self, String> {
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(format!(
                "has {} bytes, more than the maximum of {MAX_MANIFEST_BYTES} for a manifest",
                bytes.len()
            ));
        }
        let header: Header = serde_json::from_slice(bytes).map_err(|e| format!("is damaged: {e}"))?;
        if header.format_version != FORMAT_VERSION {
            return Err(format!(
                "has format_version {}; this program reads version {FORMAT_VERSION}",
                header.format_version
            ));
        }
        let unknown: Vec<&str> = header
            .required_features
            .iter()
            .map(String::as_str)
            .filter(|f| !KNOWN_FEATURES.contains(f))
            .collect();
        if !unknown.is_empty() {
            return Err(format!(
                "requires the {} {}, unknown to this program (version {}); read it with the program that \
                 wrote it, or a newer one",
                human::of_number(unknown.len(), "feature"),
                unknown.iter().map(|f| format!("{f:?}")).collect::<Vec<_>>().join(", "),
                env!("CARGO_PKG_VERSION"),
            ));
        }
        let head = &bytes[..bytes.len().saturating_sub(digest_tail(b"").len())];
        if &bytes[head.len()..] != digest_tail(head).as_bytes() {
            return Err("is damaged: its bytes do not match its digest".to_string());
        }
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|e| format!("is not a manifest: {e}"))?;
        manifest.validate()?;
        Ok(manifest)
    }

    /// The parameter a name refers to, resolving aliases.
    pub fn param(&self, name: &str) -> Option<&Param> {
        let stored = self.aliases.iter().find(|a| a.name == name).map_or(name, |a| a.param.as_str());
        self.params.iter().find(|p| p.name == stored)
    }

    /// The kinds stored of each parameter, in file order.
    pub fn kinds(&self) -> Vec<Kind> {
        Kind::all(&self.optimizer.states)
    }
}

//! The checks of a manifest, whatever program wrote it.
//!
//! Bytes that match their digest may still come from a faulty program, so a reader trusts no number in them
//! before these checks. Must not know: the file system, HDF5.

use std::collections::HashSet;

use super::manifest::{HASH, Manifest, Optimizer, REDUCTION_ORDERS};

/// Maximum digest block: a reader holds one in memory.
const MAX_DIGEST_BLOCK: usize = 1 << 24;
/// Maximum length of a parameter name.
const MAX_NAME_BYTES: usize = 1024;
/// Maximum of a counter: additions to it do not overflow.
const MAX_COUNT: u64 = 1 << 62;
/// Maximum number of dimensions of an HDF5 dataset.
const MAX_DIMENSIONS: usize = 32;
/// Maximum size of a shard group.
const MAX_WORLD_SIZE: usize = 1 << 20;

impl Manifest {
    /// Checks all guarantees of format 1 about a manifest's content. Errors describe the violation.
    pub fn validate(&self) -> std::result::Result<(), String> {
        let check = |ok: bool, why: String| if ok { Ok(()) } else { Err(why) };
        check(self.hash == HASH, format!("uses hash {:?}; only {HASH:?} is known", self.hash))?;
        check(
            (1..=MAX_DIGEST_BLOCK).contains(&self.digest_block),
            format!("has digest_block = {}, not in 1..={MAX_DIGEST_BLOCK}", self.digest_block),
        )?;
        check(
            (1..=MAX_WORLD_SIZE).contains(&self.world_size),
            format!("has world_size = {}, not in 1..={MAX_WORLD_SIZE}", self.world_size),
        )?;
        check(
            REDUCTION_ORDERS.contains(&self.reduction_order.as_str()),
            format!(
                "has the reduction order {:?}; this program supports {}",
                self.reduction_order,
                REDUCTION_ORDERS.map(|order| format!("{order:?}")).join(", ")
            ),
        )?;
        let counts = [
            ("step", self.step),
            ("attempts", self.attempts),
            ("samples", self.samples),
            ("tokens", self.tokens),
        ];
        for (name, count) in counts {
            check(count <= MAX_COUNT, format!("has {name} = {count}, more than {MAX_COUNT}"))?;
        }
        let Optimizer { name, states, .. } = &self.optimizer;
        check(
            states.windows(2).all(|pair| pair[0] < pair[1]),
            format!("has states of its optimizer {name:?} twice or out of order"),
        )?;
        check(
            self.optimizer.required_features().iter().all(|feature| self.required_features.contains(feature)),
            format!("has states other than Adam's for its optimizer {name:?} without the required feature"),
        )?;
        let mut names = HashSet::new();
        let mut psi = 0usize;
        for param in &self.params {
            let name = &param.name;
            check_param_name(name)?;
            check(names.insert(name.as_str()), format!("names parameter {name} twice"))?;
            check(
                param.global_shape.len() <= MAX_DIMENSIONS,
                format!(
                    "has a parameter {name} of {} dimensions, more than {MAX_DIMENSIONS}",
                    param.global_shape.len()
                ),
            )?;
            let numel = checked_numel(&param.global_shape)
                .ok_or_else(|| format!("has a parameter {name} whose shape overflows"))?;
            check(
                param.local_box.starts.iter().all(|&s| s == 0)
                    && param.local_box.starts.len() == param.global_shape.len()
                    && param.local_box.lengths == param.global_shape,
                format!("has a parameter {name} of which only a box is stored"),
            )?;
            check(
                param.numel == numel,
                format!("has a parameter {name} of {} elements in shape of {numel}", param.numel),
            )?;
            psi = psi.checked_add(numel).ok_or("has a psi that overflows")?;
        }
        check(psi == self.psi, format!("has psi = {}, its parameters have {psi} elements", self.psi))?;
        let stored = names.clone();
        for alias in &self.aliases {
            check_param_name(&alias.name)?;
            check(
                stored.contains(alias.param.as_str()),
                format!("has an alias {} of {}, which is not stored", alias.name, alias.param),
            )?;
            check(
                names.insert(alias.name.as_str()),
                format!("has an alias {}, a name already in use", alias.name),
            )?;
        }
        self.validate_files()
    }

    fn validate_files(&self) -> std::result::Result<(), String> {
        let check = |ok: bool, why: String| if ok { Ok(()) } else { Err(why) };
        let kinds = self.kinds();
        let (mut files, mut ranks) = (HashSet::new(), HashSet::new());
        for file in &self.files {
            check(
                is_plain_file_name(&file.name),
                format!("names a file {:?}, not a plain file name", file.name),
            )?;
            check(files.insert(file.name.as_str()), format!("names file {} twice", file.name))?;
            if let Some(structure) = &file.structure {
                let mut before = 0;
                let fits = structure.values.iter().all(|&(start, end)| {
                    let fits = before <= start && start < end && end <= file.bytes;
                    before = end;
                    fits
                });
                check(fits, format!("has impossible value ranges for file {}", file.name))?;
            }
            check(ranks.insert(file.rank), format!("has two files of rank {}", file.rank))?;
            check(
                file.rank < self.world_size,
                format!("has file {} of rank {}, of {} ranks", file.name, file.rank, self.world_size),
            )?;
            check_digest(&file.digest).map_err(|why| format!("has file {} {why}", file.name))?;
            let mut room = file.bytes;
            for slice in &file.slices {
                let label = format!("has slice {} in {}", slice.param, file.name);
                check(slice.start <= slice.end, format!("{label} that ends before it starts"))?;
                for &kind in &kinds {
                    let digests =
                        slice.digests.of(kind).ok_or_else(|| format!("{label} without {kind} digests"))?;
                    let n_blocks = slice.numel().div_ceil(self.digest_block);
                    check(
                        digests.len() == n_blocks,
                        format!("{label} with {} {kind} digests for {n_blocks} blocks", digests.len()),
                    )?;
                    digests
                        .iter()
                        .try_for_each(|d| check_digest(d))
                        .map_err(|why| format!("{label} {why}"))?;
                }
                let stored = (slice.numel() as u64).checked_mul(4 * kinds.len() as u64);
                let left = stored.and_then(|bytes| room.checked_sub(bytes));
                room = left
                    .ok_or_else(|| format!("{label} that is longer than the file of {} bytes", file.bytes))?;
            }
        }
        for file in &self.extra_files {
            check(
                is_plain_file_name(&file.name),
                format!("names a file {:?}, not a plain file name", file.name),
            )?;
            check(files.insert(file.name.as_str()), format!("names file {} twice", file.name))?;
            check_digest(&file.digest).map_err(|why| format!("has file {} {why}", file.name))?;
        }
        let placed = self.placed();
        check(placed.len() == self.params.len(), "has slices of parameters it does not list".to_string())?;
        for param in &self.params {
            let mut covered = 0;
            for p in &placed[param.name.as_str()] {
                check(
                    p.start == covered,
                    format!(
                        "has no slice, or two slices, of {} for elements {covered}..{}",
                        param.name,
                        p.start.max(covered)
                    ),
                )?;
                covered = p.end;
            }
            check(
                covered == param.numel,
                format!("has slices of {} up to element {covered} of {}", param.name, param.numel),
            )?;
        }
        Ok(())
    }
}

/// Number of elements of a shape, unless it overflows the addressable bytes.
pub(super) fn checked_numel(shape: &[usize]) -> Option<usize> {
    let numel = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    numel.checked_mul(16).map(|_| numel)
}

/// A parameter name is one component of an HDF5 path.
pub(super) fn check_param_name(name: &str) -> std::result::Result<(), String> {
    let fits = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name != "."
        && !name.chars().any(|c| c == '/' || c.is_control());
    if fits { Ok(()) } else { Err(format!("has a parameter name {name:?} that is not a valid HDF5 name")) }
}

fn check_digest(digest: &str) -> std::result::Result<(), String> {
    if digest.len() == 16 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        Ok(())
    } else {
        Err(format!("with digest {digest:?}, not 16 hex digits"))
    }
}

fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.chars().any(|c| c == '/' || c == '\\' || c.is_control())
}

//! Compares two checkpoints: weights and optimizer states, element by element, for any rank counts.
//!
//! Must not know: HDF5. It reads through [`Reader`].

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::{Kind, Reader, find};
use crate::error::Result;

/// Elements compared at once: memory use is two buffers of this many f32.
const WINDOW: usize = 1 << 20;

/// The result of a comparison. Equal means that every value has the same bits.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Diff {
    /// Parameters that only the first one has, or has with another shape; optimizer states that only it
    /// stores.
    pub only_in_a: Vec<String>,
    /// The same for the second one.
    pub only_in_b: Vec<String>,
    /// Datasets with differing elements.
    pub differing: Vec<Differing>,
    /// Elements compared, of all kinds.
    pub n_compared: u64,
}

/// One dataset in which two checkpoints differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Differing {
    /// Parameter.
    pub param: String,
    /// The kind of value.
    pub kind: Kind,
    /// Elements with differing bits.
    pub n_differing: u64,
    /// First of them, in the flattened parameter.
    pub first: usize,
    /// Largest absolute difference; NaN where one of two differing elements is not a number.
    pub max_abs_diff: f64,
}

impl Diff {
    /// Whether no difference was found.
    pub fn is_equal(&self) -> bool {
        self.only_in_a.is_empty() && self.only_in_b.is_empty() && self.differing.is_empty()
    }
}

/// Compares the values of two checkpoints; each path is a step, checkpoints or run directory. Digests are
/// verified on the way.
///
/// # Errors
/// One of them has no complete checkpoint, or is damaged in what is read.
pub fn diff(a: &Path, b: &Path) -> Result<Diff> {
    find::retrying(a, find::resolve, |a| find::retrying(b, find::resolve, |b| diff_steps(a, b)))
}

fn diff_steps(a: &Path, b: &Path) -> Result<Diff> {
    let mut a = Reader::open(a)?;
    let mut b = Reader::open(b)?;
    let shapes = |r: &Reader| -> Vec<(String, Vec<usize>)> {
        r.manifest().params.iter().map(|p| (p.name.clone(), p.global_shape.clone())).collect()
    };
    let (in_a, in_b) = (shapes(&a), shapes(&b));
    let only = |these: &[(String, Vec<usize>)], those: &[(String, Vec<usize>)]| {
        these.iter().filter(|p| !those.contains(p)).map(|p| p.0.clone()).collect()
    };
    let mut found = Diff { only_in_a: only(&in_a, &in_b), only_in_b: only(&in_b, &in_a), ..Diff::default() };
    let (kinds, kinds_b) = (a.manifest().kinds(), b.manifest().kinds());
    let alone = |these: &[Kind], those: &[Kind]| -> Vec<String> {
        these.iter().filter(|kind| !those.contains(kind)).map(|kind| kind.to_string()).collect()
    };
    found.only_in_a.extend(alone(&kinds, &kinds_b));
    found.only_in_b.extend(alone(&kinds_b, &kinds));
    let mut values = (vec![0.0f32; WINDOW], vec![0.0f32; WINDOW]);
    for param in in_a.iter().filter(|p| in_b.contains(p)) {
        let numel: usize = param.1.iter().product();
        for &kind in kinds.iter().filter(|kind| kinds_b.contains(kind)) {
            let mut differing: Option<Differing> = None;
            let mut from = 0;
            while from < numel {
                let to = numel.min(from + WINDOW);
                let (x, y) = (&mut values.0[..to - from], &mut values.1[..to - from]);
                a.read(&param.0, kind, from..to, x)?;
                b.read(&param.0, kind, from..to, y)?;
                for (i, (x, y)) in x.iter().zip(y.iter()).enumerate() {
                    if x.to_bits() == y.to_bits() {
                        continue;
                    }
                    let d = differing.get_or_insert_with(|| Differing {
                        param: param.0.clone(),
                        kind,
                        n_differing: 0,
                        first: from + i,
                        max_abs_diff: 0.0,
                    });
                    d.n_differing += 1;
                    let far = (f64::from(*x) - f64::from(*y)).abs();
                    if far.is_nan() || far > d.max_abs_diff {
                        d.max_abs_diff = far;
                    }
                }
                from = to;
            }
            found.n_compared += numel as u64;
            found.differing.extend(differing);
        }
    }
    Ok(found)
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_equal() {
            return write!(f, "equal: {} values, bit for bit", self.n_compared);
        }
        write!(f, "different")?;
        for (side, names) in [("first", &self.only_in_a), ("second", &self.only_in_b)] {
            for name in names {
                write!(f, "\n  {name}: only in the {side}, or with a different shape")?;
            }
        }
        for d in &self.differing {
            write!(
                f,
                "\n  {} {}: {} elements differ, the first is {}, by at most {:e}",
                d.param, d.kind, d.n_differing, d.first, d.max_abs_diff
            )?;
        }
        Ok(())
    }
}

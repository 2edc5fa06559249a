//! What a checkpoint holds, parameter by parameter, whatever rank count wrote it: values to compare bit by
//! bit.

use std::collections::BTreeMap;
use std::path::Path;
use zero3::checkpoint::{Kind, Manifest, Reader, step_dir};

/// Weights and moments of a committed step.
pub struct State {
    /// What the checkpoint says about itself.
    pub manifest: Manifest,
    values: BTreeMap<(String, &'static str), Vec<f32>>,
}

impl State {
    /// Reads every value of a step of a run, digests checked.
    #[track_caller]
    pub fn read(run_dir: &Path, step: u64) -> Self {
        let dir = step_dir(run_dir, step);
        let mut reader = Reader::open(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let manifest = reader.manifest().clone();
        let mut values = BTreeMap::new();
        for param in &manifest.params {
            for kind in manifest.kinds() {
                let mut whole = vec![f32::NAN; param.numel];
                reader.read(&param.name, kind, 0..param.numel, &mut whole).unwrap_or_else(|e| panic!("{e}"));
                values.insert((param.name.clone(), kind.group()), whole);
            }
        }
        State { manifest, values }
    }

    /// One kind of value of a whole parameter.
    #[track_caller]
    pub fn get(&self, param: &str, kind: Kind) -> &[f32] {
        let found = self.values.get(&(param.to_string(), kind.group()));
        found.unwrap_or_else(|| panic!("no {kind} of {param} at step {}", self.manifest.step))
    }
}

/// Panics at the first weight or moment whose bits differ.
#[track_caller]
pub fn assert_same_state(a: &State, b: &State) {
    assert_eq!(a.manifest.step, b.manifest.step, "states of different steps");
    let names = |state: &State| state.values.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(a), names(b), "states of different models");
    for ((param, kind), ours) in &a.values {
        let theirs = &b.values[&(param.clone(), *kind)];
        assert_eq!(ours.len(), theirs.len(), "elements of {param}");
        if let Some(i) = (0..ours.len()).find(|&i| ours[i].to_bits() != theirs[i].to_bits()) {
            let n = ours.iter().zip(theirs).filter(|(x, y)| x.to_bits() != y.to_bits()).count();
            panic!("{kind} of {param}: {n} elements differ, first {i}: {:e} and {:e}", ours[i], theirs[i]);
        }
    }
}

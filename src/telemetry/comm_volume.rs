//! Payload bytes this rank received, by the purpose of the call.
//!
//! Counted from the arguments of the actual calls, by the caller. A gradient exchange counts as
//! reduce_scatter, whichever call implements it. Must not know: MPI.

use std::sync::atomic::{AtomicU64, Ordering};

/// The purpose of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommClass {
    /// Parameters gathered in a training step, persistent ones included.
    TrainAllGather,
    /// Gradients reduced in a training step.
    TrainReduceScatter,
    /// Parameters gathered for validation or sampling.
    EvalAllGather,
    /// Norms, losses, verdicts, file lists.
    Control,
}

impl CommClass {
    /// Every class.
    pub const ALL: [CommClass; 4] = [
        CommClass::TrainAllGather,
        CommClass::TrainReduceScatter,
        CommClass::EvalAllGather,
        CommClass::Control,
    ];
}

/// Counters of one rank; shared between the main thread and the thread that drives the collectives.
#[derive(Debug, Default)]
pub struct CommVolume {
    bytes: [AtomicU64; CommClass::ALL.len()],
    calls: [AtomicU64; CommClass::ALL.len()],
}

/// A snapshot of a [`CommVolume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommCounts {
    bytes: [u64; CommClass::ALL.len()],
    calls: [u64; CommClass::ALL.len()],
}

impl CommVolume {
    /// All zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one call that delivers `received_bytes` from other ranks to this rank.
    pub fn add(&self, class: CommClass, received_bytes: u64) {
        self.bytes[class as usize].fetch_add(received_bytes, Ordering::Relaxed);
        self.calls[class as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts since the start of the run.
    pub fn counts(&self) -> CommCounts {
        let read = |counters: &[AtomicU64; 4]| std::array::from_fn(|i| counters[i].load(Ordering::Relaxed));
        CommCounts { bytes: read(&self.bytes), calls: read(&self.calls) }
    }
}

impl CommCounts {
    /// Bytes received for `class`.
    pub fn bytes(&self, class: CommClass) -> u64 {
        self.bytes[class as usize]
    }

    /// Calls made for `class`.
    pub fn calls(&self, class: CommClass) -> u64 {
        self.calls[class as usize]
    }

    /// The difference to `earlier`: the counts of a step.
    pub fn since(&self, earlier: &CommCounts) -> CommCounts {
        CommCounts {
            bytes: std::array::from_fn(|i| self.bytes[i] - earlier.bytes[i]),
            calls: std::array::from_fn(|i| self.calls[i] - earlier.calls[i]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_counted_apart_and_a_step_is_a_difference() {
        let volume = CommVolume::new();
        volume.add(CommClass::TrainAllGather, 100);
        let before = volume.counts();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| volume.add(CommClass::TrainReduceScatter, 3)));
            }
        });
        volume.add(CommClass::Control, 0);
        let step = volume.counts().since(&before);
        let got = CommClass::ALL.map(|class| (step.bytes(class), step.calls(class)));
        assert_eq!(got, [(0, 0), (12_000, 4000), (0, 0), (0, 1)]);
    }
}

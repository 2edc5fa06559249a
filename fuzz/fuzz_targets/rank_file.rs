//! A rank file whose structure has a digest: whatever is in it, the HDF5 library sees only what was written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::LazyCell;
use zero3_fuzz::Checkpoint;

thread_local! {
    static CHECKPOINT: LazyCell<Checkpoint> = LazyCell::new(Checkpoint::of_today);
}

fuzz_target!(|bytes: &[u8]| CHECKPOINT.with(|checkpoint| checkpoint.with_file(bytes)));

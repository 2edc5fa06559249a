//! A rank file of version 1's first writers: the HDF5 library itself has to cope, and our checks of what it
//! says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::LazyCell;
use zero3_fuzz::Checkpoint;

thread_local! {
    static CHECKPOINT: LazyCell<Checkpoint> = LazyCell::new(Checkpoint::of_version_1);
}

fuzz_target!(|bytes: &[u8]| CHECKPOINT.with(|checkpoint| checkpoint.with_file(bytes)));

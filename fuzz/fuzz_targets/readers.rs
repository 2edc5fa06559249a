//! Any bytes for one reader of `zero3_fuzz::readers`, by its name in `ZERO3_FUZZ_READER`: a value or an error
//! in words. A panic, more than a gigabyte and more than ten seconds are faults (`fuzz/run.sh` sets the
//! bounds).
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::LazyCell;
use zero3_fuzz::readers::Reader;

thread_local! {
    static READER: LazyCell<Reader> = LazyCell::new(Reader::named_by_environment);
}

fuzz_target!(|bytes: &[u8]| READER.with(|reader| reader.read(bytes)));

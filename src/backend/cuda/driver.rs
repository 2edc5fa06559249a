//! Errors of the driver in words, with the call that failed.

use crate::error::Error;
use cudarc::driver::result::DriverError;

/// A driver's error with its name, number and text.
pub(super) fn in_words(error: DriverError) -> String {
    let text = |found: std::result::Result<&std::ffi::CStr, DriverError>| {
        found.map_or(String::new(), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({}): {}", text(error.error_name()), error.0 as u32, text(error.error_string()))
}

/// A failed call of the driver.
pub(super) fn fault(call: &str, error: DriverError) -> Error {
    Error::Comm(format!("{call} failed: {}", in_words(error)))
}

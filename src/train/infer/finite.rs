//! Inference with weights that compute no finite numbers ends with an error.

use crate::error::{Error, Result};

/// Fails where `found` is a number that is not finite. Every rank has computed the same one, so all leave
/// together with exit code 4.
pub(super) fn refuse_non_finite(what: &str, found: Option<f64>) -> Result<()> {
    let Some(found) = found else { return Ok(()) };
    let why = format!(
        "{what} is {found}: the model's weights are not finite, or too large; an earlier checkpoint may do"
    );
    Err(Error::Agreed { rank: 0, error: Box::new(Error::NonFinite(why)) })
}

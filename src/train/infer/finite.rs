//! Inference with weights that give non-finite values ends with an error.

use crate::error::{Error, Result};

/// Fails if `found` is a non-finite number. Every rank has computed the same one, so all exit together with
/// code 4.
pub(super) fn refuse_non_finite(what: &str, found: Option<f64>) -> Result<()> {
    let Some(found) = found else { return Ok(()) };
    let why = format!(
        "{what} is {found}: the model's weights are non-finite or too large; try an earlier checkpoint"
    );
    Err(Error::Agreed { rank: 0, error: Box::new(Error::NonFinite(why)) })
}

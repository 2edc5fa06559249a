//! Slurm's controller, asked through `scontrol`.

use crate::clock;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What `scontrol` may take; a controller that is busy or gone must not hold a job up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `scontrol` with `words`: what it printed, or why there is nothing.
pub fn scontrol(words: &[&str]) -> Result<String, String> {
    let mut command = Command::new("scontrol");
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("scontrol: {e}"))?;
    // One job, or one complaint, fits a pipe's buffer.
    let Ok(Some(status)) = clock::wait_for(TIMEOUT, Duration::from_millis(10), || child.try_wait()) else {
        child.kill().ok();
        child.wait().ok();
        return Err(format!("scontrol gave no answer within {} s", TIMEOUT.as_secs()));
    };
    let out = child.wait_with_output().map_err(|e| format!("scontrol: {e}"))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => {
            Err(format!("scontrol ended with {status}: {}", String::from_utf8_lossy(&out.stderr).trim()))
        }
    }
}

//! Slurm's controller, queried through `scontrol`.

use crate::clock;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of `scontrol`; a busy or unreachable controller must not delay a job.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `scontrol` with `words`: its output, or the reason for its failure.
pub fn scontrol(words: &[&str]) -> Result<String, String> {
    let mut command = Command::new("scontrol");
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("scontrol: {e}"))?;
    // The output for one job, or one error message, fits a pipe's buffer.
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

//! Whether somebody watches what a launcher copies from its ranks.

use crate::environment;

/// Whether this process was started by a launcher whose standard output and error are a terminal. Open MPI
/// gives ranks pipes and copies what arrives there byte by byte; on other nodes, and under launchers that
/// start ranks through a proxy, the parent has none, and lines stay plain.
pub fn launcher_has_a_terminal() -> bool {
    let parent = std::os::unix::process::parent_id();
    let is_terminal = |fd: u32| {
        let path = std::fs::read_link(format!("/proc/{parent}/fd/{fd}")).unwrap_or_default();
        path.starts_with("/dev/pts") || path.to_string_lossy().starts_with("/dev/tty")
    };
    environment::launched().is_some() && is_terminal(1) && is_terminal(2)
}

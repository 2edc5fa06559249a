//! Whether a terminal shows the output that a launcher copies from its ranks.

use crate::environment;

/// Whether this process was started by a launcher whose standard output and error are a terminal. Open MPI
/// connects ranks through pipes and copies byte by byte; on other nodes, and under launchers with a proxy,
/// the parent has no terminal, and output stays plain.
pub fn launcher_has_a_terminal() -> bool {
    let parent = std::os::unix::process::parent_id();
    let is_terminal = |fd: u32| {
        let path = std::fs::read_link(format!("/proc/{parent}/fd/{fd}")).unwrap_or_default();
        path.starts_with("/dev/pts") || path.to_string_lossy().starts_with("/dev/tty")
    };
    environment::launched().is_some() && is_terminal(1) && is_terminal(2)
}

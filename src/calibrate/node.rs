//! What the launcher knows of a node.

/// The node that is calibrated.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    /// Ranks that have cores to themselves.
    pub devices: usize,
    /// Compute threads of a rank.
    pub threads: usize,
    /// Ranks of the first node.
    pub ranks_per_node: usize,
    /// Memory of the node, where the system reports it.
    pub memory_bytes: Option<u64>,
}

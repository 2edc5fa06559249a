//! Element types of stored and communicated numbers. Must not know: where the bytes are.

use serde::{Deserialize, Serialize};

/// Element type of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16: the upper half of an IEEE single.
    Bf16,
    /// Unsigned 32-bit integer (token ids).
    U32,
}

impl DType {
    /// Bytes per element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
        }
    }

    /// The name used in decks, plans and checkpoints.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::U32 => "u32",
        }
    }
}

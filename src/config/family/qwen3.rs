//! Qwen3: presets and derived sizes.

use super::family_rules::{FamilyRules, PresetSizes};
use super::llama::RULES as LLAMA;

pub(super) const RULES: FamilyRules =
    FamilyRules { rope_theta: 1_000_000.0, norm_eps: 1e-6, free_head_dim: true, ..LLAMA };

pub(super) const QWEN3_0_6B: PresetSizes = PresetSizes {
    n_layer: 28,
    n_head: 16,
    n_kv_head: 8,
    head_dim: 128,
    d_model: 1024,
    d_ff: 3072,
    seq_len: 40960,
    vocab_size: 151_936,
    rope_theta: 1_000_000.0,
    tied: true,
};

pub(super) const QWEN3_1_7B: PresetSizes = PresetSizes { d_model: 2048, d_ff: 6144, ..QWEN3_0_6B };

pub(super) const QWEN3_4B: PresetSizes =
    PresetSizes { n_layer: 36, n_head: 32, d_model: 2560, d_ff: 9728, ..QWEN3_0_6B };

pub(super) const QWEN3_8B: PresetSizes = PresetSizes { d_model: 4096, d_ff: 12288, tied: false, ..QWEN3_4B };

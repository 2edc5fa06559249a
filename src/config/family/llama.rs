//! Llama: presets and derived sizes.

use super::family_rules::{FamilyRules, PresetSizes, check_rotated, gated_numel, gated_widest};

pub(super) const RULES: FamilyRules = FamilyRules {
    d_ff: |d_model| (8 * d_model as u64).div_ceil(3).next_multiple_of(256) as i64,
    rope_theta: 10_000.0,
    norm_eps: 1e-5,
    tied: false,
    free_head_dim: false,
    numel: gated_numel,
    widest: gated_widest,
    check: check_rotated,
};

pub(super) const TINY: PresetSizes = PresetSizes {
    n_layer: 4,
    n_head: 8,
    n_kv_head: 4,
    head_dim: 16,
    d_model: 128,
    d_ff: 384,
    seq_len: 128,
    vocab_size: 256,
    rope_theta: 10_000.0,
    ..LLAMA3_8B
};

pub(super) const LLAMA_1B: PresetSizes =
    PresetSizes { n_layer: 16, head_dim: 64, d_model: 2048, d_ff: 8192, tied: true, ..LLAMA3_8B };

pub(super) const LLAMA_3B: PresetSizes =
    PresetSizes { n_layer: 28, n_head: 24, d_model: 3072, d_ff: 8192, tied: true, ..LLAMA3_8B };

pub(super) const LLAMA3_8B: PresetSizes = PresetSizes {
    n_layer: 32,
    n_head: 32,
    n_kv_head: 8,
    head_dim: 128,
    d_model: 4096,
    d_ff: 14336,
    seq_len: 8192,
    vocab_size: 128_256,
    rope_theta: 500_000.0,
    tied: false,
};

pub(super) const LLAMA3_70B: PresetSizes =
    PresetSizes { n_layer: 80, n_head: 64, d_model: 8192, d_ff: 28672, ..LLAMA3_8B };

pub(super) const LLAMA2_7B: PresetSizes = PresetSizes {
    n_kv_head: 32,
    d_ff: 11008,
    seq_len: 4096,
    vocab_size: 32000,
    rope_theta: 10_000.0,
    ..LLAMA3_8B
};

pub(super) const LLAMA2_13B: PresetSizes =
    PresetSizes { n_layer: 40, n_head: 40, n_kv_head: 40, d_model: 5120, d_ff: 13824, ..LLAMA2_7B };

pub(super) const LLAMA2_70B: PresetSizes =
    PresetSizes { n_layer: 80, n_head: 64, n_kv_head: 8, d_model: 8192, d_ff: 28672, ..LLAMA2_7B };

//! The families of models in the deck: names, presets, defaults, and keys a family does not support. A file
//! per family; `model/` has what a family computes.
//!
//! Must not know: the keys of other sections.

pub(super) mod family_rules;
mod gpt2;
mod llama;
mod qwen3;

pub use family_rules::PresetSizes;

use super::choices::choice;
use family_rules::FamilyRules;
use serde::{Deserialize, Serialize};
use std::fmt;

choice! {
    /// The architecture: `model.family`.
    Family {
        /// GPT-2: LayerNorm, learned positions, GELU, biases, tied head.
        Gpt2 = "gpt2",
        /// Llama: RMSNorm, rotary positions, SwiGLU, grouped key/value heads, no biases.
        Llama = "llama",
        /// Qwen3, dense: a Llama with normalized query and key heads of independent width.
        Qwen3 = "qwen3",
    }
}

choice! {
    /// A published model size: `model.preset`.
    Preset {
        /// No preset: the size keys determine the model.
        None = "none",
        /// 12 layers, 12 heads, width 768.
        Gpt2_124m = "gpt2-124m",
        /// 24 layers, 16 heads, width 1024.
        Gpt2_355m = "gpt2-355m",
        /// 36 layers, 20 heads, width 1280.
        Gpt2_774m = "gpt2-774m",
        /// 48 layers, 25 heads, width 1600.
        Gpt2_1_5b = "gpt2-1.5b",
        /// A small Llama for CPUs: 4 layers, 8 heads on 4, width 128.
        LlamaTiny = "llama-tiny",
        /// The sizes of Llama 3.2 1B, without its scaled rotary frequencies: 16 layers, 32 heads on 8, width
        /// 2048.
        Llama1b = "llama-1b",
        /// The sizes of Llama 3.2 3B, without its scaled rotary frequencies: 28 layers, 24 heads on 8, width
        /// 3072.
        Llama3b = "llama-3b",
        /// The sizes of Llama 3 8B: 32 layers, 32 heads on 8, width 4096.
        Llama3_8b = "llama3-8b",
        /// The sizes of Llama 3 70B: 80 layers, 64 heads on 8, width 8192.
        Llama3_70b = "llama3-70b",
        /// The sizes of Llama 2 7B: 32 layers, 32 heads, width 4096.
        Llama2_7b = "llama2-7b",
        /// The sizes of Llama 2 13B: 40 layers, 40 heads, width 5120.
        Llama2_13b = "llama2-13b",
        /// The sizes of Llama 2 70B: 80 layers, 64 heads on 8, width 8192.
        Llama2_70b = "llama2-70b",
        /// 28 layers, 16 heads on 8, width 1024.
        Qwen3_0_6b = "qwen3-0.6b",
        /// 28 layers, 16 heads on 8, width 2048.
        Qwen3_1_7b = "qwen3-1.7b",
        /// 36 layers, 32 heads on 8, width 2560.
        Qwen3_4b = "qwen3-4b",
        /// 36 layers, 32 heads on 8, width 4096.
        Qwen3_8b = "qwen3-8b",
    }
}

impl Preset {
    /// The family, or `None` for free sizes.
    pub const fn family(self) -> Option<Family> {
        Some(match self {
            Preset::None => return None,
            Preset::Gpt2_124m | Preset::Gpt2_355m | Preset::Gpt2_774m | Preset::Gpt2_1_5b => Family::Gpt2,
            Preset::LlamaTiny | Preset::Llama1b | Preset::Llama3b | Preset::Llama3_8b => Family::Llama,
            Preset::Llama3_70b | Preset::Llama2_7b | Preset::Llama2_13b | Preset::Llama2_70b => Family::Llama,
            Preset::Qwen3_0_6b | Preset::Qwen3_1_7b | Preset::Qwen3_4b | Preset::Qwen3_8b => Family::Qwen3,
        })
    }

    /// The sizes, or `None` for free sizes. Sources: Radford et al. 2019, table 2; arXiv:2407.21783, table 3;
    /// arXiv:2302.13971, table 2, and arXiv:2307.09288, table 1; config.json of Llama 3.2 1B and 3B, of Llama
    /// 2, and of Qwen3.
    pub const fn sizes(self) -> Option<PresetSizes> {
        Some(match self {
            Preset::None => return None,
            Preset::Gpt2_124m => gpt2::sizes(12, 12, 768),
            Preset::Gpt2_355m => gpt2::sizes(24, 16, 1024),
            Preset::Gpt2_774m => gpt2::sizes(36, 20, 1280),
            Preset::Gpt2_1_5b => gpt2::sizes(48, 25, 1600),
            Preset::LlamaTiny => llama::TINY,
            Preset::Llama1b => llama::LLAMA_1B,
            Preset::Llama3b => llama::LLAMA_3B,
            Preset::Llama3_8b => llama::LLAMA3_8B,
            Preset::Llama3_70b => llama::LLAMA3_70B,
            Preset::Llama2_7b => llama::LLAMA2_7B,
            Preset::Llama2_13b => llama::LLAMA2_13B,
            Preset::Llama2_70b => llama::LLAMA2_70B,
            Preset::Qwen3_0_6b => qwen3::QWEN3_0_6B,
            Preset::Qwen3_1_7b => qwen3::QWEN3_1_7B,
            Preset::Qwen3_4b => qwen3::QWEN3_4B,
            Preset::Qwen3_8b => qwen3::QWEN3_8B,
        })
    }
}

impl Family {
    pub(super) fn rules(self) -> &'static FamilyRules {
        match self {
            Family::Gpt2 => &gpt2::RULES,
            Family::Llama => &llama::RULES,
            Family::Qwen3 => &qwen3::RULES,
        }
    }
}

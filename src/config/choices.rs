//! The closed sets of values some keys take. Names in decks, checkpoints and messages are these and no others.
//!
//! Must not know: the keys that use them (`mod.rs` says).

use serde::{Deserialize, Serialize};
use std::fmt;

/// An enum whose variants have deck names; the first variant is its `Default`.
macro_rules! choice {
    ($(#[$meta:meta])* $Name:ident { $($(#[$vmeta:meta])* $Variant:ident = $text:tt,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $Name { $($(#[$vmeta])* #[serde(rename = $text)] $Variant,)+ }

        impl $Name {
            /// The deck names of all variants, in order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The name used in decks.
            pub const fn name(self) -> &'static str {
                match self { $($Name::$Variant => $text,)+ }
            }

            /// The variant of a deck name.
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $($text => Some($Name::$Variant),)+
                    _ => None,
                }
            }
        }

        impl Default for $Name {
            fn default() -> Self {
                [$($Name::$Variant),+][0]
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

choice! {
    /// What computes: `run.backend`.
    BackendKind {
        /// The best backend of this build and machine.
        Auto = "auto",
        /// CPU kernels, collectives over MPI.
        Cpu = "cpu",
        /// CUDA kernels, collectives over NCCL.
        Cuda = "cuda",
    }
}

impl BackendKind {
    /// What its devices are in hardware files.
    pub const fn device_kind(self) -> DeviceKind {
        match self {
            BackendKind::Auto | BackendKind::Cpu => DeviceKind::Cpu,
            BackendKind::Cuda => DeviceKind::Gpu,
        }
    }
}

choice! {
    /// The architecture: `model.family`.
    Family {
        /// GPT-2: LayerNorm, learned positions, GELU, biases, tied head.
        Gpt2 = "gpt2",
        /// Llama: RMSNorm, rotary positions, SwiGLU, grouped key/value heads, no biases.
        Llama = "llama",
    }
}

choice! {
    /// A published model size: `model.preset`.
    Preset {
        /// Free sizes: the size keys say everything.
        None = "none",
        /// 12 layers, 12 heads, width 768.
        Gpt2_124m = "gpt2-124m",
        /// 24 layers, 16 heads, width 1024.
        Gpt2_355m = "gpt2-355m",
        /// 36 layers, 20 heads, width 1280.
        Gpt2_774m = "gpt2-774m",
        /// 48 layers, 25 heads, width 1600.
        Gpt2_1_5b = "gpt2-1.5b",
        /// A small Llama of this program's own, for a CPU: 4 layers, 8 heads on 4, width 128.
        LlamaTiny = "llama-tiny",
        /// The sizes of Llama 3.2 1B, without its scaled rotary frequencies: 16 layers, 32 heads on 8, width 2048.
        Llama1b = "llama-1b",
        /// The sizes of Llama 3.2 3B, without its scaled rotary frequencies: 28 layers, 24 heads on 8, width 3072.
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
    }
}

/// The sizes a preset stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PresetSizes {
    /// Architecture.
    pub family: Family,
    /// Transformer blocks (L).
    pub n_layer: usize,
    /// Attention heads.
    pub n_head: usize,
    /// Key/value heads.
    pub n_kv_head: usize,
    /// Width (C).
    pub d_model: usize,
    /// Width of the hidden layer (F).
    pub d_ff: usize,
    /// Tokens per sequence (T).
    pub seq_len: usize,
    /// Vocabulary (V).
    pub vocab_size: usize,
    /// Base of the rotary frequencies; 0 without.
    pub rope_theta: f64,
    /// The head is the token embedding.
    pub tied: bool,
}

impl Preset {
    /// The sizes, or `None` for free sizes. Sources: Radford et al. 2019, table 2; arXiv:2407.21783, table 3;
    /// arXiv:2302.13971, table 2, and arXiv:2307.09288, table 1; config.json of Llama 3.2 1B and 3B and of Llama 2.
    pub const fn sizes(self) -> Option<PresetSizes> {
        Some(match self {
            Preset::None => return None,
            Preset::Gpt2_124m => gpt2(12, 12, 768),
            Preset::Gpt2_355m => gpt2(24, 16, 1024),
            Preset::Gpt2_774m => gpt2(36, 20, 1280),
            Preset::Gpt2_1_5b => gpt2(48, 25, 1600),
            Preset::LlamaTiny => PresetSizes {
                n_layer: 4,
                n_head: 8,
                n_kv_head: 4,
                d_model: 128,
                d_ff: 384,
                seq_len: 128,
                vocab_size: 256,
                rope_theta: 10_000.0,
                ..LLAMA3_8B
            },
            Preset::Llama1b => PresetSizes { n_layer: 16, d_model: 2048, d_ff: 8192, tied: true, ..LLAMA3_8B },
            Preset::Llama3b => {
                PresetSizes { n_layer: 28, n_head: 24, d_model: 3072, d_ff: 8192, tied: true, ..LLAMA3_8B }
            }
            Preset::Llama3_8b => LLAMA3_8B,
            Preset::Llama3_70b => PresetSizes { n_layer: 80, n_head: 64, d_model: 8192, d_ff: 28672, ..LLAMA3_8B },
            Preset::Llama2_7b => LLAMA2_7B,
            Preset::Llama2_13b => {
                PresetSizes { n_layer: 40, n_head: 40, n_kv_head: 40, d_model: 5120, d_ff: 13824, ..LLAMA2_7B }
            }
            Preset::Llama2_70b => {
                PresetSizes { n_layer: 80, n_head: 64, n_kv_head: 8, d_model: 8192, d_ff: 28672, ..LLAMA2_7B }
            }
        })
    }
}

const LLAMA3_8B: PresetSizes = PresetSizes {
    family: Family::Llama,
    n_layer: 32,
    n_head: 32,
    n_kv_head: 8,
    d_model: 4096,
    d_ff: 14336,
    seq_len: 8192,
    vocab_size: 128_256,
    rope_theta: 500_000.0,
    tied: false,
};

const LLAMA2_7B: PresetSizes =
    PresetSizes { n_kv_head: 32, d_ff: 11008, seq_len: 4096, vocab_size: 32000, rope_theta: 10_000.0, ..LLAMA3_8B };

const fn gpt2(n_layer: usize, n_head: usize, d_model: usize) -> PresetSizes {
    PresetSizes {
        family: Family::Gpt2,
        n_layer,
        n_head,
        n_kv_head: n_head,
        d_model,
        d_ff: 4 * d_model,
        seq_len: 1024,
        vocab_size: 50257,
        rope_theta: 0.0,
        tied: true,
    }
}

choice! {
    /// How bytes of a data file become tokens: `data.format`.
    DataFormat {
        /// By file name; a loaded deck never holds it: see [`DataFormat::of_path`].
        Auto = "auto",
        /// Text, for the tokenizer.
        Text = "text",
        /// Headerless little-endian u16 tokens, as nanoGPT writes them.
        RawU16 = "raw_u16",
        /// Headerless little-endian u32 tokens.
        RawU32 = "raw_u32",
        /// Token files with the 1024-byte header of llm.c.
        Llmc = "llmc",
    }
}

/// Endings of container formats whose bytes are neither text nor bare tokens.
pub const CONTAINERS: [&str; 18] = [
    "7z",
    "arrow",
    "bz2",
    "gz",
    "h5",
    "hdf5",
    "lz4",
    "npy",
    "npz",
    "parquet",
    "pt",
    "rar",
    "safetensors",
    "tar",
    "tgz",
    "xz",
    "zip",
    "zst",
];

impl DataFormat {
    /// The format that `auto` means for a path or glob: `*.bin` and `*.u16` are `raw_u16`, `*.u32` is `raw_u32`,
    /// all else is text.
    pub fn of_path(path: &str) -> DataFormat {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.').map(|(_, ending)| ending) {
            Some("bin" | "u16") => DataFormat::RawU16,
            Some("u32") => DataFormat::RawU32,
            _ => DataFormat::Text,
        }
    }
}

/// How text becomes tokens: `data.tokenizer`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Tokenizer {
    /// Each byte is a token.
    #[default]
    Bytes,
    /// The files hold tokens already, and nobody says what they mean.
    None,
    /// GPT-2's byte pair encoding.
    Gpt2,
    /// A `tokenizer.json` of Hugging Face's library.
    File(String),
}

impl Tokenizer {
    /// Number of different tokens, or `None` when the files alone know.
    pub const fn vocab_size(&self) -> Option<usize> {
        match self {
            Tokenizer::Bytes => Some(256),
            Tokenizer::Gpt2 => Some(50257),
            Tokenizer::None | Tokenizer::File(_) => None,
        }
    }

    /// The name used in decks.
    pub fn name(&self) -> &str {
        match self {
            Tokenizer::Bytes => "bytes",
            Tokenizer::None => "none",
            Tokenizer::Gpt2 => "gpt2",
            Tokenizer::File(path) => path,
        }
    }
}

impl std::str::FromStr for Tokenizer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "bytes" => Ok(Tokenizer::Bytes),
            "none" => Ok(Tokenizer::None),
            "gpt2" => Ok(Tokenizer::Gpt2),
            path if path.ends_with(".json") => Ok(Tokenizer::File(path.into())),
            _ => Err(format!("`{text}` is none of bytes, none, gpt2, or the path of a tokenizer.json")),
        }
    }
}

impl TryFrom<String> for Tokenizer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Tokenizer> for String {
    fn from(value: Tokenizer) -> String {
        value.to_string()
    }
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

choice! {
    /// When gradients travel: `zero.reduce`.
    ReduceWhen {
        /// Into slices after each micro-step.
        EveryMicroStep = "every_micro_step",
        /// Full gradients are held, and reduced once per step.
        LastMicroStep = "last_micro_step",
    }
}

choice! {
    /// Locks on checkpoint files, `checkpoint.locking`, and on the run directory, `run.locking`.
    Locking {
        /// None: works on any file system.
        Off = "off",
        /// Where the file system has them.
        BestEffort = "best_effort",
        /// Always; a file system without locks is an error.
        On = "on",
    }
}

choice! {
    /// What a save that fails does to the run: `checkpoint.on_error`.
    OnSaveError {
        /// The run ends with exit code 5.
        Stop = "stop",
        /// The run goes on and tries again at the next save.
        Continue = "continue",
    }
}

choice! {
    /// What computes: `hardware.kind`.
    DeviceKind {
        /// A device of its own memory, whose links move bytes beside its kernels.
        Gpu = "gpu",
        /// Cores of a node that ranks share, and that collectives take from kernels.
        Cpu = "cpu",
    }
}

choice! {
    /// How all-gathers travel: `network.gather`.
    GatherRoute {
        /// On rings that enter and leave each node once, as NCCL makes them.
        Ring = "ring",
        /// Each rank fetches each slice itself.
        Direct = "direct",
    }
}

/// Which activations backward recomputes: `zero.activation_checkpointing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ActivationCheckpointing {
    /// Nothing is recomputed.
    #[default]
    None,
    /// Every block is recomputed.
    All,
    /// Each K-th block is recomputed, the first one included; the others keep what they saved.
    Every(u32),
}

impl std::str::FromStr for ActivationCheckpointing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(ActivationCheckpointing::None),
            "all" => Ok(ActivationCheckpointing::All),
            _ => match text.strip_prefix("every:").map(str::parse::<u32>) {
                Some(Ok(k)) if k >= 1 => Ok(ActivationCheckpointing::Every(k)),
                _ => Err(format!("`{text}` is none of none, all, every:K")),
            },
        }
    }
}

impl TryFrom<String> for ActivationCheckpointing {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ActivationCheckpointing> for String {
    fn from(value: ActivationCheckpointing) -> String {
        value.to_string()
    }
}

impl fmt::Display for ActivationCheckpointing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ActivationCheckpointing::None => f.write_str("none"),
            ActivationCheckpointing::All => f.write_str("all"),
            ActivationCheckpointing::Every(k) => write!(f, "every:{k}"),
        }
    }
}

//! The closed sets of values some keys take. Names in decks, checkpoints and messages are these and no
//! others.
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

pub(super) use choice;

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
    /// The format that `auto` means for a path or glob: `*.bin` and `*.u16` are `raw_u16`, `*.u32` is
    /// `raw_u32`, all else is text.
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

//! The closed sets of values of some keys: exactly these names appear in decks, checkpoints and messages.
//!
//! Must not know: the keys that use them (`mod.rs` defines those).

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
    /// The compute device: `run.backend`.
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
    /// The kind of its devices in hardware files.
    pub const fn device_kind(self) -> DeviceKind {
        match self {
            BackendKind::Auto | BackendKind::Cpu => DeviceKind::Cpu,
            BackendKind::Cuda => DeviceKind::Gpu,
        }
    }
}

choice! {
    /// How the bytes of a data file become tokens: `data.format`.
    DataFormat {
        /// By file name; resolved in a loaded deck: see [`DataFormat::of_path`].
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

/// Extensions of container formats whose bytes are neither text nor bare tokens.
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
    /// The format that `auto` selects for a path or glob: `*.bin` and `*.u16` are `raw_u16`, `*.u32` is
    /// `raw_u32`, everything else is text.
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
    /// The files contain tokens already, of an unspecified tokenizer.
    None,
    /// GPT-2's byte pair encoding.
    Gpt2,
    /// A Hugging Face `tokenizer.json`.
    File(String),
}

impl Tokenizer {
    /// Vocabulary size, or `None` if only the files determine it.
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
            _ => Err(format!("`{text}` is not bytes, none, gpt2, or the path of a tokenizer.json")),
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
    /// When gradients are reduced: `zero.reduce`.
    ReduceWhen {
        /// Into slices after each micro-step.
        EveryMicroStep = "every_micro_step",
        /// Full gradients are accumulated, and reduced once per step.
        LastMicroStep = "last_micro_step",
    }
}

choice! {
    /// Locks on checkpoint files, `checkpoint.locking`, and on the run directory, `run.locking`.
    Locking {
        /// None: works on any file system.
        Off = "off",
        /// If the file system supports them.
        BestEffort = "best_effort",
        /// Always; a file system without locks is an error.
        On = "on",
    }
}

choice! {
    /// The effect of a failed save on the run: `checkpoint.on_error`.
    OnSaveError {
        /// The run ends with exit code 5.
        Stop = "stop",
        /// The run continues and tries again at the next save.
        Continue = "continue",
    }
}

choice! {
    /// The kind of device: `hardware.kind`.
    DeviceKind {
        /// A device with separate memory, whose links transfer data while kernels run.
        Gpu = "gpu",
        /// Cores of a node shared by its ranks, on which collectives compete with kernels.
        Cpu = "cpu",
    }
}

choice! {
    /// The algorithm of all-gathers: `network.gather`.
    GatherRoute {
        /// Rings that enter and leave each node once, as in NCCL.
        Ring = "ring",
        /// Each rank fetches each slice directly.
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
    /// Every K-th block is recomputed, the first one included; the others retain their saved tensors.
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
                _ => Err(format!("`{text}` is not none, all or every:K")),
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

//! Encodings of tokens in a file.
//!
//! Must not know: files.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes before the first token in files of llm.c.
pub const LLMC_HEADER_BYTES: usize = 1024;

/// Encoding of tokens in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenFormat {
    /// One byte, one token: text as it is.
    Text,
    /// Headerless little-endian u16 tokens, as nanoGPT writes them.
    RawU16,
    /// Headerless little-endian u32 tokens.
    RawU32,
    /// u16 tokens behind the header of llm.c.
    LlmcU16,
    /// u32 tokens behind the header of llm.c.
    LlmcU32,
}

impl TokenFormat {
    /// Bytes of one token.
    pub fn token_bytes(self) -> u64 {
        match self {
            TokenFormat::Text => 1,
            TokenFormat::RawU16 | TokenFormat::LlmcU16 => 2,
            TokenFormat::RawU32 | TokenFormat::LlmcU32 => 4,
        }
    }

    /// Bytes before the first token.
    pub fn header_bytes(self) -> usize {
        match self {
            TokenFormat::Text | TokenFormat::RawU16 | TokenFormat::RawU32 => 0,
            TokenFormat::LlmcU16 | TokenFormat::LlmcU32 => LLMC_HEADER_BYTES,
        }
    }

    /// Its name in messages and digests; the deck calls both formats of llm.c `llmc`.
    pub fn name(self) -> &'static str {
        match self {
            TokenFormat::Text => "text",
            TokenFormat::RawU16 => "raw_u16",
            TokenFormat::RawU32 => "raw_u32",
            TokenFormat::LlmcU16 => "llmc_u16",
            TokenFormat::LlmcU32 => "llmc_u32",
        }
    }

    /// The exclusive upper bound of tokens in this format.
    pub fn token_limit(self) -> u64 {
        1 << (8 * self.token_bytes())
    }
}

impl fmt::Display for TokenFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

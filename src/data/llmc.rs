//! The token files of llm.c: a header of 256 little-endian int32 words, then bare tokens.
//!
//! ```text
//! byte 0     magic: 20240520 for 16-bit tokens, 20240801 for 32-bit ones
//! byte 4     version: 1 for 16-bit tokens, 7 for 32-bit ones
//! byte 8     number of tokens
//! byte 12    zeros up to byte 1024, where the tokens begin
//! ```
//! Source: `write_datafile` in `dev/data/data_common.py` of <https://github.com/karpathy/llm.c>. Files of
//! 32-bit tokens under the first magic are read too. Must not know: paths, vocabularies.

use super::format::{LLMC_HEADER_BYTES as HEADER_BYTES, TokenFormat};

/// Maximum token count of the header.
pub const MAX_TOKENS: u64 = i32::MAX as u64;

const MAGIC_U16: u32 = 20_240_520;
const MAGIC_U32: u32 = 20_240_801;
const VERSION_U16: u32 = 1;
const VERSION_U32: u32 = 7;

/// Whether the bytes start like an llm.c token file.
pub fn has_magic(bytes: &[u8]) -> bool {
    bytes.len() >= 4 && [MAGIC_U16, MAGIC_U32].contains(&word(bytes, 0))
}

/// The header of a file with `n_tokens` tokens, at most [`MAX_TOKENS`], of a headed format.
pub fn header(format: TokenFormat, n_tokens: u64) -> [u8; HEADER_BYTES] {
    assert!(n_tokens <= MAX_TOKENS, "{n_tokens} tokens in a header that counts to {MAX_TOKENS}");
    let (magic, version) = match format {
        TokenFormat::LlmcU16 => (MAGIC_U16, VERSION_U16),
        TokenFormat::LlmcU32 => (MAGIC_U32, VERSION_U32),
        other => panic!("{other} files have no header"),
    };
    let mut bytes = [0; HEADER_BYTES];
    for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip([magic, version, n_tokens as u32]) {
        *place = word.to_le_bytes();
    }
    bytes
}

/// The format in a file's header, after all of the header has been checked against the file's size.
///
/// # Errors
/// The fault, with its byte offset and a remedy.
pub fn check(start: &[u8], file_bytes: u64) -> Result<TokenFormat, String> {
    if start.len() < HEADER_BYTES {
        return Err(format!(
            "has {file_bytes} bytes, less than the {HEADER_BYTES} of an llm.c token file's header; copy the \
             file again, or set the correct data.format"
        ));
    }
    let (magic, version) = (word(start, 0), word(start, 4));
    let format = match (magic, version) {
        (MAGIC_U16, VERSION_U16) => TokenFormat::LlmcU16,
        (MAGIC_U16 | MAGIC_U32, VERSION_U32) => TokenFormat::LlmcU32,
        (MAGIC_U16 | MAGIC_U32, _) => {
            return Err(format!(
                "has version {version} (byte offset 4), but only {VERSION_U16} (16-bit tokens) and \
                 {VERSION_U32} (32-bit tokens, magic {MAGIC_U32}) are supported; regenerate it"
            ));
        }
        _ => {
            return Err(format!(
                "starts with {magic} (byte offset 0), but an llm.c token file starts with {MAGIC_U16} or \
                 {MAGIC_U32}; for bare tokens set data.format = \"raw_u16\" or \"raw_u32\""
            ));
        }
    };
    let n_said = i64::from(word(start, 8) as i32);
    let payload = file_bytes - HEADER_BYTES as u64;
    let (n_held, torn) = (payload / format.token_bytes(), payload % format.token_bytes());
    if n_said != n_held as i64 || torn != 0 {
        let rest = if torn == 0 { String::new() } else { format!(" and {torn} additional bytes") };
        return Err(format!(
            "has {n_said} tokens according to its header (byte offset 8), but contains {n_held}{rest}; copy \
             the file again"
        ));
    }
    Ok(format)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_it_was_made_of() {
        for (format, n) in [(TokenFormat::LlmcU16, 0), (TokenFormat::LlmcU16, 7), (TokenFormat::LlmcU32, 5)] {
            let bytes = header(format, n);
            assert!(has_magic(&bytes) && bytes[12..].iter().all(|&b| b == 0));
            assert_eq!(check(&bytes, 1024 + n * format.token_bytes()), Ok(format));
        }
        // The first twelve bytes as llm.c's own script writes them for 7 tokens of GPT-2.
        assert_eq!(header(TokenFormat::LlmcU16, 7)[..12], *b"\x88\xd8\x34\x01\x01\0\0\0\x07\0\0\0");
    }

    #[test]
    fn a_header_that_lies_is_refused_with_the_offset_of_the_lie() {
        let good = header(TokenFormat::LlmcU16, 7);
        let with = |at: usize, value: u32| {
            let mut bytes = good;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        for (bytes, len, says) in [
            (&good[..], 1024 + 12, "has 7 tokens according to its header (byte offset 8), but contains 6"),
            (&good[..], 1024 + 15, "contains 7 and 1 additional bytes"),
            (
                &with(8, u32::MAX),
                1024,
                "has -1 tokens according to its header (byte offset 8), but contains 0",
            ),
            (&with(0, 1), 1038, "byte offset 0"),
            (&with(4, 2), 1038, "version 2 (byte offset 4)"),
            (&good[..1000], 1000, "has 1000 bytes"),
        ] {
            let why = check(bytes, len).unwrap_err();
            assert!(why.contains(says), "{says:?} is not in {why}");
        }
    }
}

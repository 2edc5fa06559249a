//! GPT-2's tokenizer and those of `tokenizer.json` files. Byte pairs and regular expressions are those of
//! third-party crates.
//!
//! Must not know: where a `tokenizer.json` came from, what a document is.

use super::subwords::{Loaded, Subwords, TextFault};
use crate::error::{Error, Result};
use crate::foreign::{guarded, without_bom};
use std::path::Path;
use tiktoken_rs::CoreBPE;
use tokenizers::Tokenizer as HuggingFace;

/// Longer runs of white space are rejected for GPT-2: its regular expression would exceed its stack of 10^6.
pub(super) const MAX_BLANKS: usize = 500_000;

/// Usual names of the document token, as looked for in a `tokenizer.json`.
const END_NAMES: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>"];

const GPT2_END: (&str, u32) = ("<|endoftext|>", 50256);

/// GPT-2's.
///
/// # Errors
/// The vocabulary in the crate is damaged.
pub(super) fn gpt2() -> Result<Loaded> {
    let bpe = tiktoken_rs::r50k_base().map_err(|e| Error::Internal(format!("GPT-2's vocabulary: {e}")))?;
    Ok(Loaded {
        subwords: Box::new(Gpt2(bpe)),
        vocab_size: 50257,
        document_token: Some(GPT2_END.1),
        has_other_tokens: false,
    })
}

/// That of the bytes of a `tokenizer.json`.
///
/// # Errors
/// They are not one; `path` is for the message.
pub(super) fn of_file(path: &Path, bytes: &[u8]) -> Result<Loaded> {
    let parse = || {
        let mut file = HuggingFace::from_bytes(without_bom(bytes)).map_err(|e| e.to_string())?;
        // Truncation and padding for a model's inputs do not apply to the text.
        file.with_truncation(None).map_err(|e| e.to_string())?;
        file.with_padding(None);
        Ok(file)
    };
    let file = guarded(parse)
        .flatten()
        .map_err(|e| Error::Input(format!("{}: not a tokenizer.json: {e}", path.display())))?;
    Ok(Loaded {
        vocab_size: file.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1),
        document_token: END_NAMES.iter().find_map(|name| file.token_to_id(name)),
        subwords: Box::new(File(file)),
        has_other_tokens: true,
    })
}

struct Gpt2(CoreBPE);

impl Subwords for Gpt2 {
    fn encode(&self, text: &[u8], out: &mut Vec<u32>) -> std::result::Result<(), TextFault> {
        let text = as_utf8(text)?;
        check_blanks(text)?;
        out.extend(guarded(|| self.0.encode_ordinary(text)).map_err(cannot_be_encoded)?);
        Ok(())
    }

    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        let bytes_of = |&token: &u32| self.0.decode_bytes(&[token]).unwrap_or_else(|_| "\u{fffd}".into());
        tokens.iter().flat_map(bytes_of).collect()
    }

    fn last_cut(&self, text: &[u8]) -> Option<usize> {
        (1..text.len()).rev().find(|&at| {
            let blank = |c: char| c.is_whitespace();
            text[at].is_ascii_whitespace() && char_before(text, at).is_some_and(|c| !blank(c))
        })
    }

    fn token(&self, name: &str) -> Option<u32> {
        (name == GPT2_END.0).then_some(GPT2_END.1)
    }
}

struct File(HuggingFace);

impl Subwords for File {
    fn encode(&self, text: &[u8], out: &mut Vec<u32>) -> std::result::Result<(), TextFault> {
        let text = as_utf8(text)?;
        let encoded = guarded(|| self.0.encode_fast(text, false).map_err(|e| e.to_string()));
        out.extend_from_slice(encoded.flatten().map_err(cannot_be_encoded)?.get_ids());
        Ok(())
    }

    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        let is_known = |token: &u32| self.0.id_to_token(*token).is_some();
        let parts = tokens.chunk_by(|a, b| is_known(a) && is_known(b)).map(|part| {
            let decoded = || self.0.decode(part, false).map_err(|e| e.to_string());
            let text = is_known(&part[0]).then(|| guarded(decoded).flatten());
            text.and_then(std::result::Result::ok).unwrap_or_else(|| "\u{fffd}".repeat(part.len()))
        });
        parts.collect::<String>().into_bytes()
    }

    fn last_cut(&self, _: &[u8]) -> Option<usize> {
        None
    }

    fn token(&self, name: &str) -> Option<u32> {
        self.0.token_to_id(name)
    }
}

fn cannot_be_encoded(why: String) -> TextFault {
    TextFault { offset: 0, what: format!("cannot be encoded: {why}") }
}

fn as_utf8(text: &[u8]) -> std::result::Result<&str, TextFault> {
    std::str::from_utf8(text).map_err(|e| TextFault {
        offset: e.valid_up_to(),
        what: format!("byte 0x{:02x} is not UTF-8 text", text[e.valid_up_to()]),
    })
}

fn check_blanks(text: &str) -> std::result::Result<(), TextFault> {
    let (mut run, mut from) = (0, 0);
    for (at, c) in text.char_indices() {
        if !c.is_whitespace() {
            run = 0;
            continue;
        }
        if run == 0 {
            from = at;
        }
        run += 1;
        if run > MAX_BLANKS {
            return Err(TextFault {
                offset: from,
                what: format!("more than {MAX_BLANKS} consecutive white space characters; remove some"),
            });
        }
    }
    Ok(())
}

/// The character that ends at `at`, if the bytes there are one.
fn char_before(text: &[u8], at: usize) -> Option<char> {
    let start = (at.saturating_sub(4)..at).rev().find(|&i| text[i] & 0xC0 != 0x80)?;
    std::str::from_utf8(&text[start..at]).ok()?.chars().next_back()
}

//! What a tokenizer of words and parts of words does; `byte_pairs.rs` has two of them.
//!
//! Must not know: which tokenizers there are.

/// An error in a text, and its byte offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFault {
    /// Byte offset in the text.
    pub offset: usize,
    /// Description.
    pub what: String,
}

/// A tokenizer, by any number of threads.
pub(super) trait Subwords: Send + Sync {
    /// The tokens of a text, appended to `out`.
    ///
    /// # Errors
    /// It is not a text of this tokenizer: what is wrong, and at which byte.
    fn encode(&self, text: &[u8], out: &mut Vec<u32>) -> Result<(), TextFault>;

    /// The bytes that tokens stand for; U+FFFD for one that is not in the vocabulary.
    fn decode(&self, tokens: &[u32]) -> Vec<u8>;

    /// The last place at or before the end of `text` where it may be cut so that the parts encode to what the
    /// whole does, whatever follows; None where no such place is known.
    fn last_cut(&self, text: &[u8]) -> Option<usize>;

    /// The token of this name that may separate documents.
    fn token(&self, name: &str) -> Option<u32>;
}

/// A tokenizer, and what is known of it.
#[cfg_attr(not(feature = "text"), allow(dead_code))]
pub(super) struct Loaded {
    /// It encodes and decodes.
    pub subwords: Box<dyn Subwords>,
    /// One more than its largest token.
    pub vocab_size: usize,
    /// The token that separates documents by its usual name, if it has one.
    pub document_token: Option<u32>,
    /// Another of its tokens may separate documents.
    pub has_other_tokens: bool,
}

//! The output of `zero3 data info` for token files without a deck.
//!
//! Must not know: decks, tokenizers, the command line.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use super::data_files::report;
use super::decide;
use super::format::TokenFormat;
use super::info::{Decode, FileInfo};
use super::scan::{self, ScanProgress, entropy_nats, histogram};
use super::token_stream::TokenStream;
use crate::error::{Error, Result};
use crate::human;

/// Largest token id that is counted, well above that of any tokenizer; a larger one says that the file is
/// read in the wrong way. Counts take 8 bytes an id, in a table for each thread.
const MAX_COUNTED_ID: u64 = 1 << 22;
/// First tokens shown.
const SHOWN_TOKENS: usize = 24;

/// Statistics of token files.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenFilesInfo {
    /// The files, in the order given.
    pub files: Vec<FileInfo>,
    /// Their format.
    pub format: TokenFormat,
    /// Total number of tokens.
    pub n_tokens: u64,
    /// One more than the largest valid token, if specified.
    pub vocab_size: Option<u64>,
    /// Token ids that occur.
    pub n_distinct_tokens: u64,
    /// Largest token id that occurs.
    pub max_token: u32,
    /// Entropy of the token frequencies, in nats.
    pub unigram_entropy_nats: f64,
    /// The first tokens.
    pub first_tokens: Vec<u32>,
    /// The first tokens as text, if the tokenizer is known.
    pub begins: Option<String>,
}

impl TokenFilesInfo {
    /// Reads the files. `word` is a `data.format`; `auto` also recognizes llm.c's header. `decode` turns
    /// tokens into text.
    ///
    /// # Errors
    /// Files that are missing, truncated, of several formats, with a wrong header, or with a token at or
    /// above `vocab_size`.
    pub fn gather(
        paths: &[PathBuf],
        word: &str,
        vocab_size: Option<u64>,
        decode: Option<Decode<'_>>,
        progress: ScanProgress,
    ) -> Result<Self> {
        let key = "data info";
        let has_header = paths.iter().any(|path| decide::starts_with_llmc_magic(path));
        let word = if word == "auto" && has_header { "llmc" } else { word };
        let format = decide::decide_format(key, word, paths, vocab_size.unwrap_or(1))?;
        let stream = TokenStream::open(key, paths, format)?;
        let limit = vocab_size.unwrap_or(format.token_limit().min(MAX_COUNTED_ID));
        let scan = scan::scan(key, &stream, limit, &AtomicU64::new(0), progress);
        report(scan.faults)?;
        let Some(max_token) = scan.max_token else {
            return Err(Error::Input(format!("{key}: the files contain no tokens")));
        };
        let counts = histogram(&stream, 0..stream.len(), u64::from(max_token) + 1);
        let mut first_tokens = vec![0; SHOWN_TOKENS.min(stream.len() as usize)];
        stream.read(0, &mut first_tokens);
        let begins = decode.map(|decode| String::from_utf8_lossy(&decode(&first_tokens)).into_owned());
        Ok(TokenFilesInfo {
            files: stream.files().iter().map(FileInfo::of).collect(),
            format,
            n_tokens: stream.len(),
            vocab_size,
            n_distinct_tokens: counts.iter().filter(|&&n| n > 0).count() as u64,
            max_token,
            unigram_entropy_nats: entropy_nats(&counts),
            first_tokens,
            begins,
        })
    }
}

impl fmt::Display for TokenFilesInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} tokens in {}, {}",
            self.n_tokens,
            human::counted(self.files.len(), "file"),
            self.format
        )?;
        for FileInfo { path, n_bytes, n_tokens } in &self.files {
            writeln!(f, "  {n_bytes:>14} bytes  {n_tokens:>14} tokens  {path}")?;
        }
        let (used, largest) = (self.n_distinct_tokens, self.max_token);
        match self.vocab_size {
            Some(of) => {
                writeln!(f, "  vocabulary         {used} of {of} ids occur, the largest is {largest}")?
            }
            None => writeln!(f, "  vocabulary         {used} ids occur, the largest is {largest}")?,
        }
        let (nats, bits) = (self.unigram_entropy_nats, self.unigram_entropy_nats / std::f64::consts::LN_2);
        writeln!(f, "  unigram entropy    {nats:.4} nats ({bits:.4} bits) per token")?;
        let numbers: Vec<String> = self.first_tokens.iter().map(u32::to_string).collect();
        write!(f, "  first tokens       {}", numbers.join(" "))?;
        match &self.begins {
            Some(text) => write!(f, "\n  as text            {text:?}"),
            None => write!(f, "\n  as text            pass --tokenizer to see it"),
        }
    }
}

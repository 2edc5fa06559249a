//! Token files as one long array that is never loaded: memory-mapped, and read where a sample needs it.
//!
//! Must not know: samples, vocabularies, ranks.

use std::path::{Path, PathBuf};

use super::data_files::report;
use super::format::TokenFormat;
use super::mapped::{Change, MappedFile};
use crate::error::Result;

/// A virtual concatenation of token files.
#[derive(Debug)]
pub struct TokenStream {
    files: Vec<StreamFile>,
    format: TokenFormat,
    /// Tokens of all files.
    n_tokens: u64,
}

/// One file of the stream.
#[derive(Debug)]
pub struct StreamFile {
    path: PathBuf,
    file: MappedFile,
    /// Bytes before the first token.
    header_bytes: usize,
    /// Index in the stream of the file's first token.
    first_token: u64,
    n_tokens: u64,
}

impl StreamFile {
    /// As given or matched by a glob.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of its tokens: the whole content except a header.
    pub fn bytes(&self) -> &[u8] {
        // An empty file has no header.
        self.file.bytes().get(self.header_bytes..).unwrap_or(&[])
    }

    /// Size of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file.bytes().len() as u64
    }

    /// What happened to it since it was opened.
    pub fn change(&self) -> Option<Change> {
        self.file.change(&self.path)
    }

    /// Tokens in the file.
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }
}

impl TokenStream {
    /// Maps the files in the given order; headers have been checked
    /// ([`decide_format`](super::decide::decide_format)). All files that are unreadable or have a truncated
    /// last token are reported together.
    pub fn open(key: &str, files: &[PathBuf], format: TokenFormat) -> Result<Self> {
        let mut faults = Vec::new();
        let mut stream = TokenStream { files: Vec::with_capacity(files.len()), format, n_tokens: 0 };
        for path in files {
            let file = match MappedFile::open(path) {
                Ok(file) => file,
                Err(err) => {
                    faults.push(format!(
                        "{key}: cannot read {}: {err}; check the path and its permissions",
                        path.display()
                    ));
                    continue;
                }
            };
            let header_bytes = format.header_bytes();
            let n_bytes = file.bytes().len() as u64;
            let Some(n_bytes) = n_bytes.checked_sub(header_bytes as u64) else {
                faults.push(format!("{key}: {} lost its header while being opened", path.display()));
                continue;
            };
            let token_bytes = format.token_bytes();
            if !n_bytes.is_multiple_of(token_bytes) {
                faults.push(format!(
                    "{key}: {} has {n_bytes} bytes, which is not a multiple of {token_bytes}: as {format} \
                     its last token, at byte offset {}, is truncated; copy the file again, or set the \
                     correct data.format",
                    path.display(),
                    n_bytes / token_bytes * token_bytes
                ));
                continue;
            }
            let n_tokens = n_bytes / token_bytes;
            let first_token = stream.n_tokens;
            stream.files.push(StreamFile { path: path.clone(), file, header_bytes, first_token, n_tokens });
            stream.n_tokens += n_tokens;
        }
        report(faults)?;
        Ok(stream)
    }

    /// Tokens of all files.
    pub fn len(&self) -> u64 {
        self.n_tokens
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.n_tokens == 0
    }

    /// Encoding of the tokens in the files.
    pub fn format(&self) -> TokenFormat {
        self.format
    }

    /// The files in stream order.
    pub fn files(&self) -> &[StreamFile] {
        &self.files
    }

    /// Overwrites `out` with the tokens from `range_start` on, across file boundaries.
    pub fn read(&self, range_start: u64, out: &mut [u32]) {
        let range_end = range_start + out.len() as u64;
        assert!(
            range_end <= self.n_tokens,
            "tokens {range_start}..{range_end} of a stream of {}",
            self.n_tokens
        );
        let mut filled = 0;
        self.for_bytes(range_start..range_end, |bytes| {
            let n = bytes.len() / self.format.token_bytes() as usize;
            decode(self.format, bytes, &mut out[filled..filled + n]);
            filled += n;
        });
        assert_eq!(filled, out.len(), "tokens read from {range_start} on");
    }

    /// Calls `f` with the bytes of each file's part of a token range, in order.
    pub(super) fn for_bytes<'s>(&'s self, range: std::ops::Range<u64>, mut f: impl FnMut(&'s [u8])) {
        let token_bytes = self.format.token_bytes();
        let mut at = range.start;
        let first_file = self.files.partition_point(|file| file.first_token + file.n_tokens <= at);
        for file in &self.files[first_file..] {
            if at >= range.end {
                break;
            }
            let from = at - file.first_token;
            let to = file.n_tokens.min(range.end - file.first_token);
            if from < to {
                f(&file.bytes()[(from * token_bytes) as usize..(to * token_bytes) as usize]);
                at = file.first_token + to;
            }
        }
    }
}

/// Tokens from their little-endian bytes; overwrites `out`.
fn decode(format: TokenFormat, bytes: &[u8], out: &mut [u32]) {
    match format {
        TokenFormat::Text => {
            for (token, &byte) in out.iter_mut().zip(bytes) {
                *token = u32::from(byte);
            }
        }
        TokenFormat::RawU16 | TokenFormat::LlmcU16 => {
            for (token, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *token = u32::from(u16::from_le_bytes(*b));
            }
        }
        TokenFormat::RawU32 | TokenFormat::LlmcU32 => {
            for (token, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *token = u32::from_le_bytes(*b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::llmc;
    use super::*;
    use crate::error::Error;
    use proptest::prelude::*;

    fn write_files(dir: &Path, contents: &[Vec<u8>]) -> Vec<PathBuf> {
        let paths: Vec<PathBuf> = (0..contents.len()).map(|i| dir.join(format!("{i:04}"))).collect();
        for (path, content) in paths.iter().zip(contents) {
            std::fs::write(path, content).unwrap();
        }
        paths
    }

    #[test]
    fn torn_and_missing_files_are_all_named_with_offset() {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = write_files(dir.path(), &[vec![1; 7], vec![1; 4], vec![1; 9]]);
        paths.push(dir.path().join("gone"));
        let Err(Error::Input(text)) = TokenStream::open("data.val", &paths, TokenFormat::RawU16) else {
            panic!()
        };
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].contains("0000 has 7 bytes") && lines[0].contains("byte offset 6"), "{text}");
        assert!(lines[1].contains("0002 has 9 bytes") && lines[2].contains("gone"), "{text}");
        let Err(Error::Input(text)) = TokenStream::open("data.val", &paths[..1], TokenFormat::RawU32) else {
            panic!()
        };
        assert!(text.contains("multiple of 4") && text.contains("byte offset 4"), "{text}");
    }

    #[test]
    #[should_panic(expected = "tokens 3..5 of a stream of 4")]
    fn a_read_past_the_end_is_a_broken_invariant() {
        let dir = tempfile::tempdir().unwrap();
        let paths = write_files(dir.path(), &[b"abcd".to_vec()]);
        TokenStream::open("data.train", &paths, TokenFormat::Text).unwrap().read(3, &mut [0; 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Against a plain Vec of all tokens, empty files and one-token files included.
        #[test]
        fn a_read_across_file_ends_gives_the_tokens_of_the_plain_array(
            files in proptest::collection::vec(proptest::collection::vec(any::<u32>(), 0..9), 1..6),
            format in prop_oneof![
                Just(TokenFormat::Text),
                Just(TokenFormat::RawU16),
                Just(TokenFormat::RawU32),
                Just(TokenFormat::LlmcU16),
                Just(TokenFormat::LlmcU32),
            ],
        ) {
            let keep = (format.token_limit() - 1) as u32;
            let n = format.token_bytes() as usize;
            let content = |file: &Vec<u32>| {
                let headed = format.header_bytes() > 0;
                let header =
                    if headed { llmc::header(format, file.len() as u64).to_vec() } else { Vec::new() };
                header
                    .into_iter()
                    .chain(file.iter().flat_map(|t| t.to_le_bytes()[..n].to_vec()))
                    .collect::<Vec<u8>>()
            };
            let contents: Vec<Vec<u8>> = files.iter().map(content).collect();
            let all: Vec<u32> = files.iter().flatten().map(|t| t & keep).collect();
            let dir = tempfile::tempdir().unwrap();
            let stream =
                TokenStream::open("data.train", &write_files(dir.path(), &contents), format).unwrap();
            prop_assert_eq!(stream.len(), all.len() as u64);
            for from in 0..=all.len() {
                for to in from..=all.len() {
                    let mut out = vec![7; to - from];
                    stream.read(from as u64, &mut out);
                    prop_assert_eq!(&out, &all[from..to]);
                }
            }
        }
    }
}

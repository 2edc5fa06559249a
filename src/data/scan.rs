//! One pass over every page of the data, before step 0: the digest, and the search for tokens outside the
//! vocabulary.
//!
//! Also the token histogram for the unigram entropy. Must not know: samples, ranks.
//!
//! [Note: xxh3-128/64MiB-v1] The digest of a stream is XXH3-128 over: the format's name, then for each file
//! in order its length in bytes (u64, little-endian) and the XXH3-128 digests (u128, little-endian) of its
//! chunks of 64 MiB. Chunks are hashed in parallel and folded in order, so the result does not depend on
//! threads. File names are left out: moved data is the same data.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use xxhash_rust::xxh3::Xxh3;

use super::format::TokenFormat;
use super::token_stream::TokenStream;

/// Name of the digest, as checkpoints record it.
pub const DIGEST: &str = "xxh3-128/64MiB-v1";

const CHUNK_BYTES: usize = 64 << 20;

/// Bytes hashed and searched at once, small enough for a core's cache; a multiple of every token size.
const BLOCK_BYTES: usize = 256 << 10;

/// Tokens counted per task of a histogram.
const HISTOGRAM_TOKENS: u64 = 16 << 20;

/// Receives the bytes done so far, from any thread; the values need not arrive in order.
pub type ScanProgress<'a> = &'a (dyn Fn(u64) + Sync);

/// Result of a pass over a stream.
pub(super) struct StreamScan {
    pub digest: u128,
    pub max_token: Option<u32>,
    /// A line for every file with tokens outside the vocabulary.
    pub faults: Vec<String>,
}

/// Result for one chunk.
struct ChunkScan {
    digest: u128,
    max_token: Option<u32>,
    /// Index in the file and value of the first invalid token.
    first_bad: Option<(u64, u32)>,
    n_bad: u64,
}

/// Reads every page of `stream` once. `done` is shared by the streams of one data set.
pub(super) fn scan(
    key: &str,
    stream: &TokenStream,
    vocab_size: u64,
    done: &AtomicU64,
    progress: ScanProgress,
) -> StreamScan {
    scan_by(CHUNK_BYTES, key, stream, vocab_size, done, progress)
}

fn scan_by(
    chunk_bytes: usize,
    key: &str,
    stream: &TokenStream,
    vocab_size: u64,
    done: &AtomicU64,
    progress: ScanProgress,
) -> StreamScan {
    let format = stream.format();
    let chunks: Vec<(usize, u64, &[u8])> = stream
        .files()
        .iter()
        .enumerate()
        .flat_map(|(file_idx, file)| {
            let tokens_per_chunk = chunk_bytes as u64 / format.token_bytes();
            let chunks = file.bytes().chunks(chunk_bytes).enumerate();
            chunks.map(move |(i, bytes)| (file_idx, i as u64 * tokens_per_chunk, bytes))
        })
        .collect();
    let scans: Vec<ChunkScan> = chunks
        .par_iter()
        .map(|&(_, first_token, bytes)| scan_chunk(format, first_token, bytes, vocab_size, done, progress))
        .collect();

    let mut hasher = Xxh3::new();
    hasher.update(format.name().as_bytes());
    let mut result = StreamScan { digest: 0, max_token: None, faults: Vec::new() };
    let mut of_chunks = chunks.iter().zip(&scans).peekable();
    for (file_idx, file) in stream.files().iter().enumerate() {
        hasher.update(&(file.bytes().len() as u64).to_le_bytes());
        let (mut first_bad, mut n_bad) = (None, 0);
        while let Some((_, chunk)) = of_chunks.next_if(|((idx, ..), _)| *idx == file_idx) {
            hasher.update(&chunk.digest.to_le_bytes());
            result.max_token = result.max_token.max(chunk.max_token);
            first_bad = first_bad.or(chunk.first_bad);
            n_bad += chunk.n_bad;
        }
        if let Some((token_idx, value)) = first_bad {
            let what_would_do = match format {
                TokenFormat::Text => "set model.vocab_size to 256 for text as bytes",
                TokenFormat::LlmcU16 | TokenFormat::LlmcU32 => "set model.vocab_size to the tokenizer's",
                TokenFormat::RawU16 | TokenFormat::RawU32 => {
                    "set model.vocab_size to the tokenizer's, or check data.format and that the file has no \
                     header"
                }
            };
            let others =
                if n_bad > 1 { format!(" ({n_bad} such tokens in this file)") } else { String::new() };
            result.faults.push(format!(
                "{key}: {}: token {token_idx} (byte offset {}) is {value}, outside the vocabulary of \
                 {vocab_size}{others}; {what_would_do}",
                file.path().display(),
                token_idx * format.token_bytes() + format.header_bytes() as u64,
            ));
        }
    }
    result.digest = hasher.digest128();
    result
}

fn scan_chunk(
    format: TokenFormat,
    first_token: u64,
    bytes: &[u8],
    vocab_size: u64,
    done: &AtomicU64,
    progress: ScanProgress,
) -> ChunkScan {
    let mut hasher = Xxh3::new();
    let mut chunk = ChunkScan { digest: 0, max_token: None, first_bad: None, n_bad: 0 };
    let tokens_per_block = (BLOCK_BYTES as u64) / format.token_bytes();
    for (block_idx, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        hasher.update(block);
        let max = fold_tokens(format, block, 0, |max: u32, token| max.max(token));
        chunk.max_token = chunk.max_token.max(Some(max));
        if u64::from(max) >= vocab_size {
            let mut token_idx = first_token + block_idx as u64 * tokens_per_block;
            fold_tokens(format, block, (), |(), token| {
                if u64::from(token) >= vocab_size {
                    chunk.first_bad = chunk.first_bad.or(Some((token_idx, token)));
                    chunk.n_bad += 1;
                }
                token_idx += 1;
            });
        }
        let n_bytes = block.len() as u64;
        progress(done.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes);
    }
    chunk.digest = hasher.digest128();
    chunk
}

/// Folds `f` over the tokens in `bytes`, which hold whole tokens.
fn fold_tokens<T>(format: TokenFormat, bytes: &[u8], init: T, mut f: impl FnMut(T, u32) -> T) -> T {
    match format {
        TokenFormat::Text => bytes.iter().fold(init, |acc, &b| f(acc, u32::from(b))),
        TokenFormat::RawU16 | TokenFormat::LlmcU16 => {
            bytes.as_chunks().0.iter().fold(init, |acc, b| f(acc, u32::from(u16::from_le_bytes(*b))))
        }
        TokenFormat::RawU32 | TokenFormat::LlmcU32 => {
            bytes.as_chunks().0.iter().fold(init, |acc, b| f(acc, u32::from_le_bytes(*b)))
        }
    }
}

/// Occurrences of each token id below `n_ids` among the tokens of `range`; others are not counted.
pub(super) fn histogram(stream: &TokenStream, range: Range<u64>, n_ids: u64) -> Vec<u64> {
    let zeros = || vec![0u64; n_ids.min(stream.format().token_limit()) as usize];
    let n_tasks = (range.end - range.start).div_ceil(HISTOGRAM_TOKENS);
    (0..n_tasks)
        .into_par_iter()
        .map(|task| {
            let from = range.start + task * HISTOGRAM_TOKENS;
            from..(from + HISTOGRAM_TOKENS).min(range.end)
        })
        .fold(zeros, |mut counts, part| {
            stream.for_bytes(part, |bytes| {
                fold_tokens(stream.format(), bytes, (), |(), token| {
                    if let Some(count) = counts.get_mut(token as usize) {
                        *count += 1;
                    }
                });
            });
            counts
        })
        // Without an identity: it would be one more table for each step of the reduction.
        .reduce_with(|mut a, b| {
            for (a, b) in a.iter_mut().zip(b) {
                *a += b;
            }
            a
        })
        .unwrap_or_else(zeros)
}

/// Entropy in nats of the distribution given by `counts`: the loss of a model that knows only token
/// frequencies. 0 for no counts.
pub(super) fn entropy_nats(counts: &[u64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    // libm's log, so that the number is the same on every machine.
    let term = |&n: &u64| -(n as f64 / total) * libm::log(n as f64 / total);
    counts.iter().filter(|&&n| n > 0).map(term).fold(0.0, |sum, x| sum + x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn stream(dir: &tempfile::TempDir, format: TokenFormat, contents: &[Vec<u8>]) -> TokenStream {
        let paths: Vec<PathBuf> = (0..contents.len()).map(|i| dir.path().join(format!("part{i}"))).collect();
        for (path, content) in paths.iter().zip(contents) {
            std::fs::write(path, content).unwrap();
        }
        TokenStream::open("data.train", &paths, format).unwrap()
    }

    fn run(chunk_bytes: usize, stream: &TokenStream, vocab_size: u64) -> StreamScan {
        scan_by(chunk_bytes, "data.train", stream, vocab_size, &AtomicU64::new(0), &|_| ())
    }

    fn u16s(tokens: impl Iterator<Item = u16>) -> Vec<u8> {
        tokens.flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn every_file_with_a_bad_token_is_named_with_index_offset_value_and_vocabulary() {
        let dir = tempfile::tempdir().unwrap();
        // The second file's bad tokens lie in its third chunk and beyond its first block.
        let mut long: Vec<u16> = vec![49; 400_000];
        (long[300_001], long[399_999]) = (50, 60_000);
        let files = [u16s([1, 50, 3].into_iter()), u16s(long.into_iter()), u16s([1, 2].into_iter()), vec![]];
        let scan = run(300_000, &stream(&dir, TokenFormat::RawU16, &files), 50);
        assert_eq!(scan.faults.len(), 2, "{:?}", scan.faults);
        assert!(
            scan.faults[0].contains("part0: token 1 (byte offset 2) is 50, outside the vocabulary of 50;")
        );
        let second =
            "part1: token 300001 (byte offset 600002) is 50, outside the vocabulary of 50 (2 such tokens";
        assert!(scan.faults[1].contains(second), "{:?}", scan.faults);
        assert_eq!(scan.max_token, Some(60_000));
    }

    #[test]
    fn the_last_id_of_the_vocabulary_is_fine_and_text_is_checked_below_256_only() {
        let dir = tempfile::tempdir().unwrap();
        let text = stream(&dir, TokenFormat::Text, &[b"az".to_vec(), vec![255]]);
        assert!(run(64, &text, 256).faults.is_empty());
        assert!(run(64, &text, 128).faults[0].contains("part1: token 0 (byte offset 0) is 255"));
        let dir = tempfile::tempdir().unwrap();
        let wide = stream(&dir, TokenFormat::RawU32, &[(u32::MAX - 1).to_le_bytes().to_vec()]);
        assert!(run(64, &wide, u64::from(u32::MAX)).faults.is_empty());
        assert_eq!(run(64, &wide, 5).faults.len(), 1);
    }

    #[test]
    fn the_digest_does_not_depend_on_threads_and_does_on_everything_else() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        let (head, tail) = bytes.split_at(123_456);
        let data = stream(&dir, TokenFormat::Text, &[head.to_vec(), tail.to_vec()]);
        let with_threads = |n| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
            pool.install(|| run(65_536, &data, 256).digest)
        };
        let digest = with_threads(1);
        for n in [2, 3, 8] {
            assert_eq!(with_threads(n), digest, "{n} threads");
        }
        let mut seen = vec![digest];
        let mut changed = tail.to_vec();
        changed[800_000] ^= 1;
        let (other_head, other_tail) = bytes.split_at(123_458);
        for (format, contents) in [
            (TokenFormat::Text, vec![head.to_vec(), changed]),
            (TokenFormat::Text, vec![tail.to_vec(), head.to_vec()]),
            (TokenFormat::Text, vec![other_head.to_vec(), other_tail.to_vec()]),
            (TokenFormat::Text, vec![head.to_vec(), tail.to_vec(), vec![]]),
            (TokenFormat::RawU16, vec![head.to_vec(), tail.to_vec()]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let other = run(65_536, &stream(&dir, format, &contents), 1 << 16).digest;
            assert!(
                !seen.contains(&other),
                "{format} in {} files gives a digest seen before",
                contents.len()
            );
            seen.push(other);
        }
    }

    /// Straight from the note at the top of this file.
    #[test]
    fn the_digest_is_the_documented_one() {
        use xxhash_rust::xxh3::xxh3_128;
        let dir = tempfile::tempdir().unwrap();
        let data = stream(&dir, TokenFormat::Text, &[b"hello world".to_vec(), vec![], b"!".to_vec()]);
        let mut plain = b"text".to_vec();
        plain.extend(11u64.to_le_bytes());
        for chunk in [&b"hello wo"[..], b"rld"] {
            plain.extend(xxh3_128(chunk).to_le_bytes());
        }
        plain.extend(0u64.to_le_bytes());
        plain.extend(1u64.to_le_bytes());
        plain.extend(xxh3_128(b"!").to_le_bytes());
        assert_eq!(run(8, &data, 256).digest, xxh3_128(&plain));
    }

    #[test]
    fn progress_ends_at_the_size_of_the_data() {
        let dir = tempfile::tempdir().unwrap();
        let data = stream(&dir, TokenFormat::Text, &[vec![1; 700_000], vec![2; 5]]);
        let largest = AtomicU64::new(0);
        scan("data.train", &data, 256, &AtomicU64::new(0), &|n| {
            largest.fetch_max(n, Ordering::Relaxed);
        });
        assert_eq!(largest.into_inner(), 700_005);
    }

    #[test]
    fn a_histogram_counts_its_range_only_and_entropy_is_that_of_known_distributions() {
        let dir = tempfile::tempdir().unwrap();
        let data = stream(&dir, TokenFormat::Text, &[b"xab".to_vec(), b"cdx".to_vec()]);
        let counts = histogram(&data, 1..5, 256);
        assert_eq!(counts.iter().sum::<u64>(), 4);
        assert!((entropy_nats(&counts) - 4f64.ln()).abs() < 1e-15);
        assert_eq!(entropy_nats(&histogram(&data, 0..1, 256)), 0.0);
        assert_eq!(entropy_nats(&histogram(&data, 2..2, 256)), 0.0);
        let known = -(0.75 * 0.75f64.ln() + 0.25 * 0.25f64.ln());
        assert!((entropy_nats(&[3, 0, 1]) - known).abs() < 1e-15);
    }
}

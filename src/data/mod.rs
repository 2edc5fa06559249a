//! Token files and samples: from the deck's globs to the tokens of sample `g`, the same on every rank count.
//!
//! Every rank opens the same files and can read every sample; which rank computes which micro-batch is
//! arithmetic on indices ([`micro_batch_samples`]; rule 8 of the design). Must not know: MPI, models,
//! backends.

pub mod data_files;
pub mod decide;
pub mod file_info;
pub mod format;
mod globs;
pub mod info;
pub mod llmc;
pub mod mapped;
pub mod sample_order;
mod samples;
mod scan;
#[cfg(test)]
mod tests;
pub mod token_stream;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub use data_files::ResolvedFiles;
pub use decide::{not_text_by_name, not_text_by_start};
pub use file_info::TokenFilesInfo;
pub use format::TokenFormat;
pub use info::DataInfo;
pub use samples::{SampleSpace, micro_batch_samples};
pub use scan::{DIGEST, ScanProgress};
pub use token_stream::{StreamFile, TokenStream};

use crate::error::{Error, Result};
use crate::human;
use crate::threads;
use samples::Order;

/// The specification of a data set: the deck's `[data]` section and the two model sizes it needs.
#[derive(Debug, Clone, PartialEq)]
pub struct DataConfig {
    /// Paths or globs of training data.
    pub train: Vec<String>,
    /// Paths or globs of validation data; overrides `val_fraction`.
    pub val: Vec<String>,
    /// Fraction at the end of the training stream reserved for validation, in [0, 1); 0 = none.
    pub val_fraction: f64,
    /// `auto`, `text`, `raw_u16`, `raw_u32` or `llmc`.
    pub format: String,
    /// Every token must be below it.
    pub vocab_size: usize,
    /// Input tokens of a sample (T); a sample has one more token, the last target.
    pub seq_len: usize,
    /// Tokens between the starts of consecutive training samples; 0 = `seq_len`.
    pub stride: usize,
    /// The same for validation windows.
    pub val_stride: usize,
    /// Samples of one validation. If there are more windows, they are spread evenly; 0 = every window, in
    /// file order.
    pub n_val_samples: u64,
    /// Seed of the sample order.
    pub seed: u64,
    /// Shuffle the training samples of each epoch; false = file order.
    pub shuffle: bool,
}

/// Training and validation samples.
#[derive(Debug)]
pub struct Dataset {
    train: SampleSpace,
    val: Option<SampleSpace>,
    vocab_size: u64,
    warnings: Vec<String>,
}

/// Result of the pass over all pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanReport {
    /// 32 hex digits over format, lengths and contents of all files ([`DIGEST`]); the training stream's, then
    /// the validation stream's if it has separate files, hashed together.
    pub digest: String,
    /// Bytes of all files.
    pub n_bytes: u64,
    /// Largest token id that occurs.
    pub max_token: u32,
}

impl Dataset {
    /// Resolves the globs and opens the files, for a single process. Reads no tokens; see [`Dataset::scan`].
    ///
    /// # Errors
    /// A glob without a match, and the errors of [`Dataset::open_files`].
    pub fn open(cfg: &DataConfig) -> Result<Self> {
        Self::open_files(cfg, &ResolvedFiles::resolve(&cfg.train, &cfg.val)?)
    }

    /// Opens a resolved list of files, of this rank or another.
    ///
    /// # Errors
    /// All files that are unreadable or have a truncated last token; no data at all; two formats; too few
    /// tokens for a sample of a split.
    pub fn open_files(cfg: &DataConfig, files: &ResolvedFiles) -> Result<Self> {
        assert!(
            cfg.seq_len > 0 && cfg.vocab_size > 0,
            "seq_len {} vocab_size {}",
            cfg.seq_len,
            cfg.vocab_size
        );
        assert!((0.0..1.0).contains(&cfg.val_fraction), "val_fraction {}", cfg.val_fraction);
        let vocab_size = cfg.vocab_size as u64;
        let open = |key: &str, paths: &[PathBuf]| -> Result<Arc<TokenStream>> {
            let format = decide::decide_format(key, &cfg.format, paths, vocab_size)?;
            let stream = TokenStream::open(key, paths, format)?;
            if stream.is_empty() {
                let files = first_and_more(&stream);
                return Err(Error::Input(format!("{key}: {files}: 0 bytes; specify files with data")));
            }
            Ok(Arc::new(stream))
        };
        // Both lists are checked before either fault is reported.
        let val_stream = if files.val.is_empty() { None } else { Some(open("data.val", &files.val)) };
        let (stream, val_stream) = match (open("data.train", &files.train), val_stream) {
            (Ok(train), None) => (train, None),
            (Ok(train), Some(Ok(val))) => (train, Some(val)),
            (Err(a), Some(Err(b))) => return Err(Error::Input(format!("{a}\n{b}"))),
            (Err(err), _) | (_, Some(Err(err))) => return Err(err),
        };
        if let Some(val) = &val_stream
            && val.format() != stream.format()
        {
            return Err(Error::Input(format!(
                "data.train has {} ({}) and data.val {} ({}); both must have the same format: convert one, \
                 or set data.format",
                stream.format(),
                files.train[0].display(),
                val.format(),
                files.val[0].display()
            )));
        }

        let mut warnings = Vec::new();
        for path in files.in_both() {
            warnings.push(format!("{} is used for training and validation", path.display()));
        }
        let n_tokens = stream.len();
        let n_val_tokens = match val_stream {
            Some(_) => 0,
            None => (n_tokens as f64 * cfg.val_fraction).floor() as u64,
        };
        let order = if cfg.shuffle { Order::Shuffled { seed: cfg.seed } } else { Order::Sequential };
        let space = |stream: &Arc<TokenStream>, tokens: Range<u64>, stride: usize, order| SampleSpace {
            stream: stream.clone(),
            tokens,
            vocab_size,
            seq_len: cfg.seq_len,
            stride: if stride == 0 { cfg.seq_len } else { stride } as u64,
            order,
        };
        let spread = Order::Spread { n_samples: cfg.n_val_samples };
        let validation = |stream: &Arc<TokenStream>, tokens| space(stream, tokens, cfg.val_stride, spread);
        let train = space(&stream, 0..n_tokens - n_val_tokens, cfg.stride, order);
        let val = match &val_stream {
            Some(val) => Some(validation(val, 0..val.len())),
            None if cfg.val_fraction > 0.0 => Some(validation(&stream, n_tokens - n_val_tokens..n_tokens)),
            None => None,
        };
        let data = Dataset { train, val, vocab_size, warnings };
        data.check_lengths(cfg)?;
        Ok(data)
    }

    /// Both splits contain at least one sample.
    fn check_lengths(&self, cfg: &DataConfig) -> Result<()> {
        let sample = cfg.seq_len as u64 + 1;
        let mut faults = Vec::new();
        let splits = [("data.train", Some(&self.train)), ("data.val", self.val.as_ref())];
        for (key, split) in splits.into_iter().filter_map(|(key, split)| Some((key, split?))) {
            if split.n_tokens() >= sample {
                continue;
            }
            let (files, n) = (first_and_more(&split.stream), split.n_tokens());
            let total = split.stream.len();
            faults.push(if n == total {
                format!(
                    "{key}: {files}: {n} tokens are too few, a sample requires model.seq_len + 1 = {sample}; \
                     add data or lower model.seq_len"
                )
            } else {
                format!(
                    "data.val_fraction = {:?}: of the {total} tokens in {files} it leaves {n} for {}, but a \
                     sample requires model.seq_len + 1 = {sample}; {}",
                    cfg.val_fraction,
                    if key == "data.val" { "validation" } else { "training" },
                    if total < 2 * sample {
                        "add data or lower model.seq_len".to_string()
                    } else if key == "data.val" {
                        format!(
                            "set at least {}, or files in data.val",
                            round_up(sample as f64 / total as f64)
                        )
                    } else {
                        format!("set at most {}", round_down((total - sample) as f64 / total as f64))
                    }
                )
            });
        }
        data_files::report(faults)
    }

    /// Training samples: index `g` is unbounded, epochs follow one another.
    pub fn train(&self) -> &SampleSpace {
        &self.train
    }

    /// Validation samples, from all of their tokens, wrapping around; None if there are none.
    pub fn val(&self) -> Option<&SampleSpace> {
        self.val.as_ref()
    }

    /// Warnings, e.g. about a file in both lists.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Bytes of all files: the final value of [`Dataset::scan`]'s progress.
    pub fn n_bytes(&self) -> u64 {
        let bytes = |s: &TokenStream| s.files().iter().map(|f| f.bytes().len() as u64).sum::<u64>();
        self.streams().into_iter().map(|(_, stream)| bytes(stream)).sum()
    }

    /// Every file, each stream's once.
    pub fn files(&self) -> impl Iterator<Item = &StreamFile> {
        self.streams().into_iter().flat_map(|(_, stream)| stream.files())
    }

    /// Reads every page once: the digest, and every file with a token that the vocabulary lacks, at once. One
    /// rank does it.
    ///
    /// # Errors
    /// Every file with a token outside the vocabulary: the position of the first one, and their number.
    pub fn scan(&self, progress: ScanProgress) -> Result<ScanReport> {
        threads::start_shared_pool()?;
        let done = AtomicU64::new(0);
        let mut faults = Vec::new();
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        let mut max_token = None;
        for (key, stream) in self.streams() {
            let scan = scan::scan(key, stream, self.vocab_size, &done, progress);
            hasher.update(&scan.digest.to_le_bytes());
            max_token = max_token.max(scan.max_token);
            faults.extend(scan.faults);
        }
        data_files::report(faults)?;
        let digest = format!("{:032x}", hasher.digest128());
        Ok(ScanReport { digest, n_bytes: done.into_inner(), max_token: max_token.unwrap_or(0) })
    }

    /// Each stream once, with the key that names it.
    fn streams(&self) -> Vec<(&'static str, &TokenStream)> {
        let mut streams = vec![("data.train", &*self.train.stream)];
        if let Some(val) = self.val.as_ref().filter(|_| !self.val_is_end_of_train()) {
            streams.push(("data.val", &val.stream));
        }
        streams
    }

    fn val_is_end_of_train(&self) -> bool {
        self.val.as_ref().is_some_and(|val| Arc::ptr_eq(&val.stream, &self.train.stream))
    }
}

/// The first file, and the number of others.
fn first_and_more(stream: &TokenStream) -> String {
    let first = stream.files().first().map_or(Path::new("(no file)"), StreamFile::path).display();
    match stream.files().len().saturating_sub(1) {
        0 => first.to_string(),
        n => format!("{first} and {}", human::counted(n, "more file")),
    }
}

/// The smallest number with four decimals that is not below `x`.
fn round_up(x: f64) -> f64 {
    (x * 1e4).ceil() / 1e4
}

/// The largest number with four decimals that is not above `x`.
fn round_down(x: f64) -> f64 {
    (x * 1e4).floor() / 1e4
}

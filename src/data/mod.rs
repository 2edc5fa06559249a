//! Token files and samples: from the deck's globs to the tokens of sample `g`, the same on every rank count.
//!
//! Every rank opens the same files and can read every sample; which rank computes which micro-batch is arithmetic on
//! indices ([`micro_batch_samples`]; rule 8 of the design). Must not know: MPI, models, backends.

pub mod file_info;
pub mod files;
pub mod info;
pub mod llmc;
pub mod order;
mod scan;
pub mod token_stream;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub use file_info::TokenFilesInfo;
pub use files::{CONTAINERS, ResolvedFiles, TokenFormat};
pub use info::DataInfo;
pub use scan::{DIGEST, ScanProgress};
pub use token_stream::{StreamFile, TokenStream};

use crate::error::{Error, Result};

/// What a data set is made of; the deck's `[data]` section and the two model sizes it needs.
#[derive(Debug, Clone, PartialEq)]
pub struct DataConfig {
    /// Paths or globs of training data.
    pub train: Vec<String>,
    /// Paths or globs of validation data; beats `val_fraction`.
    pub val: Vec<String>,
    /// Share of the end of the training stream kept for validation, in [0, 1); 0 = none.
    pub val_fraction: f64,
    /// `auto`, `text`, `raw_u16`, `raw_u32` or `llmc`.
    pub format: String,
    /// Every token must be below it.
    pub vocab_size: usize,
    /// Tokens of a sample fed to the model (T); a sample has one token more, the last target.
    pub seq_len: usize,
    /// Tokens from the start of a sample to the start of the next; 0 = `seq_len`.
    pub stride: usize,
    /// Seed of the sample order.
    pub seed: u64,
    /// Permute the training samples of each epoch; false = in file order.
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

/// What the pass over all pages found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanReport {
    /// 32 hex digits over format, lengths and contents of all files ([`DIGEST`]); the training stream's, then the
    /// validation stream's if it has files of its own, hashed together.
    pub digest: String,
    /// Bytes of all files.
    pub n_bytes: u64,
    /// Largest token id that occurs.
    pub max_token: u32,
}

impl Dataset {
    /// Resolves the globs and opens the files: what a single process does. Reads no token; see [`Dataset::scan`].
    pub fn open(cfg: &DataConfig) -> Result<Self> {
        Self::open_files(cfg, &ResolvedFiles::resolve(&cfg.train, &cfg.val)?)
    }

    /// Opens a list of files that was resolved before, on this rank or another.
    pub fn open_files(cfg: &DataConfig, files: &ResolvedFiles) -> Result<Self> {
        assert!(cfg.seq_len > 0 && cfg.vocab_size > 0, "seq_len {} vocab_size {}", cfg.seq_len, cfg.vocab_size);
        assert!((0.0..1.0).contains(&cfg.val_fraction), "val_fraction {}", cfg.val_fraction);
        let vocab_size = cfg.vocab_size as u64;
        let open = |key: &str, paths: &[PathBuf]| -> Result<Arc<TokenStream>> {
            let format = files::decide_format(key, &cfg.format, paths, vocab_size)?;
            let stream = TokenStream::open(key, paths, format)?;
            if stream.is_empty() {
                let files = first_and_more(&stream);
                return Err(Error::Input(format!("{key}: {files}: 0 bytes; name files that hold data")));
            }
            Ok(Arc::new(stream))
        };
        // Both lists are looked at before either fault is reported.
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
                "data.train holds {} ({}) and data.val {} ({}); both must be of one format, so convert one or name data.format",
                stream.format(),
                files.train[0].display(),
                val.format(),
                files.val[0].display()
            )));
        }

        let mut warnings = Vec::new();
        for path in files.in_both() {
            warnings.push(format!("{} is trained on and validated on", path.display()));
        }
        let n_tokens = stream.len();
        let n_val_tokens = match val_stream {
            Some(_) => 0,
            None => (n_tokens as f64 * cfg.val_fraction).floor() as u64,
        };
        let order = if cfg.shuffle { Order::Shuffled { seed: cfg.seed } } else { Order::Sequential };
        let space = |stream: &Arc<TokenStream>, tokens: Range<u64>, order| SampleSpace {
            stream: stream.clone(),
            tokens,
            vocab_size,
            seq_len: cfg.seq_len,
            stride: if cfg.stride == 0 { cfg.seq_len } else { cfg.stride } as u64,
            order,
        };
        let train = space(&stream, 0..n_tokens - n_val_tokens, order);
        let val = match &val_stream {
            Some(val) => Some(space(val, 0..val.len(), Order::Sequential)),
            None if cfg.val_fraction > 0.0 => {
                Some(space(&stream, n_tokens - n_val_tokens..n_tokens, Order::Sequential))
            }
            None => None,
        };
        let data = Dataset { train, val, vocab_size, warnings };
        data.check_lengths(cfg)?;
        Ok(data)
    }

    /// Both splits hold at least one sample.
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
                    "{key}: {files}: {n} tokens are too few, a sample takes model.seq_len + 1 = {sample}; add data or \
                     shorten model.seq_len"
                )
            } else {
                format!(
                    "data.val_fraction = {:?}: of the {total} tokens in {files} it leaves {n} for {}, and a sample takes \
                     model.seq_len + 1 = {sample}; {}",
                    cfg.val_fraction,
                    if key == "data.val" { "validation" } else { "training" },
                    if total < 2 * sample {
                        "add data or shorten model.seq_len".to_string()
                    } else if key == "data.val" {
                        format!("at least {} would do, or files in data.val", round_up(sample as f64 / total as f64))
                    } else {
                        format!("at most {} would do", round_down((total - sample) as f64 / total as f64))
                    }
                )
            });
        }
        files::report(faults)
    }

    /// Training samples: index `g` is unbounded, epochs follow one another.
    pub fn train(&self) -> &SampleSpace {
        &self.train
    }

    /// Validation samples in file order, wrapping around; None when there are none.
    pub fn val(&self) -> Option<&SampleSpace> {
        self.val.as_ref()
    }

    /// Things that are allowed and deserve a look, e.g. a file in both lists.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Bytes of all files: what [`Dataset::scan`] will report as done in the end.
    pub fn n_bytes(&self) -> u64 {
        let bytes = |s: &TokenStream| s.files().iter().map(|f| f.bytes().len() as u64).sum::<u64>();
        self.streams().into_iter().map(|(_, stream)| bytes(stream)).sum()
    }

    /// Reads every page once: the digest, and every file with a token that the vocabulary lacks, at once. One rank does it.
    pub fn scan(&self, progress: ScanProgress) -> Result<ScanReport> {
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
        files::report(faults)?;
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

/// The first file and how many there are besides.
fn first_and_more(stream: &TokenStream) -> String {
    let first = stream.files().first().map_or(Path::new("(no file)"), StreamFile::path).display();
    match stream.files().len().saturating_sub(1) {
        0 => first.to_string(),
        1 => format!("{first} and 1 more file"),
        n => format!("{first} and {n} more files"),
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

/// How windows follow one another within an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Sequential,
    Shuffled { seed: u64 },
}

/// The samples of a range of tokens. Window `w` is the `seq_len + 1` tokens from `w * stride` on; the last tokens that fill no
/// window are left out.
#[derive(Debug)]
pub struct SampleSpace {
    stream: Arc<TokenStream>,
    /// The part of the stream that samples come from.
    tokens: Range<u64>,
    vocab_size: u64,
    seq_len: usize,
    stride: u64,
    order: Order,
}

impl SampleSpace {
    /// Tokens that samples come from.
    pub fn n_tokens(&self) -> u64 {
        self.tokens.end - self.tokens.start
    }

    /// Windows (W): samples of one epoch.
    pub fn n_windows(&self) -> u64 {
        (self.n_tokens() - self.seq_len as u64 - 1) / self.stride + 1
    }

    /// Reads tokens from the `from`-th on that samples come from; there must be as many. Overwrites `out`.
    pub fn read(&self, from: u64, out: &mut [u32]) {
        assert!(
            from + out.len() as u64 <= self.n_tokens(),
            "tokens {from} and {} more of {}",
            out.len(),
            self.n_tokens()
        );
        self.stream.read(self.tokens.start + from, out);
    }

    /// The stream behind the samples.
    pub fn stream(&self) -> &TokenStream {
        &self.stream
    }

    /// Name of the sample order, as checkpoints record it.
    pub fn order_name(&self) -> &'static str {
        match self.order {
            Order::Sequential => order::SEQUENTIAL,
            Order::Shuffled { .. } => order::SHUFFLED,
        }
    }

    /// Epoch and window of sample `g`: `g / W`, and where `g % W` goes in that epoch. A pure function of seed and `g`.
    pub fn epoch_and_window(&self, g: u64) -> (u64, u64) {
        let n_windows = self.n_windows();
        let (epoch, position) = (g / n_windows, g % n_windows);
        let window = match self.order {
            Order::Sequential => position,
            Order::Shuffled { seed } => order::shuffled(position, n_windows, seed, epoch),
        };
        (epoch, window)
    }

    /// Overwrites `tokens` and `targets`, both (B, T), with the samples of `samples` (B of them): row b holds the first T
    /// and the last T tokens of sample `samples.start + b`.
    pub fn fill(&self, samples: Range<u64>, tokens: &mut [u32], targets: &mut [u32]) {
        let numel = (samples.end - samples.start) as usize * self.seq_len;
        assert!(tokens.len() == numel && targets.len() == numel, "{} and {} for {numel}", tokens.len(), targets.len());
        let rows = tokens.chunks_exact_mut(self.seq_len).zip(targets.chunks_exact_mut(self.seq_len));
        for (g, (tokens, targets)) in samples.zip(rows) {
            let start = self.tokens.start + self.epoch_and_window(g).1 * self.stride;
            self.stream.read(start, tokens);
            self.stream.read(start + 1, targets);
        }
    }

    /// Entropy in nats of the token frequencies of `range`, counted from this split's first token and cut at its end
    /// (`0..u64::MAX` is all of it). A trained model's validation loss must be below it.
    pub fn unigram_entropy_nats(&self, range: Range<u64>) -> f64 {
        let clamp = |at: u64| self.tokens.start + at.min(self.n_tokens());
        let (from, to) = (clamp(range.start), clamp(range.end));
        scan::entropy_nats(&scan::histogram(&self.stream, from..to.max(from), self.vocab_size))
    }
}

// ---- what a micro-batch holds (rule 8) ----

/// Samples of micro-batch `j` of the step whose first sample is `step_base_sample`: always the same for the same `j`,
/// whichever rank computes it.
pub fn micro_batch_samples(step_base_sample: u64, j: usize, micro_batch_size: usize) -> Range<u64> {
    let start = step_base_sample + j as u64 * micro_batch_size as u64;
    start..start + micro_batch_size as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A data set over files with the given bytes; keeps the directory alive.
    fn text(files: &[&[u8]], edit: impl FnOnce(&mut DataConfig)) -> (tempfile::TempDir, Result<Dataset>) {
        let dir = tempfile::tempdir().unwrap();
        for (i, content) in files.iter().enumerate() {
            std::fs::write(dir.path().join(format!("{i}.txt")), content).unwrap();
        }
        let mut cfg = DataConfig {
            train: vec![format!("{}/*.txt", dir.path().display())],
            val: vec![],
            val_fraction: 0.0,
            format: "auto".into(),
            vocab_size: 256,
            seq_len: 4,
            stride: 0,
            seed: 1,
            shuffle: false,
        };
        edit(&mut cfg);
        let data = Dataset::open(&cfg);
        (dir, data)
    }

    fn message(result: Result<Dataset>) -> String {
        match result {
            Err(Error::Input(text)) => text,
            other => panic!("expected Error::Input, got {other:?}"),
        }
    }

    fn sample(space: &SampleSpace, g: u64) -> (Vec<u32>, Vec<u32>) {
        let (mut tokens, mut targets) = (vec![0; space.seq_len], vec![0; space.seq_len]);
        space.fill(g..g + 1, &mut tokens, &mut targets);
        (tokens, targets)
    }

    #[test]
    fn empty_files_alone_are_refused_and_beside_others_are_nothing() {
        assert!(message(text(&[b"", b""], |_| ()).1).contains("0.txt and 1 more file: 0 bytes"));
        let (_dir, data) = text(&[b"", b"abc", b"", b"def"], |_| ());
        let data = data.unwrap();
        assert_eq!(data.train().n_tokens(), 6);
        assert_eq!(sample(data.train(), 0).1, b"bcde".map(u32::from));
    }

    #[test]
    fn a_rank_that_opens_the_broadcast_list_sees_the_samples_of_the_rank_that_resolved_it() {
        let mut cfg = None;
        let (dir, data) = text(&[b"the quick brown fox", b"jumps over the lazy dog"], |c| {
            c.shuffle = true;
            cfg = Some(c.clone());
        });
        let (cfg, data) = (cfg.unwrap(), data.unwrap());
        let list = ResolvedFiles::resolve(&cfg.train, &cfg.val).unwrap().to_bytes();
        std::fs::write(dir.path().join("0_late.txt"), "a file that appears meanwhile").unwrap();
        let other = Dataset::open_files(&cfg, &ResolvedFiles::from_bytes(&list).unwrap()).unwrap();
        for g in 0..3 * data.train().n_windows() {
            assert_eq!(sample(data.train(), g), sample(other.train(), g), "sample {g}");
        }
    }

    #[test]
    fn one_token_too_few_is_refused_and_exactly_one_sample_is_enough() {
        let refused = message(text(&[b"abcd"], |_| ()).1);
        assert!(refused.contains("0.txt: 4 tokens are too few") && refused.contains("= 5"), "{refused}");
        let (_dir, data) = text(&[b"abcde"], |_| ());
        let data = data.unwrap();
        assert_eq!(data.train().n_windows(), 1);
        assert_eq!(sample(data.train(), 17), (b"abcd".map(u32::from).into(), b"bcde".map(u32::from).into()));
    }

    #[test]
    fn a_split_that_leaves_either_side_too_short_says_what_would_do() {
        let bytes = [b'x'; 100];
        let val = message(text(&[&bytes], |cfg| cfg.val_fraction = 0.03).1);
        assert!(val.contains("leaves 3 for validation") && val.contains("at least 0.05 would do"), "{val}");
        let train = message(text(&[&bytes], |cfg| cfg.val_fraction = 0.98).1);
        assert!(train.contains("leaves 2 for training") && train.contains("at most 0.95 would do"), "{train}");
        for good in [0.05, 0.95] {
            let (_dir, data) = text(&[&bytes], |cfg| cfg.val_fraction = good);
            data.unwrap();
        }
    }

    #[test]
    fn the_validation_tail_and_the_training_head_share_no_token() {
        let bytes: Vec<u8> = (0..=255).collect();
        let (_dir, data) = text(&[&bytes[..200], &bytes[200..]], |cfg| cfg.val_fraction = 0.25);
        let data = data.unwrap();
        let (train, val) = (data.train(), data.val().unwrap());
        assert_eq!((train.n_tokens(), val.n_tokens()), (192, 64));
        let largest = (0..train.n_windows()).flat_map(|g| sample(train, g).1).max();
        assert!(largest < Some(192), "{largest:?}");
        assert_eq!(sample(val, 0).0, [192, 193, 194, 195]);
        assert_eq!(sample(val, val.n_windows()), sample(val, 0), "validation wraps around");
        assert_eq!(sample(val, 1).0, [196, 197, 198, 199]);
        assert_eq!(data.n_bytes(), 256, "the shared stream is scanned once");
        assert_eq!(data.scan(&|_| ()).unwrap().n_bytes, 256);
    }

    #[test]
    fn validation_files_beat_the_fraction_and_overlap_is_noticed() {
        let (_dir, data) = text(&[b"abcdefghij", b"klmnopqrst"], |cfg| {
            cfg.val_fraction = 0.5;
            cfg.val = vec![cfg.train[0].replace('*', "1")];
        });
        let data = data.unwrap();
        assert_eq!((data.train().n_tokens(), data.val().unwrap().n_tokens()), (20, 10));
        assert!(data.warnings()[0].contains("1.txt is trained on and validated on"));
    }

    #[test]
    fn training_and_validation_of_two_formats_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("v.u16"), [1; 40]).unwrap();
        let (_dir, data) = text(&[b"abcdefghij"], |cfg| cfg.val = vec![format!("{}/v.u16", dir.path().display())]);
        assert!(message(data).contains("both must be of one format"));
    }

    #[test]
    fn windows_overlap_with_a_small_stride_and_skip_with_a_large_one() {
        let (_dir, data) = text(&[b"abcdefghij"], |cfg| cfg.stride = 1);
        let data = data.unwrap();
        assert_eq!(data.train().n_windows(), 6);
        assert_eq!(sample(data.train(), 5).1, b"ghij".map(u32::from));
        let (_dir, data) = text(&[b"abcdefghij"], |cfg| cfg.stride = 5);
        let data = data.unwrap();
        assert_eq!(data.train().n_windows(), 2);
        assert_eq!(sample(data.train(), 1).0, b"fghi".map(u32::from));
    }

    #[test]
    fn each_epoch_visits_every_window_once_in_its_own_order() {
        let bytes: Vec<u8> = (0..=255).collect();
        let (_dir, data) = text(&[&bytes], |cfg| cfg.shuffle = true);
        let data = data.unwrap();
        let n = data.train().n_windows();
        let epoch = |e: u64| (e * n..(e + 1) * n).map(|g| data.train().epoch_and_window(g).1).collect::<Vec<_>>();
        let (first, second) = (epoch(0), epoch(1));
        assert_ne!(first, second);
        for mut windows in [first, second] {
            windows.sort_unstable();
            assert_eq!(windows, (0..n).collect::<Vec<_>>());
        }
        assert_eq!(data.train().epoch_and_window(u64::MAX).0, u64::MAX / n, "the index is unbounded");
        assert_eq!(data.train().order_name(), "feistel-v1");
    }

    #[test]
    fn bad_tokens_of_both_lists_are_reported_together() {
        let (_dir, data) = text(&[b"abcdefghij", b"ABCDEFGHIJ"], |cfg| {
            cfg.vocab_size = 70;
            cfg.val = vec![cfg.train[0].replace('*', "1")];
        });
        let err = data.unwrap().scan(&|_| ()).unwrap_err().to_string();
        assert_eq!(err.lines().count(), 3, "{err}");
        assert!(err.contains("data.train") && err.contains("data.val") && err.contains("is 97"), "{err}");
    }

    #[test]
    fn a_moved_copy_has_the_same_digest_and_a_changed_one_another() {
        let digest = |files: &[&[u8]]| {
            let (_dir, data) = text(files, |_| ());
            data.unwrap().scan(&|_| ()).unwrap().digest
        };
        assert_eq!(digest(&[b"hello world"]), digest(&[b"hello world"]));
        assert_ne!(digest(&[b"hello world"]), digest(&[b"hello worle"]));
        assert_eq!(digest(&[b"hello world"]).len(), 32);
    }

    #[test]
    fn the_entropy_of_a_range_is_that_of_its_tokens() {
        let (_dir, data) = text(&[b"aaaaabcd"], |_| ());
        let data = data.unwrap();
        assert_eq!(data.train().unigram_entropy_nats(0..5), 0.0);
        assert!((data.train().unigram_entropy_nats(4..8) - 4f64.ln()).abs() < 1e-15);
        let all = data.train().unigram_entropy_nats(0..u64::MAX);
        let known = -(5.0 / 8.0 * (5.0 / 8.0f64).ln() + 3.0 / 8.0 * (1.0 / 8.0f64).ln());
        assert!((all - known).abs() < 1e-15, "{all} {known}");
    }

    #[test]
    fn the_info_report_has_every_number_and_reads_back_from_json() {
        let (_dir, data) = text(&[b"hello\nworld hello world"], |cfg| cfg.val_fraction = 0.3);
        let info = DataInfo::gather(&data.unwrap(), 10, 4, None, &|_| ()).unwrap();
        assert_eq!((info.train.n_tokens, info.train.n_windows), (17, 4));
        assert_eq!(info.epochs, 10.0);
        assert_eq!(info.train.max_token, u32::from(b'w'));
        let shown = info.to_string();
        for part in ["17 tokens, text", "23 bytes", "hello\\nworld", "the end of the training stream", "10.000", "nats"]
        {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        let json = serde_json::to_string(&info).unwrap();
        assert_eq!(serde_json::from_str::<DataInfo>(&json).unwrap(), info);
    }

    proptest! {
        #[test]
        fn the_micro_batches_of_a_step_cover_its_samples_in_order(
            n_micro in 1usize..30, size in 1usize..5, base in 0u64..1000,
        ) {
            let of_step: Vec<u64> = (0..n_micro).flat_map(|j| micro_batch_samples(base, j, size)).collect();
            prop_assert_eq!(of_step, (base..base + (n_micro * size) as u64).collect::<Vec<_>>());
        }
    }
}

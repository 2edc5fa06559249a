//! The output of `zero3 data info` for a data set.
//!
//! Must not know: decks, the command line.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::format::TokenFormat;
use super::scan::{ScanProgress, entropy_nats, histogram};
use super::{Dataset, SampleSpace, StreamFile};
use crate::error::Result;

/// Statistics of a data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataInfo {
    /// Digest of format, lengths and contents, in hex.
    pub digest: String,
    /// Tokens between the starts of consecutive training samples.
    pub stride: u64,
    /// The same for validation windows.
    pub val_stride: Option<u64>,
    /// Input tokens of a sample; one more is its last target.
    pub seq_len: u64,
    /// Vocabulary size of the model.
    pub vocab_size: u64,
    /// Training samples.
    pub train: SplitInfo,
    /// Validation samples, if there are any.
    pub val: Option<SplitInfo>,
    /// Passes of the run over the training windows.
    pub epochs: f64,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// The training or the validation part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitInfo {
    /// Files in stream order; empty when the split is the end of the training stream.
    pub files: Vec<FileInfo>,
    /// Encoding of the tokens in the files.
    pub format: TokenFormat,
    /// Tokens of the split.
    pub n_tokens: u64,
    /// Windows of `seq_len + 1` tokens.
    pub n_windows: u64,
    /// Token ids that occur.
    pub n_distinct_tokens: u64,
    /// Largest token id that occurs.
    pub max_token: u32,
    /// Entropy of the token frequencies, in nats: the loss of a model that knows only frequencies.
    pub unigram_entropy_nats: f64,
    /// The same in bits.
    pub unigram_entropy_bits: f64,
    /// The beginning: text for bytes, numbers for tokens.
    pub begins: String,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileInfo {
    /// As given, or as matched by a glob.
    pub path: String,
    /// Size of the file.
    pub n_bytes: u64,
    /// Tokens in it.
    pub n_tokens: u64,
}

impl FileInfo {
    pub(super) fn of(file: &StreamFile) -> Self {
        FileInfo {
            path: file.path().display().to_string(),
            n_bytes: file.file_bytes(),
            n_tokens: file.n_tokens(),
        }
    }
}

impl DataInfo {
    /// Scans the data ([`Dataset::scan`]) and counts its tokens. The run is `steps` steps of
    /// `global_batch_size` samples. `decode` turns tokens into text, if the tokenizer is known.
    ///
    /// # Errors
    /// Those of [`Dataset::scan`].
    pub fn gather(
        data: &Dataset,
        steps: u64,
        global_batch_size: u64,
        decode: Option<Decode<'_>>,
        progress: ScanProgress,
    ) -> Result<Self> {
        let scan = data.scan(progress)?;
        let train = &data.train;
        Ok(DataInfo {
            digest: scan.digest,
            stride: train.stride,
            val_stride: data.val.as_ref().map(|val| val.stride),
            seq_len: train.seq_len as u64,
            vocab_size: data.vocab_size,
            train: SplitInfo::gather(train, true, decode),
            val: data.val.as_ref().map(|val| SplitInfo::gather(val, !data.val_is_end_of_train(), decode)),
            epochs: steps as f64 * global_batch_size as f64 / train.n_windows() as f64,
            warnings: data.warnings.clone(),
        })
    }
}

impl SplitInfo {
    fn gather(split: &SampleSpace, own_files: bool, decode: Option<Decode<'_>>) -> Self {
        let counts = histogram(&split.stream, split.tokens.clone(), split.vocab_size);
        let unigram_entropy_nats = entropy_nats(&counts);
        SplitInfo {
            files: split.stream.files().iter().filter(|_| own_files).map(FileInfo::of).collect(),
            format: split.stream.format(),
            n_tokens: split.n_tokens(),
            n_windows: split.n_windows(),
            n_distinct_tokens: counts.iter().filter(|&&n| n > 0).count() as u64,
            max_token: counts.iter().rposition(|&n| n > 0).unwrap_or(0) as u32,
            unigram_entropy_nats,
            unigram_entropy_bits: unigram_entropy_nats / std::f64::consts::LN_2,
            begins: begins(split, decode),
        }
    }
}

/// The bytes that tokens represent.
pub type Decode<'a> = &'a dyn Fn(&[u32]) -> Vec<u8>;

/// The first sixty bytes, or the first twelve numbers and their text.
fn begins(split: &SampleSpace, decode: Option<Decode<'_>>) -> String {
    let text = split.stream.format() == TokenFormat::Text;
    let mut first = vec![0; split.n_tokens().min(if text { 60 } else { 12 }) as usize];
    split.stream.read(split.tokens.start, &mut first);
    if text {
        let bytes: Vec<u8> = first.iter().map(|&t| t as u8).collect();
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    let numbers = first.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    match decode {
        Some(decode) => format!("{numbers} = {}", String::from_utf8_lossy(&decode(&first))),
        None => numbers,
    }
}

impl fmt::Display for DataInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let val = self.val.as_ref();
        for (name, split) in [("training", Some(&self.train)), ("validation", val)] {
            let Some(split) = split else {
                writeln!(f, "{name}: none (set data.val or data.val_fraction)")?;
                continue;
            };
            writeln!(f, "{name}: {} tokens, {}", split.n_tokens, split.format)?;
            const SHOWN: usize = 12;
            for file in split.files.iter().take(SHOWN) {
                writeln!(f, "  {:>14} bytes  {:>14} tokens  {}", file.n_bytes, file.n_tokens, file.path)?;
            }
            if split.files.len() > SHOWN {
                writeln!(
                    f,
                    "  ... and {} more files ({} in all)",
                    split.files.len() - SHOWN,
                    split.files.len()
                )?;
            }
            if split.files.is_empty() {
                writeln!(f, "  the end of the training stream")?;
            }
            writeln!(f, "  windows            {} of {} + 1 tokens", split.n_windows, self.seq_len)?;
            let (used, of) = (split.n_distinct_tokens, self.vocab_size);
            writeln!(f, "  vocabulary         {used} of {of} ids occur, the largest is {}", split.max_token)?;
            let (nats, bits) = (split.unigram_entropy_nats, split.unigram_entropy_bits);
            writeln!(f, "  unigram entropy    {nats:.4} nats ({bits:.4} bits) per token")?;
            writeln!(f, "  begins             {:?}", split.begins)?;
        }
        write!(f, "stride: {} tokens between the starts of samples", self.stride)?;
        match self.val_stride {
            Some(stride) if stride != self.stride => writeln!(f, ", {stride} in validation")?,
            _ => writeln!(f)?,
        }
        writeln!(f, "epochs: the run passes over the training windows {:.3} times", self.epochs)?;
        write!(f, "digest: {}", self.digest)?;
        for warning in &self.warnings {
            write!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}

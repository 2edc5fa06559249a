//! The run's data: opened on every rank, read once by rank 0, micro-batches by index.
//!
//! Must not know: which rank computes which micro-batch.

use crate::backend::Comm;
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::config::Deck;
use crate::data::{DataConfig, Dataset, ResolvedFiles, SampleSpace, StreamFile, micro_batch_samples};
use crate::error::{Error, Result};
use crate::liveness::FlightRecorder;
use crate::records::progress::BytesBar;
use crate::test_hooks::fault_point;
use crate::text::tokenize_job::other_tokenizer;

/// Token and target ids of one micro-batch, (B, T) each.
#[derive(Default)]
pub struct MicroBatch {
    /// Inputs.
    pub tokens: Vec<u32>,
    /// The token after each input.
    pub targets: Vec<u32>,
}

/// Training and validation samples, and properties that rank 0 computed at the start.
pub struct Batches {
    dataset: Dataset,
    /// Digest of all data, 32 hex digits.
    pub digest: String,
    /// Entropy of the frequencies of validation tokens, in nats; none without validation data.
    pub unigram_entropy: Option<f64>,
    seq_len: usize,
}

/// The keys of a deck that determine the samples.
pub fn data_config(deck: &Deck) -> DataConfig {
    let d = &deck.data;
    DataConfig {
        train: d.train.clone(),
        val: d.val.clone(),
        val_fraction: d.val_fraction,
        format: d.format.name().to_string(),
        vocab_size: deck.model.vocab_size,
        seq_len: deck.model.seq_len,
        stride: d.stride,
        val_stride: d.val_stride,
        n_val_samples: deck.train.eval_batches * deck.train.micro_batch_size as u64,
        seed: d.seed,
        shuffle: d.shuffle,
    }
}

impl Batches {
    /// Rank 0 expands the globs and reads every token once; all ranks open the same files. Collective.
    ///
    /// The data are rejected, with the same error on every rank; ranks see different files.
    /// The data are refused, the same on every rank; ranks see different files.
    pub fn open<C: Comm>(comm: &C, deck: &Deck, is_terminal: bool, flight: &FlightRecorder) -> Result<Self> {
        flight.at(0, "data", None);
        let config = data_config(deck);
        let files = decided_by_rank_0(comm, || {
            ResolvedFiles::resolve(&config.train, &config.val).map(|f| f.to_bytes())
        })?;
        let files = ResolvedFiles::from_bytes(&files)?;
        let opened = Dataset::open_files(&config, &files);
        let mut dataset = None;
        let sizes = all_or_none(comm, opened.map(|d| (d.n_bytes(), dataset.insert(d).train().n_tokens())))?;
        if let Some((rank, other)) = sizes.iter().enumerate().find(|(_, s)| **s != sizes[0]) {
            return Err(Error::Input(format!(
                "rank {rank} sees {} bytes of data and rank 0 sees {}: the file system is not yet \
                 consistent, or the ranks see different files",
                other.0, sizes[0].0
            )));
        }
        let dataset = dataset.expect("no rank failed");
        // Rank 0 reaches this point when it has read everything: until then the others wait for it.
        let arrived = || flight.at(0, "verdict on the data", None);
        if comm.rank() != 0 {
            arrived();
        }
        let (digest, unigram_entropy) = decided_by_rank_0(comm, || {
            let all = [files.train.clone(), files.val.clone()].concat();
            // Whether the tokenizer is required and present is checked where it is used.
            let of_tokenizer = other_tokenizer(&all, &deck.data.tokenizer).unwrap_or_default();
            dataset.warnings().iter().chain(&of_tokenizer).for_each(|w| log::warn!("{w}"));
            let bar = BytesBar::new("reading data", dataset.n_bytes(), is_terminal);
            fault_point("scan", 0, 0);
            let report = dataset.scan(&|done| {
                bar.set(done);
                flight.tick();
            })?;
            bar.finish();
            let entropy = dataset.val().map(|val| val.unigram_entropy_nats(0..u64::MAX));
            arrived();
            Ok((report.digest, entropy))
        })?;
        Ok(Batches { dataset, digest, unigram_entropy, seq_len: deck.model.seq_len })
    }

    /// Training samples.
    pub fn train(&self) -> &SampleSpace {
        self.dataset.train()
    }

    /// The files of both.
    pub fn files(&self) -> impl Iterator<Item = &StreamFile> {
        self.dataset.files()
    }

    /// Validation samples, where there are any.
    pub fn val(&self) -> Option<&SampleSpace> {
        self.dataset.val()
    }

    /// Micro-batch `j` of the step that starts at global sample `step_base`.
    pub fn training_micro_batch(
        &self,
        step_base: u64,
        j: usize,
        micro_batch_size: usize,
        into: &mut MicroBatch,
    ) {
        self.fill(self.dataset.train(), step_base, j, micro_batch_size, into);
    }

    /// Validation micro-batch `i` of `train.eval_batches`: its windows are spread evenly over all of the
    /// data.
    pub fn validation_micro_batch(&self, i: usize, micro_batch_size: usize, into: &mut MicroBatch) {
        let val =
            self.dataset.val().expect("eval_every needs validation data, which the deck's check saw to");
        self.fill(val, 0, i, micro_batch_size, into);
    }

    fn fill(&self, space: &SampleSpace, base: u64, j: usize, micro_batch_size: usize, into: &mut MicroBatch) {
        let numel = micro_batch_size * self.seq_len;
        let MicroBatch { tokens, targets } = into;
        [&mut *tokens, targets].into_iter().for_each(|ids| ids.resize(numel, 0));
        space.fill(micro_batch_samples(base, j, micro_batch_size), tokens, targets);
    }
}

//! `zero3 sample` and `zero3 eval`: the deck on every rank, the backend, the checkpoint, the output.

use super::args::{DeckArgs, EvalArgs, SampleArgs};
use super::backend_choice;
use super::launch::Launch;
use super::on_backend::{Work, on_backend};
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::mpi::Group;
use crate::backend::{Backend, Comm};
use crate::checkpoint::find;
use crate::cli::logging;
use crate::config::{Deck, Tokenizer};
use crate::data::ResolvedFiles;
use crate::error::{Error, Exit, Result};
use crate::liveness::{StartPlace, start_watch};
use crate::say;
use crate::text::tokenize_job::other_tokenizer;
use crate::text::tokenizer::TextTokenizer;
use crate::train::batches::Batches;
use crate::train::infer::evaluate::{Evaluated, evaluate};
use crate::train::infer::generate::{Choice, Decoders, generate};
use crate::train::infer::{silent_flight, with_prompt, with_weights};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};

/// What rank 0 found, shared with every rank.
#[derive(Serialize, Deserialize)]
struct Found {
    #[serde(with = "crate::foreign::paths::exact")]
    dir: PathBuf,
    deck: String,
}

/// `[model]` of a checkpoint's deck as overrides of `deck`; the rest of `deck` is unchanged.
fn model_keys(deck: &Deck) -> Vec<(String, String)> {
    let mut keys = deck.overrides_of("model");
    keys.retain(|(key, _)| !["model.preset", "model.init_seed", "model.init_from"].contains(&key.as_str()));
    keys
}

/// The step directory and the deck to use: the checkpoint's, or another deck with the checkpoint's model.
fn find_deck(
    group: &Group,
    checkpoint: &Path,
    other: Option<&DeckArgs>,
    overrides: &[(String, String)],
) -> Result<(PathBuf, Deck)> {
    let found = decided_by_rank_0(group, || {
        let dir = find::resolve(checkpoint)?;
        let manifest = find::read_manifest(&dir)?;
        let origin = format!("the deck in {}", dir.display());
        let deck = match other {
            None => Deck::parse(&manifest.deck, overrides, &origin)?,
            Some(other) => {
                let own = Deck::parse(&manifest.deck, &[], &origin)?;
                // There is no training, so its requirements on the data do not apply. The last override of a
                // key wins: a model key on the command line takes precedence over the checkpoint's.
                let never =
                    ["train.eval_every", "train.sample_every"].map(|key| (key.to_string(), "0".to_string()));
                let all = model_keys(&own).into_iter().chain(never).chain(other.overrides.iter().cloned());
                let all: Vec<_> = all.collect();
                Deck::load(&other.path, &all)?
            }
        };
        Ok(Found { dir, deck: deck.to_toml() })
    })?;
    Ok((found.dir, Deck::parse(&found.deck, &[], "the deck of rank 0")?))
}

/// Chooses the backend with all ranks, and runs the work on it.
fn start<W: Work>(launch: &Launch, group: Group, deck: &Deck, work: W) -> Result<W::Output> {
    start_watch::at(StartPlace::Compare);
    logging::init("warn", launch.rank());
    let threads = launch.threads(deck.run.threads_per_rank)?;
    launch.check_agreement(&group, deck, threads)?;
    start_watch::end();
    let chosen = backend_choice::choose(&group, deck, &launch.host())?;
    on_backend(chosen, group, deck, threads, work)
}

/// Runs `zero3 sample`.
pub(super) fn sample(launch: &Launch, args: &SampleArgs) -> Result<Exit> {
    let group = launch.shard_group()?;
    start_watch::at(StartPlace::Deck);
    let (dir, deck) = find_deck(&group, &args.checkpoint, None, &args.overrides)?;
    let text = start(launch, group, &deck, Sample { args, dir: &dir, deck: &deck })?;
    if launch.rank() == 0 {
        say::out(&text).map_err(|e| Error::Io(format!("standard output: {e}")))?;
    }
    Ok(Exit::Finished)
}

/// Text decoded with another tokenizer than the model's would be meaningless.
fn refuse_other_tokenizer(deck: &Deck) -> Result<()> {
    let Ok(files) = ResolvedFiles::resolve(&deck.data.train, &[]) else { return Ok(()) };
    match other_tokenizer(&files.train, &deck.data.tokenizer)? {
        Some(why) => Err(Error::Input(why)),
        None => Ok(()),
    }
}

struct Sample<'a> {
    args: &'a SampleArgs,
    dir: &'a Path,
    deck: &'a Deck,
}

impl Work for Sample<'_> {
    type Output = String;

    fn on<B: Backend>(self, device: &B::Device, comm: &B::Comm) -> Result<String> {
        let deck = self.deck;
        let SampleArgs { prompt, temperature, top_k, seed, max_tokens, .. } = self.args;
        let loaded = match &deck.data.tokenizer {
            Tokenizer::None => Err(Error::Input(format!(
                "the deck in {} has data.tokenizer = \"none\", so tokens cannot be decoded; set \
                 data.tokenizer=gpt2 or the path of a tokenizer.json",
                self.dir.display()
            ))),
            // The tokenizer of the training data is recorded with its token files.
            named => match comm.rank() {
                0 => refuse_other_tokenizer(deck),
                _ => Ok(()),
            }
            .and_then(|()| TextTokenizer::load(named, None)),
        };
        let (prompt_ids, tokenizer) = with_prompt(comm, loaded, prompt, deck)?;
        let decoders = Decoders::of_deck::<B::Device>(deck);
        let choice = Choice { temperature: *temperature, top_k: *top_k, seed: *seed };
        let generated = with_weights::<B, _>(device, comm, deck, self.dir, Some(&decoders), |stepper| {
            generate(stepper, &decoders, &prompt_ids, *max_tokens, choice, tokenizer.document_token())
        })?;
        Ok(format!("{prompt}{}", String::from_utf8_lossy(&tokenizer.decode(&generated.tokens))))
    }
}

/// Runs `zero3 eval`.
pub(super) fn eval(launch: &Launch, args: &EvalArgs) -> Result<Exit> {
    let group = launch.shard_group()?;
    start_watch::at(StartPlace::Deck);
    let (dir, deck) = find_deck(&group, &args.checkpoint, Some(&args.deck), &[])?;
    let stride = args.stride.unwrap_or(deck.model.seq_len.div_ceil(2));
    if stride > deck.model.seq_len {
        return Err(Error::Input(format!(
            "--stride {stride} skips tokens: it must be at most model.seq_len = {}",
            deck.model.seq_len
        )));
    }
    let (evaluated, key) = start(launch, group, &deck, Eval { dir: &dir, deck: &deck, stride })?;
    if launch.rank() == 0 {
        let said = if args.json {
            as_json(&evaluated, &dir, key, stride)
        } else {
            in_words(&evaluated, &dir, key, stride)
        };
        say::out(&said).map_err(|e| Error::Io(format!("standard output: {e}")))?;
    }
    Ok(Exit::Finished)
}

struct Eval<'a> {
    dir: &'a Path,
    deck: &'a Deck,
    stride: usize,
}

impl Work for Eval<'_> {
    /// Also returns the key of the data.
    type Output = (Evaluated, &'static str);

    fn on<B: Backend>(self, device: &B::Device, comm: &B::Comm) -> Result<Self::Output> {
        let deck = self.deck;
        let batches = Batches::open(comm, deck, false, &silent_flight(comm)?)?;
        let (space, key) = match batches.val() {
            Some(val) if deck.data.val.is_empty() => (val, "the end of data.train"),
            Some(val) => (val, "data.val"),
            None => (batches.train(), "data.train"),
        };
        let mut tokenizer = None;
        let loaded = match &deck.data.tokenizer {
            Tokenizer::None => Ok(()),
            named => TextTokenizer::load(named, None).map(|loaded| _ = tokenizer.insert(loaded)),
        };
        all_or_none(comm, loaded)?;
        // Bytes are counted once, by the rank that prints.
        let tokenizer = tokenizer.filter(|_| comm.rank() == 0);
        let evaluated = with_weights::<B, _>(device, comm, deck, self.dir, None, |stepper| {
            evaluate(stepper, space, self.stride, tokenizer.as_ref())
        })?;
        Ok((evaluated, key))
    }
}

fn in_words(e: &Evaluated, dir: &Path, key: &str, stride: usize) -> String {
    let per_byte = match e.bits_per_byte() {
        Some(bits) => format!("bits per byte {bits}"),
        None => "bits per byte unknown: data.tokenizer = \"none\" defines no bytes".into(),
    };
    format!(
        "{}: {} tokens of {key}, each predicted once, in {} windows {stride} apart\nloss {} nats per \
         token\nperplexity {}\n{per_byte}",
        dir.display(),
        e.n_tokens,
        e.n_windows,
        e.loss,
        e.perplexity()
    )
}

fn as_json(e: &Evaluated, dir: &Path, key: &str, stride: usize) -> String {
    let value = json!({
        "checkpoint": dir.display().to_string(),
        "data": key,
        "n_tokens": e.n_tokens,
        "n_windows": e.n_windows,
        "stride": stride,
        "loss": e.loss,
        "perplexity": e.perplexity(),
        "n_bytes": e.n_bytes,
        "bits_per_byte": e.bits_per_byte(),
    });
    serde_json::to_string_pretty(&value).expect("plain data")
}

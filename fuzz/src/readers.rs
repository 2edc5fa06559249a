//! Readers of what others wrote, by name. Each is called as a command calls it: on a file where that is what
//! it reads, with good files beside it.

use std::fs;
use std::path::{Path, PathBuf};
use zero3::accept::verdict::{baseline::Baseline, golden_losses};
use zero3::config::{self, Deck, hardware};
use zero3::data::{DataConfig, Dataset, TokenFilesInfo};
use zero3::error::{Error, Result};
use zero3::hf::{config_json, tensors::TensorFiles};
use zero3::records::run_records::read_events;
use zero3::text::documents::Cursor;
use zero3::text::{Documents, Layout, TextTokenizer};
use zero3::{foreign, report, watch};

/// Reads bytes in a directory of its own.
type Read = fn(&Path, &[u8]) -> Result<()>;

/// Every reader: its name, what is made of the bytes, and the files of `fuzz/seeds` that its directory has
/// besides.
const READERS: &[(&str, Read, &[&str])] = &[
    ("deck", deck, &[]),
    ("overrides", overrides, &["deck/small.toml"]),
    ("acceptance_deck", acceptance_deck, &[]),
    ("hardware", hardware_file, &[]),
    ("tokens", tokens, &[]),
    ("llmc", llmc, &[]),
    ("json_lines", json_lines, &[]),
    ("tokenizer_json", tokenizer_json, &[]),
    ("safetensors", safetensors, &[]),
    ("safetensors_header", safetensors_header, &[]),
    ("safetensors_index", safetensors_index, &["safetensors/model.safetensors"]),
    ("config_json", config_of_model, &[]),
    ("steps_csv", |dir, bytes| run_file(dir, "steps.csv", bytes), RUN),
    ("events_jsonl", |dir, bytes| run_file(dir, "events.jsonl", bytes), RUN),
    ("run_deck", |dir, bytes| run_file(dir, "deck.toml", bytes), RUN),
    ("summary_json", |dir, bytes| run_file(dir, "summary.json", bytes), RUN),
    ("timing_json", |dir, bytes| run_file(dir, "timing.json", bytes), RUN),
    ("baseline", baseline, &[]),
    ("golden_losses", golden, &[]),
];

/// A run directory.
const RUN: &[&str] = &[
    "run_deck/deck.toml",
    "steps_csv/steps.csv",
    "events_jsonl/events.jsonl",
    "summary_json/summary.json",
    "timing_json/timing.json",
];

/// One of them, and its directory.
pub struct Reader {
    read: Read,
    dir: tempfile::TempDir,
}

impl Reader {
    /// The reader that `ZERO3_FUZZ_READER` names.
    ///
    /// # Panics
    /// There is none of that name.
    pub fn named_by_environment() -> Self {
        let name = std::env::var("ZERO3_FUZZ_READER").unwrap_or_default();
        let names: Vec<&str> = READERS.iter().map(|(name, ..)| *name).collect();
        let found = READERS.iter().find(|(known, ..)| *known == name);
        let (_, read, files) =
            found.unwrap_or_else(|| panic!("ZERO3_FUZZ_READER={name}: not one of {names:?}"));
        let dir = crate::scratch();
        for file in *files {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(file);
            fs::copy(&from, dir.path().join(from.file_name().expect("a file"))).expect("a seed");
        }
        // libFuzzer ends at any panic; those of guarded parsers are errors by the time a command sees them.
        std::panic::set_hook(Box::new(|info| {
            if !foreign::is_guarded() {
                eprintln!("{info}\n{}", std::backtrace::Backtrace::force_capture());
                std::process::abort();
            }
        }));
        Reader { read: *read, dir }
    }

    /// An error in words, or nothing. What the program itself calls its own fault is one.
    pub fn read(&self, bytes: &[u8]) {
        match (self.read)(self.dir.path(), bytes) {
            Ok(()) => {}
            Err(Error::Internal(why)) => panic!("an internal error: {why}"),
            Err(error) => assert!(!error.to_string().trim().is_empty(), "an error without words"),
        }
    }
}

fn written(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).expect("memory is left");
    path
}

fn deck(dir: &Path, bytes: &[u8]) -> Result<()> {
    let deck = Deck::load(&written(dir, "deck.toml", bytes), &[])?;
    let again = Deck::parse(&deck.to_toml(), &[], "what it prints").expect("a deck that was read is one");
    assert_eq!(again.digest(), deck.digest());
    Ok(())
}

/// Lines of `key=value`.
fn overrides(dir: &Path, bytes: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(bytes);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let pairs: Vec<(String, String)> = pairs.map(|(key, value)| (key.into(), value.into())).collect();
    Deck::load(&dir.join("small.toml"), &pairs).map(drop)
}

fn acceptance_deck(_: &Path, bytes: &[u8]) -> Result<()> {
    config::acceptance::Deck::parse(&String::from_utf8_lossy(bytes), &[], "the deck").map(drop)
}

fn hardware_file(dir: &Path, bytes: &[u8]) -> Result<()> {
    let hardware = hardware::Deck::named(&written(dir, "hardware.toml", bytes), &[])?;
    let text = hardware.to_commented_toml();
    hardware::Deck::parse(&text, &[], "what it prints").expect("a file that was read is one");
    Ok(())
}

/// The file in every format: as a run opens it, and as `data info` does.
fn tokens(dir: &Path, bytes: &[u8]) -> Result<()> {
    let path = written(dir, "tokens.bin", bytes);
    for format in ["auto", "text", "raw_u16", "raw_u32", "llmc"] {
        let config = DataConfig {
            train: vec![path.display().to_string()],
            val: Vec::new(),
            val_fraction: 0.25,
            format: format.into(),
            vocab_size: 300,
            seq_len: 3,
            stride: 0,
            val_stride: 1,
            n_val_samples: 2,
            seed: 1,
            shuffle: true,
        };
        let read = || -> Result<()> {
            let data = Dataset::open(&config)?;
            data.scan(&|_| ())?;
            let (mut inputs, mut targets) = (vec![0; 9], vec![0; 9]);
            data.train().fill(5..8, &mut inputs, &mut targets);
            assert!(inputs.iter().chain(&targets).all(|&token| token < 300));
            Ok(())
        };
        words(read())?;
        words(TokenFilesInfo::gather(&[path.clone()], format, None, None, &|_| ()).map(drop))?;
    }
    Ok(())
}

/// Goes on after an error that has words.
fn words(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(internal @ Error::Internal(_)) => Err(internal),
        _ => Ok(()),
    }
}

/// Behind llm.c's magic number, which chance does not find.
fn llmc(dir: &Path, bytes: &[u8]) -> Result<()> {
    tokens(dir, &[&20_240_520_u32.to_le_bytes()[..], bytes].concat())
}

fn json_lines(dir: &Path, bytes: &[u8]) -> Result<()> {
    let paths = [written(dir, "text.jsonl", bytes)];
    let mut documents =
        Documents::new(&paths, &Layout::Whole, true, Cursor::default(), &|text| Some(text.len()));
    while documents.next_piece()?.is_some() {}
    Ok(())
}

fn tokenizer_json(dir: &Path, bytes: &[u8]) -> Result<()> {
    let path = written(dir, "tokenizer.json", bytes).display().to_string();
    let tokenizer = TextTokenizer::load(&config::Tokenizer::File(path), None)?;
    let mut ids = Vec::new();
    if tokenizer.encode("the rank owns a slice, naïve 語 \u{1f980}".as_bytes(), &mut ids).is_ok() {
        tokenizer.decode(&ids);
    }
    tokenizer.decode(&[0, 1, 2, 300, u32::MAX]);
    Ok(())
}

fn read_tensors(path: &Path) -> Result<()> {
    let files = TensorFiles::open(path)?;
    for entry in files.entries.values() {
        let numel = entry.shape.iter().fold(1usize, |n, &d| n.saturating_mul(d));
        files.read(entry, 0..numel.min(64), &mut Vec::new())?;
    }
    Ok(())
}

fn safetensors(dir: &Path, bytes: &[u8]) -> Result<()> {
    read_tensors(&written(dir, "model.safetensors", bytes))
}

/// With a length that fits, and values behind.
fn safetensors_header(dir: &Path, bytes: &[u8]) -> Result<()> {
    safetensors(dir, &[&(bytes.len() as u64).to_le_bytes()[..], bytes, &[0; 64]].concat())
}

fn safetensors_index(dir: &Path, bytes: &[u8]) -> Result<()> {
    read_tensors(&written(dir, "model.safetensors.index.json", bytes))
}

fn config_of_model(_: &Path, bytes: &[u8]) -> Result<()> {
    let deck = config_json::to_deck(bytes, "config.json")?;
    config_json::of_model(&deck.model, "float32");
    Ok(())
}

/// A file of a run: what `report` and `watch` say of it.
fn run_file(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    written(dir, name, bytes);
    words(read_events(dir).map(drop))?;
    words(watch::once(dir).map(drop))?;
    words(report::run(dir, &report::Wanted::default()).map(drop))?;
    // Figures take a hundred times as long as words.
    if !bytes.len().is_multiple_of(16) {
        return Ok(());
    }
    let page = dir.join("page.html");
    report::run(dir, &report::Wanted { html: Some(page), ..report::Wanted::default() }).map(drop)
}

fn baseline(dir: &Path, bytes: &[u8]) -> Result<()> {
    Baseline::read(&written(dir, "baseline.json", bytes)).map(drop)
}

fn golden(dir: &Path, bytes: &[u8]) -> Result<()> {
    golden_losses::read(&written(dir, "losses.json", bytes)).map(drop)
}

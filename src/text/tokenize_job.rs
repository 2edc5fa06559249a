//! A tokenization job: its inputs, its outputs, and how much of it is already done.
//!
//! \[Note: restart\] Next to the output is `OUT.tokenize.json`: the job's options and inputs, and its durable
//! progress. A process that finds it resumes from there; the tokens do not depend on where a process ended,
//! nor on the number of threads. The file remains when the job is done, and records the tokenizer. Nothing
//! else at an output is overwritten.
//!
//! Must not know: how text becomes tokens, the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::documents::{Cursor, Layout};
use super::token_files::{Written, shard_path, with_stem_end};
use super::tokenizer::{self, TextTokenizer};
use crate::config::Tokenizer;
use crate::data::{TokenFormat, not_text_by_name};
use crate::error::{Error, Result};
use crate::files::{self, MAX_RECORD_BYTES};

/// Position of the document token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentToken {
    /// Before each document, as in llm.c.
    Before,
    /// After each document, as in nanoGPT.
    After,
    /// Nowhere.
    None,
}

/// Everything that determines the tokens and the files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Deck name of the tokenizer.
    pub tokenizer: String,
    /// Digest of its file, if it has one.
    pub tokenizer_digest: String,
    /// The document token; none if `document_token` is.
    pub separator_id: Option<u32>,
    /// Its position.
    pub document_token: DocumentToken,
    /// The definition of a document.
    pub layout: Layout,
    /// Fraction of the documents for the validation files, by hash, in [0, 1).
    pub val_fraction: f64,
    /// Encoding of the tokens in the files.
    pub format: TokenFormat,
    /// Tokens per file; none for a single file.
    pub shard_tokens: Option<u64>,
}

/// An input file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// As given.
    #[serde(with = "crate::foreign::paths::exact")]
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Time of its last change, in nanoseconds since 1970.
    pub modified_ns: u64,
}

/// `OUT.tokenize.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Version of this file.
    pub version: u32,
    /// Everything that determines the tokens.
    pub options: Options,
    /// One more than the largest token of the tokenizer.
    pub vocab_size: usize,
    /// The inputs, in order.
    pub inputs: Vec<Input>,
    /// Progress.
    pub at: Cursor,
    /// Completed documents: training, validation.
    pub documents: [u64; 2],
    /// Tokens written: training, validation.
    pub written: [Written; 2],
    /// Whether the job is done.
    pub is_finished: bool,
}

/// A job.
pub struct Job<'a> {
    /// The tokenizer of `options`.
    pub tokenizer: &'a TextTokenizer,
    /// Everything that determines the tokens.
    pub options: Options,
    /// Text files in order; `-` is standard input.
    pub inputs: Vec<PathBuf>,
    /// The token file, or the pattern of several names.
    pub out: PathBuf,
    /// Start over, whatever exists.
    pub overwrite: bool,
}

/// Suffix of a state's name, after that of its output.
const STATE_END: &str = ".tokenize.json";

/// Path of the state of the output `out`.
pub fn state_path(out: &Path) -> PathBuf {
    with_end(out, STATE_END)
}

/// The state next to `file` that describes it; none if no job made it there.
pub fn state_of(file: &Path) -> Option<State> {
    let states = states_in(dir_of(file));
    states.into_iter().find_map(|(names, state)| names.contains(file.file_name()?).then_some(state))
}

fn dir_of(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The states in a directory, and the names of the files each describes.
fn states_in(dir: &Path) -> Vec<(BTreeSet<OsString>, State)> {
    let beside = fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = beside.filter(|p| without_end(p, STATE_END).is_some()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let state: State = serde_json::from_slice(&files::read(&path, MAX_RECORD_BYTES).ok()?).ok()?;
        let out = without_end(&path, STATE_END)?;
        let names =
            files_of(out, &state).into_iter().flatten().filter_map(|p| Some(p.file_name()?.to_os_string()));
        Some((names.collect(), state))
    };
    paths.into_iter().filter_map(read).collect()
}

/// The recorded tokenizer of token files, if it differs from the current `named`; none if it is the same, or
/// nothing is recorded.
///
/// # Errors
/// The file of `named` is unreadable.
pub fn other_tokenizer(files: &[PathBuf], named: &Tokenizer) -> Result<Option<String>> {
    let today = match named {
        Tokenizer::None => return Ok(None),
        Tokenizer::Gpt2 | Tokenizer::Bytes => String::new(),
        Tokenizer::File(path) => tokenizer::digest_of(Path::new(path))?,
    };
    let name = named.name();
    let with_digest = |name: &str, digest: &str| match digest {
        "" => name.to_string(),
        digest => format!("{name} (digest {digest})"),
    };
    let mut states = BTreeMap::new();
    for file in files {
        let beside = states.entry(dir_of(file)).or_insert_with_key(|dir| states_in(dir));
        let Some((_, state)) =
            beside.iter().find(|(names, _)| file.file_name().is_some_and(|n| names.contains(n)))
        else {
            continue;
        };
        let Options { tokenizer, tokenizer_digest: then, .. } = &state.options;
        // A file may have moved without changing its content.
        if *then != today || then.is_empty() && *tokenizer != *name {
            return Ok(Some(format!(
                "the tokens of {} were made with {}, but the tokenizer is now {}: they would be decoded \
                 wrongly; restore the original tokenizer, or tokenize again",
                file.display(),
                with_digest(tokenizer, then),
                with_digest(name, &today)
            )));
        }
    }
    Ok(None)
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(end);
    name.into()
}

/// The path without this end of its name.
fn without_end<'p>(path: &'p Path, end: &str) -> Option<&'p Path> {
    let bytes = path.as_os_str().as_bytes().strip_suffix(end.as_bytes())?;
    Some(Path::new(OsStr::from_bytes(bytes)))
}

/// The names of the training and the validation files, before a shard's number is put in.
pub(super) fn outputs(out: &Path, options: &Options) -> [PathBuf; 2] {
    match options.val_fraction > 0.0 {
        false => [out.to_path_buf(), out.to_path_buf()],
        true => [with_stem_end(out, "_train"), with_stem_end(out, "_val")],
    }
}

/// The complete files of a state at `out`: training, validation.
pub fn files_of(out: &Path, state: &State) -> [Vec<PathBuf>; 2] {
    let paths = |name: &Path, written: Written| -> Vec<PathBuf> {
        (0..written.shards).map(|i| shard_path(name, state.options.shard_tokens, i)).collect()
    };
    let [train, val] = outputs(out, &state.options);
    [paths(&train, state.written[0]), paths(&val, state.written[1])]
}

/// Replaces the state at `out`, durably.
pub(super) fn write_state(state: &State, out: &Path) -> Result<()> {
    files::replace(&state_path(out), |file| {
        serde_json::to_writer_pretty(&mut *file, state)?;
        writeln!(file)
    })
}

/// The state of an earlier process, or a new one.
pub(super) fn start(job: &Job<'_>) -> Result<State> {
    let inputs = job.inputs.iter().map(|path| input(path)).collect::<Result<Vec<_>>>()?;
    let fresh = State {
        version: 1,
        options: job.options.clone(),
        vocab_size: job.tokenizer.vocab_size(),
        inputs,
        at: Cursor::default(),
        documents: [0; 2],
        written: [Written::default(); 2],
        is_finished: false,
    };
    let path = state_path(&job.out);
    refuse_inputs_as_outputs(job)?;
    if job.overwrite {
        remove_earlier(job, &path);
        return Ok(fresh);
    }
    let over = "; restore it, pass --overwrite to start over, or name another output";
    let found = match files::read(&path, MAX_RECORD_BYTES) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io("read", &path, &e)),
        Err(_) => {
            refuse_others_files(job, over)?;
            return Ok(fresh);
        }
    };
    let found: State = serde_json::from_slice(&found).map_err(|e| {
        Error::Input(format!("{} cannot be read: {e}; pass --overwrite to start over", path.display()))
    })?;
    if found.options != fresh.options || found.version != fresh.version {
        let show = |options: &Options| serde_json::to_string(options).expect("plain data");
        return Err(Error::Input(format!(
            "{} was started with different options, {} instead of {}{over}",
            job.out.display(),
            show(&found.options),
            show(&fresh.options)
        )));
    }
    if found.inputs != fresh.inputs {
        let changed = found.inputs.iter().zip(&fresh.inputs).find(|(a, b)| a != b);
        let what = match changed {
            Some((a, b)) if a.path == b.path => format!("{} has changed since", a.path.display()),
            _ => format!(
                "it was started with {} files instead of these {}",
                found.inputs.len(),
                fresh.inputs.len()
            ),
        };
        return Err(Error::Input(format!("{}: {what}{over}", job.out.display())));
    }
    // Standard input cannot be resumed.
    let is_stream = job.inputs.iter().any(|path| path == Path::new("-"));
    Ok(if is_stream && !found.is_finished { fresh } else { found })
}

/// Whether a file of this path may be written: one of the outputs, or with shards a numbered one, complete or
/// not.
fn is_output(job: &Job<'_>, path: &Path) -> bool {
    let found = without_end(path, ".partial").unwrap_or(path).as_os_str().as_bytes();
    outputs(&job.out, &job.options).iter().any(|name| match job.options.shard_tokens {
        None => found == name.as_os_str().as_bytes(),
        Some(_) => {
            const NUMBER: &[u8] = b"000000";
            let first = shard_path(name, job.options.shard_tokens, 0);
            let first = first.as_os_str().as_bytes();
            let at = first.windows(NUMBER.len()).rposition(|bytes| bytes == NUMBER);
            let (before, rest) = first.split_at(at.expect("a shard has a number"));
            let number = found.strip_prefix(before).and_then(|n| n.strip_suffix(&rest[NUMBER.len()..]));
            number.is_some_and(|n| n.len() >= NUMBER.len() && n.iter().all(u8::is_ascii_digit))
        }
    })
}

/// No output exists yet, so none that would be overwritten may exist.
fn refuse_others_files(job: &Job<'_>, over: &str) -> Result<()> {
    let dir = job.out.parent().unwrap_or(Path::new(""));
    let listed = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let entries = fs::read_dir(listed).map_err(|e| Error::io("list", listed, &e))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| dir.join(entry.file_name()))
        .filter(|path| is_output(job, path))
        .collect();
    found.sort();
    match found.first() {
        None => Ok(()),
        Some(first) => Err(Error::Input(format!("{} already exists{over}", first.display()))),
    }
}

/// Inputs are never overwritten, whatever the options.
fn refuse_inputs_as_outputs(job: &Job<'_>) -> Result<()> {
    let whole = |path: &Path| fs::canonicalize(path).ok();
    let dir = job.out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let same_dir =
        |path: &PathBuf| whole(path).is_some_and(|p| p.parent().map(Path::to_path_buf) == whole(dir));
    let as_output = |path: &&PathBuf| {
        let name = whole(path).and_then(|path| path.file_name().map(|name| job.out.with_file_name(name)));
        same_dir(path) && name.is_some_and(|name| is_output(job, &name))
    };
    match job.inputs.iter().find(as_output) {
        None => Ok(()),
        Some(input) => Err(Error::Input(format!(
            "{} is an input and would be overwritten; name another output",
            input.display()
        ))),
    }
}

/// Removes the output of an earlier process, so that none of its shards is mistaken for a new one.
fn remove_earlier(job: &Job<'_>, state_path: &Path) {
    let earlier = files::read(state_path, MAX_RECORD_BYTES)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok());
    if let Some(state) = earlier {
        remove_made(&job.out, &state);
    }
}

/// Removes the files of `state`, and the state itself.
pub(super) fn remove_made(out: &Path, state: &State) {
    for (name, at) in outputs(out, &state.options).iter().zip(state.written) {
        for i in 0..=at.shards {
            fs::remove_file(shard_path(name, state.options.shard_tokens, i)).ok();
        }
    }
    fs::remove_file(state_path(out)).ok();
}

fn input(path: &Path) -> Result<Input> {
    if path == Path::new("-") {
        return Ok(Input { path: path.into(), bytes: 0, modified_ns: 0 });
    }
    let no = |e: std::io::Error| Error::Input(format!("cannot read {}: {e}", path.display()));
    let meta = fs::metadata(path).map_err(no)?;
    if let Some(why) = not_text_by_name(path) {
        return Err(Error::Input(format!("{} {why}", path.display())));
    }
    if !meta.is_file() {
        return Err(Error::Input(format!(
            "{} is not a regular file; pass files, or - for standard input",
            path.display()
        )));
    }
    let since = meta.modified().map_err(no)?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Input { path: path.into(), bytes: meta.len(), modified_ns: since.as_nanos() as u64 })
}

/// The file locked by [`lock`].
pub(super) fn lock_path(out: &Path) -> PathBuf {
    with_end(out, ".tokenize.lock")
}

/// Held while a process works on this output.
pub(super) fn lock(out: &Path) -> Result<File> {
    let path = lock_path(out);
    let file = files::open_own(&path, files::NEW_FILE_MODE).map_err(|e| Error::io("create", &path, &e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(Error::Input(format!(
            "another process is writing {}; wait for it, or name another output",
            out.display()
        ))),
        // On a file system without locks, avoiding two processes is the user's responsibility.
        Err(fs::TryLockError::Error(_)) => Ok(file),
    }
}

//! Text files to token files: read in order, encode on all cores, write in order, go on after a kill.
//!
//! \[Note: restart\] Beside the output lies `OUT.tokenize.json`: what is being made of what, and how far it has come, durably. A process
//! that finds it goes on from there; what the tokens are does not depend on where a process ended, nor on the number of threads.
//! When all is done the file stays, and says which tokenizer the tokens are of.
//!
//! Must not know: the command line.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::documents::{Cursor, Documents, Layout, Piece};
use super::token_files::{TokenFiles, Written, shard_path, with_stem_end};
use super::tokenizer::TextTokenizer;
use crate::data::{ScanProgress, TokenFormat};
use crate::error::{Error, Result};
use crate::telemetry::replace_file;
use crate::test_hooks::fault_point;

/// Bytes of text in memory at once, about.
const BATCH_BYTES: usize = 16 << 20;
/// Time between two saves, at least.
const SAVE_EVERY: Duration = Duration::from_secs(2);

/// Where a document's token stands.
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

/// What decides the tokens and the files they lie in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Deck name of the tokenizer.
    pub tokenizer: String,
    /// Digest of its file, if it has one.
    pub tokenizer_digest: String,
    /// The token that separates documents; none where `document_token` is.
    pub separator_id: Option<u32>,
    /// Where it stands.
    pub document_token: DocumentToken,
    /// What a document is.
    pub layout: Layout,
    /// Share of the documents that go to the validation files, by hash, in [0, 1).
    pub val_fraction: f64,
    /// How the tokens lie in the files.
    pub format: TokenFormat,
    /// Tokens of one file; none for one file.
    pub shard_tokens: Option<u64>,
}

/// One file that is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// As given.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was last changed, in nanoseconds since 1970.
    pub modified_ns: u64,
}

/// `OUT.tokenize.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Version of this file.
    pub version: u32,
    /// What decides the tokens.
    pub options: Options,
    /// One more than the largest token of the tokenizer.
    pub vocab_size: usize,
    /// What is read, in order.
    pub inputs: Vec<Input>,
    /// How far.
    pub at: Cursor,
    /// Documents read to their ends: training, validation.
    pub documents: [u64; 2],
    /// Tokens written: training, validation.
    pub written: [Written; 2],
    /// All is done.
    pub is_finished: bool,
}

/// What there is to do.
pub struct Job<'a> {
    /// The tokenizer of `options`.
    pub tokenizer: &'a TextTokenizer,
    /// What decides the tokens.
    pub options: Options,
    /// Text files in order; `-` is standard input.
    pub inputs: Vec<PathBuf>,
    /// The token file, or what the names of several are made of.
    pub out: PathBuf,
    /// Start over, whatever is there.
    pub overwrite: bool,
}

/// What was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// Files, training and validation.
    pub files: [Vec<PathBuf>; 2],
    /// The finished state.
    pub state: State,
    /// It was done before.
    pub was_finished: bool,
}

/// Where the state lies of what is made at `out`.
pub fn state_path(out: &Path) -> PathBuf {
    with_end(out, ".tokenize.json")
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(end);
    name.into()
}

/// The names of the training and the validation files, before a shard's number is put in.
fn outputs(out: &Path, options: &Options) -> [PathBuf; 2] {
    match options.val_fraction > 0.0 {
        false => [out.to_path_buf(), out.to_path_buf()],
        true => [with_stem_end(out, "_train"), with_stem_end(out, "_val")],
    }
}

/// The whole files that a state at `out` speaks of: training, validation.
pub fn files_of(out: &Path, state: &State) -> [Vec<PathBuf>; 2] {
    let paths = |name: &Path, written: Written| -> Vec<PathBuf> {
        (0..written.shards).map(|i| shard_path(name, state.options.shard_tokens, i)).collect()
    };
    let [train, val] = outputs(out, &state.options);
    [paths(&train, state.written[0]), paths(&val, state.written[1])]
}

/// Does the job, or what is left of it. `progress` is told the bytes of input that are done.
///
/// # Errors
/// Bad text, with file and offset; an input that changed since an earlier process read it; an output that is something else's;
/// another process at the same output; failures of the file system.
pub fn tokenize(job: &Job<'_>, progress: ScanProgress) -> Result<Made> {
    tokenize_by(job, progress, BATCH_BYTES, SAVE_EVERY)
}

fn tokenize_by(job: &Job<'_>, progress: ScanProgress, batch_bytes: usize, save_every: Duration) -> Result<Made> {
    let lock = lock(&job.out)?;
    let made = make(job, progress, batch_bytes, save_every);
    drop(lock);
    fs::remove_file(lock_path(&job.out)).ok();
    made
}

fn make(job: &Job<'_>, progress: ScanProgress, batch_bytes: usize, save_every: Duration) -> Result<Made> {
    let mut state = start(job)?;
    let options = &job.options;
    let names = outputs(&job.out, options);
    let mut files = Vec::with_capacity(2);
    for (name, at) in names.iter().zip(state.written) {
        files.push(TokenFiles::new(name, options.format, options.shard_tokens, at)?);
    }
    if state.is_finished {
        return Ok(Made { files: files_of(&job.out, &state), state, was_finished: true });
    }

    // From here on what lies at the output is known to be ours.
    write_state(&state, &job.out)?;
    let before: Vec<u64> = state.inputs.iter().scan(0, |sum, i| Some(std::mem::replace(sum, *sum + i.bytes))).collect();
    let last_cut = |text: &[u8]| job.tokenizer.last_cut(text);
    let mut documents = Documents::new(&job.inputs, &options.layout, options.val_fraction > 0.0, state.at, &last_cut);
    let mut saved = Instant::now();
    for n_batch in 0.. {
        let batch = next_batch(&mut documents, batch_bytes)?;
        let Some(last) = batch.last() else { break };
        state.at = last.next;
        let encoded: Vec<Result<Vec<u32>>> = batch.par_iter().map(|piece| encode(job, piece)).collect();
        for (piece, tokens) in batch.iter().zip(encoded) {
            let side = usize::from(is_validation(piece.hash, options.val_fraction));
            files[side].write(&tokens?)?;
            state.documents[side] += u64::from(piece.ends);
        }
        progress(before[state.at.file] + state.at.offset);
        if saved.elapsed() >= save_every {
            save(&mut state, &mut files, &job.out)?;
            saved = Instant::now();
        }
        fault_point("tokenize.batch", 0, n_batch);
    }
    if files.iter().all(|f| f.written().total == 0) {
        fs::remove_file(state_path(&job.out)).ok();
        return Err(Error::Input("the inputs hold no text; name files that do".into()));
    }
    for (written, files) in state.written.iter_mut().zip(files) {
        *written = files.finish()?;
    }
    fault_point("tokenize.finished", 0, 0);
    state.is_finished = true;
    write_state(&state, &job.out)?;
    Ok(Made { files: files_of(&job.out, &state), state, was_finished: false })
}

/// Which side of the split a document is on: a function of its text alone.
fn is_validation(hash: u64, val_fraction: f64) -> bool {
    // The upper 53 bits are a number in [0, 1).
    ((hash >> 11) as f64) / ((1u64 << 53) as f64) < val_fraction
}

fn next_batch(documents: &mut Documents<'_>, batch_bytes: usize) -> Result<Vec<Piece>> {
    let (mut batch, mut n_bytes) = (Vec::new(), 0);
    while n_bytes < batch_bytes {
        let Some(piece) = documents.next_piece()? else { break };
        // Many empty lines must end a batch too.
        n_bytes += piece.text.len().max(16);
        batch.push(piece);
    }
    Ok(batch)
}

fn encode(job: &Job<'_>, piece: &Piece) -> Result<Vec<u32>> {
    let mut tokens = Vec::with_capacity(piece.text.len() / 3 + 2);
    if let (true, DocumentToken::Before, Some(id)) =
        (piece.begins, job.options.document_token, job.options.separator_id)
    {
        tokens.push(id);
    }
    job.tokenizer.encode(&piece.text, &mut tokens).map_err(|fault| {
        let at = piece.offset + if piece.is_verbatim { fault.offset as u64 } else { 0 };
        Error::Input(format!("{}: byte offset {at}: {}", job.inputs[piece.file].display(), fault.what))
    })?;
    if let (true, DocumentToken::After, Some(id)) = (piece.ends, job.options.document_token, job.options.separator_id) {
        tokens.push(id);
    }
    Ok(tokens)
}

fn save(state: &mut State, files: &mut [TokenFiles], out: &Path) -> Result<()> {
    for (written, files) in state.written.iter_mut().zip(files) {
        *written = files.save()?;
    }
    write_state(state, out)
}

fn write_state(state: &State, out: &Path) -> Result<()> {
    replace_file(&state_path(out), |file| {
        serde_json::to_writer_pretty(&mut *file, state)?;
        writeln!(file)
    })
}

/// The state that an earlier process left, or a new one.
fn start(job: &Job<'_>) -> Result<State> {
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
    let over = "; go back to what it was, say --overwrite to start over, or name another output";
    let found = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(_) => {
            refuse_others_files(job, over)?;
            return Ok(fresh);
        }
    };
    let found: State = serde_json::from_slice(&found)
        .map_err(|e| Error::Input(format!("{} cannot be read: {e}; say --overwrite to start over", path.display())))?;
    if found.options != fresh.options || found.version != fresh.version {
        let show = |options: &Options| serde_json::to_string(options).expect("plain data");
        return Err(Error::Input(format!(
            "{} was begun in another way, {}, and not {}{over}",
            job.out.display(),
            show(&found.options),
            show(&fresh.options)
        )));
    }
    if found.inputs != fresh.inputs {
        let changed = found.inputs.iter().zip(&fresh.inputs).find(|(a, b)| a != b);
        let what = match changed {
            Some((a, b)) if a.path == b.path => format!("{} has changed since", a.path.display()),
            _ => format!("it was begun with {} files, and not these {}", found.inputs.len(), fresh.inputs.len()),
        };
        return Err(Error::Input(format!("{}: {what}{over}", job.out.display())));
    }
    // Standard input cannot be gone on with.
    let is_stream = job.inputs.iter().any(|path| path == Path::new("-"));
    Ok(if is_stream && !found.is_finished { fresh } else { found })
}

/// Whether a file of this path may be written: one of the outputs, or with shards one numbered as they are, whole or not.
fn is_output(job: &Job<'_>, path: &Path) -> bool {
    let text = |path: &Path| path.as_os_str().to_string_lossy().into_owned();
    let found = text(path);
    let found = found.strip_suffix(".partial").unwrap_or(&found);
    outputs(&job.out, &job.options).iter().any(|name| match job.options.shard_tokens {
        None => found == text(name),
        Some(_) => {
            let first = text(&shard_path(name, job.options.shard_tokens, 0));
            let at = first.rfind("_000000").expect("a shard has a number") + 1;
            let number = found.strip_prefix(&first[..at]).and_then(|rest| rest.strip_suffix(&first[at + 6..]));
            number.is_some_and(|n| n.len() >= 6 && n.bytes().all(|b| b.is_ascii_digit()))
        }
    })
}

/// Nothing here is ours yet, so nothing that would be written over may be there.
fn refuse_others_files(job: &Job<'_>, over: &str) -> Result<()> {
    let dir = job.out.parent().unwrap_or(Path::new(""));
    let listed = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let entries = fs::read_dir(listed).map_err(|e| Error::io("list", listed, &e))?;
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|entry| dir.join(entry.file_name())).filter(|path| is_output(job, path)).collect();
    found.sort();
    match found.first() {
        None => Ok(()),
        Some(first) => Err(Error::Input(format!("{} is there already{over}", first.display()))),
    }
}

/// What is read is not written over, whatever was asked for.
fn refuse_inputs_as_outputs(job: &Job<'_>) -> Result<()> {
    let whole = |path: &Path| fs::canonicalize(path).ok();
    let dir = job.out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let same_dir = |path: &PathBuf| whole(path).is_some_and(|p| p.parent().map(Path::to_path_buf) == whole(dir));
    let as_output = |path: &&PathBuf| {
        let name = whole(path).and_then(|path| path.file_name().map(|name| job.out.with_file_name(name)));
        same_dir(path) && name.is_some_and(|name| is_output(job, &name))
    };
    match job.inputs.iter().find(as_output) {
        None => Ok(()),
        Some(input) => {
            Err(Error::Input(format!("{} is read, and would be written over; name another output", input.display())))
        }
    }
}

/// Removes what an earlier process made here, so that none of its shards is taken for one of the new ones.
fn remove_earlier(job: &Job<'_>, state_path: &Path) {
    let earlier = fs::read(state_path).ok().and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok());
    let Some(State { options, written, .. }) = earlier else { return };
    for (name, at) in outputs(&job.out, &options).iter().zip(written) {
        for i in 0..=at.shards {
            fs::remove_file(shard_path(name, options.shard_tokens, i)).ok();
        }
    }
    fs::remove_file(state_path).ok();
}

fn input(path: &Path) -> Result<Input> {
    if path == Path::new("-") {
        return Ok(Input { path: path.into(), bytes: 0, modified_ns: 0 });
    }
    let no = |e: std::io::Error| Error::Input(format!("cannot read {}: {e}", path.display()));
    let meta = fs::metadata(path).map_err(no)?;
    if !meta.is_file() {
        return Err(Error::Input(format!(
            "{} is not a regular file; name files, or - for standard input",
            path.display()
        )));
    }
    let since = meta.modified().map_err(no)?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Input { path: path.into(), bytes: meta.len(), modified_ns: since.as_nanos() as u64 })
}

fn lock_path(out: &Path) -> PathBuf {
    with_end(out, ".tokenize.lock")
}

/// Held while a process is at this output.
fn lock(out: &Path) -> Result<File> {
    let path = lock_path(out);
    let file = File::create(&path).map_err(|e| Error::io("create", &path, &e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(Error::Input(format!(
            "another process is making {}; wait for it, or name another output",
            out.display()
        ))),
        // A file system without locks: two at once are the person's own care.
        Err(fs::TryLockError::Error(_)) => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Tokenizer as Named;
    use proptest::prelude::*;

    fn job<'a>(tokenizer: &'a TextTokenizer, dir: &Path, inputs: &[PathBuf]) -> Job<'a> {
        let options = Options {
            tokenizer: tokenizer.name().into(),
            tokenizer_digest: tokenizer.digest().into(),
            separator_id: tokenizer.document_token(),
            document_token: DocumentToken::Before,
            layout: Layout::Separated("\n\n".into()),
            val_fraction: 0.3,
            format: TokenFormat::LlmcU16,
            shard_tokens: Some(50),
        };
        Job { tokenizer, options, inputs: inputs.to_vec(), out: dir.join("t.bin"), overwrite: false }
    }

    fn tokens(files: &[PathBuf]) -> Vec<u32> {
        let read = |path: &PathBuf| {
            let bytes = fs::read(path).unwrap();
            bytes[1024..].as_chunks().0.iter().map(|b| u32::from(u16::from_le_bytes(*b))).collect::<Vec<_>>()
        };
        files.iter().flat_map(read).collect()
    }

    #[test]
    fn files_of_others_and_what_is_read_are_not_written_over() {
        let bytes = TextTokenizer::load(&Named::Bytes, None).unwrap();
        for (name, is_refused) in [
            ("t_train_000000.bin", true),
            ("t_val_000000.bin", true),
            ("t_train_000007.bin", true),
            ("t_val_000001.bin.partial", true),
            ("t_train_1234567.bin", true),
            ("t_train_7.bin", false),
            ("t.bin", false),
            ("t_test_000000.bin", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (text, other) = (dir.path().join("in.txt"), dir.path().join(name));
            fs::write(&text, "one\n\ntwo\n\nthree").unwrap();
            fs::write(&other, "precious").unwrap();
            let made = tokenize(&job(&bytes, dir.path(), std::slice::from_ref(&text)), &|_| {});
            assert_eq!(made.is_err(), is_refused, "{name}: {made:?}");
            assert_eq!(fs::read(&other).unwrap(), b"precious", "{name}");
            let read = Job { overwrite: true, ..job(&bytes, dir.path(), std::slice::from_ref(&other)) };
            assert_eq!(tokenize(&read, &|_| {}).is_err(), is_refused, "{name} as input");
            assert_eq!(fs::read(&other).unwrap(), b"precious", "{name} as input");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Against the tokens of each document by itself.
        #[test]
        fn the_files_hold_each_document_once_on_the_side_its_hash_says(
            docs in proptest::collection::vec("[a-z .é語]{1,30}", 1..30),
            n_files in 1usize..4,
        ) {
            let gpt2 = TextTokenizer::load(&Named::Gpt2, None).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let mut inputs = Vec::new();
            for (i, part) in docs.chunks(docs.len().div_ceil(n_files)).enumerate() {
                inputs.push(dir.path().join(format!("{i}.txt")));
                fs::write(&inputs[i], part.join("\n\n")).unwrap();
            }
            let made = tokenize_by(&job(&gpt2, dir.path(), &inputs), &|_| {}, 100, Duration::ZERO).unwrap();
            let mut want = [Vec::new(), Vec::new()];
            for doc in &docs {
                let hash = xxhash_rust::xxh3::xxh3_64(doc.as_bytes());
                let side = &mut want[usize::from(is_validation(hash, 0.3))];
                side.push(50256);
                gpt2.encode(doc.as_bytes(), side).unwrap();
            }
            prop_assert_eq!(tokens(&made.files[0]), &want[0][..]);
            prop_assert_eq!(tokens(&made.files[1]), &want[1][..]);
            prop_assert!(made.files[0].iter().rev().skip(1).all(|f| fs::metadata(f).unwrap().len() == 1024 + 100));
            let again = tokenize_by(&job(&gpt2, dir.path(), &inputs), &|_| {}, 100, Duration::ZERO).unwrap();
            prop_assert!(again.was_finished && again.files == made.files);
        }
    }

    #[test]
    fn a_state_of_any_moment_leads_to_the_same_bytes() {
        let bytes = TextTokenizer::load(&Named::Bytes, None).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.txt");
        fs::write(&input, (0..200).map(|i| format!("document {i}\n\n")).collect::<String>()).unwrap();
        let inputs = [input];
        let all = |dir: &Path| {
            let mut found: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
            found.sort();
            found.iter().map(|p| (p.file_name().unwrap().to_owned(), fs::read(p).unwrap())).collect::<Vec<_>>()
        };
        let whole = tempfile::tempdir().unwrap();
        tokenize_by(&job(&bytes, whole.path(), &inputs), &|_| {}, 64, Duration::ZERO).unwrap();
        // A process that ends after its n-th batch leaves the state of that batch and perhaps more in the files.
        for n in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let job = job(&bytes, dir.path(), &inputs);
            let left = std::sync::atomic::AtomicI64::new(n);
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let stop = |_| {
                    assert!(left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0, "the test ends it here");
                };
                tokenize_by(&job, &stop, 64, Duration::ZERO)
            }));
            assert!(ended.is_err());
            tokenize_by(&job, &|_| {}, 999, Duration::ZERO).unwrap();
            assert!(all(dir.path()) == all(whole.path()), "ended after {n} batches");
        }
    }

    #[test]
    fn another_input_or_another_way_is_refused_until_told_to_start_over() {
        let bytes = TextTokenizer::load(&Named::Bytes, None).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.txt");
        fs::write(&input, "some text").unwrap();
        let mut job = job(&bytes, dir.path(), std::slice::from_ref(&input));
        let message = |job: &Job<'_>| tokenize(job, &|_| {}).unwrap_err().to_string();
        tokenize(&job, &|_| {}).unwrap();
        fs::write(&input, "some other text").unwrap();
        assert!(message(&job).contains("in.txt has changed since"));
        job.options.val_fraction = 0.0;
        assert!(message(&job).contains("begun in another way"));
        job.overwrite = true;
        assert_eq!(tokenize(&job, &|_| {}).unwrap().state.written[0].total, 15);
        job.overwrite = false;
        fs::remove_file(state_path(&job.out)).unwrap();
        assert!(message(&job).contains("is there already"));
    }
}

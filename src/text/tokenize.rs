//! Text files to token files: read in order, encode on all cores, write in order, resume after a kill.
//!
//! What is there already, and how far an earlier process has come, is `tokenize_job.rs`' care (\[Note:
//! restart\] there).
//!
//! Must not know: the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::threads;
use rayon::prelude::*;

use super::documents::{Documents, Piece};
use super::token_files::TokenFiles;
use super::tokenize_job::{
    DocumentToken, Job, State, files_of, lock, lock_path, outputs, remove_made, start, state_path,
    write_state,
};
use crate::data::ScanProgress;
use crate::error::{Error, Result};
use crate::human;
use crate::test_hooks::fault_point;

/// Approximate bytes of text in memory at once.
const BATCH_BYTES: usize = 16 << 20;
/// Minimum time between two saves.
const SAVE_EVERY: Duration = Duration::from_secs(2);

/// The result.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// Files, training and validation.
    pub files: [Vec<PathBuf>; 2],
    /// The finished state.
    pub state: State,
    /// Whether the job was already complete.
    pub was_finished: bool,
}

/// Does the job, or the rest of it. `progress` receives the bytes of input that are done.
///
/// # Errors
/// Bad text, with file and offset; an input that changed since an earlier process read it; a foreign output;
/// another process at the same output; failures of the file system.
pub fn tokenize(job: &Job<'_>, progress: ScanProgress) -> Result<Made> {
    threads::start_shared_pool()?;
    tokenize_by(job, progress, BATCH_BYTES, SAVE_EVERY)
}

fn tokenize_by(
    job: &Job<'_>,
    progress: ScanProgress,
    batch_bytes: usize,
    save_every: Duration,
) -> Result<Made> {
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

    // From here on existing files at the output belong to this job.
    write_state(&state, &job.out)?;
    let before: Vec<u64> =
        state.inputs.iter().scan(0, |sum, i| Some(std::mem::replace(sum, *sum + i.bytes))).collect();
    let last_cut = |text: &[u8]| job.tokenizer.last_cut(text);
    let mut documents =
        Documents::new(&job.inputs, &options.layout, options.val_fraction > 0.0, state.at, &last_cut);
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
        return Err(Error::Input("the inputs contain no text".into()));
    }
    let totals: Vec<u64> = files.iter().map(|f| f.written().total).collect();
    if options.val_fraction > 0.0 && totals.contains(&0) {
        for (written, files) in state.written.iter_mut().zip(files) {
            *written = files.written();
            files.discard();
        }
        remove_made(&job.out, &state);
        let (all, side) = match totals[1] {
            0 => ("training", "validation"),
            _ => ("validation", "training"),
        };
        return Err(Error::Input(format!(
            "--val-fraction {}: the split is by document, and all {} went to {all}, none to {side}; use more \
             documents (--separator splits files), another fraction, or data.val_fraction in the deck, which \
             uses the end of the tokens",
            options.val_fraction,
            human::counted(state.documents.iter().sum::<u64>() as usize, "document"),
        )));
    }
    for (written, files) in state.written.iter_mut().zip(files) {
        *written = files.finish()?;
    }
    fault_point("tokenize.finished", 0, 0);
    state.is_finished = true;
    write_state(&state, &job.out)?;
    Ok(Made { files: files_of(&job.out, &state), state, was_finished: false })
}

/// The split of a document: a function of its text alone.
fn is_validation(hash: u64, val_fraction: f64) -> bool {
    // The upper 53 bits are a number in [0, 1).
    ((hash >> 11) as f64) / ((1u64 << 53) as f64) < val_fraction
}

fn next_batch(documents: &mut Documents<'_>, batch_bytes: usize) -> Result<Vec<Piece>> {
    let (mut batch, mut n_bytes) = (Vec::new(), 0);
    while n_bytes < batch_bytes {
        let Some(piece) = documents.next_piece()? else { break };
        // Many empty lines must end a batch, too.
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
    if let (true, DocumentToken::After, Some(id)) =
        (piece.ends, job.options.document_token, job.options.separator_id)
    {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Tokenizer as Named;
    use crate::data::TokenFormat;
    use crate::text::documents::Layout;
    use crate::text::tokenize_job::Options;
    use crate::text::tokenizer::TextTokenizer;
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

    /// As many documents; of twenty or more some are on each side.
    fn documents(n: usize) -> String {
        (0..n).map(|i| format!("document {i}\n\n")).collect()
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
            fs::write(&text, documents(20)).unwrap();
            fs::write(&other, documents(40)).unwrap();
            let made = tokenize(&job(&bytes, dir.path(), std::slice::from_ref(&text)), &|_| {});
            assert_eq!(made.is_err(), is_refused, "{name}: {made:?}");
            assert!(fs::read_to_string(&other).unwrap() == documents(40), "{name}");
            let read = Job { overwrite: true, ..job(&bytes, dir.path(), std::slice::from_ref(&other)) };
            assert_eq!(tokenize(&read, &|_| {}).is_err(), is_refused, "{name} as input");
            assert!(fs::read_to_string(&other).unwrap() == documents(40), "{name} as input");
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
            let made = tokenize_by(&job(&gpt2, dir.path(), &inputs), &|_| {}, 100, Duration::ZERO);
            let mut want = [Vec::new(), Vec::new()];
            for doc in &docs {
                let hash = xxhash_rust::xxh3::xxh3_64(doc.as_bytes());
                let side = &mut want[usize::from(is_validation(hash, 0.3))];
                side.push(50256);
                gpt2.encode(doc.as_bytes(), side).unwrap();
            }
            if want.iter().any(|side| side.is_empty()) {
                let why = made.unwrap_err().to_string();
                prop_assert!(
                    why.starts_with("--val-fraction 0.3: the split is by document, and all "),
                    "{}",
                    why
                );
                prop_assert_eq!(fs::read_dir(dir.path()).unwrap().count(), inputs.len(), "nothing is left");
                return Ok(());
            }
            let made = made.unwrap();
            prop_assert_eq!(tokens(&made.files[0]), &want[0][..]);
            prop_assert_eq!(tokens(&made.files[1]), &want[1][..]);
            prop_assert!(
                made.files[0].iter().rev().skip(1).all(|f| fs::metadata(f).unwrap().len() == 1024 + 100)
            );
            let again = tokenize_by(&job(&gpt2, dir.path(), &inputs), &|_| {}, 100, Duration::ZERO).unwrap();
            prop_assert!(again.was_finished && again.files == made.files);
        }
    }

    #[test]
    fn a_state_of_any_moment_leads_to_the_same_bytes() {
        let bytes = TextTokenizer::load(&Named::Bytes, None).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.txt");
        fs::write(&input, documents(200)).unwrap();
        let inputs = [input];
        let all = |dir: &Path| {
            let mut found: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
            found.sort();
            found
                .iter()
                .map(|p| (p.file_name().unwrap().to_owned(), fs::read(p).unwrap()))
                .collect::<Vec<_>>()
        };
        let whole = tempfile::tempdir().unwrap();
        tokenize_by(&job(&bytes, whole.path(), &inputs), &|_| {}, 64, Duration::ZERO).unwrap();
        // A process that ends after its n-th batch leaves the state of that batch and perhaps more in the
        // files.
        for n in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let job = job(&bytes, dir.path(), &inputs);
            let left = std::sync::atomic::AtomicI64::new(n);
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let stop = |_| {
                    assert!(
                        left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0,
                        "the test ends it here"
                    );
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
        fs::write(&input, documents(20)).unwrap();
        let mut job = job(&bytes, dir.path(), std::slice::from_ref(&input));
        let message = |job: &Job<'_>| tokenize(job, &|_| {}).unwrap_err().to_string();
        tokenize(&job, &|_| {}).unwrap();
        fs::write(&input, "some other text").unwrap();
        assert!(message(&job).contains("in.txt has changed since"));
        job.options.val_fraction = 0.0;
        assert!(message(&job).contains("started with different options"));
        job.overwrite = true;
        assert_eq!(tokenize(&job, &|_| {}).unwrap().state.written[0].total, 15);
        job.overwrite = false;
        fs::remove_file(state_path(&job.out)).unwrap();
        assert!(message(&job).contains("already exists"));
    }
}

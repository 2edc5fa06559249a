//! Token files being written: one, or as many as necessary, each a valid file under its final name.
//!
//! A file is written as `NAME.partial`, and renamed when it is complete and durable. What
//! [`TokenFiles::save`] returns is enough to resume after a kill. Must not know: text, documents.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::data::{TokenFormat, llmc};
use crate::error::{Error, Result};
use crate::files;

/// Durable progress of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Written {
    /// Number of complete files.
    pub shards: u64,
    /// Tokens in the file after them.
    pub tokens: u64,
    /// Total number of tokens.
    pub total: u64,
}

/// Writes tokens sequentially into files of at most `shard_tokens`.
pub struct TokenFiles {
    /// The name of the file, if `shard_tokens` is none; otherwise shard `i` gets `_00000i` before the
    /// extension.
    path: PathBuf,
    format: TokenFormat,
    shard_tokens: Option<u64>,
    at: Written,
    file: Option<BufWriter<File>>,
    bytes: Vec<u8>,
}

impl TokenFiles {
    /// Resumes at `at`; the default is a new start.
    pub fn new(path: &Path, format: TokenFormat, shard_tokens: Option<u64>, at: Written) -> Result<Self> {
        let path = path.to_path_buf();
        let mut files = TokenFiles { path, format, shard_tokens, at, file: None, bytes: Vec::new() };
        if at.tokens > 0 {
            files.reopen()?;
        }
        Ok(files)
    }

    fn shard_path(&self, i: u64) -> PathBuf {
        shard_path(&self.path, self.shard_tokens, i)
    }

    /// The current progress.
    pub fn written(&self) -> Written {
        self.at
    }

    /// Appends tokens.
    ///
    /// # Errors
    /// Failures of the file system, here and below.
    pub fn write(&mut self, mut tokens: &[u32]) -> Result<()> {
        while !tokens.is_empty() {
            if self.file.is_none() {
                self.create()?;
            }
            let room = self.shard_tokens.map_or(u64::MAX, |n| n - self.at.tokens);
            let n = (tokens.len() as u64).min(room) as usize;
            self.append(&tokens[..n])?;
            tokens = &tokens[n..];
            if self.shard_tokens == Some(self.at.tokens) {
                self.finish_shard()?;
            }
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub fn save(&mut self) -> Result<Written> {
        let path = self.partial();
        if let Some(file) = &mut self.file {
            file.flush()
                .and_then(|()| file.get_ref().sync_data())
                .map_err(|e| Error::io("write", &path, &e))?;
        }
        Ok(self.at)
    }

    /// Finishes the last file: then all files are complete; there are none if there were no tokens.
    pub fn finish(mut self) -> Result<Written> {
        if self.file.is_some() {
            self.finish_shard()?;
        }
        Ok(self.at)
    }

    /// Removes the incomplete file, if there is one.
    pub fn discard(self) {
        if self.file.is_some() {
            fs::remove_file(self.partial()).ok();
        }
    }

    fn partial(&self) -> PathBuf {
        let mut name = self.shard_path(self.at.shards).into_os_string();
        name.push(".partial");
        name.into()
    }

    fn create(&mut self) -> Result<()> {
        let path = self.partial();
        // What is there is ours: `tokenize_job.rs` has seen to it.
        let file =
            files::open_own(&path, files::NEW_FILE_MODE).and_then(|file| file.set_len(0).map(|()| file));
        let file = file.map_err(|e| Error::io("create", &path, &e))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        // The header is written last: an incomplete file has no magic number.
        file.write_all(&vec![0; self.format.header_bytes()]).map_err(|e| Error::io("write", &path, &e))?;
        self.file = Some(file);
        Ok(())
    }

    /// Opens the incomplete file of a killed process and truncates it to the last save.
    fn reopen(&mut self) -> Result<()> {
        let (path, whole) = (self.partial(), self.shard_path(self.at.shards));
        // It may have been completed between the save and the kill.
        if !path.exists() && whole.exists() {
            files::rename(&whole, &path)?;
        }
        let n_bytes = self.format.header_bytes() as u64 + self.at.tokens * self.format.token_bytes();
        let opened = files::open_own(&path, files::NEW_FILE_MODE).and_then(|mut file| {
            let found = file.metadata()?.len();
            if found < n_bytes {
                return Err(std::io::Error::other(format!("it has {found} bytes instead of {n_bytes}")));
            }
            file.set_len(n_bytes)?;
            file.write_all_at(&vec![0; self.format.header_bytes()], 0)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        });
        let file = opened.map_err(|e| {
            Error::Input(format!("cannot resume with {}: {e}; start over with --overwrite", path.display()))
        })?;
        self.file = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(())
    }

    fn append(&mut self, tokens: &[u32]) -> Result<()> {
        self.bytes.clear();
        match self.format {
            TokenFormat::Text => self.bytes.extend(tokens.iter().map(|&t| narrow::<u8>(t))),
            TokenFormat::RawU16 | TokenFormat::LlmcU16 => {
                self.bytes.extend(tokens.iter().flat_map(|&t| narrow::<u16>(t).to_le_bytes()));
            }
            TokenFormat::RawU32 | TokenFormat::LlmcU32 => {
                self.bytes.extend(tokens.iter().flat_map(|&t| t.to_le_bytes()));
            }
        }
        let path = self.partial();
        let n = tokens.len() as u64;
        if self.format.header_bytes() > 0 && self.at.tokens + n > llmc::MAX_TOKENS {
            return Err(Error::Input(format!(
                "{}: an llm.c token file has at most {} tokens, but there are more; pass --shard-tokens, \
                 e.g. 100000000",
                path.display(),
                llmc::MAX_TOKENS
            )));
        }
        let file = self.file.as_mut().expect("a file is open");
        file.write_all(&self.bytes).map_err(|e| Error::io("write", &path, &e))?;
        self.at.tokens += n;
        self.at.total += n;
        Ok(())
    }

    fn finish_shard(&mut self) -> Result<()> {
        let (partial, path) = (self.partial(), self.shard_path(self.at.shards));
        let failed = |call: &str, e: &std::io::Error| Error::io(call, &partial, e);
        let mut file = self.file.take().expect("a file is open");
        file.flush().map_err(|e| failed("write", &e))?;
        let file = file.get_ref();
        if self.format.header_bytes() > 0 {
            let header = llmc::header(self.format, self.at.tokens);
            file.write_all_at(&header, 0).map_err(|e| failed("write", &e))?;
        }
        files::sync(file, &partial)?;
        files::rename(&partial, &path)?;
        self.at.shards += 1;
        self.at.tokens = 0;
        Ok(())
    }
}

fn narrow<T: TryFrom<u32>>(token: u32) -> T {
    T::try_from(token)
        .ok()
        .unwrap_or_else(|| panic!("token {token} in a file of {} bytes each", size_of::<T>()))
}

/// The name of file `i`: `path` itself if there is only one file.
pub fn shard_path(path: &Path, shard_tokens: Option<u64>, i: u64) -> PathBuf {
    match shard_tokens {
        None => path.to_path_buf(),
        Some(_) => with_stem_end(path, &format!("_{i:06}")),
    }
}

/// `dir/name.bin` as `dir/name{end}.bin`.
pub fn with_stem_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(end);
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_is_killed_anywhere_goes_on_to_the_same_bytes() {
        let tokens: Vec<u32> = (0..1000).map(|i| i * 61 % 50_000).collect();
        for (format, shard) in [
            (TokenFormat::LlmcU16, Some(300)),
            (TokenFormat::LlmcU32, None),
            (TokenFormat::RawU16, Some(250)),
            (TokenFormat::RawU32, None),
        ] {
            let want = tempfile::tempdir().unwrap();
            let whole = want.path().join("t.bin");
            let mut files = TokenFiles::new(&whole, format, shard, Written::default()).unwrap();
            files.write(&tokens).unwrap();
            let made = files.finish().unwrap();
            let paths: Vec<PathBuf> = (0..made.shards).map(|i| shard_path(&whole, shard, i)).collect();
            assert_eq!((paths.len(), made.total), (if shard.is_some() { 4 } else { 1 }, 1000));
            for (saved_at, killed_at) in
                [(0, 10), (200, 200), (200, 301), (299, 700), (400, 1000), (600, 1000)]
            {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("t.bin");
                let mut files = TokenFiles::new(&path, format, shard, Written::default()).unwrap();
                files.write(&tokens[..saved_at]).unwrap();
                let saved = files.save().unwrap();
                files.write(&tokens[saved_at..killed_at]).unwrap();
                // All that was written may have reached the disk, whole files included.
                match killed_at {
                    1000 => _ = files.finish().unwrap(),
                    _ => _ = files.save().unwrap(),
                }
                let mut files = TokenFiles::new(&path, format, shard, saved).unwrap();
                files.write(&tokens[saved_at..]).unwrap();
                files.finish().unwrap();
                for path in &paths {
                    let name = path.file_name().unwrap();
                    let bytes = |dir: &Path| std::fs::read(dir.join(name)).unwrap();
                    assert!(
                        bytes(want.path()) == bytes(dir.path()),
                        "{name:?} of {format}, {saved_at} {killed_at}"
                    );
                }
                assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), paths.len());
            }
        }
    }
}

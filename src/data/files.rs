//! From the deck's paths and globs to a list of regular files, and which format they hold.
//!
//! Rank 0 resolves and broadcasts the list as bytes; the other ranks open what the list says, so a file that appears
//! meanwhile cannot make ranks disagree. Must not know: what is in the files beyond a magic number, MPI.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::llmc;
use crate::error::{Error, Result};

/// How tokens lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenFormat {
    /// One byte, one token: text as it is.
    Text,
    /// Headerless little-endian u16 tokens, as nanoGPT writes them.
    RawU16,
    /// Headerless little-endian u32 tokens.
    RawU32,
    /// u16 tokens behind the header of llm.c.
    LlmcU16,
    /// u32 tokens behind the header of llm.c.
    LlmcU32,
}

impl TokenFormat {
    /// Bytes of one token.
    pub fn token_bytes(self) -> u64 {
        match self {
            TokenFormat::Text => 1,
            TokenFormat::RawU16 | TokenFormat::LlmcU16 => 2,
            TokenFormat::RawU32 | TokenFormat::LlmcU32 => 4,
        }
    }

    /// Bytes before the first token.
    pub fn header_bytes(self) -> usize {
        match self {
            TokenFormat::Text | TokenFormat::RawU16 | TokenFormat::RawU32 => 0,
            TokenFormat::LlmcU16 | TokenFormat::LlmcU32 => llmc::HEADER_BYTES,
        }
    }

    /// Its name in messages and digests; the deck calls both formats of llm.c `llmc`.
    pub fn name(self) -> &'static str {
        match self {
            TokenFormat::Text => "text",
            TokenFormat::RawU16 => "raw_u16",
            TokenFormat::RawU32 => "raw_u32",
            TokenFormat::LlmcU16 => "llmc_u16",
            TokenFormat::LlmcU32 => "llmc_u32",
        }
    }

    /// Smallest number no token can reach, whatever the file says.
    pub fn token_limit(self) -> u64 {
        1 << (8 * self.token_bytes())
    }
}

impl fmt::Display for TokenFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The files of a run, in stream order: what rank 0 broadcasts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedFiles {
    /// Training files, bytewise sorted.
    pub train: Vec<PathBuf>,
    /// Validation files, bytewise sorted; empty when the validation tokens are the end of the training stream.
    pub val: Vec<PathBuf>,
}

impl ResolvedFiles {
    /// Expands both lists. All faults of both are reported together.
    pub fn resolve(train: &[String], val: &[String]) -> Result<Self> {
        let mut faults = Vec::new();
        let mut list = |key: &str, patterns: &[String]| expand(key, patterns, &mut faults);
        let files = ResolvedFiles { train: list("data.train", train), val: list("data.val", val) };
        if train.is_empty() {
            faults.push("data.train is empty: give it at least one path or glob".into());
        }
        report(faults)?;
        Ok(files)
    }

    /// The list as bytes: every path followed by a NUL, training first, one more NUL between the two lists.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (i, list) in [&self.train, &self.val].into_iter().enumerate() {
            if i > 0 {
                bytes.push(0);
            }
            for path in list {
                bytes.extend_from_slice(path.as_os_str().as_bytes());
                bytes.push(0);
            }
        }
        bytes
    }

    /// The reverse of [`ResolvedFiles::to_bytes`].
    ///
    /// # Errors
    /// They are no such list.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let broken = || Error::Internal(format!("a broadcast file list of {} bytes is not one", bytes.len()));
        let mut files = ResolvedFiles::default();
        let mut rest = bytes;
        let mut in_val = false;
        while !rest.is_empty() {
            let end = rest.iter().position(|&b| b == 0).ok_or_else(broken)?;
            match (end, in_val) {
                (0, true) => return Err(broken()),
                (0, false) => in_val = true,
                (_, false) => files.train.push(OsStr::from_bytes(&rest[..end]).into()),
                (_, true) => files.val.push(OsStr::from_bytes(&rest[..end]).into()),
            }
            rest = &rest[end + 1..];
        }
        if in_val { Ok(files) } else { Err(broken()) }
    }

    /// Files that are in both lists, so that validation would see training text.
    pub fn in_both(&self) -> Vec<&Path> {
        let train: HashSet<PathBuf> = self.train.iter().filter_map(|p| p.canonicalize().ok()).collect();
        self.val.iter().filter(|p| p.canonicalize().is_ok_and(|p| train.contains(&p))).map(PathBuf::as_path).collect()
    }
}

/// One [`Error::Input`] with every fault on a line of its own, or nothing. A long list is cut after twenty lines.
pub(super) fn report(faults: Vec<String>) -> Result<()> {
    const SHOWN: usize = 20;
    if faults.is_empty() {
        return Ok(());
    }
    let mut text = faults[..faults.len().min(SHOWN)].join("\n");
    if faults.len() > SHOWN {
        text += &format!("\n... and {} more like these", faults.len() - SHOWN);
    }
    Err(Error::Input(text))
}

/// Expands the paths and globs of one key: regular files, bytewise sorted, each file once.
fn expand(key: &str, patterns: &[String], faults: &mut Vec<String>) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for pattern in patterns {
        let is_glob = pattern.contains(['*', '?', '[']);
        let literal = Path::new(pattern);
        // A file whose name has a bracket in it is meant by its name.
        if !is_glob || literal.exists() {
            match std::fs::metadata(literal) {
                Ok(meta) if meta.is_file() => paths.push(literal.to_path_buf()),
                Ok(meta) if meta.is_dir() => faults.push(format!(
                    "{key}: {pattern} is a directory; name its files with a glob, e.g. {}/**/*.txt",
                    pattern.trim_end_matches('/')
                )),
                Ok(_) => faults.push(format!("{key}: {pattern} is not a regular file; copy its content into one")),
                Err(err) => faults.push(format!("{key}: cannot read {pattern}: {err}; {}", where_from(literal))),
            }
            continue;
        }
        // Hidden directories (.git) are left out unless the pattern names the dot, as in a shell.
        let options = glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
        let matches = match glob::glob_with(pattern, options) {
            Ok(matches) => matches,
            Err(err) => {
                faults.push(format!("{key}: {pattern} is not a glob: {err}"));
                continue;
            }
        };
        let n_before = paths.len();
        for entry in matches {
            match entry {
                Ok(path) => match std::fs::metadata(&path) {
                    Ok(meta) if meta.is_file() => paths.push(path),
                    Ok(_) => {}
                    Err(err) => faults.push(format!(
                        "{key}: cannot read {} (matched by {pattern}): {err}; remove it or narrow the glob",
                        path.display()
                    )),
                },
                Err(err) => {
                    faults.push(format!("{key}: cannot look into {} for {pattern}: {err}", err.path().display()))
                }
            }
        }
        if paths.len() == n_before {
            faults.push(format!("{key}: no file matches {pattern}; {}", where_from(literal)));
        }
    }
    paths.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    let mut seen = HashSet::new();
    paths.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    paths
}

/// What a person needs to see why a relative path was not found.
fn where_from(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(dir) if path.is_relative() => format!("relative paths start from {}", dir.display()),
        _ => "give the path of a file that is there".into(),
    }
}

/// Endings of container formats whose bytes are neither text nor bare tokens.
pub const CONTAINERS: [&str; 14] =
    ["arrow", "bz2", "gz", "h5", "hdf5", "npy", "npz", "parquet", "pt", "safetensors", "tar", "xz", "zip", "zst"];

/// The format of a set of files, from the deck's word.
///
/// `auto` goes by the ending, which must be of one kind for the whole set: `.u16` and `.bin` are raw_u16 (nanoGPT's
/// `train.bin`), `.u32` is raw_u32, container formats (`.npy`, `.gz`, `.parquet`, ...) are refused, everything else is text. A
/// `.bin` is refused as well when the vocabulary needs more than 16 bits. Files of bare tokens, by whatever word, must not
/// begin with llm.c's header; `llmc` files must, and every header must be true.
pub fn decide_format(key: &str, word: &str, files: &[PathBuf], vocab_size: u64) -> Result<TokenFormat> {
    match word {
        "text" => return Ok(TokenFormat::Text),
        "raw_u16" => return no_header(key, files).map(|()| TokenFormat::RawU16),
        "raw_u32" => return no_header(key, files).map(|()| TokenFormat::RawU32),
        "llmc" => return headed_format(key, files),
        "auto" => no_header(key, files)?,
        other => {
            return Err(Error::Input(format!("data.format = {other}: must be auto, text, raw_u16, raw_u32 or llmc")));
        }
    }
    let mut faults = Vec::new();
    let mut first: Option<(TokenFormat, &Path)> = None;
    for path in files {
        let ending = path.extension().and_then(OsStr::to_str).unwrap_or("").to_ascii_lowercase();
        let format = match ending.as_str() {
            "u16" => TokenFormat::RawU16,
            "u32" => TokenFormat::RawU32,
            "bin" => {
                if vocab_size > TokenFormat::RawU16.token_limit() {
                    faults.push(format!(
                        "{key}: {} may hold 16-bit or 32-bit tokens, and a vocabulary of {vocab_size} needs more than \
                         16 bits; say data.format = \"raw_u32\" (or \"raw_u16\")",
                        path.display()
                    ));
                }
                TokenFormat::RawU16
            }
            e if CONTAINERS.contains(&e) => {
                faults.push(format!(
                    "{key}: {} is a .{e} container, not text or bare tokens; unpack it, or say data.format = \"text\" to \
                     train on its bytes as they are",
                    path.display()
                ));
                continue;
            }
            _ => TokenFormat::Text,
        };
        match first {
            None => first = Some((format, path)),
            Some((f, p)) if f != format => {
                return Err(Error::Input(format!(
                    "{key}: {} looks like {f} and {} like {format}; data.format = \"auto\" takes one kind, so narrow the \
                     globs or name the format",
                    p.display(),
                    path.display()
                )));
            }
            Some(_) => {}
        }
    }
    report(faults)?;
    first.map(|(format, _)| format).ok_or_else(|| Error::Input(format!("{key}: no files")))
}

fn no_header(key: &str, files: &[PathBuf]) -> Result<()> {
    let headed = files.iter().filter(|path| starts_with_llmc_magic(path));
    report(
        headed
            .map(|path| {
                let path = path.display();
                format!("{key}: {path} begins with the header of an llm.c token file; say data.format = \"llmc\"")
            })
            .collect(),
    )
}

/// Whether a file that can be read begins with the magic word of an llm.c token file.
pub fn starts_with_llmc_magic(path: &Path) -> bool {
    let mut word = [0u8; 4];
    std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut word)).is_ok() && llmc::has_magic(&word)
}

/// The one format that the headers of all files name. Headers that are wrong are all reported.
fn headed_format(key: &str, files: &[PathBuf]) -> Result<TokenFormat> {
    let mut faults = Vec::new();
    let mut first: Option<(TokenFormat, &Path)> = None;
    for path in files {
        let mut start = Vec::with_capacity(llmc::HEADER_BYTES);
        let read = std::fs::File::open(path).and_then(|file| {
            let n_bytes = file.metadata()?.len();
            file.take(llmc::HEADER_BYTES as u64).read_to_end(&mut start)?;
            Ok(n_bytes)
        });
        let checked = match read {
            Ok(n_bytes) => llmc::check(&start, n_bytes).map_err(|why| format!("{key}: {} {why}", path.display())),
            Err(err) => {
                Err(format!("{key}: cannot read {}: {err}; check the path and its permissions", path.display()))
            }
        };
        match (checked, first) {
            (Err(fault), _) => faults.push(fault),
            (Ok(format), None) => first = Some((format, path)),
            (Ok(format), Some((f, p))) if f != format => faults.push(format!(
                "{key}: {} is {f} and {} is {format}; one run takes files of one kind, so narrow the globs",
                p.display(),
                path.display()
            )),
            _ => {}
        }
    }
    report(faults)?;
    first.map(|(format, _)| format).ok_or_else(|| Error::Input(format!("{key}: no files")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T: fmt::Debug>(result: Result<T>) -> String {
        match result {
            Err(Error::Input(text)) => text,
            other => panic!("expected Error::Input, got {other:?}"),
        }
    }

    fn dir_with(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"some text").unwrap();
        }
        dir
    }

    fn pattern(dir: &tempfile::TempDir, tail: &str) -> String {
        format!("{}/{tail}", dir.path().display())
    }

    fn names(paths: &[PathBuf]) -> Vec<&str> {
        paths.iter().map(|p| p.file_name().unwrap().to_str().unwrap()).collect()
    }

    #[test]
    fn every_bad_path_is_reported_at_once() {
        let dir = dir_with(&["a.txt"]);
        let train = [pattern(&dir, "missing.txt"), pattern(&dir, "*.none"), dir.path().display().to_string()];
        let val = [pattern(&dir, "[")];
        let text = message(ResolvedFiles::resolve(&train, &val));
        assert_eq!(text.lines().count(), 4, "{text}");
        for part in ["missing.txt", "no file matches", "is a directory", "is not a glob", "data.val"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn an_empty_list_is_refused() {
        assert!(message(ResolvedFiles::resolve(&[], &[])).contains("data.train is empty"));
    }

    #[test]
    fn globs_give_regular_files_sorted_bytewise_and_once() {
        let dir = dir_with(&["b.txt", "B.txt", "a.txt", "sub/c.txt", ".hidden.txt", ".git/d.txt", "e[1].txt"]);
        std::fs::create_dir(dir.path().join("folder.txt")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("a.txt"), dir.path().join("z.txt")).unwrap();
        let patterns = [pattern(&dir, "*.txt"), pattern(&dir, "b.txt"), pattern(&dir, "./b.txt")];
        let files = ResolvedFiles::resolve(&patterns, &[]).unwrap();
        let mut found = names(&files.train);
        found.sort();
        assert_eq!(found, ["B.txt", "a.txt", "b.txt", "e[1].txt"], "the link to a.txt is a.txt again");
        let deep = ResolvedFiles::resolve(&[pattern(&dir, "**/*.txt")], &[]).unwrap();
        assert_eq!(names(&deep.train), ["B.txt", "a.txt", "b.txt", "e[1].txt", "c.txt"]);
        let bracket = ResolvedFiles::resolve(&[pattern(&dir, "e[1].txt")], &[]).unwrap();
        assert_eq!(names(&bracket.train), ["e[1].txt"]);
    }

    #[test]
    fn a_dangling_link_in_a_glob_is_reported() {
        let dir = dir_with(&["a.txt"]);
        std::os::unix::fs::symlink("nowhere", dir.path().join("b.txt")).unwrap();
        let text = message(ResolvedFiles::resolve(&[pattern(&dir, "*.txt")], &[]));
        assert!(text.contains("b.txt") && text.contains("narrow the glob"), "{text}");
    }

    #[test]
    fn a_file_list_survives_the_broadcast() {
        let odd = PathBuf::from(OsStr::from_bytes(b"/data/\xff\n.txt"));
        for files in [
            ResolvedFiles { train: vec![odd.clone(), "b".into()], val: vec!["v".into()] },
            ResolvedFiles { train: vec![odd], val: vec![] },
            ResolvedFiles::default(),
        ] {
            assert_eq!(ResolvedFiles::from_bytes(&files.to_bytes()).unwrap(), files);
        }
        for broken in [&b""[..], b"a", b"a\0", b"a\0\0b", b"a\0\0\0"] {
            assert!(ResolvedFiles::from_bytes(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn a_file_in_both_lists_is_noticed() {
        let dir = dir_with(&["a.txt", "b.txt"]);
        let files = ResolvedFiles::resolve(&[pattern(&dir, "*.txt")], &[pattern(&dir, "./b.txt")]).unwrap();
        assert_eq!(names(&files.in_both().iter().map(|p| p.to_path_buf()).collect::<Vec<_>>()), ["b.txt"]);
    }

    #[test]
    fn auto_goes_by_the_ending_and_refuses_what_is_ambiguous() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let auto = |paths: &[&PathBuf], vocab| {
            decide_format("data.train", "auto", &paths.iter().map(|&p| p.clone()).collect::<Vec<_>>(), vocab)
        };
        let (txt, none, bin) = (file("a.txt", b"x"), file("README", b"x"), file("t.bin", &[1, 0, 2, 0]));
        let (npy, upper) = (file("t.npy", b"x"), file("t.BIN", &[1, 0]));
        let llmc = file("llmc.bin", &20_240_520u32.to_le_bytes());
        assert_eq!(auto(&[&txt, &none], 256).unwrap(), TokenFormat::Text);
        assert_eq!(auto(&[&bin, &upper], 50_257).unwrap(), TokenFormat::RawU16);
        assert_eq!(auto(&[&file("t.u32", b"")], 50_257).unwrap(), TokenFormat::RawU32);
        assert_eq!(auto(&[&file("t.u16", b"")], 100_000).unwrap(), TokenFormat::RawU16);
        assert!(message(auto(&[&bin], 128_256)).contains("raw_u32"));
        assert!(message(auto(&[&npy], 256)).contains("container"));
        assert!(message(auto(&[&llmc], 50_257)).contains("llm.c"));
        assert!(message(auto(&[&txt, &bin], 256)).contains("one kind"));
        assert!(message(decide_format("data.train", "utf8", &[txt], 256)).contains("raw_u16"));
        assert!(message(decide_format("data.train", "raw_u16", std::slice::from_ref(&llmc), 70_000)).contains("llm.c"));
        let whole = |name: &str, format, n: u64| {
            let tokens = vec![0; (n * TokenFormat::token_bytes(format)) as usize];
            file(name, &[&llmc::header(format, n)[..], &tokens[..]].concat())
        };
        let headed = |paths: &[&PathBuf]| {
            decide_format("data.val", "llmc", &paths.iter().map(|&p| p.clone()).collect::<Vec<_>>(), 50_257)
        };
        let (a, b) = (whole("a.bin", TokenFormat::LlmcU16, 3), whole("b.bin", TokenFormat::LlmcU32, 3));
        assert_eq!(headed(&[&a, &a]).unwrap(), TokenFormat::LlmcU16);
        assert_eq!(headed(&[&b]).unwrap(), TokenFormat::LlmcU32);
        let text = message(headed(&[&a, &b, &llmc, &bin]));
        assert_eq!(text.lines().count(), 3, "{text}");
        for part in ["one kind", "llmc.bin has 4 bytes", "t.bin has 4 bytes"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}

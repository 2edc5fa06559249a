//! From the deck's paths and globs to a list of regular files.
//!
//! Rank 0 resolves and broadcasts the list as bytes; the other ranks open the listed files, so a file that
//! appears in the meantime cannot make ranks disagree. Must not know: the contents of the files, MPI.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::globs;
use crate::error::{Error, Result};

/// The files of a run, in stream order: the list that rank 0 broadcasts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedFiles {
    /// Training files, bytewise sorted.
    pub train: Vec<PathBuf>,
    /// Validation files, bytewise sorted; empty if the validation tokens are the end of the training stream.
    pub val: Vec<PathBuf>,
}

impl ResolvedFiles {
    /// Expands both lists. All faults of both are reported together.
    pub fn resolve(train: &[String], val: &[String]) -> Result<Self> {
        let mut faults = Vec::new();
        let mut list = |key: &str, patterns: &[String]| expand(key, patterns, &mut faults);
        let files = ResolvedFiles { train: list("data.train", train), val: list("data.val", val) };
        if train.is_empty() {
            faults.push("data.train is empty: it requires at least one path or glob".into());
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
    /// The bytes are not such a list.
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
        self.val
            .iter()
            .filter(|p| p.canonicalize().is_ok_and(|p| train.contains(&p)))
            .map(PathBuf::as_path)
            .collect()
    }
}

/// One [`Error::Input`] with every fault on a separate line, or none. A long list is truncated after twenty
/// lines.
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
        // A file whose name contains a bracket takes precedence over the glob.
        if !is_glob || literal.exists() {
            match std::fs::metadata(literal) {
                Ok(meta) if meta.is_file() => paths.push(literal.to_path_buf()),
                Ok(meta) if meta.is_dir() => faults.push(format!(
                    "{key}: {pattern} is a directory; use a glob for its files, e.g. {}/**/*.txt",
                    pattern.trim_end_matches('/')
                )),
                Ok(_) => {
                    faults.push(format!("{key}: {pattern} is not a regular file; copy its content into one"))
                }
                Err(err) => {
                    faults.push(format!("{key}: cannot read {pattern}: {err}; {}", where_from(literal)))
                }
            }
            continue;
        }
        let matches = match globs::matches(pattern) {
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
                Err((dir, err)) => {
                    faults.push(format!("{key}: cannot list {} for {pattern}: {err}", dir.display()));
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

/// A hint why a relative path was not found.
fn where_from(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(dir) if path.is_relative() => format!("relative paths start from {}", dir.display()),
        _ => "pass the path of an existing file".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
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
        let dir =
            dir_with(&["b.txt", "B.txt", "a.txt", "sub/c.txt", ".hidden.txt", ".git/d.txt", "e[1].txt"]);
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
}

//! The paths that a glob matches. Patterns for a single name are parsed and matched by crate `glob`;
//! directories are traversed here, because that crate's traversal panics on names that are not UTF-8.
//!
//! Such a name is matched in its lossy form, with U+FFFD. Hidden names (`.git`) are skipped unless the
//! pattern has the dot, as in a shell. Must not know: the purpose of the paths.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern, PatternError};

/// A path that matches, or a directory that could not be listed.
pub(super) type Match = Result<PathBuf, (PathBuf, io::Error)>;

/// One component of a pattern.
enum Part {
    /// A literal name.
    Name(String),
    /// Names matching this pattern.
    Form(Pattern),
    /// `**`: any number of directories.
    Deep,
}

/// All paths that a pattern matches, in no order, possibly with duplicates.
///
/// # Errors
/// The pattern is invalid.
pub(super) fn matches(pattern: &str) -> Result<Vec<Match>, PatternError> {
    let mut parts = Vec::new();
    for name in pattern.split('/').filter(|name| !name.is_empty()) {
        match name {
            "**" if matches!(parts.last(), Some(Part::Deep)) => {}
            "**" => parts.push(Part::Deep),
            name if name.contains(['*', '?', '[']) => parts.push(Part::Form(Pattern::new(name)?)),
            name => parts.push(Part::Name(name.into())),
        }
    }
    let root = if pattern.starts_with('/') { "/" } else { "" };
    let mut walk = Walk { found: Vec::new(), above: Vec::new() };
    walk.descend(Path::new(root), &parts);
    Ok(walk.found)
}

struct Walk {
    found: Vec<Match>,
    /// Device and inode of the directories being traversed by `**`.
    above: Vec<(u64, u64)>,
}

impl Walk {
    /// Adds what matches `parts` from `dir` on.
    fn descend(&mut self, dir: &Path, parts: &[Part]) {
        let Some((part, rest)) = parts.split_first() else {
            return self.found.push(Ok(dir.to_path_buf()));
        };
        let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
        match part {
            Part::Name(name) => {
                let path = dir.join(name);
                if path.symlink_metadata().is_ok() {
                    self.descend(&path, rest);
                }
            }
            Part::Form(form) => {
                for path in self.list(dir) {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    if form.matches_with(&name, options) {
                        self.descend(&path, rest);
                    }
                }
            }
            Part::Deep => {
                // A link to an ancestor directory would recurse forever.
                let Ok(id) = fs::metadata(here(dir)).map(|meta| (meta.dev(), meta.ino())) else { return };
                if self.above.contains(&id) {
                    return;
                }
                self.above.push(id);
                self.descend(dir, rest);
                for path in self.list(dir) {
                    let is_hidden = path.file_name().unwrap_or_default().as_encoded_bytes().starts_with(b".");
                    if !is_hidden && path.is_dir() {
                        self.descend(&path, parts);
                    }
                }
                self.above.pop();
            }
        }
    }

    /// The entries of a directory; none for a file.
    fn list(&mut self, dir: &Path) -> Vec<PathBuf> {
        if !here(dir).is_dir() {
            return Vec::new();
        }
        let listed = fs::read_dir(here(dir)).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        match listed {
            Ok(entries) => entries.iter().map(|entry| dir.join(entry.file_name())).collect(),
            Err(error) => {
                self.found.push(Err((here(dir).to_path_buf(), error)));
                Vec::new()
            }
        }
    }
}

/// The working directory has an empty name.
fn here(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    fn found(dir: &Path, tail: &str) -> Vec<PathBuf> {
        let pattern = format!("{}/{tail}", dir.display());
        let mut paths: Vec<PathBuf> =
            matches(&pattern).unwrap().into_iter().map(|path| path.unwrap()).collect();
        paths.sort();
        paths.dedup();
        paths.iter().map(|path| path.strip_prefix(dir).unwrap().to_path_buf()).collect()
    }

    #[test]
    fn matches_are_those_of_the_crate_wherever_names_are_utf_8() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["a.txt", "b.md", "sub/a.txt", "sub/deep/c.txt", ".git/d.txt", ".x.txt", "sub/.y.txt", "e[1].txt"]
        {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        std::os::unix::fs::symlink("a.txt", dir.path().join("link.txt")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling.txt")).unwrap();
        let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
        for tail in [
            "*",
            "*.txt",
            "**/*.txt",
            "*/*.txt",
            "sub/**/*",
            ".git/*",
            "?.txt",
            "[ab].*",
            "e[[]1].txt",
            "none/*",
            "a.txt/*",
            "**/deep/*.txt",
            "**/**/c.txt",
            "sub/../*.md",
            "./*.md",
            "*/deep/../a.txt",
            "dang*",
        ] {
            let pattern = format!("{}/{tail}", dir.path().display());
            let mut want: Vec<PathBuf> =
                glob::glob_with(&pattern, options).unwrap().map(|path| path.unwrap()).collect();
            want.sort();
            want.dedup();
            let canonical = |paths: Vec<PathBuf>| -> Vec<PathBuf> {
                paths.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect()
            };
            let own = found(dir.path(), tail).iter().map(|path| dir.path().join(path)).collect();
            assert_eq!(canonical(own), canonical(want), "{tail}");
        }
        // Below any directories the crate finds no hidden names; a shell does.
        assert_eq!(found(dir.path(), "**/.*.txt"), [Path::new(".x.txt"), Path::new("sub/.y.txt")]);
        assert!(matches("a**b/*").is_err() && matches("[").is_err());
    }

    #[test]
    fn a_name_that_is_not_utf_8_is_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let (odd, odd_dir) = (OsStr::from_bytes(b"a\xff.txt"), OsStr::from_bytes(b"sub\xfe"));
        fs::create_dir(dir.path().join(odd_dir)).unwrap();
        for path in [Path::new(odd).to_path_buf(), Path::new(odd_dir).join("b.txt"), "c.txt".into()] {
            fs::write(dir.path().join(path), "x").unwrap();
        }
        assert_eq!(found(dir.path(), "*.txt"), [Path::new(odd), Path::new("c.txt")]);
        let deep = [Path::new(odd).to_path_buf(), "c.txt".into(), Path::new(odd_dir).join("b.txt")];
        assert_eq!(found(dir.path(), "**/*.txt"), deep);
    }

    #[test]
    fn a_link_to_a_directory_above_is_no_endless_way() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/a.txt"), "x").unwrap();
        std::os::unix::fs::symlink("..", dir.path().join("sub/up")).unwrap();
        assert_eq!(found(dir.path(), "**/*.txt"), [Path::new("sub/a.txt")]);
    }
}

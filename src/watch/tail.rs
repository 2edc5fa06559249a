//! A file that another process appends to, or replaces: its new complete lines.
//!
//! Must not know: what the lines say.

use crate::files;
use std::fs::File;
use std::io::{ErrorKind, Read, Result, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Maximum bytes per pass.
const CHUNK_BYTES: usize = 4 << 20;
/// Number of bytes before the current position that identify a file.
const GUARD_BYTES: usize = 256;

/// A reader that remembers its position.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    place: Option<Place>,
}

/// Position in a file.
#[derive(Debug, Default)]
struct Place {
    /// Device and inode.
    file: (u64, u64),
    offset: u64,
    /// The last bytes before `offset`.
    guard: Vec<u8>,
}

/// Result of a pass.
#[derive(Debug, PartialEq, Eq)]
pub struct News {
    /// The file is a different one, or its beginning was rewritten: what was read of it is obsolete.
    pub anew: bool,
    /// Complete lines with their newlines; an incomplete last line is left for later.
    pub text: Vec<u8>,
    /// There is more to read immediately.
    pub more: bool,
}

impl Tail {
    /// For a file that need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Tail { path, place: None }
    }

    /// Reads on. A missing file counts as empty.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self) -> Result<News> {
        let mut file = match files::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let anew = self.place.take().is_some();
                return Ok(News { anew, text: Vec::new(), more: false });
            }
            Err(error) => return Err(error),
        };
        let meta = file.metadata()?;
        let id = (meta.dev(), meta.ino());
        let known = match &self.place {
            Some(place) => place.file == id && place.offset <= meta.len() && is_known(&mut file, place)?,
            None => false,
        };
        let anew = !known && self.place.is_some();
        if !known {
            self.place = Some(Place { file: id, ..Place::default() });
        }
        let place = self.place.as_mut().expect("set above");
        file.seek(SeekFrom::Start(place.offset))?;
        let mut text = Vec::new();
        file.take(CHUNK_BYTES as u64).read_to_end(&mut text)?;
        let is_full = text.len() == CHUNK_BYTES;
        match text.iter().rposition(|&b| b == b'\n') {
            Some(end) => text.truncate(end + 1),
            // No log has such a line: its end is not waited for.
            None if is_full => {}
            None => text.clear(),
        }
        place.advance(&text);
        Ok(News { anew, text, more: is_full })
    }
}

impl Place {
    fn advance(&mut self, text: &[u8]) {
        self.offset += text.len() as u64;
        self.guard.extend_from_slice(&text[text.len().saturating_sub(GUARD_BYTES)..]);
        let surplus = self.guard.len().saturating_sub(GUARD_BYTES);
        self.guard.drain(..surplus);
    }
}

/// Whether the bytes before the position are those read there.
fn is_known(file: &mut File, place: &Place) -> Result<bool> {
    let mut found = vec![0; place.guard.len()];
    file.seek(SeekFrom::Start(place.offset - place.guard.len() as u64))?;
    match file.read_exact(&mut found) {
        Ok(()) => Ok(found == place.guard),
        // It has shrunk since its length was queried.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write;

    fn news(anew: bool, text: &str) -> News {
        News { anew, text: text.into(), more: false }
    }

    #[test]
    fn a_torn_line_is_read_when_it_is_whole_and_nothing_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let append = |text: &str| {
            let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let mut tail = Tail::new(path.clone());
        assert_eq!(tail.read().unwrap(), news(false, ""), "it need not be there");
        append("a\nb");
        assert_eq!(tail.read().unwrap(), news(false, "a\n"));
        assert_eq!(tail.read().unwrap(), news(false, ""));
        append("c\nd\n");
        assert_eq!(tail.read().unwrap(), news(false, "bc\nd\n"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(tail.read().unwrap(), news(true, ""));
        assert_eq!(tail.read().unwrap(), news(false, ""));
    }

    #[test]
    fn a_file_that_was_replaced_or_written_anew_is_read_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "a\nb\n").unwrap();
        let mut tail = Tail::new(path.clone());
        tail.read().unwrap();
        // Another file under the name.
        std::fs::write(dir.path().join("new"), "a\nb\nc\n").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert_eq!(tail.read().unwrap(), news(true, "a\nb\nc\n"));
        // The same file, longer than before and other.
        std::fs::write(&path, "x\ny\nz\nw\n").unwrap();
        assert_eq!(tail.read().unwrap(), news(true, "x\ny\nz\nw\n"));
        // And shorter.
        std::fs::write(&path, "x\n").unwrap();
        assert_eq!(tail.read().unwrap(), news(true, "x\n"));
    }

    #[test]
    fn a_long_file_comes_in_pieces_of_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let line = "x".repeat(999) + "\n";
        let n_lines = 2 * CHUNK_BYTES / line.len() + 3;
        std::fs::write(&path, line.repeat(n_lines)).unwrap();
        let mut tail = Tail::new(path);
        let mut n_read = 0;
        loop {
            let found = tail.read().unwrap();
            assert!(found.text.is_empty() || found.text.ends_with(b"\n"));
            n_read += found.text.iter().filter(|&&b| b == b'\n').count();
            if !found.more {
                break;
            }
        }
        assert_eq!(n_read, n_lines);
    }
}

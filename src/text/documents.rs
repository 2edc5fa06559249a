//! Documents from text files that may be larger than memory, in pieces of bounded size.
//!
//! Must not know: tokens, where they go. The caller supplies the positions at which a document may be split.

use std::io::{BufRead, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::data::not_text_by_start;
use crate::error::{Error, Result};
use crate::files;
use crate::foreign::{START_BYTES, without_bom};

/// Size after which a document is split, if possible.
pub const PIECE_BYTES: usize = 1 << 20;
/// Maximum size of a piece: a document, or a part of one, without a position to split.
pub const MAX_PIECE_BYTES: usize = 256 << 20;

/// Extensions of files that are always JSON lines.
pub const JSON_LINES: [&str; 2] = ["jsonl", "ndjson"];

/// The definition of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// A file.
    Whole,
    /// The text between two separators.
    Separated(String),
    /// The text under this key of each line's JSON object.
    JsonLines(String),
}

/// Position of the reader; a reader that starts here continues with the next piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// Index of the file.
    pub file: usize,
    /// Byte in the file.
    pub offset: u64,
    /// Hash of the document that contains the byte; none between documents.
    pub within: Option<u64>,
}

/// A document or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The text.
    pub text: Vec<u8>,
    /// Index of the file.
    pub file: usize,
    /// Byte in the file where it starts.
    pub offset: u64,
    /// Whether offsets in the text equal offsets in the file; not for JSON.
    pub is_verbatim: bool,
    /// Whether it starts its document.
    pub begins: bool,
    /// Whether it ends its document.
    pub ends: bool,
    /// XXH3-64 of the whole document.
    pub hash: u64,
    /// Position of the reader after it.
    pub next: Cursor,
}

/// Returns the last position in a text where it may be split.
pub type LastCut<'a> = &'a dyn Fn(&[u8]) -> Option<usize>;

/// Reads documents, file by file. `-` is standard input.
pub struct Documents<'a> {
    paths: &'a [PathBuf],
    layouts: Vec<Layout>,
    last_cut: LastCut<'a>,
    /// Whether documents need a hash before their first piece is returned.
    hashes: bool,
    at: Cursor,
    open: Option<Box<dyn Read + Send>>,
    /// Bytes read; those before `start` have been returned, and byte `start` is byte `at.offset` of the file.
    window: Vec<u8>,
    start: usize,
    /// Whether the file ends with the window.
    is_end: bool,
    /// Newlines since the open file was opened.
    n_line_ends: u64,
}

/// End of the document at the start of a window, and start of the next.
struct End {
    text: usize,
    next: usize,
}

impl<'a> Documents<'a> {
    /// Documents of the files from `at` on; `layout` holds for all of them but files named as [`JSON_LINES`]
    /// are, in small letters or large. Without `hashes`, a document that is given out in parts has the hash
    /// 0.
    pub fn new(
        paths: &'a [PathBuf],
        layout: &Layout,
        hashes: bool,
        at: Cursor,
        last_cut: LastCut<'a>,
    ) -> Self {
        let is_lines = |path: &Path| {
            path.extension().is_some_and(|e| JSON_LINES.iter().any(|end| e.eq_ignore_ascii_case(end)))
        };
        let of = |path: &PathBuf| match (layout, is_lines(path)) {
            (Layout::JsonLines(_), _) | (_, false) => layout.clone(),
            (_, true) => Layout::JsonLines("text".into()),
        };
        let layouts = paths.iter().map(of).collect();
        Documents {
            paths,
            layouts,
            last_cut,
            hashes,
            at,
            open: None,
            window: Vec::new(),
            start: 0,
            is_end: false,
            n_line_ends: 0,
        }
    }

    /// The next piece; none after the last file. Empty documents are skipped.
    ///
    /// # Errors
    /// A file is unreadable, a line is not a JSON object with that text, or a piece would be longer than
    /// [`MAX_PIECE_BYTES`]; the error has file and offset.
    pub fn next_piece(&mut self) -> Result<Option<Piece>> {
        while self.at.file < self.paths.len() {
            if self.open.is_none() {
                self.open = Some(open(&self.paths[self.at.file], self.at.offset)?);
                self.is_end = false;
                self.window.clear();
                self.start = 0;
                self.n_line_ends = 0;
                if self.at.offset == 0 {
                    self.begin_file()?;
                }
            }
            if let Some(piece) = self.piece_of_file()? {
                return Ok(Some(piece));
            }
            self.at = Cursor { file: self.at.file + 1, offset: 0, within: None };
            self.open = None;
        }
        Ok(None)
    }

    /// Checks the first bytes of the open file: anything but text is rejected, a byte order mark skipped.
    fn begin_file(&mut self) -> Result<()> {
        self.fill(START_BYTES)?;
        if let Some(why) = not_text_by_start(&self.window) {
            return Err(Error::Input(format!("{} {why}", self.paths[self.at.file].display())));
        }
        self.skip(self.window.len() - without_bom(&self.window).len());
        Ok(())
    }

    /// The next piece of the open file; none at its end.
    fn piece_of_file(&mut self) -> Result<Option<Piece>> {
        let layout = self.layouts[self.at.file].clone();
        let mut wanted = PIECE_BYTES;
        loop {
            let rest = &self.window[self.start..];
            if rest.is_empty() && self.is_end {
                // The last part ends its document, which the caller must learn.
                return Ok(self.at.within.map(|hash| self.give(0, 0, false, true, hash)));
            }
            if let Some(end) = find_end(&layout, rest, self.is_end) {
                let begins = self.at.within.is_none();
                if begins && end.text == 0 {
                    self.skip(end.next);
                    continue;
                }
                if let Layout::JsonLines(key) = &layout {
                    match self.json_document(end, key)? {
                        Some(piece) => return Ok(Some(piece)),
                        None => continue,
                    }
                }
                let hash = self.at.within.unwrap_or_else(|| xxhash_rust::xxh3::xxh3_64(&rest[..end.text]));
                return Ok(Some(self.give(end.text, end.next, begins, true, hash)));
            }
            if rest.len() < wanted {
                self.fill(wanted)?;
                continue;
            }
            // The bytes at the end of the window may be the start of a separator.
            let safe = match &layout {
                Layout::Whole => rest.len(),
                Layout::Separated(separator) => rest.len().saturating_sub(separator.len() - 1),
                Layout::JsonLines(_) => 0,
            };
            if let Some(cut) = (self.last_cut)(&rest[..safe]) {
                let begins = self.at.within.is_none();
                let hash = match self.at.within {
                    Some(hash) => hash,
                    None => self.hash_ahead(&layout)?,
                };
                return Ok(Some(self.give(cut, cut, begins, false, hash)));
            }
            if wanted >= MAX_PIECE_BYTES {
                return Err(Error::Input(format!(
                    "{}: from byte offset {} on there are {MAX_PIECE_BYTES} bytes without a position to \
                     split; use shorter documents: specify their --separator, or write them as JSON lines",
                    self.paths[self.at.file].display(),
                    self.at.offset
                )));
            }
            wanted = (2 * wanted).min(MAX_PIECE_BYTES);
        }
    }

    /// Reads until the window has `wanted` bytes or the file ends.
    fn fill(&mut self, wanted: usize) -> Result<()> {
        self.window.drain(..self.start);
        self.start = 0;
        let reader = self.open.as_mut().expect("a file is open");
        let want = wanted.saturating_sub(self.window.len());
        let n = reader.take(want as u64).read_to_end(&mut self.window);
        let n =
            n.map_err(|e| Error::Input(format!("reading {}: {e}", self.paths[self.at.file].display())))?;
        self.is_end = n < want;
        Ok(())
    }

    fn skip(&mut self, n: usize) {
        self.n_line_ends +=
            memchr::memchr_iter(b'\n', &self.window[self.start..self.start + n]).count() as u64;
        self.start += n;
        self.at.offset += n as u64;
    }

    /// Returns the first `text` bytes of the window and continues at `next`.
    fn give(&mut self, text: usize, next: usize, begins: bool, ends: bool, hash: u64) -> Piece {
        let (file, offset) = (self.at.file, self.at.offset);
        let bytes = self.window[self.start..self.start + text].to_vec();
        self.skip(next);
        self.at.within = (!ends).then_some(hash);
        Piece { text: bytes, file, offset, is_verbatim: true, begins, ends, hash, next: self.at }
    }

    /// The text in the line at the start of the window; none if it is empty.
    fn json_document(&mut self, end: End, key: &str) -> Result<Option<Piece>> {
        let line = &self.window[self.start..self.start + end.text];
        let path = self.paths[self.at.file].display();
        let no = |offset: u64, why: String| {
            Error::Input(format!("{path}: line {}, byte offset {offset}: {why}", self.line_number()))
        };
        let utf8 = |e: std::str::Utf8Error| {
            let at = e.valid_up_to();
            no(self.at.offset + at as u64, format!("byte 0x{:02x} is not UTF-8 text", line[at]))
        };
        let line = std::str::from_utf8(line).map_err(utf8)?;
        let text = match line.trim().is_empty() {
            true => String::new(),
            false => {
                let wanted = || format!("a line must be a JSON object with a text under {key:?}");
                let mut value: serde_json::Value = serde_json::from_str(line).map_err(|e| {
                    // Columns count from 1, except at a premature end.
                    let at = if e.is_eof() { line.len() } else { e.column().saturating_sub(1) };
                    let why = e.to_string();
                    let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why);
                    no(self.at.offset + at as u64, format!("{why}; {}", wanted()))
                })?;
                match value.get_mut(key).map(serde_json::Value::take) {
                    Some(serde_json::Value::String(text)) => text,
                    _ => return Err(no(self.at.offset, wanted())),
                }
            }
        };
        let hash = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
        let mut piece = self.give(0, end.next, true, true, hash);
        (piece.text, piece.is_verbatim) = (text.into_bytes(), false);
        Ok(Some(piece).filter(|piece| !piece.text.is_empty()))
    }

    /// The number of the line at the start of the window, from 1: in a file opened at an offset, the
    /// preceding lines are counted.
    fn line_number(&self) -> u64 {
        let path = &self.paths[self.at.file];
        let mut before = 0;
        if path != Path::new("-")
            && let Ok(file) = open(path, 0)
        {
            let mut rest = std::io::BufReader::with_capacity(PIECE_BYTES, file.take(self.at.offset));
            while let Ok(part) = rest.fill_buf()
                && !part.is_empty()
            {
                before += memchr::memchr_iter(b'\n', part).count() as u64;
                let n = part.len();
                rest.consume(n);
            }
            return before + 1;
        }
        self.n_line_ends + 1
    }

    /// The hash of the document at the start of the window, read once more to its end.
    fn hash_ahead(&self, layout: &Layout) -> Result<u64> {
        if !self.hashes {
            return Ok(0);
        }
        let path = &self.paths[self.at.file];
        if path == Path::new("-") {
            return Err(Error::Input(format!(
                "standard input: the document at byte offset {} is longer than {PIECE_BYTES} bytes, and a \
                 split by its hash must read it twice; write it to a file",
                self.at.offset
            )));
        }
        let mut reader = open(path, self.at.offset)?;
        let (mut hasher, mut window) = (Xxh3::new(), Vec::new());
        loop {
            let n = reader.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut window);
            let n = n.map_err(|e| Error::Input(format!("reading {}: {e}", path.display())))?;
            let is_end = n < PIECE_BYTES;
            if let Some(end) = find_end(layout, &window, is_end) {
                hasher.update(&window[..end.text]);
                return Ok(hasher.digest());
            }
            let kept = match layout {
                Layout::Separated(separator) => separator.len() - 1,
                _ => 0,
            };
            let done = window.len() - kept.min(window.len());
            hasher.update(&window[..done]);
            window.drain(..done);
        }
    }
}

fn find_end(layout: &Layout, window: &[u8], is_end: bool) -> Option<End> {
    let (text, separator_bytes) = match layout {
        Layout::Whole => (None, 0),
        Layout::Separated(separator) => (memmem::find(window, separator.as_bytes()), separator.len()),
        Layout::JsonLines(_) => (memchr::memchr(b'\n', window), 1),
    };
    match text {
        Some(text) => Some(End { text, next: text + separator_bytes }),
        None => is_end.then_some(End { text: window.len(), next: window.len() }),
    }
}

fn open(path: &Path, offset: u64) -> Result<Box<dyn Read + Send>> {
    if path == Path::new("-") {
        assert_eq!(offset, 0, "standard input is read from its start");
        return Ok(Box::new(std::io::stdin()));
    }
    let opened = files::open(path).and_then(|mut file| {
        if offset > 0 {
            file.seek(SeekFrom::Start(offset))?;
        }
        Ok(file)
    });
    let file = opened.map_err(|e| Error::Input(format!("cannot read {}: {e}", path.display())))?;
    Ok(Box::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(paths: &[PathBuf], layout: &Layout, at: Cursor, cut: LastCut<'_>) -> Result<Vec<Piece>> {
        let mut documents = Documents::new(paths, layout, true, at, cut);
        std::iter::from_fn(|| documents.next_piece().transpose()).collect()
    }

    fn texts(pieces: &[Piece]) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for piece in pieces {
            if piece.begins {
                found.push(String::new());
            }
            *found.last_mut().unwrap() += std::str::from_utf8(&piece.text).unwrap();
        }
        found
    }

    fn files(contents: &[(&str, &[u8])]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let path = |(name, content): &(&str, &[u8])| {
            std::fs::write(dir.path().join(name), content).unwrap();
            dir.path().join(name)
        };
        let paths = contents.iter().map(path).collect();
        (dir, paths)
    }

    #[test]
    fn documents_are_files_lines_or_what_lies_between_separators() {
        let (_dir, paths) = files(&[
            ("a.txt", b"one--two----three"),
            ("none.txt", b""),
            ("b.jsonl", b"{\"text\": \"f\\u00fcnf\"}\n\n{\"id\": 1, \"text\": \"\"}\n{\"text\": \"six\"}"),
            ("c.txt", b"--seven"),
        ]);
        let at = Cursor::default();
        let separated = pieces(&paths, &Layout::Separated("--".into()), at, &|_| None).unwrap();
        assert_eq!(texts(&separated), ["one", "two", "three", "fünf", "six", "seven"]);
        assert_eq!(separated[1].offset, 5);
        let whole = pieces(&paths, &Layout::Whole, at, &|_| None).unwrap();
        assert_eq!(texts(&whole), ["one--two----three", "fünf", "six", "--seven"]);
    }

    #[test]
    fn a_bad_line_is_named_with_file_and_offset() {
        for (line, offset) in [(&b"{\"text\": \"a\xffb\"}"[..], 19), (b"{\"text\": 7}", 8), (b"[1", 10)] {
            // After a line of blanks, which is no document.
            let (_dir, paths) = files(&[("a.jsonl", &[b"       \n", line].concat())]);
            let Err(Error::Input(text)) = pieces(&paths, &Layout::Whole, Cursor::default(), &|_| None) else {
                panic!()
            };
            assert!(text.contains(&format!("a.jsonl: line 2, byte offset {offset}: ")), "{text}");
            assert!(!text.contains("line 1"), "{text}");
        }
    }

    #[test]
    fn offsets_of_bad_json_are_those_of_the_byte_behind_a_byte_order_mark_too() {
        for (line, offset, why) in [
            (&br#"{"text": "ab\ud83dcd"}"#[..], 18, "hex escape"),
            (br#"{"text": "a" "b"}"#, 13, "expected"),
            (br#"{"text": truth}"#, 12, "expected"),
            (br#"{"text": "abc"#, 13, "EOF"),
            (b"\x01", 0, "expected value"),
        ] {
            for bom in [&b""[..], b"\xef\xbb\xbf"] {
                let first = &b"{\"text\": \"one\"}\n\n"[..];
                let (_dir, paths) = files(&[("a.NDJSON", &[bom, first, line, b"\n"].concat())]);
                let found = pieces(&paths, &Layout::Whole, Cursor::default(), &|_| None);
                let Err(Error::Input(text)) = found else { panic!("{line:?}") };
                let at = bom.len() + first.len() + offset;
                assert!(
                    text.contains(&format!("line 3, byte offset {at}: ")) && text.contains(why),
                    "{line:?}: {text}"
                );
            }
        }
    }

    #[test]
    fn a_byte_order_mark_is_passed_over_and_what_is_packed_is_refused() {
        let at = Cursor::default();
        let (_dir, paths) = files(&[
            ("a.txt", b"\xef\xbb\xbfone"),
            ("b.jsonl", b"\xef\xbb\xbf{\"text\": \"two\"}"),
            ("c", b"\xef\xbb\xbf"),
        ]);
        let found = pieces(&paths, &Layout::Whole, at, &|_| None).unwrap();
        assert_eq!((texts(&found), found[0].offset), (vec!["one".to_string(), "two".into()], 3));
        for start in
            [&b"\x1f\x8b\x08rest"[..], b"PK\x03\x04", b"version https://git-lfs.github.com/spec/v1\n"]
        {
            let (_dir, paths) = files(&[("a.txt", start)]);
            let Err(Error::Input(text)) = pieces(&paths, &Layout::Whole, at, &|_| None) else {
                panic!("{start:?}")
            };
            assert!(text.contains("a.txt is a") && text.contains("not text; "), "{text}");
        }
    }

    #[test]
    fn a_document_larger_than_a_piece_comes_in_parts_with_one_hash_and_can_be_gone_on_with() {
        let long: String = (0..PIECE_BYTES / 3).map(|i| format!("{i} ")).collect();
        let content = format!("short||{long}||end");
        let (_dir, paths) = files(&[("a.txt", content.as_bytes())]);
        let layout = Layout::Separated("||".into());
        let cut: LastCut<'_> = &|text| (1..text.len()).rev().find(|&i| text[i] == b' ');
        let all = pieces(&paths, &layout, Cursor::default(), cut).unwrap();
        assert_eq!(texts(&all), ["short".to_string(), long.clone(), "end".to_string()]);
        assert!(all.len() > 4, "{} pieces", all.len());
        let hash = xxhash_rust::xxh3::xxh3_64(long.as_bytes());
        assert!(all[1..all.len() - 1].iter().all(|p| p.hash == hash && p.text.len() <= PIECE_BYTES));
        for (i, piece) in all.iter().enumerate() {
            let rest = pieces(&paths, &layout, piece.next, cut).unwrap();
            assert!(rest == all[i + 1..], "after piece {i}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn separated_documents_are_those_of_a_plain_split(text in "[ab-]{0,60}", separator in "[ab-]{1,3}") {
            let (_dir, paths) = files(&[("a.txt", text.as_bytes())]);
            let layout = Layout::Separated(separator.clone());
            let found = pieces(&paths, &layout, Cursor::default(), &|_| None).unwrap();
            let plain: Vec<&str> = text.split(&separator).filter(|d| !d.is_empty()).collect();
            prop_assert_eq!(texts(&found), plain);
        }
    }
}

//! Kinds of files by their first bytes, for error messages that identify a file of the wrong kind.
//!
//! Sources: the formats' own specifications, and the `magic` database of file(1).

use crate::files;
use std::fmt::Display;
use std::io::Read;
use std::path::Path;

/// Bytes that [`kind_of`] looks at.
pub const START_BYTES: usize = 512;

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKind {
    /// As in a message: `a gzip file`.
    pub name: &'static str,
    /// The remedy.
    pub remedy: &'static str,
    /// Whether it is text that may be intended.
    pub is_text: bool,
}

/// Text that only refers to the file, or is a server's response in its place.
const NOT_THE_FILE: [(&[u8], &str, &str); 4] = [
    (b"version https://git-lfs", LFS, "fetch the file itself with `git lfs pull`"),
    (b"<!doctype", "an HTML page", "download the file itself"),
    (b"<html", "an HTML page", "download the file itself"),
    (b"<?xml", "an XML document", "download the file itself"),
];

const LFS: &str = "a Git LFS pointer";
const JSON: &str = "a JSON document";
const UNPACK: &str = "unpack it";
const EXTRACT: &str = "take the text or the tensors out of it";

/// Offset, bytes, name, remedy.
const MAGIC: [(usize, &[u8], &str, &str); 23] = [
    (0, b"\x1f\x8b\x08", "a gzip file", UNPACK),
    (4, b"1AY&SY", "a bzip2 file", UNPACK),
    (0, b"\xfd7zXZ\0", "an xz file", UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file", UNPACK),
    (0, b"\x04\x22\x4d\x18", "an lz4 file", UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    (0, b"PK\x03\x04", "a zip archive (as PyTorch's .pt and .bin, .npz and .docx files are)", EXTRACT),
    (0, b"PK\x05\x06", "an empty zip archive", EXTRACT),
    (257, b"ustar", "a tar archive", UNPACK),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", EXTRACT),
    (0, b"\x93NUMPY", "a NumPy array file", EXTRACT),
    (0, b"PAR1", "a Parquet file", EXTRACT),
    (0, b"ARROW1", "an Arrow file", EXTRACT),
    (0, b"GGUF", "a GGUF model", EXTRACT),
    (0, b"SQLite format 3\0", "an SQLite database", EXTRACT),
    (0, b"%PDF-", "a PDF document", EXTRACT),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", EXTRACT),
    (0, b"\xff\xd8\xff", "a JPEG image", EXTRACT),
    (0, b"\x7fELF", "a program", EXTRACT),
    (0, b"\x80\x02", "a Python pickle", EXTRACT),
    (0, b"\x80\x04", "a Python pickle", EXTRACT),
    (0, b"\x80\x05", "a Python pickle", EXTRACT),
];

/// The kind of a file that starts with `start` (up to [`START_BYTES`]); none if unknown.
pub fn kind_of(start: &[u8]) -> Option<FileKind> {
    if let Some(&(.., name, remedy)) =
        MAGIC.iter().find(|(at, bytes, ..)| start.get(*at..).is_some_and(|s| s.starts_with(bytes)))
    {
        return Some(FileKind { name, remedy, is_text: false });
    }
    let text = without_bom(start).trim_ascii_start();
    if let Some(&(_, name, remedy)) = NOT_THE_FILE
        .iter()
        .find(|(bytes, ..)| text.get(..bytes.len()).is_some_and(|s| s.eq_ignore_ascii_case(bytes)))
    {
        return Some(FileKind { name, remedy, is_text: name != LFS });
    }
    let is_json = matches!(text.first(), Some(b'{' | b'['));
    is_json.then_some(FileKind { name: JSON, remedy: "name the file that it belongs to", is_text: true })
}

/// The message for bytes that a JSON parser rejected with `error`.
pub fn not_json(bytes: &[u8], error: &dyn Display) -> String {
    match kind_of(bytes).filter(|kind| kind.name != JSON) {
        Some(kind) => format!("not JSON but {}; {}", kind.name, kind.remedy),
        None => format!("not JSON: {error}"),
    }
}

/// The first bytes of a file, as many as [`kind_of`] looks at.
///
/// # Errors
/// It cannot be read.
pub fn start_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(START_BYTES);
    files::open(path)?.take(START_BYTES as u64).read_to_end(&mut start)?;
    Ok(start)
}

/// Text without a leading UTF-8 byte order mark.
pub fn without_bom(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_first_bytes() {
        let name = |start: &[u8]| kind_of(start).map_or("unknown", |kind| kind.name);
        for (start, known) in [
            (&b"\x1f\x8b\x08\x00"[..], "a gzip file"),
            (b"PAR1\x15", "a Parquet file"),
            (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
            (b"\xef\xbb\xbf\n<!DOCTYPE html>", "an HTML page"),
            (b" {\"a\": 1}", "a JSON document"),
            (b"", "unknown"),
            (b"{", "a JSON document"),
            (b"Once upon a time", "unknown"),
            (b"\x1f", "unknown"),
            (b"versions of git-lfs", "unknown"),
        ] {
            assert_eq!(name(start), known, "{start:?}");
        }
        let mut tar = vec![0; START_BYTES];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(name(&tar), "a tar archive");
        assert_eq!(name(&tar[..260]), "unknown");
        // The first two tokens of a file of 16-bit tokens are not enough to be taken for gzip's.
        assert_eq!(name(b"\x1f\x8b\x09\x00"), "unknown");
    }
}

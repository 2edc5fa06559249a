//! The format of a set of files: from the deck, from extensions, from the first bytes.
//!
//! Must not know: the contents of the files beyond a header.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::data_files::report;
use super::format::{LLMC_HEADER_BYTES, TokenFormat};
use super::llmc;
use crate::config::CONTAINERS;
use crate::error::{Error, Result};
use crate::files;
use crate::foreign::{kind_of, start_of};

/// Why a file is not text, by its extension; none if the extension is compatible.
pub fn not_text_by_name(path: &Path) -> Option<String> {
    let ending = path.extension().and_then(OsStr::to_str).unwrap_or("").to_ascii_lowercase();
    CONTAINERS.contains(&ending.as_str()).then(|| format!("is a .{ending} container, not text; unpack it"))
}

/// Why a file is not text, by its first bytes; none if they are compatible.
pub fn not_text_by_start(start: &[u8]) -> Option<String> {
    kind_of(start)
        .filter(|kind| !kind.is_text)
        .map(|kind| format!("is {}, not text; {}", kind.name, kind.remedy))
}

/// The format of a set of files, from the deck's value.
///
/// `auto` uses the extension, which must be of one kind for the whole set: `.u16` and `.bin` are raw_u16
/// (nanoGPT's `train.bin`), `.u32` is raw_u32, container formats (`.npy`, `.gz`, `.parquet`, ...) are
/// rejected, everything else is text. A `.bin` is also rejected if the vocabulary requires more than 16 bits.
/// Files of bare tokens must not start with llm.c's header; `llmc` files must, and every header must be
/// correct.
pub fn decide_format(key: &str, word: &str, files: &[PathBuf], vocab_size: u64) -> Result<TokenFormat> {
    match word {
        "text" => return Ok(TokenFormat::Text),
        "raw_u16" => return no_header(key, files).map(|()| TokenFormat::RawU16),
        "raw_u32" => return no_header(key, files).map(|()| TokenFormat::RawU32),
        "llmc" => return headed_format(key, files),
        "auto" => no_header(key, files)?,
        other => {
            return Err(Error::Input(format!(
                "data.format = {other}: must be auto, text, raw_u16, raw_u32 or llmc"
            )));
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
                        "{key}: {} may contain 16-bit or 32-bit tokens, and a vocabulary of {vocab_size} \
                         requires more than 16 bits; set data.format = \"raw_u32\" (or \"raw_u16\")",
                        path.display()
                    ));
                }
                TokenFormat::RawU16
            }
            e if CONTAINERS.contains(&e) => {
                faults.push(format!(
                    "{key}: {} is a .{e} container, not text or bare tokens; unpack it, or set data.format = \
                     \"text\" to train on its raw bytes",
                    path.display()
                ));
                continue;
            }
            _ => {
                // An unreadable file is a separate fault.
                if let Some(why) = start_of(path).ok().and_then(|start| not_text_by_start(&start)) {
                    let path = path.display();
                    faults.push(format!(
                        "{key}: {path} {why}, or set data.format = \"text\" to train on its raw bytes"
                    ));
                    continue;
                }
                TokenFormat::Text
            }
        };
        match first {
            None => first = Some((format, path)),
            Some((f, p)) if f != format => {
                return Err(Error::Input(format!(
                    "{key}: {} looks like {f} and {} like {format}; data.format = \"auto\" requires one \
                     kind: narrow the globs, or set the format",
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
                format!(
                    "{key}: {path} starts with the header of an llm.c token file; set data.format = \"llmc\""
                )
            })
            .collect(),
    )
}

/// Whether a readable file starts with the magic number of an llm.c token file.
pub fn starts_with_llmc_magic(path: &Path) -> bool {
    let mut word = [0u8; 4];
    files::open(path).and_then(|mut f| f.read_exact(&mut word)).is_ok() && llmc::has_magic(&word)
}

/// The one format in the headers of all files. All wrong headers are reported.
fn headed_format(key: &str, files: &[PathBuf]) -> Result<TokenFormat> {
    let mut faults = Vec::new();
    let mut first: Option<(TokenFormat, &Path)> = None;
    for path in files {
        let mut start = Vec::with_capacity(LLMC_HEADER_BYTES);
        let read = files::open(path).and_then(|file| {
            let n_bytes = file.metadata()?.len();
            file.take(LLMC_HEADER_BYTES as u64).read_to_end(&mut start)?;
            Ok(n_bytes)
        });
        let checked = match read {
            Ok(n_bytes) => {
                llmc::check(&start, n_bytes).map_err(|why| format!("{key}: {} {why}", path.display()))
            }
            Err(err) => Err(format!(
                "{key}: cannot read {}: {err}; check the path and its permissions",
                path.display()
            )),
        };
        match (checked, first) {
            (Err(fault), _) => faults.push(fault),
            (Ok(format), None) => first = Some((format, path)),
            (Ok(format), Some((f, p))) if f != format => faults.push(format!(
                "{key}: {} is {f} and {} is {format}; a run requires files of one kind: narrow the globs",
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

    fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
        match result {
            Err(Error::Input(text)) => text,
            other => panic!("expected Error::Input, got {other:?}"),
        }
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
        let gzip = file("packed.txt", b"\x1f\x8b\x08\x00");
        assert!(message(auto(&[&gzip], 256)).contains("packed.txt is a gzip file, not text; unpack it"));
        assert_eq!(
            decide_format("data.train", "text", &[gzip], 256).unwrap(),
            TokenFormat::Text,
            "its raw bytes"
        );
        assert!(message(auto(&[&txt, &bin], 256)).contains("one kind"));
        assert!(message(decide_format("data.train", "utf8", &[txt], 256)).contains("raw_u16"));
        assert!(
            message(decide_format("data.train", "raw_u16", std::slice::from_ref(&llmc), 70_000))
                .contains("llm.c")
        );
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

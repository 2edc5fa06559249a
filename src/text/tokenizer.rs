//! Text to tokens and back, with one of three tokenizers. Byte pairs and regular expressions are those of
//! third-party crates.
//!
//! Must not know: files of text or tokens, the definition of a document.

use std::path::Path;

use tiktoken_rs::CoreBPE;
use tokenizers::Tokenizer as HuggingFace;

use crate::config::Tokenizer as Named;
use crate::error::{Error, Result};
use crate::files;
use crate::foreign::{guarded, without_bom};

/// Maximum size of a tokenizer.json.
const MAX_TOKENIZER_BYTES: u64 = 1 << 30;

/// Longer runs of white space are rejected for GPT-2: its regular expression would exceed its stack of 10^6.
const MAX_BLANKS: usize = 500_000;

/// Usual names of the document token, as looked for in a `tokenizer.json`.
const END_NAMES: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>"];

/// A loaded tokenizer; encoding may use any number of threads.
pub struct TextTokenizer {
    kind: Kind,
    name: String,
    digest: String,
    vocab_size: usize,
    document_token: Option<u32>,
}

enum Kind {
    Bytes,
    Gpt2(Box<CoreBPE>),
    File(Box<HuggingFace>),
}

/// An error in a text, and its byte offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFault {
    /// Byte offset in the text.
    pub offset: usize,
    /// Description.
    pub what: String,
}

impl TextTokenizer {
    /// Loads a tokenizer by its deck name. `token` names the document token, if it is not one of the usual
    /// ones.
    ///
    /// # Errors
    /// The file is missing or not a `tokenizer.json`; it has no such token.
    pub fn load(named: &Named, token: Option<&str>) -> Result<Self> {
        let (kind, vocab_size, usual, digest) = match named {
            Named::None => {
                return Err(Error::Input(
                    "tokenizer none: use bytes, gpt2 or the path of a tokenizer.json".into(),
                ));
            }
            Named::Bytes => (Kind::Bytes, 256, None, String::new()),
            Named::Gpt2 => {
                let bpe = tiktoken_rs::r50k_base()
                    .map_err(|e| Error::Internal(format!("GPT-2's vocabulary: {e}")))?;
                (Kind::Gpt2(Box::new(bpe)), 50257, Some(50256), String::new())
            }
            Named::File(path) => {
                let (file, digest) = load_file(Path::new(path))?;
                let vocab_size = file.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1);
                let usual = END_NAMES.iter().find_map(|name| file.token_to_id(name));
                (Kind::File(Box::new(file)), vocab_size, usual, digest)
            }
        };
        let name = named.name().to_string();
        let document_token = match (token, &kind) {
            (None, _) => usual,
            (Some("<|endoftext|>"), Kind::Gpt2(_)) => usual,
            (Some(token), Kind::File(file)) => match file.token_to_id(token) {
                Some(id) => Some(id),
                None => {
                    return Err(Error::Input(format!("{name} has no token {token:?}; name an existing one")));
                }
            },
            (Some(token), _) => {
                return Err(Error::Input(format!(
                    "the tokenizer {name} has no token {token:?}; omit the option"
                )));
            }
        };
        Ok(TextTokenizer { kind, name, digest, vocab_size, document_token })
    }

    /// Its name in decks.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// XXH3-64 of its file, in hex; empty without a file.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// One more than its largest token.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The document token, if there is one.
    pub fn document_token(&self) -> Option<u32> {
        self.document_token
    }

    /// The tokens of a text, appended to `out`. Words such as `<|endoftext|>` are plain text to `gpt2`
    /// (tiktoken's `encode_ordinary`) and tokens to a `tokenizer.json` that lists them (`encode(...,
    /// add_special_tokens=False)`).
    ///
    /// # Errors
    /// It is not a valid text for this tokenizer; the error has the byte offset.
    pub fn encode(&self, text: &[u8], out: &mut Vec<u32>) -> std::result::Result<(), TextFault> {
        match &self.kind {
            Kind::Bytes => out.extend(text.iter().map(|&b| u32::from(b))),
            Kind::Gpt2(bpe) => {
                let text = as_utf8(text)?;
                check_blanks(text)?;
                out.extend(guarded(|| bpe.encode_ordinary(text)).map_err(cannot_be_encoded)?);
            }
            Kind::File(file) => {
                let text = as_utf8(text)?;
                let encoded = guarded(|| file.encode_fast(text, false).map_err(|e| e.to_string()));
                out.extend_from_slice(encoded.flatten().map_err(cannot_be_encoded)?.get_ids());
            }
        }
        Ok(())
    }

    /// The bytes that tokens represent; `bytes` and `gpt2` return exactly what was encoded. Tokens outside
    /// the vocabulary (padding of a model's vocabulary) become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        let one_by_one = |bytes_of: &dyn Fn(u32) -> Option<Vec<u8>>| -> Vec<u8> {
            tokens.iter().flat_map(|&token| bytes_of(token).unwrap_or_else(|| "\u{fffd}".into())).collect()
        };
        match &self.kind {
            Kind::Bytes => one_by_one(&|token| u8::try_from(token).ok().map(|b| vec![b])),
            Kind::Gpt2(bpe) => one_by_one(&|token| bpe.decode_bytes(&[token]).ok()),
            Kind::File(file) => {
                let is_known = |token: &u32| file.id_to_token(*token).is_some();
                let parts = tokens.chunk_by(|a, b| is_known(a) && is_known(b)).map(|part| {
                    let decoded = || file.decode(part, false).map_err(|e| e.to_string());
                    let text = is_known(&part[0]).then(|| guarded(decoded).flatten());
                    text.and_then(std::result::Result::ok).unwrap_or_else(|| "\u{fffd}".repeat(part.len()))
                });
                parts.collect::<String>().into_bytes()
            }
        }
    }

    /// The last position at or before the end of `text` where it may be split so that the parts encode like
    /// the whole, whatever follows; none if no such position is known.
    ///
    /// \[Note: cuts\] GPT-2's expression matches no word that extends from other characters into white space,
    /// and looks ahead only from within white space. So a text may be split before white space that follows
    /// other characters. Nothing similar is known of a `tokenizer.json`, whose normalizer and model may
    /// depend on the whole text.
    pub fn last_cut(&self, text: &[u8]) -> Option<usize> {
        match &self.kind {
            Kind::Bytes => Some(text.len()).filter(|&n| n > 0),
            Kind::Gpt2(_) => (1..text.len()).rev().find(|&at| {
                let blank = |c: char| c.is_whitespace();
                text[at].is_ascii_whitespace() && char_before(text, at).is_some_and(|c| !blank(c))
            }),
            Kind::File(_) => None,
        }
    }
}

/// A `tokenizer.json`, and the digest of its bytes.
fn load_file(path: &Path) -> Result<(HuggingFace, String)> {
    let no = |why: String| Error::Input(format!("{}: {why}", path.display()));
    let bytes = bytes_of(path)?;
    let parse = || {
        let mut file = HuggingFace::from_bytes(without_bom(&bytes)).map_err(|e| e.to_string())?;
        // Truncation and padding for a model's inputs do not apply to the text.
        file.with_truncation(None).map_err(|e| e.to_string())?;
        file.with_padding(None);
        Ok(file)
    };
    let file = guarded(parse).flatten().map_err(|e| no(format!("not a tokenizer.json: {e}")))?;
    Ok((file, hex_digest(&bytes)))
}

fn bytes_of(path: &Path) -> Result<Vec<u8>> {
    let no = |why: String| Error::Input(format!("{}: {why}", path.display()));
    if !path.is_file() {
        return Err(no("no such file; expected the tokenizer.json of a model".into()));
    }
    files::read(path, MAX_TOKENIZER_BYTES).map_err(|e| no(format!("cannot be read: {e}")))
}

fn hex_digest(bytes: &[u8]) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes))
}

/// [`TextTokenizer::digest`] of a `tokenizer.json`, without parsing it.
///
/// # Errors
/// It is unreadable.
pub fn digest_of(path: &Path) -> Result<String> {
    bytes_of(path).map(|bytes| hex_digest(&bytes))
}

fn cannot_be_encoded(why: String) -> TextFault {
    TextFault { offset: 0, what: format!("cannot be encoded: {why}") }
}

fn as_utf8(text: &[u8]) -> std::result::Result<&str, TextFault> {
    std::str::from_utf8(text).map_err(|e| TextFault {
        offset: e.valid_up_to(),
        what: format!("byte 0x{:02x} is not UTF-8 text", text[e.valid_up_to()]),
    })
}

fn check_blanks(text: &str) -> std::result::Result<(), TextFault> {
    let (mut run, mut from) = (0, 0);
    for (at, c) in text.char_indices() {
        if !c.is_whitespace() {
            run = 0;
            continue;
        }
        if run == 0 {
            from = at;
        }
        run += 1;
        if run > MAX_BLANKS {
            return Err(TextFault {
                offset: from,
                what: format!("more than {MAX_BLANKS} consecutive white space characters; remove some"),
            });
        }
    }
    Ok(())
}

/// The character that ends at `at`, if the bytes there are one.
fn char_before(text: &[u8], at: usize) -> Option<char> {
    let start = (at.saturating_sub(4)..at).rev().find(|&i| text[i] & 0xC0 != 0x80)?;
    std::str::from_utf8(&text[start..at]).ok()?.chars().next_back()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;

    fn gpt2() -> &'static TextTokenizer {
        static GPT2: std::sync::OnceLock<TextTokenizer> = std::sync::OnceLock::new();
        GPT2.get_or_init(|| TextTokenizer::load(&Named::Gpt2, None).unwrap())
    }

    fn encoded(tokenizer: &TextTokenizer, text: &[u8]) -> Vec<u32> {
        let mut out = Vec::new();
        tokenizer.encode(text, &mut out).unwrap();
        out
    }

    #[test]
    fn tokens_are_those_of_tiktoken_and_tokenizers() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let text = std::fs::read_to_string(golden.join("tokens.json")).unwrap();
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        let path = golden.join("tokenizer.json").to_str().unwrap().to_string();
        let file = TextTokenizer::load(&Named::File(path), None).unwrap();
        assert_eq!(
            (file.vocab_size(), file.document_token()),
            (600, Some(1)),
            "<|end_of_text|> of tokens.py"
        );
        let cases = found["cases"].as_array().unwrap();
        assert!(cases.len() > 10);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let want = |name: &str| serde_json::from_value::<Vec<u32>>(case[name].clone()).unwrap();
            assert_eq!(encoded(gpt2(), text.as_bytes()), want("gpt2"), "gpt2: {text:?}");
            assert_eq!(encoded(&file, text.as_bytes()), want("tokenizer.json"), "tokenizer.json: {text:?}");
            // Special tokens aside, bytes come back.
            if !text.contains("<|") {
                assert_eq!(file.decode(&want("tokenizer.json")), text.as_bytes());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn gpt2_tokens_are_below_the_vocabulary_and_decode_to_the_text(text in "\\PC{0,60}|[ \
                                                                                \\n\\t'a-z0-9.é語]{0,60}") {
            let tokens = encoded(gpt2(), text.as_bytes());
            prop_assert!(tokens.iter().all(|&t| t < 50256));
            prop_assert_eq!(gpt2().decode(&tokens), text.as_bytes());
        }

        #[test]
        fn a_text_cut_where_it_may_be_encodes_to_the_same_tokens(
            text in "[ \\n\\t\u{a0}\u{2003}a-z0-9'.,é語]{0,80}",
            limit in 0usize..80,
        ) {
            let bytes = text.as_bytes();
            if let Some(at) = gpt2().last_cut(&bytes[..limit.min(bytes.len())]) {
                let parts = [encoded(gpt2(), &bytes[..at]), encoded(gpt2(), &bytes[at..])].concat();
                prop_assert_eq!(parts, encoded(gpt2(), bytes), "cut at {} of {:?}", at, text);
            }
        }
    }

    #[test]
    fn what_is_no_text_is_named_with_its_offset() {
        let mut out = Vec::new();
        let fault = gpt2().encode(b"caf\xc3\xa9 \xff!", &mut out).unwrap_err();
        assert_eq!((fault.offset, fault.what.as_str()), (6, "byte 0xff is not UTF-8 text"));
        let blanks = format!("ab{}c", " ".repeat(MAX_BLANKS + 1));
        assert_eq!(gpt2().encode(blanks.as_bytes(), &mut out).unwrap_err().offset, 2);
        assert_eq!(encoded(gpt2(), &blanks.as_bytes()[..MAX_BLANKS + 2]).len(), MAX_BLANKS + 1);
    }

    #[test]
    fn bytes_are_their_own_tokens_and_a_strange_one_shows() {
        let bytes = TextTokenizer::load(&Named::Bytes, None).unwrap();
        assert_eq!(encoded(&bytes, b"a\xff"), [97, 255]);
        assert_eq!(bytes.decode(&[97, 255, 256]), b"a\xff\xef\xbf\xbd");
        assert_eq!(bytes.document_token(), None);
        assert!(TextTokenizer::load(&Named::Bytes, Some("<|endoftext|>")).is_err());
        assert!(TextTokenizer::load(&Named::File("none.json".into()), None).is_err());
    }

    fn golden() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizer.json")
    }

    #[test]
    fn a_tokenizer_file_cut_anywhere_is_refused_in_words() {
        let whole = std::fs::read(golden()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let named = Named::File(path.to_str().unwrap().into());
        let cuts = (0..40).map(|i| whole[..i * whole.len() / 40].to_vec());
        let odd = [
            "{\"decoder\":[",
            "{\"model\":",
            "[]",
            "null",
            "{\"added_tokens\":[{\"id\":-1}]}",
            "{\"normalizer\":[",
        ];
        for content in cuts.chain(odd.map(|text| text.as_bytes().to_vec())) {
            std::fs::write(&path, &content).unwrap();
            let Err(Error::Input(why)) = TextTokenizer::load(&named, None) else {
                panic!("{} bytes", content.len())
            };
            assert!(why.contains("tokenizer.json: not a tokenizer.json: "), "{why}");
        }
        std::fs::write(&path, [b"\xef\xbb\xbf", &whole[..]].concat()).unwrap();
        assert_eq!(TextTokenizer::load(&named, None).unwrap().vocab_size(), 600, "behind a byte order mark");
    }

    #[test]
    fn each_token_beyond_a_tokenizer_file_shows_and_the_text_around_it_stays() {
        let file = TextTokenizer::load(&Named::File(golden().to_str().unwrap().into()), None).unwrap();
        let text = encoded(&file, b"one two");
        assert_eq!(file.decode(&text), b"one two");
        let beyond = [&[600, 70_000][..], &text, &[u32::MAX], &text, &[601]].concat();
        let want = "\u{fffd}\u{fffd}one two\u{fffd}one two\u{fffd}";
        assert_eq!(String::from_utf8(file.decode(&beyond)).unwrap(), want);
    }
}

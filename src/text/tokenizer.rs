//! Text to tokens and back, by one of three tokenizers: bytes, GPT-2's, or that of a `tokenizer.json`.
//!
//! Must not know: files of text or tokens, the definition of a document.

use std::path::Path;

#[cfg(feature = "text")]
use super::byte_pairs;
use super::subwords::{Loaded, Subwords, TextFault};
use crate::config::Tokenizer as Named;
use crate::error::{Error, Result};
use crate::files;

/// Maximum size of a tokenizer.json.
const MAX_TOKENIZER_BYTES: u64 = 1 << 30;

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
    Subwords(Box<dyn Subwords>),
}

impl TextTokenizer {
    /// Loads a tokenizer by its deck name. `token` names the document token, if it is not one of the usual
    /// ones.
    ///
    /// # Errors
    /// The file is missing or not a `tokenizer.json`; it has no such token.
    pub fn load(named: &Named, token: Option<&str>) -> Result<Self> {
        let name = named.name().to_string();
        let loaded = match named {
            Named::None => {
                return Err(Error::Input(
                    "tokenizer none: use bytes, gpt2 or the path of a tokenizer.json".into(),
                ));
            }
            Named::Bytes => None,
            Named::Gpt2 => Some((gpt2()?, String::new())),
            Named::File(path) => {
                let path = Path::new(path);
                let bytes = bytes_of(path)?;
                Some((of_file(path, &bytes)?, hex_digest(&bytes)))
            }
        };
        let Some((Loaded { subwords, vocab_size, document_token, has_other_tokens }, digest)) = loaded else {
            return match token {
                None => Ok(TextTokenizer {
                    kind: Kind::Bytes,
                    name,
                    digest: String::new(),
                    vocab_size: 256,
                    document_token: None,
                }),
                Some(token) => Err(no_token(&name, token, false)),
            };
        };
        let document_token = match token {
            None => document_token,
            Some(token) => {
                Some(subwords.token(token).ok_or_else(|| no_token(&name, token, has_other_tokens))?)
            }
        };
        Ok(TextTokenizer { kind: Kind::Subwords(subwords), name, digest, vocab_size, document_token })
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
            Kind::Subwords(subwords) => subwords.encode(text, out)?,
        }
        Ok(())
    }

    /// The bytes that tokens represent; `bytes` and `gpt2` return exactly what was encoded. Tokens outside
    /// the vocabulary (padding of a model's vocabulary) become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        match &self.kind {
            Kind::Bytes => tokens
                .iter()
                .flat_map(|&token| u8::try_from(token).map_or("\u{fffd}".into(), |b| vec![b]))
                .collect(),
            Kind::Subwords(subwords) => subwords.decode(tokens),
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
            Kind::Subwords(subwords) => subwords.last_cut(text),
        }
    }
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

/// `has_others`: a name of one that it has would do.
fn no_token(name: &str, token: &str, has_others: bool) -> Error {
    Error::Input(match has_others {
        true => format!("{name} has no token {token:?}; name an existing one"),
        false => format!("the tokenizer {name} has no token {token:?}; omit the option"),
    })
}

#[cfg(feature = "text")]
fn gpt2() -> Result<Loaded> {
    byte_pairs::gpt2()
}

#[cfg(feature = "text")]
fn of_file(path: &Path, bytes: &[u8]) -> Result<Loaded> {
    byte_pairs::of_file(path, bytes)
}

#[cfg(not(feature = "text"))]
fn gpt2() -> Result<Loaded> {
    Err(crate::features::Feature::Text.missing("the tokenizer gpt2"))
}

#[cfg(not(feature = "text"))]
fn of_file(path: &Path, _: &[u8]) -> Result<Loaded> {
    Err(crate::features::Feature::Text.missing(&format!("the tokenizer {}", path.display())))
}

#[cfg(feature = "text")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::byte_pairs::MAX_BLANKS;
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

//! `zero3 data ...`: commands that create and inspect token files.

use super::words::{DeckArgs, Words};
use crate::config::{DataFormat, Tokenizer};
use crate::text::Layout;
use crate::text::tokenize_job::DocumentToken;
use clap::error::ErrorKind;
use clap::{ArgMatches, FromArgMatches};
use std::path::PathBuf;

const DATA_HELP: &str = "\
Examples:
  zero3 data info inputs/tiny.toml
  zero3 data tokenize --tokenizer gpt2 data/books.bin 'books/a.txt' books/b.txt
  zero3 data info data/books.bin

Exit codes: 0 success; 2 bad deck or data; 5 write failed; 70 internal error.";

const DATA_INFO_HELP: &str = "\
Examples:
  zero3 data info inputs/tiny.toml data.val=other.txt
      the files a run would read, and any it would reject
  zero3 data info data/books.bin
      a token file; its tokenizer is known if zero3 wrote it
  zero3 data info --tokenizer gpt2 --format llmc fineweb_val_000000.bin

Exit codes: 0 success; 2 bad deck or data; 70 internal error.";

const DATA_TOKENIZE_HELP: &str = "\
A document is a file; with --separator STR, the text between two occurrences of STR; in a .jsonl or
.ndjson file, or with --json-key, the text of a line. The document token (GPT-2: <|endoftext|>, 50256)
precedes each document, as in llm.c.

Examples:
  zero3 data tokenize --tokenizer gpt2 data/shakespeare.bin input.txt --val-fraction 0.1
      writes data/shakespeare_train.bin and data/shakespeare_val.bin in nanoGPT's format
  zero3 data tokenize --tokenizer gpt2 --format llmc --shard-tokens 100000000 web.bin web/*.jsonl
      writes web_000000.bin, web_000001.bin, ... in llm.c's format
  zero3 data tokenize --tokenizer llama/tokenizer.json --separator $'\\n\\n' notes.u32 - < notes.txt
      then, in a deck such as inputs/tiny.toml:  data.train = [\"notes.u32\"]

After a kill, the same command resumes and produces the same bytes.
Exit codes: 0 success; 2 bad text, tokenizer or command line; 5 write failed; 70 internal error.";

/// Create token files and inspect data.
#[derive(clap::Subcommand, Debug, Clone, PartialEq)]
#[command(after_help = DATA_HELP)]
pub enum DataCommand {
    Info(DataInfoArgs),
    Tokenize(TokenizeArgs),
}

/// The subject of `zero3 data info`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataInfoArgs {
    /// A deck's data.
    Deck(DeckArgs),
    /// Token files without a deck.
    Files(DataFilesArgs),
}

/// Token files to inspect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFilesArgs {
    /// The files.
    pub paths: Vec<PathBuf>,
    /// A `data.format`.
    pub format: DataFormat,
    /// The tokenizer that made the files.
    pub tokenizer: Option<Tokenizer>,
}

/// Show the contents of a deck's data files, or of token files.
///
/// For a deck (*.toml): expands the globs, reads every file a run would read, and prints files, tokens, the
/// split into training and validation, and the digest that checkpoints record; reports everything a run
/// would reject. For token files: their size, their share of the vocabulary, and the first tokens as text.
/// Needs no MPI.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "zero3 data info DECK.toml [KEY=VALUE ...]\n       zero3 data info FILE ... [--format \
                      FORMAT] [--tokenizer gpt2|bytes|FILE]"
)]
#[command(after_help = DATA_INFO_HELP)]
struct InfoLine {
    #[command(flatten)]
    words: Words,
    /// Format of token files: text, raw_u16, raw_u32, llmc, or auto = by name and header.
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    format: Option<DataFormat>,
    /// Tokenizer of token files. Not required if zero3 wrote the file.
    #[arg(long, value_name = "gpt2|bytes|FILE", value_parser = parse_tokenizer)]
    tokenizer: Option<Tokenizer>,
}

impl clap::Args for DataInfoArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        InfoLine::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        InfoLine::augment_args_for_update(command)
    }
}

impl FromArgMatches for DataInfoArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let InfoLine { words, format, tokenizer } = InfoLine::from_arg_matches(matches)?;
        if words.are_files() {
            let format = format.unwrap_or(DataFormat::Auto);
            return Ok(DataInfoArgs::Files(DataFilesArgs { paths: words.into_files()?, format, tokenizer }));
        }
        if format.is_some() || tokenizer.is_some() {
            let message = "--format and --tokenizer apply to token files; for a deck set data.format=...";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        Ok(DataInfoArgs::Deck(words.into_deck()?))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Tokenize text into token files.
///
/// Reads text files of any size in bounded memory, encodes them on all cores, and writes token files that
/// training memory-maps. After a kill, the same command resumes and produces the same bytes. Needs no MPI.
#[derive(clap::Args, Debug, Clone, PartialEq)]
#[command(after_help = DATA_TOKENIZE_HELP)]
pub struct TokenizeArgs {
    /// Tokenizer: GPT-2 byte pairs, single bytes, or a Hugging Face tokenizer.json.
    #[arg(long, value_name = "gpt2|bytes|FILE", value_parser = parse_tokenizer)]
    pub tokenizer: Tokenizer,
    /// The token file. --val-fraction inserts _train and _val before the extension, --shard-tokens the shard
    /// number.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Text files (*.jsonl: JSON lines); - reads standard input.
    #[arg(value_name = "FILE", required = true, num_args = 1..)]
    pub inputs: Vec<PathBuf>,
    /// raw_u16, raw_u32 or llmc; auto = by the extension of OUT: .u16 and .bin raw_u16, .u32 raw_u32. llmc
    /// uses 16 or 32 bits, depending on the vocabulary.
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = parse_format)]
    pub format: DataFormat,
    /// Tokens per file; by default, one file holds all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub shard_tokens: Option<u64>,
    /// Fraction of the documents to write to a separate validation file, selected by a hash of their text.
    #[arg(long, value_name = "F", default_value = "0", value_parser = parse_fraction)]
    pub val_fraction: f64,
    /// Separator between documents in a file; by default, a file is one document.
    #[arg(long, value_name = "STR", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub separator: Option<String>,
    /// Read all files as lines of JSON objects with the text under this key. (*.jsonl files always are, by
    /// default under "text".)
    #[arg(long, value_name = "KEY", conflicts_with = "separator")]
    pub json_key: Option<String>,
    /// Position of the document token; the bytes tokenizer has none.
    #[arg(long, value_name = "before|after|none", value_parser = parse_document_token)]
    pub document_token: Option<DocumentToken>,
    /// Name of that token in a tokenizer.json; by default, the first found of `<|endoftext|>`,
    /// `<|end_of_text|>`, `<|begin_of_text|>`, `</s>`, `<eos>`.
    #[arg(long, value_name = "TOKEN")]
    pub document_token_name: Option<String>,
    /// Start over, whatever an earlier run made of OUT.
    #[arg(long)]
    pub overwrite: bool,
}

impl TokenizeArgs {
    /// What a document is.
    pub fn layout(&self) -> Layout {
        match (&self.separator, &self.json_key) {
            (Some(separator), _) => Layout::Separated(separator.clone()),
            (None, Some(key)) => Layout::JsonLines(key.clone()),
            (None, None) => Layout::Whole,
        }
    }
}

fn parse_format(word: &str) -> Result<DataFormat, String> {
    let value = toml::Value::String(word.into());
    value.try_into().map_err(|_| format!("one of {}", DataFormat::NAMES.join(", ")))
}

fn parse_tokenizer(word: &str) -> Result<Tokenizer, String> {
    match word.parse() {
        Ok(Tokenizer::None) | Err(_) => {
            Err("gpt2, bytes or the path of a tokenizer.json (it ends in .json)".into())
        }
        Ok(tokenizer) => Ok(tokenizer),
    }
}

fn parse_fraction(word: &str) -> Result<f64, String> {
    word.parse().ok().filter(|f| (0.0..1.0).contains(f)).ok_or_else(|| "a number from 0 to below 1".into())
}

fn parse_document_token(word: &str) -> Result<DocumentToken, String> {
    match word {
        "before" => Ok(DocumentToken::Before),
        "after" => Ok(DocumentToken::After),
        "none" => Ok(DocumentToken::None),
        _ => Err("before, after or none".into()),
    }
}

//! `zero3 data ...`: creating and inspecting token files. One process, no MPI.

use super::args::{DataCommand, DataFilesArgs, DataInfoArgs, DeckArgs, TokenizeArgs};
use crate::config::{DataFormat, Deck, Tokenizer};
use crate::data::info::Decode;
use crate::data::{DataInfo, Dataset, ResolvedFiles, TokenFilesInfo, TokenFormat};
use crate::error::{Error, Result};
use crate::records::progress::BytesBar;
use crate::say;
use crate::text::TextTokenizer;
use crate::text::tokenize::{self, Made};
use crate::text::tokenize_job::{DocumentToken, Job, Options, other_tokenizer, state_of};
use crate::train::batches::data_config;
use std::io::IsTerminal;
use std::path::PathBuf;

pub(super) fn run(command: &DataCommand) -> Result<String> {
    match command {
        DataCommand::Info(DataInfoArgs::Deck(args)) => info(args),
        DataCommand::Info(DataInfoArgs::Files(args)) => files_info(args),
        DataCommand::Tokenize(args) => tokenize(args),
    }
}

/// The contents of a deck's files.
fn info(args: &DeckArgs) -> Result<String> {
    let deck = Deck::load(&args.path, &args.overrides)?;
    let config = data_config(&deck);
    let files = ResolvedFiles::resolve(&config.train, &config.val)?;
    warn_of_tokenizer(&[files.train.clone(), files.val.clone()].concat(), &deck.data.tokenizer)?;
    let data = Dataset::open_files(&config, &files)?;
    let bar = BytesBar::new("reading data", data.n_bytes(), std::io::stderr().is_terminal());
    let tokenizer = match &deck.data.tokenizer {
        named @ (Tokenizer::Gpt2 | Tokenizer::File(_)) => Some(TextTokenizer::load(named, None)?),
        Tokenizer::Bytes | Tokenizer::None => None,
    };
    let decode = tokenizer.as_ref().map(|tokenizer| |tokens: &[u32]| tokenizer.decode(tokens));
    let decode = decode.as_ref().map(|decode| decode as Decode<'_>);
    let batch = deck.train.global_batch_size as u64;
    let info = DataInfo::gather(&data, deck.train.steps, batch, decode, &|done| bar.set(done))?;
    bar.finish();
    Ok(info.to_string())
}

/// Warns if the tokens were made with another tokenizer.
fn warn_of_tokenizer(files: &[PathBuf], named: &Tokenizer) -> Result<()> {
    if let Some(why) = other_tokenizer(files, named)? {
        say::err(&format!("zero3: warning: {why}"));
    }
    Ok(())
}

/// The contents of token files.
fn files_info(args: &DataFilesArgs) -> Result<String> {
    let named = match &args.tokenizer {
        Some(named) => Some(named.clone()),
        // `data tokenize` records it.
        None => args
            .paths
            .first()
            .and_then(|first| state_of(first))
            .and_then(|made| made.options.tokenizer.parse().ok()),
    };
    if let Some(named) = &named {
        warn_of_tokenizer(&args.paths, named)?;
    }
    let tokenizer = named.map(|named| TextTokenizer::load(&named, None)).transpose()?;
    let vocab_size = tokenizer.as_ref().map(|t| t.vocab_size() as u64);
    let decode = tokenizer.as_ref().map(|tokenizer| |tokens: &[u32]| tokenizer.decode(tokens));
    let decode = decode.as_ref().map(|decode| decode as Decode<'_>);
    let n_bytes = args.paths.iter().filter_map(|p| std::fs::metadata(p).ok()).map(|m| m.len()).sum();
    let bar = BytesBar::new("reading tokens", n_bytes, std::io::stderr().is_terminal());
    let info =
        TokenFilesInfo::gather(&args.paths, args.format.name(), vocab_size, decode, &|done| bar.set(done))?;
    bar.finish();
    Ok(info.to_string())
}

/// Tokenizes text into token files.
fn tokenize(args: &TokenizeArgs) -> Result<String> {
    let tokenizer = TextTokenizer::load(&args.tokenizer, args.document_token_name.as_deref())?;
    let document_token = match (args.document_token, tokenizer.document_token()) {
        (Some(DocumentToken::None), _) | (None, None) => DocumentToken::None,
        (Some(place), Some(_)) => place,
        (None, Some(_)) => DocumentToken::Before,
        (Some(_), None) => {
            return Err(Error::Input(format!(
                "the tokenizer {} has no document token: pass --document-token none, or name one with \
                 --document-token-name",
                tokenizer.name()
            )));
        }
    };
    let separator_id = tokenizer.document_token().filter(|_| document_token != DocumentToken::None);
    let options = Options {
        tokenizer: tokenizer.name().into(),
        tokenizer_digest: tokenizer.digest().into(),
        separator_id,
        document_token,
        layout: args.layout(),
        val_fraction: args.val_fraction,
        format: format(args, tokenizer.vocab_size())?,
        shard_tokens: args.shard_tokens,
    };
    let (inputs, out) = (args.inputs.clone(), args.out.clone());
    let job = Job { tokenizer: &tokenizer, options, inputs, out, overwrite: args.overwrite };
    let n_bytes = args.inputs.iter().filter_map(|p| std::fs::metadata(p).ok()).map(|m| m.len()).sum();
    let bar = BytesBar::any_size("tokenizing", n_bytes, std::io::stderr().is_terminal());
    let made = tokenize::tokenize(&job, &|done| bar.set(done));
    bar.finish();
    Ok(report(&made?))
}

/// The layout of the tokens in the file, which must be able to represent them.
fn format(args: &TokenizeArgs, vocab_size: usize) -> Result<TokenFormat> {
    let wide = vocab_size > 1 << 16;
    let out = args.out.display();
    let named = match args.format {
        DataFormat::Auto => DataFormat::of_path(&args.out.to_string_lossy()),
        named => named,
    };
    match named {
        DataFormat::RawU16 if wide => Err(Error::Input(format!(
            "{out}: a vocabulary of {vocab_size} requires more than 16 bits: pass --format raw_u32 or llmc, \
             or name the file *.u32"
        ))),
        DataFormat::RawU16 => Ok(TokenFormat::RawU16),
        DataFormat::RawU32 => Ok(TokenFormat::RawU32),
        DataFormat::Llmc if wide => Ok(TokenFormat::LlmcU32),
        DataFormat::Llmc => Ok(TokenFormat::LlmcU16),
        DataFormat::Text | DataFormat::Auto => Err(Error::Input(format!(
            "{out}: unknown token format: name the file *.bin, *.u16 or *.u32, or pass --format raw_u16, \
             raw_u32 or llmc"
        ))),
    }
}

/// Summary of the files written, and the lines of a deck that trains on them.
fn report(made: &Made) -> String {
    let state = &made.state;
    let mut text = if made.was_finished { "already complete:\n".to_string() } else { String::new() };
    let list = |files: &[PathBuf]| match files {
        [] => "nothing".into(),
        [one] => one.display().to_string(),
        [first, .., last] => format!("{} ... {} ({} files)", first.display(), last.display(), files.len()),
    };
    let sides = if state.options.val_fraction > 0.0 { &["training", "validation"][..] } else { &["all"] };
    for (i, side) in sides.iter().enumerate() {
        let (documents, tokens) = (state.documents[i], state.written[i].total);
        text += &format!("{side}: {documents} documents, {tokens} tokens: {}\n", list(&made.files[i]));
    }
    let format = match state.options.format {
        TokenFormat::LlmcU16 | TokenFormat::LlmcU32 => "llmc",
        other => other.name(),
    };
    let glob = |i: usize| match &made.files[i][..] {
        [] => "[]".into(),
        [one] => format!("[{:?}]", one.display().to_string()),
        [first, ..] => format!("[{:?}]", first.display().to_string().replace("_000000", "_*")),
    };
    if made.files.iter().flatten().any(|file| file.to_str().is_none()) {
        return text + "no deck can name these files: their path is not UTF-8";
    }
    text += &format!("in a deck:  data.train = {}", glob(0));
    if state.options.val_fraction > 0.0 {
        text += &format!("  data.val = {}", glob(1));
    }
    text += &format!("  data.format = {format:?}");
    if state.options.tokenizer != "bytes" {
        text += &format!("  data.tokenizer = {:?}", state.options.tokenizer);
    }
    text + &format!("  model.vocab_size = {}", state.vocab_size)
}

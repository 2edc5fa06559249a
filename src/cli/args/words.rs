//! Words that are no flags: paths of decks and files, and `section.key=value`, in any order.

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgMatches, FromArgMatches};
use std::ffi::OsString;
use std::path::PathBuf;

/// A deck and what the command line changes in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeckArgs {
    /// The TOML file.
    pub path: PathBuf,
    /// `section.key` and text, in the order given; see [`crate::config::Deck::load`].
    pub overrides: Vec<(String, String)>,
}

/// A deck and overrides, in any order.
#[derive(clap::Args, Debug)]
pub(super) struct Words {
    /// The deck, and any number of keys to set in it, e.g. optim.lr=1e-3 data.train=a.txt,b.txt. What has a `=` after a
    /// plain key is an override; write ./a=b.toml for a deck of such a name.
    #[arg(value_name = "DECK|KEY=VALUE", required = true, num_args = 1..)]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_word))]
    words: Vec<Word>,
}

#[derive(Debug, Clone)]
enum Word {
    Deck(PathBuf),
    Override(String, String),
}

impl clap::Args for DeckArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        Words::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Words::augment_args_for_update(command)
    }
}

impl FromArgMatches for DeckArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Words::from_arg_matches(matches)?.into_deck()
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Words {
    /// Whether the words name token files and no deck.
    pub(super) fn are_files(&self) -> bool {
        let is_deck = |word: &Word| match word {
            Word::Deck(path) => path.extension().is_some_and(|e| e == "toml"),
            Word::Override(..) => false,
        };
        self.words.iter().any(|word| matches!(word, Word::Deck(_))) && !self.words.iter().any(is_deck)
    }

    /// The paths among the words, which may hold nothing else.
    pub(super) fn into_files(self) -> Result<Vec<PathBuf>, clap::Error> {
        let path = |word| match word {
            Word::Deck(path) => Ok(path),
            Word::Override(key, value) => {
                let message = format!("{key}={value} sets a key of a deck, and no deck (*.toml) is named");
                Err(clap::Error::raw(ErrorKind::UnknownArgument, message))
            }
        };
        self.words.into_iter().map(path).collect()
    }

    /// The one deck among the words.
    pub(super) fn into_deck(self) -> Result<DeckArgs, clap::Error> {
        let mut decks = Vec::new();
        let mut overrides = Vec::new();
        for word in self.words {
            match word {
                Word::Deck(path) => decks.push(path),
                Word::Override(key, value) => overrides.push((key, value)),
            }
        }
        match <[PathBuf; 1]>::try_from(decks) {
            Ok([path]) => Ok(DeckArgs { path, overrides }),
            Err(decks) if decks.is_empty() => {
                let message = "no deck: give the path of a TOML file, e.g. inputs/tiny.toml";
                Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, message))
            }
            Err(decks) => {
                let names: Vec<String> = decks.iter().map(|d| d.display().to_string()).collect();
                let message = format!("more than one deck: {}; a key is set with section.key=value", names.join(", "));
                Err(clap::Error::raw(ErrorKind::TooManyValues, message))
            }
        }
    }
}

/// A word is an override if it has a `=` and no `/` before it; everything else is the path of a deck.
fn parse_word(word: OsString) -> Result<Word, String> {
    let bytes = word.as_encoded_bytes();
    let is_override = bytes.iter().position(|b| *b == b'=').is_some_and(|at| !bytes[..at].contains(&b'/'));
    if !is_override {
        return if word.is_empty() { Err("the empty word is no deck".into()) } else { Ok(Word::Deck(word.into())) };
    }
    let text = word.into_string().map_err(|_| "an override must be valid UTF-8".to_owned())?;
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok(Word::Override(key.trim().into(), value.into())),
        _ => Err("an override is written section.key=value".into()),
    }
}

pub(super) fn parse_override(word: OsString) -> Result<(String, String), String> {
    match parse_word(word)? {
        Word::Override(key, value) => Ok((key, value)),
        Word::Deck(path) => Err(format!("{} is no KEY=VALUE; the deck is the checkpoint's own", path.display())),
    }
}

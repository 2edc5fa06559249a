//! Positional arguments: paths of decks and files, and `section.key=value`, in any order.

use crate::config::Preset;
use crate::plan::forecast::model_size::parse_count;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgMatches, FromArgMatches};
use std::ffi::OsString;
use std::path::PathBuf;

/// A deck and the overrides of the command line.
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
    /// The deck, and any number of overrides, e.g. optim.lr=1e-3 data.train=a.txt,b.txt. An argument with a
    /// `=` and no `/` before it is an override; write ./a=b.toml for a deck of that name.
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

/// A deck, or its substitute, and the overrides of the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanSubject {
    /// The subject.
    pub of: PlanOf,
    /// `section.key` and text, in the order given.
    pub overrides: Vec<(String, String)>,
}

/// The subject of a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanOf {
    /// A deck.
    Deck(PathBuf),
    /// A published model.
    Model(Preset),
    /// A model with this many parameters.
    Params(u64),
    /// This machine, to be measured.
    Machine,
}

/// The arguments and flags [`PlanSubject`] is parsed from.
#[derive(clap::Args, Debug)]
struct PlanWords {
    /// A deck, and any number of overrides of it or of the hardware file, e.g. zero.stage=2
    /// network.gb_per_s=25.
    #[arg(value_name = "DECK|KEY=VALUE", num_args = 0..)]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_word))]
    words: Vec<Word>,
    /// A published model instead of a deck; overrides set the rest.
    #[arg(long, value_name = "NAME", conflicts_with = "params")]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(&Preset::NAMES[1..]))]
    model: Option<String>,
    /// A model of about this many parameters instead of a deck, such as 7.5B; memory is also shown for
    /// exactly this many.
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    params: Option<u64>,
    /// Measure this machine, write its hardware file, and compare predictions with short runs on it; under
    /// mpirun, on all ranks.
    #[arg(long, conflicts_with_all = ["model", "params"])]
    calibrate: bool,
}

impl clap::Args for PlanSubject {
    fn augment_args(command: clap::Command) -> clap::Command {
        PlanWords::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        PlanWords::augment_args_for_update(command)
    }
}

impl FromArgMatches for PlanSubject {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let PlanWords { words, model, params, calibrate } = PlanWords::from_arg_matches(matches)?;
        let instead = match (model, params) {
            (Some(name), _) => {
                let preset = toml::Value::String(name).try_into().expect("clap has checked the name");
                Some(PlanOf::Model(preset))
            }
            (None, Some(count)) => Some(PlanOf::Params(count)),
            (None, None) if calibrate => Some(PlanOf::Machine),
            (None, None) => None,
        };
        let Some(of) = instead else {
            let DeckArgs { path, overrides } =
                Words { words }.into_deck().map_err(|error| match error.kind() {
                    ErrorKind::MissingRequiredArgument => {
                        let message = "no deck: pass the path of a TOML file, e.g. inputs/gpt2-124m.toml, or \
                                   --model NAME, or --params COUNT";
                        clap::Error::raw(ErrorKind::MissingRequiredArgument, message)
                    }
                    _ => error,
                })?;
            return Ok(PlanSubject { of: PlanOf::Deck(path), overrides });
        };
        let mut overrides = Vec::new();
        for word in words {
            match word {
                Word::Override(key, value) => overrides.push((key, value)),
                Word::Deck(path) => {
                    let message = format!(
                        "{}: a deck cannot be combined with --model, --params or --calibrate",
                        path.display()
                    );
                    return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
                }
            }
        }
        Ok(PlanSubject { of, overrides })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Words {
    /// Whether the arguments name token files and no deck.
    pub(super) fn are_files(&self) -> bool {
        let is_deck = |word: &Word| match word {
            Word::Deck(path) => path.extension().is_some_and(|e| e == "toml"),
            Word::Override(..) => false,
        };
        self.words.iter().any(|word| matches!(word, Word::Deck(_))) && !self.words.iter().any(is_deck)
    }

    /// The arguments as paths; an override is an error.
    pub(super) fn into_files(self) -> Result<Vec<PathBuf>, clap::Error> {
        let path = |word| match word {
            Word::Deck(path) => Ok(path),
            Word::Override(key, value) => {
                let message =
                    format!("{key}={value} overrides a key of a deck, but no deck (*.toml) was given");
                Err(clap::Error::raw(ErrorKind::UnknownArgument, message))
            }
        };
        self.words.into_iter().map(path).collect()
    }

    /// The deck among the arguments, and the overrides.
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
                let message = "no deck: pass the path of a TOML file, e.g. inputs/tiny.toml";
                Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, message))
            }
            Err(decks) => {
                let names: Vec<String> = decks.iter().map(|d| d.display().to_string()).collect();
                let message =
                    format!("more than one deck: {}; use section.key=value to set a key", names.join(", "));
                Err(clap::Error::raw(ErrorKind::TooManyValues, message))
            }
        }
    }
}

/// An argument is an override if it has a `=` and no `/` before it, and otherwise the path of a deck.
fn parse_word(word: OsString) -> Result<Word, String> {
    let bytes = word.as_encoded_bytes();
    let is_override = bytes.iter().position(|b| *b == b'=').is_some_and(|at| !bytes[..at].contains(&b'/'));
    if !is_override {
        return if word.is_empty() {
            Err("an empty argument is not a deck".into())
        } else {
            Ok(Word::Deck(word.into()))
        };
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
        Word::Deck(path) => {
            Err(format!("{} is not KEY=VALUE; the deck is the one stored in the checkpoint", path.display()))
        }
    }
}

//! Plan for text generation: programs of a few rows, and the buffers that live from one to the next.
//!
//! It runs between steps, so it uses the space of their transient memory.

use super::knobs::Knobs;
use super::packing;
use super::partition::Partition;
use super::placement::Placement;
use super::program::{Lifetimes, Program};
use super::schedule::{self, Gradients};
use super::slots::{self, Peaks, Slot, aligned};
use crate::dtype::DType;
use crate::error::Result;
use crate::params::ModelSpec;
use crate::telemetry::ledger::MemKind;
use std::ops::Index;

/// Elements of the cache and of scratch, for a text of the model's full context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptSizes {
    /// Blocks, each of which caches the projections of its rows.
    pub n_blocks: usize,
    /// Projections of a block.
    pub qkv: usize,
    /// Attention's output of all rows.
    pub out: usize,
    /// Log-sum-exps of all rows.
    pub lse: usize,
    /// Scratch of attention.
    pub work: usize,
}

/// Number of rows of a text computed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feed {
    /// Several rows of a prompt.
    Prompt,
    /// One row.
    Row,
}

/// An entry for each [`Feed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerFeed<T> {
    /// For several rows of a prompt.
    pub prompt: T,
    /// For one row.
    pub row: T,
}

impl<T> Index<Feed> for PerFeed<T> {
    type Output = T;

    fn index(&self, feed: Feed) -> &T {
        match feed {
            Feed::Prompt => &self.prompt,
            Feed::Row => &self.row,
        }
    }
}

/// Which programs of text generation ran.
pub type Ran = PerFeed<bool>;

impl Ran {
    /// This one ran.
    pub fn note(&mut self, feed: Feed) {
        match feed {
            Feed::Prompt => self.prompt = true,
            Feed::Row => self.row = true,
        }
    }

    /// Those of `other` ran too.
    pub fn add(&mut self, other: Ran) {
        self.prompt |= other.prompt;
        self.row |= other.row;
    }
}

/// The plan of text generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// A pass of each kind.
    pub programs: PerFeed<Program>,
    /// The cached projections of each block.
    pub kept: Vec<Slot>,
    /// Output, log-sum-exps and scratch of attention over them.
    pub scratch: Vec<Slot>,
    /// One past the last byte of the arena that it uses.
    pub end: usize,
}

/// How parameters are cut, and what lies in the arena between steps.
pub(super) struct Cut<'a> {
    /// The cut of each parameter.
    pub partitions: &'a [Partition],
    /// What of each parameter is cut.
    pub placements: &'a [Placement],
    /// The knobs of the plan.
    pub knobs: &'a Knobs,
    /// What a rank keeps between steps.
    pub resident: &'a [Slot],
}

impl Generation {
    /// Plans to generate text, with models of the same parameters and few rows.
    ///
    /// # Errors
    /// A cap in the deck cannot be kept.
    pub(super) fn new(cut: &Cut<'_>, specs: PerFeed<&ModelSpec>, sizes: KeptSizes) -> Result<Self> {
        let &Cut { partitions, placements, knobs, resident } = cut;
        let activation = specs.row.activation_dtype;
        let slot = |name: String, kind, numel, dtype| Slot::always(name, kind, numel, dtype);
        let mut always: Vec<Slot> = (0..sizes.n_blocks)
            .map(|i| {
                slot(
                    format!(
                        "block {i}: cached \
                                   projections"
                    ),
                    MemKind::Activation,
                    sizes.qkv,
                    activation,
                )
            })
            .collect();
        for (name, numel, dtype) in
            [("out", sizes.out, activation), ("lse", sizes.lse, DType::F32), ("work", sizes.work, DType::F32)]
        {
            always.push(slot(format!("cached attention: {name}"), MemKind::Workspace, numel, dtype));
        }
        let resident_end = resident.iter().map(|slot| slot.offset + aligned(slot.bytes())).max().unwrap_or(0);
        let base = slots::lay_in_a_row(&mut always, resident_end);
        let throughout: Vec<Slot> = resident.iter().chain(&always).cloned().collect();
        let mut end = 0;
        let mut program = |spec: &ModelSpec| -> Result<Program> {
            let schedule = schedule::evaluation(spec, partitions, placements, knobs)?;
            let mut program =
                Lifetimes::new(spec, partitions, knobs, &schedule, Gradients::None).program(schedule);
            end = end.max(packing::pack(&mut program.slots, base));
            program.peaks = slots::peaks(&throughout, &program.slots, program.schedule.instrs.len());
            Ok(program)
        };
        let programs = PerFeed { prompt: program(specs.prompt)?, row: program(specs.row)? };
        let scratch = always.split_off(sizes.n_blocks);
        Ok(Generation { programs, kept: always, scratch, end })
    }

    /// Peaks of the programs that ran; None where none did.
    pub(super) fn peaks(&self, ran: Ran) -> Option<Peaks> {
        let mut of_ran =
            [Feed::Prompt, Feed::Row].into_iter().filter(|&feed| ran[feed]).map(|f| &self.programs[f].peaks);
        let mut peaks = of_ran.next()?.clone();
        of_ran.for_each(|other| peaks.raise(other));
        Some(peaks)
    }
}

//! Whole numbers as arguments.

use clap::builder::TypedValueParser;
use std::ops::RangeBounds;

/// Ranks that can be planned or cut for: more than any machine starts, few enough for a plan to be made at
/// once.
pub const MAX_RANKS: i64 = 1 << 20;

/// A whole number in `range`.
pub(super) fn count(range: impl RangeBounds<i64>) -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u32).range(range).map(|n| n as usize)
}

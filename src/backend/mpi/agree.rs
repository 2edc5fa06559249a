//! One verdict for all ranks: no rank goes on where another has stopped.

use super::Group;
use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Rank 0 does the work; every rank gets its result or its error.
pub fn decided_by_rank_0<G: AsRef<Group>, T: Serialize + DeserializeOwned>(
    group: &G,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let group = group.as_ref();
    let own = if group.rank() == 0 { encode(&work()) } else { Vec::new() };
    decode(0, &group.broadcast_bytes(&own)?)
}

/// Every rank has tried: all results in rank order, or the error of the lowest rank that failed, on every
/// rank.
pub fn all_or_none<G: AsRef<Group>, T: Serialize + DeserializeOwned>(
    group: &G,
    own: Result<T>,
) -> Result<Vec<T>> {
    let group = group.as_ref();
    group
        .all_gather_bytes(&encode(&own))?
        .iter()
        .enumerate()
        .map(|(rank, bytes)| decode(rank, bytes))
        .collect()
}

/// Every rank has tried: rank 0 gets all results in rank order and the others an empty list; or the error of
/// the lowest rank that failed, on every rank. For results too large to send everywhere.
pub fn all_to_rank_0<G: AsRef<Group>, T: Serialize + DeserializeOwned>(
    group: &G,
    own: Result<T>,
) -> Result<Vec<T>> {
    let (verdict, own) = match own {
        Ok(own) => (Ok(()), Some(own)),
        Err(error) => (Err(error), None),
    };
    all_or_none(group, verdict)?;
    let own = Ok(own.expect("no rank failed"));
    group
        .as_ref()
        .gather_bytes(&encode(&own))?
        .iter()
        .enumerate()
        .map(|(rank, bytes)| decode(rank, bytes))
        .collect()
}

fn encode<T: Serialize>(result: &Result<T>) -> Vec<u8> {
    serde_json::to_vec(result).expect("results are plain data")
}

/// The result of `rank`; its error is known to all from here on.
fn decode<T: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<T> {
    let result: Result<T> = serde_json::from_slice(bytes).unwrap_or_else(|e| {
        Err(Error::Comm(format!("rank {rank} sent {} bytes that do not parse as a result: {e}", bytes.len())))
    });
    result.map_err(|error| match error {
        agreed @ Error::Agreed { .. } => agreed,
        error => Error::Agreed { rank, error: Box::new(error) },
    })
}

//! The device each rank computes on: `run.backend`, the devices found on each node, and one verdict for all
//! ranks.
//!
//! Must not know: how a device works.

use super::device_choice::{SeenGpus, choose_devices};
use super::launch_checks::ranks_in_words;
use crate::backend::agree::all_or_none;
use crate::backend::cuda::probe;
use crate::backend::mesh::ranks_by_host;
use crate::backend::mpi::Group;
use crate::config::values::DeviceList;
use crate::config::{BackendKind, Deck, Written};
use crate::error::{Error, Fault, Result};
use crate::train::for_kind;
use serde::{Deserialize, Serialize};

/// The device of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// Its processor cores.
    Cpu,
    /// The GPU of this CUDA ordinal.
    Cuda {
        /// Index among the devices visible to the rank.
        ordinal: usize,
    },
}

impl Chosen {
    /// The backend.
    pub fn kind(self) -> BackendKind {
        match self {
            Chosen::Cpu => BackendKind::Cpu,
            Chosen::Cuda { .. } => BackendKind::Cuda,
        }
    }
}

/// The devices a rank found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Found {
    host: String,
    visible_devices: Option<String>,
    /// PCI bus ids by ordinal, or the reason why GPUs cannot be used here.
    gpus: std::result::Result<Vec<String>, String>,
}

/// Looks for GPUs if the deck requests them, and decides for all ranks. Collective.
///
/// # Errors
/// The same on every rank: GPUs are requested and a rank has none, or only some ranks have one.
pub fn choose(group: &Group, deck: &Deck, host: &str) -> Result<Chosen> {
    if deck.run.backend == BackendKind::Cpu {
        return Ok(Chosen::Cpu);
    }
    let own = Found {
        host: host.into(),
        visible_devices: crate::environment::variable("CUDA_VISIBLE_DEVICES"),
        gpus: probe::devices(group.size() > 1),
    };
    let found = all_or_none(group, Ok(own))?;
    let Decision { chosen, notes } = decide(&found, deck.run.backend, &deck.run.devices)?;
    if group.rank() == 0 {
        notes.iter().for_each(|note| log::warn!("{note}"));
    }
    let chosen = chosen[group.rank()];
    for_kind::check_kernels(chosen.kind(), deck)?;
    Ok(chosen)
}

/// The device of every rank, and notes for the log.
#[derive(Debug, PartialEq, Eq)]
struct Decision {
    chosen: Vec<Chosen>,
    notes: Vec<String>,
}

/// A function of what all ranks found, so every rank reaches the same verdict.
fn decide(found: &[Found], backend: BackendKind, devices: &Written<DeviceList>) -> Result<Decision> {
    let has_gpu = |found: &Found| found.gpus.as_ref().is_ok_and(|gpus| !gpus.is_empty());
    let ranks_with =
        |wanted: bool| -> Vec<usize> { (0..found.len()).filter(|&r| has_gpu(&found[r]) == wanted).collect() };
    let (with, without) = (ranks_with(true), ranks_with(false));
    if backend == BackendKind::Auto && with.is_empty() {
        return Ok(Decision { chosen: vec![Chosen::Cpu; found.len()], notes: Vec::new() });
    }
    if let Some(&first) = without.iter().find(|&&r| found[r].gpus.is_err()) {
        let why = found[first].gpus.as_ref().expect_err("found above");
        let alike: Vec<usize> = without
            .into_iter()
            .filter(|&r| found[r].gpus.as_ref().is_err_and(|other| other == why))
            .collect();
        let others = match backend {
            BackendKind::Auto => format!(" ({} could)", ranks_in_words(&with)),
            _ => String::new(),
        };
        return Err(Error::Agreed {
            rank: first,
            error: Box::new(Error::Comm(format!(
                "{} cannot compute on a GPU{others}: {why}",
                ranks_in_words(&alike)
            ))),
        });
    }
    let seen: Vec<SeenGpus> = (found.iter())
        .map(|found| SeenGpus {
            host: found.host.clone(),
            bus_ids: found.gpus.clone().expect("refused above"),
            visible_devices: found.visible_devices.clone(),
        })
        .collect();
    let (ordinals, notes) = match devices.0.is_empty() {
        true => {
            let choice = choose_devices(&seen).map_err(|why| agreed(Error::Comm(why)))?;
            (choice.ordinals, choice.warnings)
        }
        false => (by_map(&seen, devices)?, Vec::new()),
    };
    Ok(Decision { chosen: ordinals.into_iter().map(|ordinal| Chosen::Cuda { ordinal }).collect(), notes })
}

/// All ranks know it.
fn agreed(error: Error) -> Error {
    Error::Agreed { rank: 0, error: Box::new(error) }
}

/// The ordinals of `run.devices`: the i-th for the i-th rank of a node. Two ranks may share a device.
fn by_map(seen: &[SeenGpus], devices: &Written<DeviceList>) -> Result<Vec<usize>> {
    let refuse = |wants: String| {
        Error::Deck(vec![Fault {
            key: "run.devices".into(),
            value: format!("\"{}\"", devices.text()),
            wants,
        }])
    };
    let map = &devices.0;
    let mut ordinals = vec![0; seen.len()];
    for (host, ranks) in ranks_by_host(seen.iter().map(|seen| seen.host.as_str())) {
        if ranks.len() > map.len() {
            return Err(refuse(format!("an ordinal for each of the {} ranks on {host}", ranks.len())));
        }
        for (&rank, &ordinal) in ranks.iter().zip(map) {
            let n_seen = seen[rank].bus_ids.len();
            if ordinal >= n_seen {
                return Err(refuse(format!(
                    "ordinals below {n_seen}, the number of devices that rank {rank} sees on {host}"
                )));
            }
            ordinals[rank] = ordinal;
        }
    }
    Ok(ordinals)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(found: &[Found], backend: BackendKind, devices: &str) -> Result<Decision> {
        super::decide(found, backend, &devices.parse().unwrap())
    }

    fn node(host: &str, gpus: std::result::Result<&[&str], &str>) -> Found {
        let gpus = gpus.map(|ids| ids.iter().map(|id| id.to_string()).collect()).map_err(str::to_string);
        Found { host: host.into(), visible_devices: None, gpus }
    }

    fn ordinals(decision: &Decision) -> Vec<usize> {
        let ordinal = |chosen: &Chosen| match chosen {
            Chosen::Cuda { ordinal } => *ordinal,
            Chosen::Cpu => panic!("{decision:?}"),
        };
        decision.chosen.iter().map(ordinal).collect()
    }

    #[test]
    fn auto_takes_gpus_where_all_have_one_and_cpus_where_none_has() {
        let (with, without) = (node("a", Ok(&["0000:01:00.0", "0000:02:00.0"])), node("b", Err("no driver")));
        let gpus = decide(&[with.clone(), with.clone()], BackendKind::Auto, "").unwrap();
        assert_eq!(ordinals(&gpus), [0, 1]);
        let cpus = decide(&[without.clone(), without.clone()], BackendKind::Auto, "").unwrap();
        assert_eq!(cpus.chosen, [Chosen::Cpu; 2]);
        // A driver without a device is as good as none.
        let empty = decide(&[node("a", Ok(&[])), without.clone()], BackendKind::Auto, "").unwrap();
        assert_eq!(empty.chosen, [Chosen::Cpu; 2]);
        let mixed = decide(&[with, without.clone(), without], BackendKind::Auto, "").unwrap_err();
        assert_eq!(mixed.to_string(), "ranks 1-2 cannot compute on a GPU (rank 0 could): no driver");
        assert_eq!(mixed.exit(), crate::error::Exit::CommFailure);
    }

    #[test]
    fn cuda_is_refused_with_the_reason_and_the_ranks_it_holds_for() {
        let found =
            [node("a", Ok(&["0000:01:00.0"])), node("a", Err("no NCCL")), node("a", Err("old driver"))];
        let refusal = decide(&found, BackendKind::Cuda, "").unwrap_err();
        assert_eq!(refusal.to_string(), "rank 1 cannot compute on a GPU: no NCCL");
        assert!(matches!(refusal, Error::Agreed { rank: 1, .. }), "the rank that met it says it");
        let shared = decide(&[found[0].clone(), found[0].clone()], BackendKind::Cuda, "").unwrap_err();
        assert!(shared.to_string().contains("the one GPU 0000:01:00.0"), "{shared}");
    }

    #[test]
    fn a_map_gives_each_rank_of_a_node_its_ordinal_even_the_same_one() {
        let found = [node("a", Ok(&["x"])), node("b", Ok(&["y", "z"])), node("a", Ok(&["x"]))];
        assert_eq!(ordinals(&decide(&found, BackendKind::Cuda, "0, 0").unwrap()), [0, 0, 0]);
        for (map, says) in [
            ("0", "each of the 2 ranks on a"),
            ("0,1", "ordinals below 1, the number of devices that rank 2"),
        ] {
            let refusal = decide(&found, BackendKind::Cuda, map).unwrap_err().to_string();
            assert!(refusal.contains("run.devices") && refusal.contains(says), "{refusal}");
        }
    }
}

//! Which visible GPU a rank uses: a different one for each rank, whichever devices `--gpus-per-node`,
//! `--gpus-per-task` or CUDA_VISIBLE_DEVICES leave visible, or an error that explains why there is none.
//!
//! Launchers hide and renumber GPUs in many ways, so ordinals and local ranks identify nothing: ordinal 0 of
//! two ranks may be one GPU or two. PCI bus ids always do. Each rank lists its visible devices, the lists are
//! gathered, and every rank computes the same matching from them.
//!
//! Pure functions of these lists, tested on recorded environments. Must not know: MPI, CUDA.

use super::launch_checks::ranks_in_words;
use crate::backend::mesh::ranks_by_host;
use std::collections::BTreeSet;

/// The devices visible to a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenGpus {
    /// The rank's node.
    pub host: String,
    /// PCI bus id of each visible device, by CUDA ordinal: `0000:3B:00.0`.
    pub bus_ids: Vec<String>,
    /// CUDA_VISIBLE_DEVICES, if set.
    pub visible_devices: Option<String>,
}

/// A device for every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChoice {
    /// CUDA ordinal of each rank's device among its visible ones.
    pub ordinals: Vec<usize>,
    /// Warnings about idle GPUs, one line each.
    pub warnings: Vec<String>,
}

/// Gives each rank (`seen[r]` is of rank r) a device that no other rank uses, the first free one it sees. If
/// there are too few, the error names ranks, host and bus ids.
pub fn choose_devices(seen: &[SeenGpus]) -> Result<DeviceChoice, String> {
    let hosts = ranks_by_host(seen.iter().map(|s| s.host.as_str()));
    let mut ordinals = vec![0; seen.len()];
    let mut warnings = Vec::new();
    for (host, ranks) in &hosts {
        let blind: Vec<usize> = ranks.iter().copied().filter(|&r| seen[r].bus_ids.is_empty()).collect();
        if let Some(&first) = blind.first() {
            return Err(sees_none(host, &blind, ranks.len(), seen[first].visible_devices.as_deref()));
        }
        let mut matching = Matching { seen, owners: Vec::new() };
        for &rank in ranks {
            let mut tried = BTreeSet::new();
            if !matching.find_device(rank, &mut tried) {
                return Err(too_few(host, ranks, &tried, seen));
            }
        }
        for &(bus_id, rank) in &matching.owners {
            let ordinal = seen[rank].bus_ids.iter().position(|id| id == bus_id);
            ordinals[rank] = ordinal.expect("a rank owns what it sees");
        }
        let all: BTreeSet<&str> = ranks.iter().flat_map(|&r| &seen[r].bus_ids).map(String::as_str).collect();
        if all.len() > ranks.len() {
            warnings.push(format!(
                "{} of the {} GPUs visible on {host} are idle, because a rank uses one: start {} ranks there \
                 (--ntasks-per-node), or request fewer GPUs",
                all.len() - ranks.len(),
                all.len(),
                all.len()
            ));
        }
    }
    Ok(DeviceChoice { ordinals, warnings })
}

/// Devices of one node and the ranks assigned to them: a bipartite matching extended by augmenting paths
/// (Kuhn's algorithm), since the first device a rank sees may be the only one another rank sees.
struct Matching<'a> {
    seen: &'a [SeenGpus],
    /// (bus id, rank), each at most once.
    owners: Vec<(&'a str, usize)>,
}

impl<'a> Matching<'a> {
    /// Assigns a device to `rank`, moving other ranks to another device they see if necessary. Returns false
    /// if that is impossible; `tried` then has the devices visible to it and to the ranks in conflict.
    fn find_device(&mut self, rank: usize, tried: &mut BTreeSet<&'a str>) -> bool {
        let seen = self.seen;
        let owner_of = |owners: &[(&str, usize)], id: &str| owners.iter().position(|(owned, _)| *owned == id);
        let ids = || seen[rank].bus_ids.iter().map(String::as_str);
        if let Some(free) = ids().find(|id| owner_of(&self.owners, id).is_none()) {
            self.owners.push((free, rank));
            return true;
        }
        for id in ids() {
            if tried.insert(id) {
                let slot = owner_of(&self.owners, id).expect("a device that is not free has an owner");
                if self.find_device(self.owners[slot].1, tried) {
                    // The reassigned rank is further down the list now.
                    self.owners[slot].1 = rank;
                    return true;
                }
            }
        }
        false
    }
}

fn sees_none(host: &str, blind: &[usize], n_ranks: usize, visible_devices: Option<&str>) -> String {
    let why = match visible_devices {
        None => "the driver reports no device there".into(),
        Some("" | "-1" | "NoDevFiles") => "the launcher assigned none".into(),
        Some(list) => format!("CUDA_VISIBLE_DEVICES={list} names no device the driver knows"),
    };
    format!(
        "{} on {host} {} no GPU ({why}): request one per rank of a node (--gpus-per-node={n_ranks})",
        ranks_in_words(blind),
        if blind.len() == 1 { "sees" } else { "see" },
    )
}

/// `devices` are all that some ranks of the node see, fewer than these ranks.
fn too_few(host: &str, ranks: &[usize], devices: &BTreeSet<&str>, seen: &[SeenGpus]) -> String {
    let confined: Vec<usize> = ranks
        .iter()
        .copied()
        .filter(|&r| seen[r].bus_ids.iter().all(|id| devices.contains(id.as_str())))
        .collect();
    let ids = devices.iter().copied().collect::<Vec<_>>().join(", ");
    let share = match devices.len() {
        1 => format!("the one GPU {ids}"),
        n => format!("the {n} GPUs {ids}"),
    };
    format!(
        "{} on {host} see only {share}, and each rank requires a separate one: request --gpus-per-node={} \
         without --gpus-per-task or --gpu-bind, or start fewer ranks there (--ntasks-per-node)",
        ranks_in_words(&confined),
        ranks.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What CUDA shows of a node's GPUs under a value of CUDA_VISIBLE_DEVICES: those listed, in that order,
    /// up to the first that does not exist (CUDA programming guide, "CUDA environment variables").
    fn rank(host: &str, visible: Option<&str>, n_on_node: usize) -> SeenGpus {
        let bus_id = |i: usize| format!("0000:{:02X}:00.0", 0x10 + i);
        let bus_ids = match visible {
            None => (0..n_on_node).map(bus_id).collect(),
            Some(list) => {
                let listed = list.split(',').map_while(|i| i.parse().ok().filter(|&i: &usize| i < n_on_node));
                listed.map(bus_id).collect()
            }
        };
        SeenGpus { host: host.into(), bus_ids, visible_devices: visible.map(String::from) }
    }

    fn ranks(recorded: &[(&str, &str)]) -> Vec<SeenGpus> {
        recorded.iter().map(|(host, visible)| rank(host, Some(visible), 4)).collect()
    }

    #[track_caller]
    fn expect_ordinals(recorded: &[(&str, &str)], ordinals: &[usize], n_warnings: usize) -> Vec<String> {
        let choice = choose_devices(&ranks(recorded)).unwrap_or_else(|e| panic!("{recorded:?}: {e}"));
        assert_eq!(choice.ordinals, ordinals, "{recorded:?}");
        assert_eq!(choice.warnings.len(), n_warnings, "{:?}", choice.warnings);
        choice.warnings
    }

    #[track_caller]
    fn expect_refusal(recorded: &[(&str, &str)], parts: &[&str]) {
        let said = choose_devices(&ranks(recorded)).expect_err("refused");
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said:?}");
        }
        assert!(!said.contains('\n'), "one sentence: {said:?}");
    }

    // The environments below were recorded under Slurm 22.05 on two nodes with four GPUs each.

    #[test]
    fn every_way_to_ask_slurm_for_one_gpu_a_rank_gives_each_its_own() {
        // srun -N2 --ntasks-per-node=2 --gpus-per-node=2; mpirun in such a job shows the same.
        expect_ordinals(&[("n1", "0,1"), ("n1", "0,1"), ("n2", "0,1"), ("n2", "0,1")], &[0, 1, 0, 1], 0);
        // srun -N2 --ntasks-per-node=2 --gpus-per-task=1
        expect_ordinals(&[("n1", "0"), ("n1", "1"), ("n2", "0"), ("n2", "1")], &[0, 0, 0, 0], 0);
        // The second job of a node, where the first has GPUs 0 and 1.
        expect_ordinals(&[("n1", "2,3"), ("n1", "2,3")], &[0, 1], 0);
        // No GPU asked for, on a cluster that does not hide them: -N1 -n3.
        let unhidden: Vec<_> = (0..3).map(|_| rank("n1", None, 3)).collect();
        assert_eq!(choose_devices(&unhidden).unwrap().ordinals, [0, 1, 2]);
        // Ranks dealt out over nodes one by one: -m cyclic.
        expect_ordinals(&[("n1", "0,1"), ("n2", "0,1"), ("n1", "0,1"), ("n2", "0,1")], &[0, 0, 1, 1], 0);
    }

    #[test]
    fn gpus_left_idle_are_a_warning() {
        // srun -N2 --ntasks-per-node=2 --gpus-per-node=4
        let all = "0,1,2,3";
        let lines = expect_ordinals(&[("n1", all), ("n1", all), ("n2", all), ("n2", all)], &[0, 1, 0, 1], 2);
        assert!(lines[1].starts_with("2 of the 4 GPUs visible on n2 are idle"), "{lines:?}");
        // srun -N1 --ntasks-per-node=2 --gpus-per-task=2
        expect_ordinals(&[("n1", "0,1"), ("n1", "2,3")], &[0, 0], 1);
    }

    #[test]
    fn a_rank_moves_on_where_another_sees_nothing_else() {
        // --gpu-bind=map_gpu and masks of one's own: rank 0 must leave the first device it sees.
        expect_ordinals(&[("n1", "0,1"), ("n1", "0")], &[1, 0], 0);
        expect_ordinals(&[("n1", "0,1"), ("n1", "1,2"), ("n1", "2,0"), ("n1", "0,3")], &[0, 0, 0, 1], 0);
        expect_ordinals(&[("n1", "0,1,2"), ("n1", "0,1"), ("n1", "0")], &[2, 1, 0], 0);
        // Another order of the same devices.
        expect_ordinals(&[("n1", "1,0"), ("n1", "1,0")], &[0, 1], 0);
    }

    #[test]
    fn more_ranks_than_gpus_are_refused_with_the_bus_ids_they_share() {
        // srun -N2 --ntasks-per-node=2 --gpus-per-node=1
        expect_refusal(
            &[("n1", "0"), ("n1", "0"), ("n2", "0"), ("n2", "0")],
            &["ranks 0-1 on n1", "the one GPU 0000:10:00.0", "--gpus-per-node=2", "--ntasks-per-node"],
        );
        // srun -N2 --ntasks-per-node=4 --gpus-per-node=2
        expect_refusal(
            &[("n1", "0,1"); 4],
            &["ranks 0-3 on n1", "2 GPUs 0000:10:00.0, 0000:11:00.0", "--gpus-per-node=4"],
        );
        // srun --ntasks-per-node=4 --gpus-per-node=4 --gpu-bind=single:2
        expect_refusal(
            &[("n1", "0"), ("n1", "0"), ("n1", "1"), ("n1", "1")],
            &["ranks 0-1 on n1", "--gpu-bind"],
        );
        // sbatch -N2 --ntasks-per-node=2 --gpus-per-task=1 and mpirun: its daemon on the second node is one
        // task.
        expect_refusal(
            &[("n1", "0,1"), ("n1", "0,1"), ("n2", "0"), ("n2", "0")],
            &["ranks 2-3 on n2", "without --gpus-per-task"],
        );
        // Among enough GPUs, three ranks that see two.
        expect_refusal(
            &[("n1", "0,1,2,3"), ("n1", "0,1"), ("n1", "0,1"), ("n1", "1,0")],
            &["ranks 1-3 on n1"],
        );
    }

    #[test]
    fn ranks_that_see_none_are_told_apart_by_why() {
        expect_refusal(
            &[("n1", "0"), ("n2", ""), ("n2", "")],
            &["ranks 1-2 on n2 see no GPU", "assigned none", "=2"],
        );
        expect_refusal(&[("n1", "NoDevFiles")], &["rank 0 on n1 sees no GPU", "assigned none"]);
        expect_refusal(&[("n1", "7")], &["CUDA_VISIBLE_DEVICES=7 names no device"]);
        let none = choose_devices(&[rank("n1", None, 0)]).expect_err("refused");
        assert!(none.contains("the driver reports no device there"), "{none}");
    }
}

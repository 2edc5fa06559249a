//! What each rank reports about its node, device, program and file systems, and which ranks differ from the
//! others.

use crate::accept::acceptance::Acceptance;
use crate::accept::facts::RankFacts;
use crate::accept::verdict::metric::Metric;
use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm, Device};
use crate::config::Preset;
use crate::error::Result;
use crate::harness::Cluster;
use crate::train::planning;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Facts that may differ between ranks.
const MAY_DIFFER: [&str; 4] = ["host", "cores", "clock now", "device bus id"];
/// Facts on which the computed bits depend: a difference makes the run INVALID.
const MUST_AGREE: [&str; 4] = ["zero3", "program", "deck", "instruction_set"];

/// Ranks that are named in a disagreement.
const MAX_NAMED: usize = 8;

/// Ranks that differ from most in a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// Name of the fact.
    pub fact: String,
    /// Ranks that differ, all with the same value.
    pub ranks: Vec<usize>,
    /// Their value.
    pub value: String,
    /// The value of most ranks.
    pub majority: String,
}

/// For each fact, the ranks whose value is not that of most ranks; in a tie the value of the lowest rank
/// counts as that of most.
pub fn disagreements(ranks: &[RankFacts]) -> Vec<Disagreement> {
    let names: BTreeSet<&String> = ranks.iter().flat_map(BTreeMap::keys).collect();
    let mut found = Vec::new();
    for name in names.into_iter().filter(|name| !MAY_DIFFER.contains(&name.as_str())) {
        let value_of = |r: usize| ranks[r].get(name).map_or("nothing", String::as_str);
        let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
        for r in 0..ranks.len() {
            match groups.iter_mut().find(|(value, _)| *value == value_of(r)) {
                Some((_, members)) => members.push(r),
                None => groups.push((value_of(r), vec![r])),
            }
        }
        // Stable: of groups of one size that of the lowest rank comes first.
        groups.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
        let majority = groups[0].0.to_string();
        found.extend(groups.drain(1..).map(|(value, ranks)| Disagreement {
            fact: name.clone(),
            ranks,
            value: value.into(),
            majority: majority.clone(),
        }));
    }
    found
}

/// What this rank reports; `own` is what its launcher knows.
pub fn facts<B: Backend>(acceptance: &Acceptance<'_, B>, own: &RankFacts) -> RankFacts {
    let cluster = &acceptance.cluster;
    let mut facts = own.clone();
    // A fact that one system reports and another does not is a difference.
    let mut add = |name: &str, value: Option<String>| {
        _ = facts.insert(name.into(), value.unwrap_or("not reported by the system".into()));
    };
    add("host", Some(cluster.hosts[cluster.rank()].clone()));
    add("deck", Some(format!("{:016x}", acceptance.deck.digest())));
    add("device", Some(cluster.device.describe()));
    cluster.device.facts().into_iter().for_each(|(name, value)| add(name, Some(value)));
    let file = |path: &str| std::fs::read_to_string(path).ok();
    add("kernel", file("/proc/sys/kernel/osrelease").map(|s| s.trim().into()));
    // In GiB: the memory that firmware reserves varies a little from node to node.
    add(
        "memory",
        file("/proc/meminfo").and_then(|s| {
            let kib: f64 = s
                .lines()
                .find_map(|l| l.strip_prefix("MemTotal:"))?
                .trim()
                .trim_end_matches("kB")
                .trim()
                .parse()
                .ok()?;
            Some(format!("{:.0} GiB", kib / f64::from(1 << 20)))
        }),
    );
    add(
        "highest clock",
        file("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").map(|s| format!("{} kHz", s.trim())),
    );
    add(
        "clock now",
        file("/proc/cpuinfo").and_then(|s| {
            let line = s.lines().find(|line| line.starts_with("cpu MHz"))?;
            Some(format!("{} MHz", line.split(':').nth(1)?.trim()))
        }),
    );
    let mounts = file("/proc/self/mounts").unwrap_or_default();
    add("file system of run.dir", file_system(&mounts, Path::new(&acceptance.deck.run.dir)));
    add("file system of checkpoints", file_system(&mounts, Path::new(acceptance.deck.checkpoint_dir())));
    facts
}

/// Type and source of the mount that holds `dir`, from the text of `/proc/self/mounts`.
fn file_system(mounts: &str, dir: &Path) -> Option<String> {
    // The directory may not exist yet: the nearest ancestor that does.
    let absolute = std::path::absolute(dir).ok()?;
    let existing = absolute.ancestors().find_map(|p| p.canonicalize().ok())?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    // The last of the longest: a later mount hides an earlier one.
    let holds = fields.filter(|f| f.len() > 2 && existing.starts_with(f[1]));
    let mount = holds.max_by_key(|f| f[1].len())?;
    Some(format!("{} from {} at {}", mount[2], mount[0], mount[1]))
}

/// The section: every rank's facts, and their comparison. Collective.
pub fn run<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    own: &RankFacts,
) -> Result<(Vec<Metric>, Vec<RankFacts>)> {
    let cluster = &acceptance.cluster;
    let all = all_or_none(cluster.comm, Ok(facts(acceptance, own)))?;
    let n_hosts = cluster.hosts.iter().collect::<BTreeSet<_>>().len();
    let mut metrics = vec![
        Metric::info("inventory.n_ranks", cluster.n() as f64, ""),
        Metric::info("inventory.n_hosts", n_hosts as f64, ""),
    ];
    let t = &acceptance.deck.training;
    let shape = match t.preset {
        Preset::None => format!("{} layers, {} heads, width {}", t.n_layer, t.n_head, t.d_model),
        preset => preset.name().into(),
    };
    metrics.push(
        Metric::info("inventory.reference_params", acceptance.reference_spec()?.numel() as f64, "")
            .because(shape),
    );
    let plan_digest = plan_digest(acceptance)?;
    let digests = cluster.comm.control().all_gather_bytes(&plan_digest.to_le_bytes())?;
    let differs: Vec<String> =
        (0..cluster.n()).filter(|&r| digests[r] != digests[0]).map(|r| cluster.name(r)).collect();
    metrics.push(Metric::exactly(
        "inventory.plans_that_differ",
        differs.len() as f64,
        0.0,
        "",
        format!("planned differently from rank 0: {}", differs.join(", ")),
    ));
    let found = disagreements(&all);
    let (fatal, other): (Vec<&Disagreement>, Vec<&Disagreement>) =
        found.iter().partition(|found| MUST_AGREE.contains(&found.fact.as_str()));
    let in_words =
        |list: &[&Disagreement]| list.iter().map(|found| in_words(cluster, found)).collect::<Vec<_>>();
    let (n_fatal, blame) = (fatal.len() as f64, in_words(&fatal).join("; "));
    metrics.push(Metric::exactly("inventory.disagreements", n_fatal, 0.0, "", blame));
    metrics.push(Metric::none_of("inventory.odd_ones_out", &in_words(&other)));
    Ok((metrics, all))
}

fn in_words<B: Backend>(cluster: &Cluster<'_, B>, found: &Disagreement) -> String {
    let Disagreement { fact, ranks, value, majority } = found;
    let names: Vec<String> = ranks.iter().take(MAX_NAMED).map(|&r| cluster.name(r)).collect();
    let more = match ranks.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{fact}: {}{more}: `{value}`, most ranks: `{majority}`", names.join(", "))
}

/// Digest of the plan of the reference run on all ranks.
fn plan_digest<B: Backend>(acceptance: &Acceptance<'_, B>) -> Result<u64> {
    let cluster = &acceptance.cluster;
    let (_, plan) = planning::of_deck::<B::Device>(&acceptance.reference_deck()?, cluster.n())?;
    Ok(plan.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> RankFacts {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn the_minority_differs_even_with_the_lowest_rank() {
        let ranks = ["5.1", "6.0", "6.0"].map(|k| facts(&[("kernel", k), ("host", k)]));
        let found = disagreements(&ranks);
        assert_eq!(
            found,
            [Disagreement {
                fact: "kernel".into(),
                ranks: vec![0],
                value: "5.1".into(),
                majority: "6.0".into()
            }]
        );
        assert!(disagreements(&ranks[1..]).is_empty());
    }

    #[test]
    fn a_fact_that_one_rank_lacks_differs_and_a_tie_goes_to_the_lowest_rank() {
        let ranks = [facts(&[("memory", "8 GiB")]), facts(&[])];
        let found = disagreements(&ranks);
        assert_eq!((found[0].ranks.as_slice(), found[0].value.as_str()), (&[1][..], "nothing"));
        assert!(disagreements(&[]).is_empty() && disagreements(&ranks[..1]).is_empty());
    }

    #[test]
    fn the_file_system_is_that_of_the_longest_mount() {
        let mounts = "/dev/a / ext4 rw 0 0\nfs:/x /proc nfs rw 0 0\ntmpfs /pro tmpfs rw 0 0\n";
        assert_eq!(
            file_system(mounts, Path::new("/proc/self/not/there")).unwrap(),
            "nfs from fs:/x at /proc"
        );
        assert_eq!(file_system(mounts, Path::new("/not/there")).unwrap(), "ext4 from /dev/a at /");
    }
}

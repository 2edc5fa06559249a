//! Who is here: what each rank says of its node, device, program and file systems, and who says something else than the rest.

use super::lab::Lab;
use super::metric::Metric;
use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm, Device};
use crate::config::Preset;
use crate::error::Result;
use crate::train::planning;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a rank says of itself, by name.
pub type Facts = BTreeMap<String, String>;

/// Facts that may differ between ranks without a word.
const OWN: [&str; 4] = ["host", "cores", "clock now", "device bus id"];
/// Facts without which no two ranks compute the same bits: a difference is no matter of taste.
const BINDING: [&str; 4] = ["zero3", "program", "deck", "instruction_set"];

/// A rank that says something else than most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Odd {
    /// About what.
    pub fact: String,
    /// Ranks that say so.
    pub ranks: Vec<usize>,
    /// What they say.
    pub says: String,
    /// What most say.
    pub most_say: String,
}

/// For each fact, the ranks that do not say what most say (of a tie, what the lowest rank says).
pub fn odd_ones_out(ranks: &[Facts]) -> Vec<Odd> {
    let names: BTreeSet<&String> = ranks.iter().flat_map(BTreeMap::keys).collect();
    let mut odd = Vec::new();
    for name in names.into_iter().filter(|name| !OWN.contains(&name.as_str())) {
        let said = |r: usize| ranks[r].get(name).map_or("nothing", String::as_str);
        let mut camps: Vec<(&str, Vec<usize>)> = Vec::new();
        for r in 0..ranks.len() {
            match camps.iter_mut().find(|(says, _)| *says == said(r)) {
                Some((_, members)) => members.push(r),
                None => camps.push((said(r), vec![r])),
            }
        }
        // Stable: of equal camps the one of the lowest rank comes first.
        camps.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
        let most_say = camps[0].0.to_string();
        odd.extend(camps.drain(1..).map(|(says, ranks)| Odd {
            fact: name.clone(),
            ranks,
            says: says.into(),
            most_say: most_say.clone(),
        }));
    }
    odd
}

/// What this rank says; `own` is what its launcher knows.
pub fn facts<B: Backend>(lab: &Lab<'_, B>, own: &Facts) -> Facts {
    let mut facts = own.clone();
    // What the system does not say is said to be so: two ranks of which one says nothing are not alike.
    let mut say = |name: &str, value: Option<String>| {
        _ = facts.insert(name.into(), value.unwrap_or("not said by the system".into()));
    };
    say("host", Some(lab.hosts[lab.rank()].clone()));
    say("deck", Some(format!("{:016x}", lab.deck.digest())));
    say("device", Some(lab.device.describe()));
    lab.device.facts().into_iter().for_each(|(name, value)| say(name, Some(value)));
    let file = |path: &str| std::fs::read_to_string(path).ok();
    say("kernel", file("/proc/sys/kernel/osrelease").map(|s| s.trim().into()));
    // To the GiB: what firmware keeps back differs by a little from node to node.
    say(
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
    say(
        "highest clock",
        file("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").map(|s| format!("{} kHz", s.trim())),
    );
    say(
        "clock now",
        file("/proc/cpuinfo").and_then(|s| {
            let line = s.lines().find(|line| line.starts_with("cpu MHz"))?;
            Some(format!("{} MHz", line.split(':').nth(1)?.trim()))
        }),
    );
    let mounts = file("/proc/self/mounts").unwrap_or_default();
    say("file system of run.dir", file_system(&mounts, Path::new(&lab.deck.run.dir)));
    say("file system of checkpoints", file_system(&mounts, Path::new(lab.deck.checkpoint_dir())));
    facts
}

/// Type and source of the mount that holds `dir`, from the text of `/proc/self/mounts`.
fn file_system(mounts: &str, dir: &Path) -> Option<String> {
    // The directory may not be there yet: its nearest ancestor that is.
    let absolute = std::path::absolute(dir).ok()?;
    let there = absolute.ancestors().find_map(|p| p.canonicalize().ok())?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    // The last of the longest: a later mount hides an earlier one.
    let holds = fields.filter(|f| f.len() > 2 && there.starts_with(f[1]));
    let mount = holds.max_by_key(|f| f[1].len())?;
    Some(format!("{} from {} at {}", mount[2], mount[0], mount[1]))
}

/// Every rank's facts, and the metrics they make. Collective.
pub fn run<B: Backend>(lab: &Lab<'_, B>, own: &Facts) -> Result<(Vec<Metric>, Vec<Facts>)> {
    let all = all_or_none(lab.comm, Ok(facts(lab, own)))?;
    let n_hosts = lab.hosts.iter().collect::<BTreeSet<_>>().len();
    let mut metrics = vec![
        Metric::info("inventory.n_ranks", lab.n() as f64, ""),
        Metric::info("inventory.n_hosts", n_hosts as f64, ""),
    ];
    let t = &lab.deck.training;
    let shape = match t.preset {
        Preset::None => format!("{} layers, {} heads, width {}", t.n_layer, t.n_head, t.d_model),
        preset => preset.name().into(),
    };
    metrics.push(Metric::info("inventory.reference_params", lab.reference_spec()?.numel() as f64, "").because(shape));
    let plan_digest = plan_digest(lab)?;
    let digests = lab.comm.control().all_gather_bytes(&plan_digest.to_le_bytes())?;
    let differs: Vec<String> = (0..lab.n()).filter(|&r| digests[r] != digests[0]).map(|r| lab.name(r)).collect();
    metrics.push(Metric::exactly(
        "inventory.plans_that_differ",
        differs.len() as f64,
        0.0,
        "",
        format!("planned otherwise than rank 0: {}", differs.join(", ")),
    ));
    let odd = odd_ones_out(&all);
    let words = |odd: &Odd| {
        let who: Vec<String> = odd.ranks.iter().take(8).map(|&r| lab.name(r)).collect();
        let more = if odd.ranks.len() > 8 { format!(" and {} more", odd.ranks.len() - 8) } else { String::new() };
        format!("{}: {}{more}: `{}`, most ranks: `{}`", odd.fact, who.join(", "), odd.says, odd.most_say)
    };
    let (binding, other): (Vec<&Odd>, Vec<&Odd>) = odd.iter().partition(|o| BINDING.contains(&o.fact.as_str()));
    let words_of = |list: &[&Odd]| list.iter().map(|o| words(o)).collect::<Vec<_>>();
    metrics.push(Metric::exactly(
        "inventory.disagreements",
        binding.len() as f64,
        0.0,
        "",
        words_of(&binding).join("; "),
    ));
    metrics.push(Metric::none_of("inventory.odd_ones_out", &words_of(&other)));
    Ok((metrics, all))
}

/// Of the reference run on all ranks.
fn plan_digest<B: Backend>(lab: &Lab<'_, B>) -> Result<u64> {
    let (_, plan) = planning::of_deck::<B::Device>(&lab.reference_deck()?, lab.n())?;
    Ok(plan.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> Facts {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn the_odd_one_is_the_minority_whoever_has_the_lowest_rank() {
        let ranks = ["5.1", "6.0", "6.0"].map(|k| facts(&[("kernel", k), ("host", k)]));
        let odd = odd_ones_out(&ranks);
        assert_eq!(odd, [Odd { fact: "kernel".into(), ranks: vec![0], says: "5.1".into(), most_say: "6.0".into() }]);
        assert!(odd_ones_out(&ranks[1..]).is_empty());
    }

    #[test]
    fn a_fact_that_one_rank_lacks_is_odd_and_a_tie_goes_to_the_lowest_rank() {
        let ranks = [facts(&[("memory", "8 GiB")]), facts(&[])];
        let odd = odd_ones_out(&ranks);
        assert_eq!((odd[0].ranks.as_slice(), odd[0].says.as_str()), (&[1][..], "nothing"));
        assert!(odd_ones_out(&[]).is_empty() && odd_ones_out(&ranks[..1]).is_empty());
    }

    #[test]
    fn the_file_system_is_that_of_the_longest_mount() {
        let mounts = "/dev/a / ext4 rw 0 0\nfs:/x /proc nfs rw 0 0\ntmpfs /pro tmpfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/proc/self/not/there")).unwrap(), "nfs from fs:/x at /proc");
        assert_eq!(file_system(mounts, Path::new("/not/there")).unwrap(), "ext4 from /dev/a at /");
    }
}

//! Which rank computes wrong, from runs of the same steps on subsets of the ranks. Pure: the caller makes the
//! runs.
//!
//! Every rank count gives the same bits, so of two subsets that differ one contains a rank that computes
//! wrong. Halves of the ranks run at the same time. Halves with wrong bits are halved again, and so are those
//! in which not every rank has a micro-batch: log2(N) rounds find one rank among N.

use crate::error::Result;

/// What the runs show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// All subsets gave the same bits.
    Clean,
    /// Each of these ranks, by itself, gives wrong bits.
    Bad(Vec<usize>),
    /// These ranks together gave wrong bits once, and parts of them did not: the fault is intermittent.
    Intermittent(Vec<usize>),
    /// Subsets differ, and no two agree: none can be taken as right.
    Undecided,
}

/// Finds the ranks that compute wrong among `0..n`. In a group of at most `n_busy` ranks each has a
/// micro-batch; larger groups are halved in any case, since a rank without one hardly computes and so hardly
/// errs. `all` is the digest of the run on all ranks, `known` that of golden losses; `run` makes the same
/// steps on disjoint groups at the same time and returns their digests.
pub fn find(
    n: usize,
    n_busy: usize,
    all: u64,
    known: Option<u64>,
    mut run: impl FnMut(&[Vec<usize>]) -> Result<Vec<u64>>,
) -> Result<Finding> {
    let all_ranks: Vec<usize> = (0..n).collect();
    let mut results = vec![(all_ranks.clone(), all)];
    let mut level = vec![all_ranks];
    while level.iter().any(|group| group.len() > 1) {
        let groups: Vec<Vec<usize>> = level
            .iter()
            .filter(|group| group.len() > 1)
            .flat_map(|group| {
                let (a, b) = group.split_at(group.len() / 2);
                [a.to_vec(), b.to_vec()]
            })
            .collect();
        let digests = run(&groups)?;
        let round = groups.into_iter().zip(digests);
        results.extend(round.clone());
        let right = truth(&results, known);
        let goes_on = |(group, digest): &(Vec<usize>, u64)| Some(*digest) != right || group.len() > n_busy;
        level = round.filter(goes_on).map(|(group, _)| group).collect();
    }
    let Some(right) = truth(&results, known) else { return Ok(Finding::Undecided) };
    let wrong = || results.iter().filter(|(_, digest)| *digest != right).map(|(group, _)| group);
    let bad: Vec<usize> = wrong().filter(|group| group.len() == 1).map(|group| group[0]).collect();
    Ok(match wrong().min_by_key(|group| group.len()) {
        None => Finding::Clean,
        Some(_) if !bad.is_empty() => Finding::Bad(bad),
        Some(group) => Finding::Intermittent(group.clone()),
    })
}

/// The right digest: the known one where any group has it, else the one that most groups have, two at least.
fn truth(results: &[(Vec<usize>, u64)], known: Option<u64>) -> Option<u64> {
    let votes = |digest: u64| results.iter().filter(|(_, d)| *d == digest).count();
    if let Some(known) = known.filter(|&k| votes(k) > 0) {
        return Some(known);
    }
    let most = results.iter().map(|(_, d)| (votes(*d), *d)).max()?;
    let is_unique = results.iter().all(|(_, d)| *d == most.1 || votes(*d) < most.0);
    if results.len() == 1 { Some(most.1) } else { Some(most.1).filter(|_| most.0 > 1 && is_unique) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const RIGHT: u64 = 7;

    /// A job of `n` ranks, of which `bad` always compute wrong, in a way that depends on the group.
    fn simulate(n: usize, bad: &[usize], known: Option<u64>) -> (Finding, usize) {
        let digest = |group: &Vec<usize>| match bad.iter().any(|b| group.contains(b)) {
            true => group.iter().fold(1000, |h: u64, &r| h.wrapping_mul(31) + r as u64),
            false => RIGHT,
        };
        let rounds = RefCell::new(0);
        let finding = find(n, n, digest(&(0..n).collect()), known, |groups| {
            *rounds.borrow_mut() += 1;
            let mut members: Vec<usize> = groups.iter().flatten().copied().collect();
            let n_members = members.len();
            members.sort_unstable();
            members.dedup();
            assert_eq!(members.len(), n_members, "groups that run at once share no rank");
            Ok(groups.iter().map(digest).collect())
        });
        (finding.unwrap(), rounds.into_inner())
    }

    #[test]
    fn one_bad_rank_is_found_among_any_number_in_log2_rounds() {
        for n in 2..40 {
            for bad in 0..n {
                let (finding, rounds) = simulate(n, &[bad], Some(RIGHT));
                assert_eq!(finding, Finding::Bad(vec![bad]), "{bad} of {n}");
                assert!(rounds <= (n as f64).log2().ceil() as usize, "{rounds} rounds for {n}");
                if n > 2 {
                    assert_eq!(
                        simulate(n, &[bad], None).0,
                        Finding::Bad(vec![bad]),
                        "{bad} of {n} by majority"
                    );
                }
            }
        }
    }

    #[test]
    fn a_bad_rank_that_has_nothing_to_compute_in_large_groups_is_found_in_small_ones() {
        for (n, n_busy) in [(16, 6), (64, 16), (7, 1), (9, 4)] {
            for bad in 0..n {
                let computes = |group: &[usize]| group.iter().take(n_busy).any(|&r| r == bad);
                let digest =
                    |group: &[usize]| if computes(group) { 1000 + group.len() as u64 } else { RIGHT };
                let all_ranks: Vec<usize> = (0..n).collect();
                let finding = find(n, n_busy, digest(&all_ranks), None, |groups| {
                    Ok(groups.iter().map(|group| digest(group)).collect())
                });
                assert_eq!(
                    finding.unwrap(),
                    Finding::Bad(vec![bad]),
                    "{bad} of {n}, of which {n_busy} compute"
                );
            }
        }
    }

    #[test]
    fn no_bad_rank_takes_one_round_and_several_are_all_found() {
        for n in [2, 3, 7, 16] {
            assert_eq!(simulate(n, &[], None), (Finding::Clean, 1), "{n}");
        }
        assert_eq!(simulate(1, &[], None), (Finding::Clean, 0));
        assert_eq!(simulate(8, &[1, 6], None).0, Finding::Bad(vec![1, 6]));
        assert_eq!(simulate(5, &[0, 1, 2, 3, 4], None).0, Finding::Undecided);
    }

    #[test]
    fn two_ranks_that_differ_need_a_known_digest() {
        assert_eq!(simulate(2, &[1], None).0, Finding::Undecided);
        assert_eq!(simulate(2, &[1], Some(RIGHT)).0, Finding::Bad(vec![1]));
    }

    #[test]
    fn a_known_digest_that_no_group_has_accuses_no_rank() {
        assert_eq!(simulate(4, &[], Some(RIGHT + 1)), (Finding::Clean, 1));
    }

    #[test]
    fn an_intermittent_fault_is_named_by_its_smallest_group() {
        let mut round = 0;
        let finding = find(8, 8, RIGHT, Some(RIGHT), |groups| {
            round += 1;
            Ok(groups.iter().map(|g| if round == 1 && g.contains(&5) { 99 } else { RIGHT }).collect())
        });
        assert_eq!(finding.unwrap(), Finding::Intermittent(vec![4, 5, 6, 7]));
    }
}

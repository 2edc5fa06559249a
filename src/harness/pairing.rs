//! Which ranks are measured with which. Pure.

/// Every pair of `0..n` once, in rounds in which no member is in two pairs: the circle method of round-robin
/// tournaments.
pub fn rounds(n: usize) -> Vec<Vec<(usize, usize)>> {
    if n < 2 {
        return Vec::new();
    }
    // With an odd number a seat stays empty, and the member paired with it sits the round out.
    let seats = n.next_multiple_of(2);
    let turn = |seat: usize, round: usize| if seat == 0 { 0 } else { 1 + (seat - 1 + round) % (seats - 1) };
    (0..seats - 1)
        .map(|round| {
            let pairs = (0..seats / 2).map(|i| (turn(i, round), turn(seats - 1 - i, round)));
            pairs.map(|(a, b)| (a.min(b), a.max(b))).filter(|&(_, b)| b < n).collect()
        })
        .collect()
}

/// The partner of `rank` where all of `n` ranks exchange messages at once: half of the ranks away, so that
/// pairs span nodes where there are several. With an odd `n` the last rank has none.
pub fn across(rank: usize, n: usize) -> Option<usize> {
    let half = n / 2;
    match rank {
        r if r < half => Some(r + half),
        r if r < 2 * half => Some(r - half),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_pair_meets_once_and_no_member_twice_in_a_round() {
        for n in 0..=9 {
            let rounds = rounds(n);
            let all: Vec<_> = rounds.iter().flatten().copied().collect();
            assert_eq!(all.len(), n * n.saturating_sub(1) / 2, "{n}");
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{n}");
            assert!(all.iter().all(|&(a, b)| a < b && b < n), "{n}: {all:?}");
            for round in rounds {
                let ends: BTreeSet<usize> = round.iter().flat_map(|&(a, b)| [a, b]).collect();
                assert_eq!(ends.len(), 2 * round.len(), "{n}: {round:?}");
            }
        }
    }

    #[test]
    fn pairs_across_are_mutual_and_one_of_an_odd_number_has_no_partner() {
        for n in 1..10 {
            let alone = (0..n).filter(|&r| across(r, n).is_none()).count();
            assert_eq!(alone, n % 2, "{n}");
            assert!(
                (0..n)
                    .filter_map(|r| Some((r, across(r, n)?)))
                    .all(|(r, p)| r != p && across(p, n) == Some(r))
            );
        }
    }
}

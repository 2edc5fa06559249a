//! Who is measured with whom, and which link or node stands out. Pure.

use crate::telemetry::quantile::median;

/// Every pair of `0..n` once, in rounds in which nobody is in two pairs: the circle method of tournaments.
pub fn rounds(n: usize) -> Vec<Vec<(usize, usize)>> {
    if n < 2 {
        return Vec::new();
    }
    // With an odd number one sits out: whoever meets the place that is nobody's.
    let seats = n.next_multiple_of(2);
    let turn = |seat: usize, round: usize| if seat == 0 { 0 } else { 1 + (seat - 1 + round) % (seats - 1) };
    (0..seats - 1)
        .map(|round| {
            let pairs = (0..seats / 2).map(|i| (turn(i, round), turn(seats - 1 - i, round)));
            pairs.map(|(a, b)| (a.min(b), a.max(b))).filter(|&(_, b)| b < n).collect()
        })
        .collect()
}

/// The rank that `rank` of `n` is paired with where all pairs talk at once: half of the ranks away, so that pairs reach over nodes
/// where there are several. Of an odd number the last has nobody.
pub fn across(rank: usize, n: usize) -> Option<usize> {
    let half = n / 2;
    match rank {
        r if r < half => Some(r + half),
        r if r < 2 * half => Some(r - half),
        _ => None,
    }
}

/// What was measured between two ends.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Link {
    /// Lower end.
    pub a: usize,
    /// Higher end.
    pub b: usize,
    /// Half the shortest round trip of 8 bytes, microseconds.
    pub latency_us: f64,
    /// Bytes over half the shortest round trip of the largest size, GB/s.
    pub gb_per_s: f64,
}

/// What stands out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlier {
    /// Every link of this end, three or more, is slow, and others are not: the node itself.
    Node(usize),
    /// One link.
    Link(usize, usize),
}

/// Links that are slower than the median link: a bandwidth below `1 - slow` of the median's, or a latency above the median's
/// over `1 - slow`. Two links have no median to speak of.
pub fn outliers(links: &[Link], slow: f64) -> Vec<Outlier> {
    if links.len() < 3 {
        return Vec::new();
    }
    let middle = |f: fn(&Link) -> f64| median(&links.iter().map(f).collect::<Vec<_>>());
    let (latency, bandwidth) = (middle(|l| l.latency_us), middle(|l| l.gb_per_s));
    let is_slow = |l: &&Link| l.latency_us * (1.0 - slow) > latency || l.gb_per_s < bandwidth * (1.0 - slow);
    let n = links.iter().map(|l| l.b + 1).max().unwrap_or(0);
    let of = |end: usize| links.iter().filter(move |l| l.a == end || l.b == end);
    let nodes: Vec<usize> = (0..n).filter(|&end| of(end).count() > 2 && of(end).all(|l| is_slow(&l))).collect();
    let of_bad_node = |l: &&Link| nodes.contains(&l.a) || nodes.contains(&l.b);
    let single = links.iter().filter(is_slow).filter(|l| !of_bad_node(l)).map(|l| Outlier::Link(l.a, l.b));
    nodes.iter().map(|&end| Outlier::Node(end)).chain(single).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_pair_meets_once_and_nobody_twice_in_a_round() {
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
    fn pairs_across_are_mutual_and_one_of_an_odd_number_has_nobody() {
        for n in 1..10 {
            let alone = (0..n).filter(|&r| across(r, n).is_none()).count();
            assert_eq!(alone, n % 2, "{n}");
            assert!((0..n).filter_map(|r| Some((r, across(r, n)?))).all(|(r, p)| r != p && across(p, n) == Some(r)));
        }
    }

    fn mesh(n: usize, latency: impl Fn(usize, usize) -> f64, gb: impl Fn(usize, usize) -> f64) -> Vec<Link> {
        let pairs = rounds(n).into_iter().flatten();
        pairs.map(|(a, b)| Link { a, b, latency_us: latency(a, b), gb_per_s: gb(a, b) }).collect()
    }

    #[test]
    fn a_slow_link_is_a_link_and_a_node_with_slow_links_only_is_a_node() {
        let bad = |a: usize, b: usize| if (a, b) == (1, 3) { 50.0 } else { 10.0 };
        assert_eq!(outliers(&mesh(5, bad, |_, _| 1.0), 0.5), [Outlier::Link(1, 3)]);
        let of_2 = |a: usize, b: usize| if a == 2 || b == 2 { 0.2 } else { 1.0 };
        assert_eq!(outliers(&mesh(6, |_, _| 10.0, of_2), 0.5), [Outlier::Node(2)]);
        assert!(outliers(&mesh(6, |_, _| 10.0, |_, _| 1.0), 0.5).is_empty());
        assert!(outliers(&mesh(2, bad, |_, _| 1.0), 0.5).is_empty(), "nothing to compare with");
        // Twice the median is the limit of 0.5, not beyond it.
        let twice = |a: usize, b: usize| if (a, b) == (0, 1) { 20.0 } else { 10.0 };
        assert!(outliers(&mesh(4, twice, |_, _| 1.0), 0.5).is_empty());
    }
}

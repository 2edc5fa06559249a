//! Ranks, nodes and links that are slower than their peers. Pure.

use crate::accept::facts::LinkTimes;
use crate::quantile::median;

/// Indices of the `rates` that are lower than the median by more than the fraction `slow`.
pub fn slow_members(rates: &[f64], slow: f64) -> Vec<usize> {
    let middle = median(rates);
    (0..rates.len()).filter(|&r| rates[r] < middle * (1.0 - slow)).collect()
}

/// A node or link that is slower than its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlier {
    /// Every link of this end, three or more, is slow: the node itself.
    Node(usize),
    /// One link.
    Link(usize, usize),
}

/// Links that are slower than the median link: a bandwidth below `1 - slow` of the median, or a latency above
/// the median over `1 - slow`. Of fewer than three links none is: their median means nothing.
pub fn outliers(links: &[LinkTimes], slow: f64) -> Vec<Outlier> {
    if links.len() < 3 {
        return Vec::new();
    }
    let middle = |f: fn(&LinkTimes) -> f64| median(&links.iter().map(f).collect::<Vec<_>>());
    let (latency, bandwidth) = (middle(|l| l.latency_us), middle(|l| l.gb_per_s));
    let is_slow =
        |l: &&LinkTimes| l.latency_us * (1.0 - slow) > latency || l.gb_per_s < bandwidth * (1.0 - slow);
    let n = links.iter().map(|l| l.b + 1).max().unwrap_or(0);
    let of = |end: usize| links.iter().filter(move |l| l.a == end || l.b == end);
    let nodes: Vec<usize> =
        (0..n).filter(|&end| of(end).count() > 2 && of(end).all(|l| is_slow(&l))).collect();
    let of_bad_node = |l: &&LinkTimes| nodes.contains(&l.a) || nodes.contains(&l.b);
    let single = links.iter().filter(is_slow).filter(|l| !of_bad_node(l)).map(|l| Outlier::Link(l.a, l.b));
    nodes.iter().map(|&end| Outlier::Node(end)).chain(single).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::rounds;

    #[test]
    fn slow_members_are_those_well_below_the_median() {
        assert_eq!(slow_members(&[10.0, 10.0, 8.0], 0.15), [2]);
        assert_eq!(slow_members(&[10.0, 8.0], 0.15), [1]);
        assert!(slow_members(&[10.0, 9.0, 8.6, 11.0], 0.15).is_empty());
        assert!(slow_members(&[1.0], 0.1).is_empty());
    }

    fn mesh(
        n: usize,
        latency: impl Fn(usize, usize) -> f64,
        gb: impl Fn(usize, usize) -> f64,
    ) -> Vec<LinkTimes> {
        let pairs = rounds(n).into_iter().flatten();
        pairs.map(|(a, b)| LinkTimes { a, b, latency_us: latency(a, b), gb_per_s: gb(a, b) }).collect()
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

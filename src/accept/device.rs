//! Every rank's device by itself: matrix products and memory bandwidth, with every element of a result checked.

use super::lab::Lab;
use super::metric::{Metric, show};
use super::product::Product;
use crate::backend::{Backend, Comm, Ops};
use crate::dtype::DType;
use crate::error::Result;
use crate::telemetry::quantile::median;
use serde::Serialize;
use std::collections::BTreeMap;

/// Values of the operands repeat after so many rows: few different results to know, each of small whole numbers and so
/// exact in f32 in any order of addition.
const ROW_PERIODS: (usize, usize) = (5, 7);

/// Element (i, k) of the first matrix: -2 to 2.
fn a(i: usize, k: usize) -> f32 {
    ((i % ROW_PERIODS.0 * 3 + k * 7) % 5) as f32 - 2.0
}

/// Element (j, k) of the second, whose rows are the columns of the product: -1 to 1.
fn b(j: usize, k: usize) -> f32 {
    ((j % ROW_PERIODS.1 + k * 5) % 3) as f32 - 1.0
}

/// The rates of one rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Rank.
    pub rank: usize,
    /// f32 products, GFLOP/s.
    pub gemm_f32_gflops: f64,
    /// The same of bf16 operands.
    pub gemm_bf16_gflops: f64,
    /// Memory bandwidth, GB/s.
    pub memory_gb_per_s: f64,
}

/// `n x n` times `n x n` with operands of `dtype`, sums and result in f32: GFLOP/s and wrong elements.
fn gemm<B: Backend>(lab: &Lab<'_, B>, dtype: DType) -> Result<(f64, u64)> {
    let n = lab.deck.device.gemm_n;
    let mut product = Product::new(lab, n, dtype)?;
    lab.fill(&mut product.inp, |e| a(e / n, e % n))?;
    lab.fill(&mut product.weight, |e| b(e / n, e % n))?;
    let time = lab.mean_time(lab.deck.device.seconds, || product.multiply(lab))?;
    let dot = |i: usize, j: usize| (0..n).map(|k| a(i, k) * b(j, k)).sum::<f32>();
    let expected: Vec<f32> =
        (0..ROW_PERIODS.0 * ROW_PERIODS.1).map(|e| dot(e / ROW_PERIODS.1, e % ROW_PERIODS.1)).collect();
    let got = lab.read(product.out.view())?;
    let wanted = |e: usize| expected[e / n % ROW_PERIODS.0 * ROW_PERIODS.1 + e % n % ROW_PERIODS.1];
    let n_wrong = got.iter().enumerate().filter(|&(e, x)| *x != wanted(e)).count() as u64;
    Ok((2.0 * (n as f64).powi(3) / time.as_secs_f64() / 1e9, n_wrong))
}

/// The sum of two arrays into a third: GB/s of all three, as STREAM counts them, and wrong elements.
fn memory<B: Backend>(lab: &Lab<'_, B>) -> Result<(f64, u64)> {
    let numel = (lab.deck.device.memory_bytes / 4) as usize;
    let mut bufs = lab.buffers(&[(numel, DType::F32); 3])?;
    let [out, x, y] = bufs.as_mut_slice() else { unreachable!("three were asked for") };
    lab.fill(x, |i| (i % 1000) as f32)?;
    lab.fill(y, |i| (i % 777) as f32)?;
    let time = lab.mean_time(lab.deck.device.seconds, || lab.device.add(out.view_mut(), x.view(), y.view()))?;
    let wrong = |(i, got): &(usize, &f32)| **got != (i % 1000 + i % 777) as f32;
    let n_wrong = lab.read(out.view())?.iter().enumerate().filter(wrong).count() as u64;
    Ok((12.0 * numel as f64 / time.as_secs_f64() / 1e9, n_wrong))
}

/// Ranks whose `rates` are lower than the median rank's by more than the fraction `slow`.
pub fn slow_ranks(rates: &[f64], slow: f64) -> Vec<usize> {
    let middle = median(rates);
    (0..rates.len()).filter(|&r| rates[r] < middle * (1.0 - slow)).collect()
}

/// The section. Collective.
pub fn run<B: Backend>(lab: &Lab<'_, B>) -> Result<(Vec<Metric>, Vec<Point>)> {
    let mut metrics = Vec::new();
    // Of each rank, in what it is slow: a rank that is slow in everything is one slow rank.
    let mut slow: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut add = |what: &str, unit: &str, rate: f64, n_wrong: u64| -> Result<Vec<f64>> {
        let all = lab.comm.control().all_gather_f64(&[rate, n_wrong as f64])?;
        let rates: Vec<f64> = all.iter().step_by(2).copied().collect();
        let wrong: Vec<f64> = all.iter().skip(1).step_by(2).copied().collect();
        let bad: Vec<String> = (0..lab.n())
            .filter(|&r| wrong[r] > 0.0)
            .map(|r| format!("{}: {} elements", lab.name(r), wrong[r]))
            .collect();
        let name = |suffix: &str| format!("device.{what}.{suffix}");
        metrics.push(Metric::exactly(&name("n_wrong"), wrong.iter().sum(), 0.0, "", bad.join(", ")));
        let slowest = (0..lab.n()).min_by(|&x, &y| rates[x].total_cmp(&rates[y])).expect("a job has ranks");
        metrics.push(lab.judged(&name("slowest"), rates[slowest], unit, None).because(lab.name(slowest)));
        metrics.push(Metric::info(&name("median"), median(&rates), unit));
        for r in slow_ranks(&rates, lab.deck.device.slow_rank) {
            let words = format!("{what} {} {unit}, the median rank {}", show(rates[r]), show(median(&rates)));
            slow.entry(r).or_default().push(words);
        }
        Ok(rates)
    };
    let (rate, n_wrong) = gemm(lab, DType::F32)?;
    let gemm_f32 = add("gemm_f32", "GFLOP/s", rate, n_wrong)?;
    let (rate, n_wrong) = gemm(lab, DType::Bf16)?;
    let gemm_bf16 = add("gemm_bf16", "GFLOP/s", rate, n_wrong)?;
    let (rate, n_wrong) = memory(lab)?;
    let memory = add("memory", "GB/s", rate, n_wrong)?;
    let slow: Vec<String> =
        slow.into_iter().map(|(r, words)| format!("{}: {}", lab.name(r), words.join(", "))).collect();
    metrics.push(match lab.n() {
        1 => Metric::skipped("device.slow_ranks", "one rank has no peers"),
        _ => Metric::none_of("device.slow_ranks", &slow),
    });
    let point = |rank: usize| Point {
        rank,
        gemm_f32_gflops: gemm_f32[rank],
        gemm_bf16_gflops: gemm_bf16[rank],
        memory_gb_per_s: memory[rank],
    };
    Ok((metrics, (0..lab.n()).map(point).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_ranks_are_those_well_below_the_median() {
        assert_eq!(slow_ranks(&[10.0, 10.0, 8.0], 0.15), [2]);
        assert_eq!(slow_ranks(&[10.0, 8.0], 0.15), [1]);
        assert!(slow_ranks(&[10.0, 9.0, 8.6, 11.0], 0.15).is_empty());
        assert!(slow_ranks(&[1.0], 0.1).is_empty());
    }

    #[test]
    fn operands_repeat_with_their_periods_and_tell_rows_apart() {
        let row = |i: usize| (0..30).map(|k| a(i, k)).collect::<Vec<_>>();
        assert_eq!(row(1), row(1 + ROW_PERIODS.0));
        assert_ne!(row(1), row(2));
        assert!((0..100).all(|k| b(k, k).abs() <= 1.0 && a(k, k).abs() <= 2.0));
    }
}

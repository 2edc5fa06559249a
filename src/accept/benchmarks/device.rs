//! Every rank's device by itself: matrix products and memory bandwidth, with every element of a result
//! checked.

use super::square_product::SquareProduct;
use crate::accept::acceptance::Acceptance;
use crate::accept::facts::DeviceRates;
use crate::accept::verdict::metric::{Metric, show};
use crate::accept::verdict::metric_limits::{self, LimitedMetric};
use crate::accept::verdict::outliers::slow_members;
use crate::backend::{Backend, Comm, Ops};
use crate::dtype::DType;
use crate::error::Result;
use crate::quantile::median;
use std::collections::BTreeMap;

/// Rows after which the values of the two operands repeat, so that there are few different results. All
/// values are small whole numbers, so results are exact in f32 in any order of addition.
const ROW_PERIODS: (usize, usize) = (5, 7);

/// Element (i, k) of the first matrix: -2 to 2.
fn a(i: usize, k: usize) -> f32 {
    ((i % ROW_PERIODS.0 * 3 + k * 7) % 5) as f32 - 2.0
}

/// Element (j, k) of the second, whose rows are the columns of the product: -1 to 1.
fn b(j: usize, k: usize) -> f32 {
    ((j % ROW_PERIODS.1 + k * 5) % 3) as f32 - 1.0
}

/// The product of two `n x n` matrices of `dtype`, with sums and result in f32: GFLOP/s and number of wrong
/// elements.
fn gemm<B: Backend>(acceptance: &Acceptance<'_, B>, dtype: DType) -> Result<(f64, u64)> {
    let cluster = &acceptance.cluster;
    let n = acceptance.deck.device.gemm_n;
    let mut product = SquareProduct::new(cluster, n, dtype)?;
    cluster.fill(&mut product.inp, |e| a(e / n, e % n))?;
    cluster.fill(&mut product.weight, |e| b(e / n, e % n))?;
    let time = cluster.mean_time(acceptance.deck.device.seconds, || product.multiply(cluster.device))?;
    let dot = |i: usize, j: usize| (0..n).map(|k| a(i, k) * b(j, k)).sum::<f32>();
    let expected: Vec<f32> =
        (0..ROW_PERIODS.0 * ROW_PERIODS.1).map(|e| dot(e / ROW_PERIODS.1, e % ROW_PERIODS.1)).collect();
    let got = cluster.read(product.out.view())?;
    let wanted = |e: usize| expected[e / n % ROW_PERIODS.0 * ROW_PERIODS.1 + e % n % ROW_PERIODS.1];
    let n_wrong = got.iter().enumerate().filter(|&(e, x)| *x != wanted(e)).count() as u64;
    Ok((2.0 * (n as f64).powi(3) / time.as_secs_f64() / 1e9, n_wrong))
}

/// The sum of two arrays into a third: GB/s of all three, as STREAM counts, and number of wrong elements.
fn memory<B: Backend>(acceptance: &Acceptance<'_, B>) -> Result<(f64, u64)> {
    let cluster = &acceptance.cluster;
    let numel = (acceptance.deck.device.memory_bytes / 4) as usize;
    let mut bufs = cluster.buffers(&[(numel, DType::F32); 3])?;
    let [out, x, y] = bufs.as_mut_slice() else { unreachable!("three were asked for") };
    cluster.fill(x, |i| (i % 1000) as f32)?;
    cluster.fill(y, |i| (i % 777) as f32)?;
    let time = cluster.mean_time(acceptance.deck.device.seconds, || {
        cluster.device.add(out.view_mut(), x.view(), y.view())
    })?;
    let wrong = |(i, got): &(usize, &f32)| **got != (i % 1000 + i % 777) as f32;
    let n_wrong = cluster.read(out.view())?.iter().enumerate().filter(wrong).count() as u64;
    Ok((12.0 * numel as f64 / time.as_secs_f64() / 1e9, n_wrong))
}

/// The section. Collective.
pub fn run<B: Backend>(acceptance: &Acceptance<'_, B>) -> Result<(Vec<Metric>, Vec<DeviceRates>)> {
    let cluster = &acceptance.cluster;
    let mut metrics = Vec::new();
    // By rank, every rate in which it is slow: a rank that is slow in everything is one slow rank.
    let mut slow: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut add = |limited: LimitedMetric, unit: &str, rate: f64, n_wrong: u64| -> Result<Vec<f64>> {
        let all = cluster.comm.control().all_gather_f64(&[rate, n_wrong as f64])?;
        let rates: Vec<f64> = all.iter().step_by(2).copied().collect();
        let wrong: Vec<f64> = all.iter().skip(1).step_by(2).copied().collect();
        let bad: Vec<String> = (0..cluster.n())
            .filter(|&r| wrong[r] > 0.0)
            .map(|r| format!("{}: {} elements", cluster.name(r), wrong[r]))
            .collect();
        let stem = limited.name.trim_end_matches(".slowest");
        let what = stem.trim_start_matches("device.");
        let n_wrong = format!("{stem}.n_wrong");
        metrics.push(Metric::exactly(&n_wrong, wrong.iter().sum(), 0.0, "", bad.join(", ")));
        let slowest =
            (0..cluster.n()).min_by(|&x, &y| rates[x].total_cmp(&rates[y])).expect("a job has ranks");
        metrics.push(acceptance.judged(limited, rates[slowest], unit, None).because(cluster.name(slowest)));
        metrics.push(Metric::info(&format!("{stem}.median"), median(&rates), unit));
        for r in slow_members(&rates, acceptance.deck.device.slow_rank) {
            let words = format!("{what} {} {unit}, the median rank {}", show(rates[r]), show(median(&rates)));
            slow.entry(r).or_default().push(words);
        }
        Ok(rates)
    };
    let (rate, n_wrong) = gemm(acceptance, DType::F32)?;
    let gemm_f32 = add(metric_limits::GEMM_F32, "GFLOP/s", rate, n_wrong)?;
    let (rate, n_wrong) = gemm(acceptance, DType::Bf16)?;
    let gemm_bf16 = add(metric_limits::GEMM_BF16, "GFLOP/s", rate, n_wrong)?;
    let (rate, n_wrong) = memory(acceptance)?;
    let memory = add(metric_limits::MEMORY, "GB/s", rate, n_wrong)?;
    let slow: Vec<String> =
        slow.into_iter().map(|(r, words)| format!("{}: {}", cluster.name(r), words.join(", "))).collect();
    metrics.push(match cluster.n() {
        1 => Metric::skipped("device.slow_ranks", "one rank has no peers"),
        _ => Metric::none_of("device.slow_ranks", &slow),
    });
    let rates = |rank: usize| DeviceRates {
        rank,
        gemm_f32_gflops: gemm_f32[rank],
        gemm_bf16_gflops: gemm_bf16[rank],
        memory_gb_per_s: memory[rank],
    };
    Ok((metrics, (0..cluster.n()).map(rates).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_repeat_with_their_periods_and_tell_rows_apart() {
        let row = |i: usize| (0..30).map(|k| a(i, k)).collect::<Vec<_>>();
        assert_eq!(row(1), row(1 + ROW_PERIODS.0));
        assert_ne!(row(1), row(2));
        assert!((0..100).all(|k| b(k, k).abs() <= 1.0 && a(k, k).abs() <= 2.0));
    }
}

//! The file system of checkpoints: every rank writes a file and syncs it to disk, another rank reads it back;
//! and the rate of metadata operations.

use crate::accept::acceptance::Acceptance;
use crate::accept::facts::StorageRates;
use crate::accept::verdict::metric::{Metric, show};
use crate::accept::verdict::metric_limits;
use crate::backend::agree::decided_by_rank_0;
use crate::backend::{Backend, Comm};
use crate::error::{Error, Result};
use crate::files;
use crate::optimizers::{BYTES_PER_STATE, OptimizerKind};
use crate::random::spread;
use crate::test_hooks::write_point;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes of one write, of the size of a checkpoint's slices.
const CHUNK_BYTES: usize = 8 << 20;

/// The bytes of a rank's file from `offset` on: 64-bit words that differ between ranks and between offsets.
fn fill(rank: usize, offset: u64, chunk: &mut [u8]) {
    for (i, word) in chunk.chunks_mut(8).enumerate() {
        let value = spread(offset / 8 + i as u64 + ((rank as u64) << 40));
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

fn path(dir: &Path, rank: usize) -> PathBuf {
    dir.join(format!("rank_{rank:05}.bin"))
}

/// Writes this rank's file and syncs it to disk.
fn write(dir: &Path, rank: usize, bytes: u64) -> std::io::Result<()> {
    let mut file = files::create_new(&path(dir, rank))?;
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes as usize)];
    let mut offset = 0;
    while offset < bytes {
        let n = chunk.len().min((bytes - offset) as usize);
        fill(rank, offset, &mut chunk[..n]);
        write_point("storage.write", rank, 0)?;
        file.write_all(&chunk[..n])?;
        offset += n as u64;
    }
    file.sync_all()
}

/// Reads the file of `rank` and counts the bytes that are not as written, or missing.
fn read(dir: &Path, rank: usize, bytes: u64) -> std::io::Result<u64> {
    let mut file = files::open(&path(dir, rank))?;
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes as usize)];
    let mut wanted = chunk.clone();
    let (mut offset, mut n_wrong) = (0, 0);
    while offset < bytes {
        let n = file.read(&mut chunk)?.min((bytes - offset) as usize);
        if n == 0 {
            return Ok(n_wrong + bytes - offset);
        }
        // A short read may end within a word.
        let skew = (offset % 8) as usize;
        wanted.resize(n + skew, 0);
        fill(rank, offset - skew as u64, &mut wanted);
        n_wrong += chunk[..n].iter().zip(&wanted[skew..]).filter(|(a, b)| a != b).count() as u64;
        offset += n as u64;
    }
    Ok(n_wrong)
}

/// Makes, renames and removes `n_files` small files.
fn small_files(dir: &Path, rank: usize, n_files: usize) -> std::io::Result<()> {
    let name = |kind: &str, i: usize| dir.join(format!("{kind}_{rank:05}_{i}"));
    for i in 0..n_files {
        files::create_new(&name("new", i))?.write_all(b"zero3")?;
        std::fs::rename(name("new", i), name("old", i))?;
    }
    (0..n_files).try_for_each(|i| std::fs::remove_file(name("old", i)))
}

/// Every rank's seconds, or every failure in words; and the output of this rank's work.
type TimedWork<T> = (std::result::Result<Vec<f64>, Vec<String>>, Option<T>);

/// Does `work` on every rank at once. Collective.
fn timed<B: Backend, T>(
    acceptance: &Acceptance<'_, B>,
    what: &str,
    dir: &Path,
    work: impl FnOnce() -> std::io::Result<T>,
) -> Result<TimedWork<T>> {
    let cluster = &acceptance.cluster;
    cluster.comm.control().barrier()?;
    let started = Instant::now();
    let done = cluster.local_work.run(work);
    let seconds = started.elapsed().as_secs_f64();
    let own = done.as_ref().err().map_or(String::new(), |e| {
        format!("{}: {what} in {}: {e}", cluster.name(cluster.rank()), dir.display())
    });
    let reported = cluster.comm.control().all_gather_bytes(own.as_bytes())?;
    let reported: Vec<String> =
        reported.iter().map(|s| String::from_utf8_lossy(s).into_owned()).filter(|s| !s.is_empty()).collect();
    let seconds = cluster.gather(seconds)?;
    Ok((if reported.is_empty() { Ok(seconds) } else { Err(reported) }, done.ok()))
}

/// The section. Collective.
pub fn run<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    dir: &Path,
) -> Result<(Vec<Metric>, Vec<StorageRates>)> {
    let cluster = &acceptance.cluster;
    let dir = &dir.join("storage");
    decided_by_rank_0(cluster.comm, || {
        std::fs::create_dir_all(dir).map_err(|e| Error::io("mkdir", dir, &e))
    })?;
    let found = measure(acceptance, dir);
    cluster.comm.control().barrier()?;
    if cluster.rank() == 0 {
        std::fs::remove_dir_all(dir).ok();
    }
    found
}

fn measure<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    dir: &Path,
) -> Result<(Vec<Metric>, Vec<StorageRates>)> {
    let cluster = &acceptance.cluster;
    let (rank, n) = (cluster.rank(), cluster.n());
    let bytes = match acceptance.deck.storage.bytes_per_rank {
        0 => share_of_reference(acceptance)?,
        bytes => bytes,
    };
    let failed = |names: &[&str], why: &[String]| {
        let mut metrics =
            vec![Metric::exactly("storage.n_failed_ranks", why.len() as f64, 0.0, "", why.join("; "))];
        metrics.extend(names.iter().map(|name| Metric::skipped(name, "the file system failed before")));
        (metrics, Vec::new())
    };
    let rates = |seconds: Vec<f64>| seconds.iter().map(|s| bytes as f64 / s / 1e9).collect::<Vec<f64>>();
    let names = ["storage.write", "storage.read", "storage.metadata"];
    let (written, _) = timed(acceptance, "write", dir, || write(dir, rank, bytes))?;
    let written = match written {
        Ok(seconds) => rates(seconds),
        Err(why) => return Ok(failed(&names, &why)),
    };
    let source = (rank + 1) % n;
    let (read_back, wrong) = timed(acceptance, "read", dir, || read(dir, source, bytes))?;
    let read_back = match read_back {
        Ok(seconds) => rates(seconds),
        Err(why) => return Ok(failed(&names[1..], &why)),
    };
    let wrong = cluster.gather(wrong.unwrap_or(0) as f64)?;
    let blame: Vec<String> = (0..n)
        .filter(|&r| wrong[r] > 0.0)
        .map(|r| {
            format!(
                "{} read {} wrong bytes that {} wrote",
                cluster.name(r),
                wrong[r],
                cluster.name((r + 1) % n)
            )
        })
        .collect();
    let n_files = acceptance.deck.storage.n_files;
    let (small, _) =
        timed(acceptance, "make, rename and remove files", dir, || small_files(dir, rank, n_files))?;
    let small = match small {
        Ok(seconds) => seconds,
        Err(why) => return Ok(failed(&names[2..], &why)),
    };
    let longest_s = small.iter().fold(0.0, |a: f64, &b| a.max(b));
    // The job is done when its slowest rank is.
    let slowest =
        |rates: &[f64]| (0..n).min_by(|&a, &b| rates[a].total_cmp(&rates[b])).expect("a job has ranks");
    let total = |rates: &[f64]| n as f64 * rates[slowest(rates)];
    let words = |rates: &[f64]| {
        let r = slowest(rates);
        format!("slowest: {}, {} GB/s", cluster.name(r), show(rates[r]))
    };
    let whose = if n == 1 { "its own file" } else { "another rank's file" };
    let metrics = vec![
        Metric::exactly("storage.n_failed_ranks", 0.0, 0.0, "", ""),
        acceptance
            .judged(metric_limits::WRITE, total(&written), "GB/s", None)
            .because(format!("{bytes} bytes of each rank, with fsync; {}", words(&written))),
        acceptance.judged(metric_limits::READ, total(&read_back), "GB/s", None).because(format!(
            "each rank {whose}, written just before: part may come from the node's page cache; {}",
            words(&read_back)
        )),
        Metric::exactly("storage.n_wrong", wrong.iter().sum(), 0.0, "bytes", blame.join("; ")),
        acceptance.judged(metric_limits::METADATA, (3 * n * n_files) as f64 / longest_s, "1/s", None),
    ];
    let rates =
        written.into_iter().zip(read_back).enumerate().map(|(rank, (write_gb_per_s, read_gb_per_s))| {
            StorageRates { rank, write_gb_per_s, read_gb_per_s }
        });
    Ok((metrics, rates.collect()))
}

/// Bytes that a rank saves of the reference model, with the default optimizer.
fn share_of_reference<B: Backend>(acceptance: &Acceptance<'_, B>) -> Result<u64> {
    let kind = OptimizerKind::default();
    let bytes_per_param = BYTES_PER_STATE * (1 + kind.states(&kind.default_hyper(0.0)).len());
    Ok((bytes_per_param * acceptance.reference_spec()?.numel()).div_ceil(acceptance.cluster.n()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_reads_back_and_damage_is_counted_to_the_byte() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = CHUNK_BYTES as u64 + 13;
        write(dir.path(), 3, bytes).unwrap();
        assert_eq!(std::fs::metadata(path(dir.path(), 3)).unwrap().len(), bytes);
        assert_eq!(read(dir.path(), 3, bytes).unwrap(), 0);
        let mut content = std::fs::read(path(dir.path(), 3)).unwrap();
        content[11] ^= 1;
        content.truncate(content.len() - 2);
        std::fs::write(path(dir.path(), 3), content).unwrap();
        assert_eq!(read(dir.path(), 3, bytes).unwrap(), 3);
        small_files(dir.path(), 0, 5).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

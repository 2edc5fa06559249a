//! The file system that checkpoints live on: every rank writes a file and forces it to disk, another rank reads it back, and
//! the rate of small operations.

use super::lab::Lab;
use super::metric::{Metric, show};
use crate::backend::agree::decided_by_rank_0;
use crate::backend::{Backend, Comm};
use crate::error::{Error, Result};
use crate::test_hooks::write_point;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One rank's share of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Rank.
    pub rank: usize,
    /// Its write, open to the end of fsync, GB/s.
    pub write_gb_per_s: f64,
    /// Its read of the next rank's file, GB/s.
    pub read_gb_per_s: f64,
}

/// What goes to the file at once, as a checkpoint's slices do.
const CHUNK_BYTES: usize = 8 << 20;

/// The bytes of a rank's file: 64-bit words that no two ranks and no two places share.
fn fill(rank: usize, offset: u64, chunk: &mut [u8]) {
    for (i, word) in chunk.chunks_mut(8).enumerate() {
        let mixed = (offset / 8 + i as u64 + ((rank as u64) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mixed.to_le_bytes()[..word.len()]);
    }
}

fn path(dir: &Path, rank: usize) -> PathBuf {
    dir.join(format!("rank_{rank:05}.bin"))
}

/// Writes this rank's file through to the disk.
fn write(dir: &Path, rank: usize, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path(dir, rank))?;
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

/// Reads the file of `rank` and counts the bytes that are not as written; missing ones too.
fn read(dir: &Path, rank: usize, bytes: u64) -> std::io::Result<u64> {
    let mut file = File::open(path(dir, rank))?;
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

/// Makes, renames and removes small files.
fn small_files(dir: &Path, rank: usize, n_files: usize) -> std::io::Result<()> {
    let name = |kind: &str, i: usize| dir.join(format!("{kind}_{rank:05}_{i}"));
    for i in 0..n_files {
        File::create(name("new", i))?.write_all(b"zero3")?;
        std::fs::rename(name("new", i), name("old", i))?;
    }
    (0..n_files).try_for_each(|i| std::fs::remove_file(name("old", i)))
}

/// Every rank's seconds, or what failed where, in words; and what this rank's work came to.
type Timed<T> = (std::result::Result<Vec<f64>, Vec<String>>, Option<T>);

/// Does the work on every rank at once. Collective.
fn timed<B: Backend, T>(
    lab: &Lab<'_, B>,
    what: &str,
    dir: &Path,
    work: impl FnOnce() -> std::io::Result<T>,
) -> Result<Timed<T>> {
    lab.comm.control().barrier()?;
    let started = Instant::now();
    let done = lab.own_work.run(work);
    let seconds = started.elapsed().as_secs_f64();
    let own = done
        .as_ref()
        .err()
        .map_or(String::new(), |e| format!("{}: {what} in {}: {e}", lab.name(lab.rank()), dir.display()));
    let said = lab.comm.control().all_gather_bytes(own.as_bytes())?;
    let said: Vec<String> =
        said.iter().map(|s| String::from_utf8_lossy(s).into_owned()).filter(|s| !s.is_empty()).collect();
    let seconds = lab.gather(seconds)?;
    Ok((if said.is_empty() { Ok(seconds) } else { Err(said) }, done.ok()))
}

/// The section. Collective.
pub fn run<B: Backend>(lab: &Lab<'_, B>, dir: &Path) -> Result<(Vec<Metric>, Vec<Point>)> {
    let dir = &dir.join("storage");
    decided_by_rank_0(lab.comm, || std::fs::create_dir_all(dir).map_err(|e| Error::io("mkdir", dir, &e)))?;
    let found = measure(lab, dir);
    lab.comm.control().barrier()?;
    if lab.rank() == 0 {
        std::fs::remove_dir_all(dir).ok();
    }
    found
}

fn measure<B: Backend>(lab: &Lab<'_, B>, dir: &Path) -> Result<(Vec<Metric>, Vec<Point>)> {
    let (rank, n) = (lab.rank(), lab.n());
    let bytes = match lab.deck.storage.bytes_per_rank {
        0 => share_of_reference(lab)?,
        bytes => bytes,
    };
    let failed = |names: &[&str], why: &[String]| {
        let mut metrics = vec![Metric::exactly("storage.n_failed_ranks", why.len() as f64, 0.0, "", why.join("; "))];
        metrics.extend(names.iter().map(|name| Metric::skipped(name, "the file system failed before")));
        (metrics, Vec::new())
    };
    let rates = |seconds: Vec<f64>| seconds.iter().map(|s| bytes as f64 / s / 1e9).collect::<Vec<f64>>();
    let names = ["storage.write", "storage.read", "storage.metadata"];
    let (written, _) = timed(lab, "write", dir, || write(dir, rank, bytes))?;
    let written = match written {
        Ok(seconds) => rates(seconds),
        Err(why) => return Ok(failed(&names, &why)),
    };
    let from = (rank + 1) % n;
    let (read_back, wrong) = timed(lab, "read", dir, || read(dir, from, bytes))?;
    let read_back = match read_back {
        Ok(seconds) => rates(seconds),
        Err(why) => return Ok(failed(&names[1..], &why)),
    };
    let wrong = lab.gather(wrong.unwrap_or(0) as f64)?;
    let blame: Vec<String> = (0..n)
        .filter(|&r| wrong[r] > 0.0)
        .map(|r| format!("{} read {} wrong bytes that {} wrote", lab.name(r), wrong[r], lab.name((r + 1) % n)))
        .collect();
    let n_files = lab.deck.storage.n_files;
    let (small, _) = timed(lab, "make, rename and remove files", dir, || small_files(dir, rank, n_files))?;
    let small = match small {
        Ok(seconds) => seconds,
        Err(why) => return Ok(failed(&names[2..], &why)),
    };
    let longest_s = small.iter().fold(0.0, |a: f64, &b| a.max(b));
    // All are through when the slowest is.
    let slowest = |rates: &[f64]| (0..n).min_by(|&a, &b| rates[a].total_cmp(&rates[b])).expect("a job has ranks");
    let total = |rates: &[f64]| n as f64 * rates[slowest(rates)];
    let words = |rates: &[f64]| {
        let r = slowest(rates);
        format!("slowest: {}, {} GB/s", lab.name(r), show(rates[r]))
    };
    let whose = if n == 1 { "its own file" } else { "another rank's file" };
    let metrics = vec![
        Metric::exactly("storage.n_failed_ranks", 0.0, 0.0, "", ""),
        lab.judged("storage.write", total(&written), "GB/s", None)
            .because(format!("{bytes} bytes of each rank, with fsync; {}", words(&written))),
        lab.judged("storage.read", total(&read_back), "GB/s", None).because(format!(
            "each rank {whose}, written just before: part may come from the node's page cache; {}",
            words(&read_back)
        )),
        Metric::exactly("storage.n_wrong", wrong.iter().sum(), 0.0, "bytes", blame.join("; ")),
        lab.judged("storage.metadata", (3 * n * n_files) as f64 / longest_s, "1/s", None),
    ];
    let points = written.into_iter().zip(read_back).enumerate();
    let points = points.map(|(rank, (write_gb_per_s, read_gb_per_s))| Point { rank, write_gb_per_s, read_gb_per_s });
    Ok((metrics, points.collect()))
}

/// Bytes of a rank's weights and moments of the reference model.
fn share_of_reference<B: Backend>(lab: &Lab<'_, B>) -> Result<u64> {
    Ok((12 * lab.reference_spec()?.numel()).div_ceil(lab.n()) as u64)
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

//! Memory of the other ranks of this node, read without their help: one copy, no message, no staging.
//!
//! Linux lets a process read another one of the same user (`process_vm_readv`, what MPI libraries call
//! cross-memory attach). Whether it does here is found out by trying, once, and all ranks go by the same
//! answer. The reader has to know from the owner that the bytes are there, and the owner that they have been
//! read: [`super::collectives`] sends these messages.
//!
//! Must not know: buffers, which bytes are read and why.

use crate::backend::mpi::Group;
use crate::clock;
use crate::error::{Error, Result};
use crate::test_hooks;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// How long a failed read waits before it is reported.
const OTHERS_FIRST: Duration = Duration::from_secs(5);

/// The processes of a group that this rank can read.
#[derive(Debug, Clone)]
pub struct Peers {
    /// Process of each rank of this node, by rank; none for those of other nodes.
    processes: Vec<Option<libc::pid_t>>,
    /// Ranks of this node but this one, ascending.
    others: Vec<usize>,
}

impl Peers {
    /// Tries every rank of this node; none at all where one rank cannot read another, or where no two ranks
    /// share a node. Collective.
    pub fn find(group: &Group) -> Result<Option<Self>> {
        // What only this process holds at that address: a process of the same number on another node does
        // not.
        let token = Box::new(unlikely_word());
        let (rank, size) = (group.rank(), group.size());
        let own = [node_key(rank), u64::from(std::process::id()), &raw const *token as u64, *token];
        let mut all = vec![0u64; own.len() * size];
        group.all_gather_into(&own, &mut all)?;
        let process = |word: &[u64]| (word[0] == own[0]).then_some(word[1] as libc::pid_t);
        let processes: Vec<_> = all.chunks_exact(own.len()).map(process).collect();
        let others = (0..size).filter(|&other| other != rank && processes[other].is_some()).collect();
        let peers = Peers { processes, others };
        let readable = all.chunks_exact(own.len()).enumerate().filter(|&(rank, _)| peers.reads(rank)).all(
            |(rank, word)| {
                let mut seen = [0u8; 8];
                peers.try_read(rank, word[2], &mut seen).is_ok() && u64::from_ne_bytes(seen) == word[3]
            },
        );
        // Every rank has read before the token goes.
        let mut n_ranks = [i64::from(readable), i64::from(!peers.others.is_empty())];
        group.all_reduce_sum(&mut n_ranks)?;
        drop(token);
        let [n_readable, n_with_peers] = n_ranks;
        Ok((n_readable == size as i64 && n_with_peers > 0).then_some(peers))
    }

    /// Whether the rank's memory can be read.
    pub fn reads(&self, rank: usize) -> bool {
        self.processes[rank].is_some()
    }

    /// The ranks whose memory can be read, but this one, ascending.
    pub fn others(&self) -> &[usize] {
        &self.others
    }

    /// Whether that of every rank can.
    pub fn are_all(&self) -> bool {
        self.processes.iter().all(Option::is_some)
    }

    /// Reads the bytes at `addr` of a rank. Overwrites `out`.
    ///
    /// # Errors
    /// The rank has ended, or its memory is unmapped. The job is about to end then, and the error
    /// waits long enough for the rank that failed to say why.
    pub fn read(&self, rank: usize, addr: u64, out: &mut [u8]) -> Result<()> {
        let n = out.len();
        self.try_read(rank, addr, out).map_err(|why| {
            clock::rest(OTHERS_FIRST);
            Error::Comm(format!(
                "cannot read {n} bytes of rank {rank}: {why}; it may have ended with the job, else set \
                 run.single_copy=false"
            ))
        })
    }

    fn try_read(&self, rank: usize, addr: u64, out: &mut [u8]) -> std::io::Result<()> {
        let process = self.processes[rank].expect("a rank of this node");
        let mut done = 0;
        while done < out.len() {
            let rest = &mut out[done..];
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let remote = libc::iovec { iov_base: (addr as usize + done) as *mut _, iov_len: rest.len() };
            // SAFETY: `local` is an exclusive slice; the kernel checks the other process's addresses.
            let n = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
            if n <= 0 {
                return Err(std::io::Error::last_os_error());
            }
            done += n as usize;
        }
        Ok(())
    }
}

/// Tells nodes apart, and groups of processes on one that do not see each other's numbers.
fn node_key(rank: usize) -> u64 {
    let block = test_hooks::ranks_per_node().map_or(0, |n| rank / n);
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    xxh3_64(&[&boot, namespace.as_os_str().as_encoded_bytes(), &block.to_ne_bytes()].concat())
}

/// A word that no other process holds, but by an accident of one in 2^64.
fn unlikely_word() -> u64 {
    xxh3_64(format!("{} {:?}", std::process::id(), clock::since_1970(Instant::now())).as_bytes())
}

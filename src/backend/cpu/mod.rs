//! The CPU backend: kernels on the calling thread, or on a pool of its own.
//!
//! [Note: tasks] Every kernel cuts its work into tasks by shape alone; a pool decides who runs a task, never what
//! a task is. So the bits of a result do not depend on the number of threads (rule 8).
//!
//! Must not know: ranks (but for the communicator), what a transformer is.

mod bf16_dot;
mod collectives;
mod element;
pub(crate) mod host;
mod library;
mod math;
mod matmul;
mod mpi_comm;
mod ops;
mod peers;
mod product;
mod requests;
mod simd;
mod worker;

pub use host::arena as host_arena;
pub use mpi_comm::MpiComm;
pub use simd::instruction_set;

use crate::backend::{Backend, Device, Queue, View, ViewMut};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::exact_sum::ExactSum;
use crate::telemetry::allocations::{self, Owner};
use element::Element;
use gemm::Parallelism;
use half::bf16;
use rayon::prelude::*;
use std::borrow::Cow;
use std::time::Instant;

/// CPU kernels, collectives over MPI.
pub struct Cpu;

impl Backend for Cpu {
    const NAME: &'static str = "cpu";
    type Device = CpuDevice;
    type Comm = MpiComm;

    fn group(_comm: &MpiComm, members: MpiComm) -> Result<MpiComm> {
        Ok(members)
    }
}

/// The processor cores of one rank.
pub struct CpuDevice {
    threads: usize,
    /// None for one thread: then nothing leaves the calling thread.
    pool: Option<rayon::ThreadPool>,
}

/// The event of a device whose calls return when their work is done.
#[derive(Debug, Clone, Copy)]
pub struct Done;

impl CpuDevice {
    /// A device that computes on `n` threads.
    ///
    /// # Errors
    /// `n` is 0, or the threads cannot be started.
    pub fn new(n: usize) -> Result<Self> {
        if n == 0 {
            return Err(Error::Input("0 compute threads: at least 1 is needed".into()));
        }
        let pool = (n > 1)
            .then(|| {
                // The calling thread is one of them, so that it computes instead of handing over and waiting, for every operation.
                let build = |with_this: bool| {
                    let builder = rayon::ThreadPoolBuilder::new().num_threads(n);
                    let builder = if with_this { builder.use_current_thread() } else { builder };
                    let builder = builder.thread_name(|i| format!("compute-{i}"));
                    builder.start_handler(|_| allocations::count_this_thread(Owner::Tasks)).build()
                };
                // It can be in one pool alone: a second device of this thread has threads of its own.
                build(true).or_else(|_| build(false))
            })
            .transpose()
            .map_err(|err| crate::threads::not_built(&format!("{n} compute threads"), &err))?;
        Ok(CpuDevice { threads: n, pool })
    }

    /// Runs `task(0)` to `task(n_tasks - 1)`, in any order and at once where there is a pool.
    fn for_each_task(&self, n_tasks: usize, task: impl Fn(usize) + Sync + Send) {
        match &self.pool {
            Some(pool) if n_tasks > 1 => install(pool, || (0..n_tasks).into_par_iter().for_each(task)),
            _ => (0..n_tasks).for_each(task),
        }
    }

    /// Runs `product` with the parallelism of this device.
    fn with_parallelism(&self, product: impl FnOnce(Parallelism) + Send) {
        match &self.pool {
            Some(pool) => install(pool, || product(Parallelism::Rayon(self.threads))),
            None => product(Parallelism::None),
        }
    }
}

/// Runs `work` on the threads of `pool`.
fn install<T: Send>(pool: &rayon::ThreadPool, work: impl FnOnce() -> T + Send) -> T {
    allocations::on_behalf_of(Owner::Tasks, || pool.install(work))
}

impl Device for CpuDevice {
    type Event = Done;
    type Mark = Instant;
    type Sum = f64;

    fn record(&self, _queue: Queue) -> Done {
        Done
    }

    fn wait(&self, _queue: Queue, _event: &Done) {}

    fn mark(&self, _queue: Queue) -> Instant {
        Instant::now()
    }

    fn when(&self, mark: &Instant) -> Result<Instant> {
        Ok(*mark)
    }

    fn reserve(&self, _n_sums: usize, _numel: usize) -> Result<()> {
        Ok(())
    }

    fn release(&self) {}

    fn reserved_bytes(_n_sums: usize, _numel: usize) -> u64 {
        0
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn upload(&self, dst: ViewMut<'_>, src: &[u8]) -> Result<()> {
        let dst = host::bytes_mut(dst);
        assert_eq!(dst.len(), src.len(), "bytes of an upload");
        dst.copy_from_slice(src);
        Ok(())
    }

    fn read<'a>(&self, src: View<'a>) -> Result<Cow<'a, [f32]>> {
        Ok(match src.dtype() {
            DType::Bf16 => Cow::Owned(host::elements::<bf16>(src).iter().map(|x| x.load()).collect()),
            _ => Cow::Borrowed(host::f32s(src)),
        })
    }

    fn start_sum(&self, inp: View<'_>) -> f64 {
        ops::reduce::sum(host::f32s(inp))
    }

    fn finish_sum(&self, sum: f64) -> Result<f64> {
        Ok(sum)
    }

    fn sum_of_squares<'a>(&self, inps: impl IntoIterator<Item = View<'a>>) -> Result<ExactSum> {
        let mut sum = ExactSum::default();
        for inp in inps {
            sum.merge(&match inp.dtype() {
                DType::Bf16 => ops::reduce::sum_of_squares(self, host::elements::<bf16>(inp)),
                _ => ops::reduce::sum_of_squares(self, host::f32s(inp)),
            });
        }
        Ok(sum)
    }

    fn fill_bytes(&self, dst: ViewMut<'_>, byte: u8) {
        host::bytes_mut(dst).fill(byte);
    }

    fn describe(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("{}, {} thread{plural}, {}", cpu_model(), self.threads, instruction_set())
    }
}

/// The processor's name where the system tells it, its architecture otherwise.
fn cpu_model() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::host::test_memory::{buf_f32, read};
    use super::*;

    #[test]
    fn upload_read_and_fill_move_bytes() {
        let device = CpuDevice::new(1).unwrap();
        let mut buf = buf_f32(&[0.0; 3]);
        device.upload(buf.view_mut().range(1..3), bytemuck::cast_slice(&[5.0f32, 6.0])).unwrap();
        assert_eq!(read(&buf), [0.0, 5.0, 6.0]);
        assert_eq!(*device.read(buf.view().range(2..3)).unwrap(), [6.0]);
        device.fill_bytes(buf.view_mut(), 0xff);
        assert!(read(&buf).iter().all(|x| x.is_nan()));
    }

    #[test]
    fn zero_threads_are_refused_and_the_description_names_the_instruction_set() {
        assert!(CpuDevice::new(0).is_err());
        let text = CpuDevice::new(2).unwrap().describe();
        assert!(text.contains("2 threads") && text.ends_with(instruction_set()), "{text}");
    }
}

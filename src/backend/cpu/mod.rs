//! The CPU backend: kernels on the calling thread or on a pool (`device.rs`, `ops/`), collectives on helper
//! threads over MPI (`comm.rs`).
//!
//! Must not know: ranks (but for the communicator), what a transformer is.

mod bf16_dot;
mod collectives;
mod comm;
mod device;
mod element;
pub(crate) mod host;
mod library;
mod math;
mod matmul;
mod ops;
mod peers;
mod product;
mod requests;
mod simd;
mod worker;

pub use comm::CpuComm;
pub use device::CpuDevice;
pub use host::arena as host_arena;
pub use simd::instruction_set;

use crate::backend::{Backend, Device, Queue, View, ViewMut, mpi};
use crate::config::BackendKind;
use crate::dtype::DType;
use crate::error::Result;
use crate::exact_sum::ExactSum;
use device::Done;
use element::Element;
use half::bf16;
use std::borrow::Cow;
use std::time::Instant;

/// CPU kernels, collectives over MPI.
pub struct Cpu;

impl Backend for Cpu {
    const KIND: BackendKind = BackendKind::Cpu;
    type Device = CpuDevice;
    type Comm = CpuComm;

    fn group(comm: &CpuComm, members: mpi::Group) -> Result<CpuComm> {
        CpuComm::connect(members, comm.single_copy())
    }
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

    fn describe(&self) -> String {
        let plural = if self.threads() == 1 { "" } else { "s" };
        format!("{}, {} thread{plural}, {}", cpu_model(), self.threads(), instruction_set())
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
    use crate::backend::Ops;

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

//! The CUDA backend: kernels compiled for the device found at run time, products by cuBLASLt, collectives by
//! NCCL.
//!
//! Nothing of CUDA is linked: the driver and the libraries are loaded when a run asks for this backend (crate
//! `cudarc`), so one program serves nodes with and without GPUs. `probe.rs` checks that everything is
//! installed and says in one sentence what is missing; after it, a call that fails is a fault of the device
//! or of this program.
//!
//! The host runs ahead: it puts a whole step on four streams and waits where it needs the losses and the
//! gradient norm. Order between streams is by events alone. So a call on this device returns before its work
//! is done, and an error may show later than its cause.
//!
//! Must not know: what a transformer is, files.

mod arena;
mod cache;
mod comm;
mod communicators;
mod device;
mod driver;
mod grid;
mod image;
mod kernel_launch;
pub mod kernels;
mod library;
mod module;
mod nccl;
mod ops;
pub mod probe;
mod streams;

pub use cache::Cache;
pub use comm::NcclComm;
pub use device::{CudaDevice, Props};
pub use image::{Architecture, Image};

use crate::backend::{Backend, mpi};
use crate::config::BackendKind;
use crate::error::Result;

/// CUDA kernels, collectives over NCCL.
pub struct Cuda;

impl Backend for Cuda {
    const KIND: BackendKind = BackendKind::Cuda;
    type Device = CudaDevice;
    type Comm = NcclComm;

    fn group(comm: &NcclComm, members: mpi::Group) -> Result<NcclComm> {
        comm.group(members)
    }

    fn library_versions(has_peers: bool) -> Vec<(&'static str, String)> {
        probe::versions(has_peers)
    }
}

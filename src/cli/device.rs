//! `zero3 device check`: the GPU kernels of this node, one process, no MPI.

use super::args::DeviceCheckArgs;
use super::said::Said;
use crate::backend::Device;
use crate::backend::cuda::{Architecture, Cache, CudaDevice, Image, probe};
use crate::device_check::{self, SUM_NUMEL, Scale};
use crate::error::{Error, Exit, Result};
use crate::files;

/// Opens the device and checks it; exit code 1 if a kernel is out of tolerance.
pub fn check(args: &DeviceCheckArgs) -> Result<Said> {
    let bus_ids = probe::devices(false).map_err(Error::Comm)?;
    if args.device >= bus_ids.len() {
        let n = bus_ids.len();
        return Err(Error::Comm(format!(
            "device {} does not exist: the driver reports {n} on this \
                                        node",
            args.device
        )));
    }
    let image = Image::obtain(Architecture::of_device(args.device)?, &Cache::new("auto"))?;
    let device = CudaDevice::open(args.device, false, &image)?;
    let scale = if args.small { Scale::SMALL } else { Scale::GPT2 };
    let arena = device.allocate(device_check::arena_bytes(scale))?;
    device.reserve(1, SUM_NUMEL)?;
    let report = device_check::run(&device, &arena, &scale)?;
    let json = || serde_json::to_string_pretty(&report).expect("plain data");
    if let Some(path) = &args.save {
        files::write_output(path, (json() + "\n").as_bytes())?;
    }
    let text = if args.json { json() } else { report.to_string() };
    Ok(Said { text, exit: if report.passed() { Exit::Finished } else { Exit::Differs } })
}

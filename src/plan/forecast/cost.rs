//! Times of kernels and collectives on given hardware: the formulas of docs/planning.md.
//!
//! A kernel takes `launch + flops / rate + bytes / rate`, measured or from a data sheet's peaks and the
//! assumed fraction of them; a collective takes a latency, another one for each step or peer, and its bytes
//! over the slower of the links within and between nodes. Must not know: schedules.

use super::simulate::Sharing;
use super::traffic::{self, Layout, Traffic};
use crate::config::hardware::{Hardware, Rate};
use crate::config::{DeviceKind, GatherRoute};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::work::{Kernel, Work};

/// Hardware with ranks placed on it.
#[derive(Debug, Clone)]
pub struct Machine<'a> {
    /// Its figures.
    pub hardware: &'a Hardware,
    /// Placement of the ranks.
    pub layout: Layout,
    /// By kernel, f32 and bf16.
    rates: Vec<[Rate; 2]>,
    /// Whether f32 products round their operands to TF32.
    tf32: bool,
}

impl<'a> Machine<'a> {
    /// `layout` on this hardware.
    ///
    /// # Errors
    /// Its nodes do not have enough devices.
    pub fn new(hardware: &'a Hardware, layout: Layout, tf32: bool) -> Result<Self> {
        let devices = hardware.node.devices;
        if hardware.hardware.kind == DeviceKind::Gpu && layout.per_node > devices {
            return Err(Error::Input(format!(
                "{} ranks per node, but a node of {} has {devices} devices (node.devices): --ranks-per-node \
                 must be at most {devices}",
                layout.per_node, hardware.hardware.name
            )));
        }
        let mut machine = Machine { hardware, layout, rates: Vec::new(), tf32 };
        machine.rates =
            Kernel::all().map(|kernel| [DType::F32, DType::Bf16].map(|d| machine.rate(kernel, d))).collect();
        Ok(machine)
    }

    /// Upper limit of the FLOP/s of products of `dtype`.
    pub fn peak_flops(&self, dtype: DType) -> f64 {
        let device = &self.hardware.device;
        let tflops = match dtype {
            DType::Bf16 => device.bf16_tflops,
            _ if self.tf32 && device.tf32_tflops > 0.0 => device.tf32_tflops,
            _ => device.f32_tflops,
        };
        tflops * 1e12
    }

    /// Measured, or from the data sheet.
    fn rate(&self, kernel: Kernel, dtype: DType) -> Rate {
        if let Some(measured) = self.hardware.measured(kernel, dtype) {
            return measured;
        }
        let assumed = &self.hardware.assumed;
        let share = match kernel {
            Kernel::LinearForward | Kernel::LinearBackwardInput | Kernel::LinearBackwardWeight => {
                assumed.products
            }
            Kernel::AttentionForward | Kernel::AttentionBackward => assumed.attention,
            _ => 1.0, // no FLOPs are counted
        };
        Rate {
            launch_s: assumed.launch_us / 1e6,
            s_per_flop: 1.0 / (share * self.peak_flops(dtype)),
            s_per_byte: 1e-9 / (assumed.memory * self.hardware.device.memory_gb_per_s),
        }
    }

    /// One call of a kernel.
    pub fn kernel_s(&self, work: &Work) -> f64 {
        let at = Kernel::all().position(|kernel| kernel == work.kernel).expect("every kernel is listed");
        let rate = self.rates[at][usize::from(work.dtype == DType::Bf16)];
        rate.launch_s + work.flops * rate.s_per_flop + work.bytes * rate.s_per_byte
    }

    /// A copy, addition or cast that moves this many bytes.
    pub fn stream_s(&self, bytes: u64) -> f64 {
        if bytes == 0 {
            return 0.0;
        }
        self.kernel_s(&Work::pass(Kernel::Stream, DType::F32, bytes as usize))
    }

    /// One call of an all-gather of slices of `slice_bytes`.
    pub fn all_gather_s(&self, slice_bytes: u64) -> f64 {
        // Every rank's own slice is copied, too.
        let own_s = self.stream_s(2 * slice_bytes);
        if self.layout.n == 1 {
            return own_s;
        }
        let route = self.hardware.network.gather;
        let traffic = traffic::all_gather(self.layout, route, slice_bytes);
        let rings = route == GatherRoute::Ring;
        own_s + self.latency_s() + self.steps_s(rings) + self.links_s(&traffic, self.hardware.node.gb_per_s)
    }

    /// A reduction of `contributors` gradients to slices of `slice_numel` elements, communicated as `dtype`,
    /// in `n_calls` exchanges or rings.
    pub fn reduce_s(
        &self,
        slice_numel: u64,
        dtype: DType,
        contributors: usize,
        exchange: bool,
        n_calls: usize,
    ) -> f64 {
        let slice_bytes = slice_numel * dtype.bytes() as u64;
        // The local contribution is read and added to f32 sums.
        let own_s = self.stream_s(slice_bytes + 2 * 4 * slice_numel);
        if self.layout.n == 1 {
            return own_s;
        }
        let node = &self.hardware.node;
        let traffic = traffic::reduce_scatter(self.layout, exchange, contributors, slice_bytes);
        let is_measured = node.reduce_gb_per_s > 0.0;
        let gb_per_s = if is_measured { node.reduce_gb_per_s } else { node.gb_per_s };
        let arrivals = if exchange { traffic.received() } else { slice_bytes };
        let added = arrivals / dtype.bytes() as u64;
        let sum_s = if is_measured { 0.0 } else { self.stream_s(arrivals + 2 * 4 * added) };
        // Ranks of one node that read each other's memory need no staging: buckets cost them nothing.
        let n_calls = match self.hardware.hardware.kind {
            DeviceKind::Cpu if self.layout.outside() == 0 => 1,
            _ => n_calls,
        };
        let call_s = self.latency_s() + self.steps_s(!exchange);
        own_s + sum_s + n_calls as f64 * call_s + self.links_s(&traffic, gb_per_s)
    }

    /// A collective of a few words.
    pub fn words_s(&self) -> f64 {
        if self.layout.n == 1 { 0.0 } else { self.latency_s() + self.steps_s(false) }
    }

    fn latency_s(&self) -> f64 {
        let far = if self.layout.outside() > 0 { self.hardware.network.latency_us } else { 0.0 };
        self.hardware.node.latency_us.max(far) / 1e6
    }

    /// Latency that grows with the rank count: a step of a ring from each rank to the next, or a message from
    /// each peer.
    fn steps_s(&self, rings: bool) -> f64 {
        let Layout { n, per_node } = self.layout;
        let (near, far) = match rings {
            true => (n - self.layout.n_nodes(), self.layout.n_nodes() - 1),
            false => (per_node - 1, n - per_node),
        };
        (near as f64 * self.hardware.node.message_us + far as f64 * self.hardware.network.message_us) / 1e6
    }

    /// The slower of the links within and between nodes. A node's ranks share its adapters.
    fn links_s(&self, traffic: &Traffic, node_gb_per_s: f64) -> f64 {
        let reached = self.hardware.assumed.links * 1e9;
        let within = traffic.from_node.max(traffic.to_node) as f64 / (node_gb_per_s * reached);
        let adapters = self.layout.per_node.min(self.hardware.node.devices) as f64;
        let out = traffic.leaving_node as f64 / adapters;
        let between = out.max(traffic.from_outside as f64) / (self.hardware.network.gb_per_s * reached);
        within.max(between)
    }

    /// What runs at the same time while `active` ranks have a micro-batch.
    pub fn sharing(&self, active: usize) -> Sharing {
        let hardware = self.hardware;
        match hardware.hardware.kind {
            DeviceKind::Gpu => Sharing { capacity: 1.0, contention: hardware.assumed.contention },
            DeviceKind::Cpu => {
                let here = active.clamp(1, self.layout.per_node) as f64;
                let capacity = (hardware.node.devices as f64 / here).min(1.0);
                Sharing { capacity, contention: hardware.assumed.contention }
            }
        }
    }
}

//! One NCCL communicator: made without blocking, polled, aborted where something fails.
//!
//! Every call is checked, and its error has the call's name, NCCL's code and NCCL's own words. A communicator
//! is not blocking, so the end of a group may return "in progress": then it is polled until it is done, and a
//! peer that died in between is an error and not a hang.
//!
//! Must not know: what is sent, what decides the order of calls (all ranks make the same ones in the same
//! order).

use super::streams::Streams;
use crate::backend::{Queue, View, ViewMut};
use crate::clock;
use crate::dtype::DType;
use crate::error::{Error, Result};
use cudarc::nccl::{result as nccl, sys};
use std::cell::Cell;
use std::ffi::CStr;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of an id, as they travel.
pub const ID_BYTES: usize = 128;

/// Rest between two polls.
const REST: Duration = Duration::from_micros(50);

/// `magic` of `NCCL_CONFIG_INITIALIZER` in nccl.h.
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// `NCCL_VERSION(2, 28, 0)`: the nccl.h whose layout `sys::ncclConfig_t` has, whatever library is loaded.
const CONFIG_VERSION: u32 = 22_800;
/// `NCCL_CONFIG_UNDEF_INT` of nccl.h: leaves a setting to NCCL.
const UNDEFINED: i32 = i32::MIN;

/// A communicator on one queue of a device.
pub struct Communicator {
    raw: sys::ncclComm_t,
    queue: Queue,
    streams: Rc<Streams>,
    aborted: Cell<bool>,
}

/// A new id; one rank makes it and tells the others.
pub fn new_id() -> Result<[u8; ID_BYTES]> {
    let id: sys::ncclUniqueId =
        nccl::get_uniqueid().map_err(|e| failed("ncclGetUniqueId", e.0, ptr::null_mut()))?;
    Ok(id.internal.map(|c| c as u8))
}

/// A failed call in words.
fn failed(call: &str, code: sys::ncclResult_t, comm: sys::ncclComm_t) -> Error {
    let words = |text: *const std::ffi::c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: NCCL gives strings that end with a zero byte and live on.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    // SAFETY: the calls take a code, and a communicator that lives or null.
    let (what, last) = unsafe { (words(sys::ncclGetErrorString(code)), words(sys::ncclGetLastError(comm))) };
    let last = if last.is_empty() { String::new() } else { format!(" ({})", last.trim()) };
    Error::Comm(format!("{call} failed with code {}: {what}{last}; NCCL_DEBUG=INFO says more", code as u32))
}

fn check(call: &str, code: sys::ncclResult_t, comm: sys::ncclComm_t) -> Result<()> {
    match code {
        sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress => Ok(()),
        code => Err(failed(call, code, comm)),
    }
}

fn datatype(dtype: DType) -> sys::ncclDataType_t {
    match dtype {
        DType::F32 => sys::ncclDataType_t::ncclFloat32,
        DType::Bf16 => sys::ncclDataType_t::ncclBfloat16,
        DType::U32 => sys::ncclDataType_t::ncclUint32,
    }
}

impl Communicator {
    /// Begins to connect to the other ranks; [`Communicator::poll`] says when that is done.
    pub fn begin(
        id: &[u8; ID_BYTES],
        rank: usize,
        size: usize,
        queue: Queue,
        streams: Rc<Streams>,
    ) -> Result<Self> {
        let mut config = sys::ncclConfig_t {
            size: size_of::<sys::ncclConfig_t>(),
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cgaClusterSize: UNDEFINED,
            minCTAs: UNDEFINED,
            maxCTAs: UNDEFINED,
            netName: ptr::null(),
            splitShare: UNDEFINED,
            trafficClass: UNDEFINED,
            commName: ptr::null(),
            collnetEnable: UNDEFINED,
            CTAPolicy: UNDEFINED,
            shrinkShare: UNDEFINED,
            nvlsCTAs: UNDEFINED,
            nChannelsPerNetPeer: UNDEFINED,
            nvlinkCentricSched: UNDEFINED,
        };
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as std::ffi::c_char) };
        let mut raw = ptr::null_mut();
        // SAFETY: the configuration outlives the call, which copies it; the device's context is current on
        // this thread.
        let code =
            unsafe { sys::ncclCommInitRankConfig(&mut raw, size as i32, id, rank as i32, &mut config) };
        check("ncclCommInitRankConfig", code, raw)?;
        Ok(Communicator { raw, queue, streams, aborted: Cell::new(false) })
    }

    /// Whether what was called last is done.
    ///
    /// # Errors
    /// It failed, or a peer did.
    pub fn poll(&self) -> Result<bool> {
        if self.aborted.get() {
            return Err(Error::Comm("NCCL's communicator was aborted".into()));
        }
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: a communicator that lives.
        let code = unsafe { sys::ncclCommGetAsyncError(self.raw, &mut state) };
        check("ncclCommGetAsyncError", code, self.raw)?;
        match state {
            sys::ncclResult_t::ncclSuccess => Ok(true),
            sys::ncclResult_t::ncclInProgress => Ok(false),
            state => Err(failed("a collective of NCCL", state, self.raw)),
        }
    }

    /// Polls until it is done, for `timeout` at most; false if it is not.
    pub fn poll_for(&self, timeout: Duration) -> Result<bool> {
        let look = || Ok(self.poll()?.then_some(()));
        Ok(clock::wait_for(timeout, REST, look)?.is_some())
    }

    /// Ends it on this rank, whatever it does: its kernels stop, no rank is waited for.
    pub fn abort(&self) {
        if !self.aborted.replace(true) {
            // SAFETY: a communicator that lives, and is not used after this.
            unsafe { sys::ncclCommAbort(self.raw) };
        }
    }

    /// Ends it together with all ranks, after everything on its queue.
    pub fn close(&self, timeout: Duration) -> Result<()> {
        // SAFETY: a communicator that lives.
        check("ncclCommFinalize", unsafe { sys::ncclCommFinalize(self.raw) }, self.raw)?;
        if !self.poll_for(timeout)? {
            return Err(Error::Comm(format!("ncclCommFinalize is not done after {} s", timeout.as_secs())));
        }
        self.aborted.set(true);
        // SAFETY: finalized; not used after this.
        check("ncclCommDestroy", unsafe { sys::ncclCommDestroy(self.raw) }, ptr::null_mut())
    }

    /// Tells NCCL of memory that collectives will read and write, so that they need no copies of their own.
    pub fn register(self: &Rc<Self>, addr: u64, bytes: usize) -> Result<Registration> {
        let mut handle = ptr::null_mut();
        // SAFETY: memory of the device that lives as long as the registration, which its owner sees to.
        let code = unsafe { sys::ncclCommRegister(self.raw, addr as usize as *mut _, bytes, &mut handle) };
        check("ncclCommRegister", code, self.raw)?;
        Ok(Registration { comm: Rc::clone(self), handle })
    }

    /// Puts several calls on the queue as one.
    pub fn group(&self, calls: impl FnOnce(&GroupCalls<'_>) -> Result<()>) -> Result<()> {
        // SAFETY: takes nothing; ended below.
        check("ncclGroupStart", unsafe { sys::ncclGroupStart() }, self.raw)?;
        let called = calls(&GroupCalls { comm: self });
        // SAFETY: started above.
        let ended = check("ncclGroupEnd", unsafe { sys::ncclGroupEnd() }, self.raw);
        called.and(ended)?;
        // The first group of its kind connects to peers; until then nothing else may be called.
        self.poll_for(Duration::MAX)?;
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Memory that NCCL knows of, until this is dropped.
pub struct Registration {
    comm: Rc<Communicator>,
    handle: *mut std::ffi::c_void,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.comm.aborted.get() {
            // SAFETY: registered with this communicator, which lives. An error at the end is of no
            // consequence.
            unsafe { sys::ncclCommDeregister(self.comm.raw, self.handle) };
        }
    }
}

/// Calls inside a group.
///
/// All of them are asynchronous: views must stay valid and untouched until the communicator's queue has
/// passed the group; the pending collective owns their buffers until then.
pub struct GroupCalls<'a> {
    comm: &'a Communicator,
}

impl GroupCalls<'_> {
    fn stream(&self) -> sys::cudaStream_t {
        self.comm.streams.raw(self.comm.queue).cast()
    }

    fn check(&self, call: &str, code: sys::ncclResult_t) -> Result<()> {
        check(call, code, self.comm.raw)
    }

    /// `out` becomes the concatenation of every rank's `shard`.
    pub fn all_gather(&self, shard: View<'_>, out: ViewMut<'_>) -> Result<()> {
        assert_eq!((out.numel() % shard.numel(), out.dtype()), (0, shard.dtype()), "one slice per rank");
        let (send, recv) = (shard.addr() as usize as *const _, out.addr() as usize as *mut _);
        let (comm, dtype) = (self.comm.raw, datatype(shard.dtype()));
        // SAFETY: device memory of checked sizes that the pending collective owns.
        self.check("ncclAllGather", unsafe {
            sys::ncclAllGather(send, recv, shard.numel(), dtype, comm, self.stream())
        })
    }

    /// `out` becomes this rank's slice of the sum of every rank's `full`.
    pub fn reduce_scatter(&self, full: View<'_>, out: ViewMut<'_>) -> Result<()> {
        assert_eq!((full.numel() % out.numel(), out.dtype()), (0, full.dtype()), "one slice per rank");
        let (send, recv) = (full.addr() as usize as *const _, out.addr() as usize as *mut _);
        let (comm, dtype, sum) = (self.comm.raw, datatype(full.dtype()), sys::ncclRedOp_t::ncclSum);
        // SAFETY: as above.
        self.check("ncclReduceScatter", unsafe {
            sys::ncclReduceScatter(send, recv, out.numel(), dtype, sum, comm, self.stream())
        })
    }

    /// `out` becomes the sum of every rank's `inp`.
    pub fn all_reduce(&self, inp: View<'_>, out: ViewMut<'_>) -> Result<()> {
        assert_eq!(
            (inp.numel(), inp.dtype()),
            (out.numel(), out.dtype()),
            "as many elements as every rank has"
        );
        let (send, recv) = (inp.addr() as usize as *const _, out.addr() as usize as *mut _);
        let (comm, dtype, sum) = (self.comm.raw, datatype(inp.dtype()), sys::ncclRedOp_t::ncclSum);
        // SAFETY: as above.
        self.check("ncclAllReduce", unsafe {
            sys::ncclAllReduce(send, recv, inp.numel(), dtype, sum, comm, self.stream())
        })
    }

    /// `buf` becomes what it is on rank `root`.
    pub fn broadcast(&self, buf: ViewMut<'_>, root: usize) -> Result<()> {
        let addr = buf.addr() as usize as *mut _;
        let (comm, dtype) = (self.comm.raw, datatype(buf.dtype()));
        // SAFETY: as above; NCCL takes one place for both.
        self.check("ncclBroadcast", unsafe {
            sys::ncclBroadcast(addr, addr, buf.numel(), dtype, root as i32, comm, self.stream())
        })
    }

    /// Sends `inp` to `peer`.
    pub fn send(&self, inp: View<'_>, peer: usize) -> Result<()> {
        let (from, comm, dtype) = (inp.addr() as usize as *const _, self.comm.raw, datatype(inp.dtype()));
        // SAFETY: as above.
        self.check("ncclSend", unsafe {
            sys::ncclSend(from, inp.numel(), dtype, peer as i32, comm, self.stream())
        })
    }

    /// Receives what `peer` sends into `out`.
    pub fn receive(&self, out: ViewMut<'_>, peer: usize) -> Result<()> {
        let (to, comm, dtype) = (out.addr() as usize as *mut _, self.comm.raw, datatype(out.dtype()));
        // SAFETY: as above.
        self.check("ncclRecv", unsafe {
            sys::ncclRecv(to, out.numel(), dtype, peer as i32, comm, self.stream())
        })
    }
}

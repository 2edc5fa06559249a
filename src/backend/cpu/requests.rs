//! Nonblocking MPI calls over views of buffers.
//!
//! rsmpi's own requests borrow their buffers; a collective in flight on a helper thread must own them. Here
//! the caller (on the thread of a queue, [`super::worker`]) keeps the `Buf`s and polls [`Requests::test_all`]
//! until it is true. Counts are `c_int` in MPI, so messages are cut at a limit that tests lower.

use crate::backend::buffer::{View, ViewMut};
use crate::backend::mpi::check;
use crate::dtype::DType;
use crate::error::Result;
use mpi::ffi;
use std::os::raw::c_int;

/// Largest number of elements in one message.
pub const MAX_MESSAGE_NUMEL: usize = i32::MAX as usize;

/// A communicator handle that a helper thread may use: the library was initialised with MPI_THREAD_MULTIPLE.
#[derive(Clone, Copy)]
pub struct RawComm(pub ffi::MPI_Comm);

// SAFETY: MPI handles are plain values, valid in every thread under MPI_THREAD_MULTIPLE, which `launch`
// checks. The communicator outlives the threads: CpuComm joins them before it frees it.
unsafe impl Send for RawComm {}

/// Calls in flight and the payload they receive.
pub struct Requests<'a> {
    comm: RawComm,
    rank: usize,
    size: usize,
    max_message_numel: usize,
    pending: &'a mut Vec<ffi::MPI_Request>,
    received_bytes: u64,
}

fn datatype(dtype: DType) -> ffi::MPI_Datatype {
    // SAFETY: these are constants of the MPI library, set before main.
    unsafe {
        match dtype {
            DType::F32 => ffi::RSMPI_FLOAT,
            DType::Bf16 => ffi::RSMPI_UINT16_T,
            DType::U32 => ffi::RSMPI_UINT32_T,
        }
    }
}

impl<'a> Requests<'a> {
    /// No call in flight yet; `pending` is room for them.
    pub fn new(
        comm: RawComm,
        rank: usize,
        size: usize,
        max_message_numel: usize,
        pending: &'a mut Vec<ffi::MPI_Request>,
    ) -> Self {
        assert!((1..=MAX_MESSAGE_NUMEL).contains(&max_message_numel));
        assert!(pending.is_empty(), "one collective's calls at a time");
        Requests { comm, rank, size, max_message_numel, pending, received_bytes: 0 }
    }

    /// Payload received from other ranks by the calls so far.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Starts `MPI_Iallgather` of every rank's `shard` into `out`, slice by slice in rank order.
    ///
    /// # Safety
    /// Both buffers stay alive and untouched until [`Requests::test_all`] returns true.
    pub unsafe fn all_gather(&mut self, shard: View<'_>, mut out: ViewMut<'_>) -> Result<()> {
        let s = shard.numel();
        assert_eq!(out.numel(), s * self.size, "the output holds one slice per rank");
        assert_eq!(out.dtype(), shard.dtype());
        let mut start = 0;
        while start < s {
            let count = (s - start).min(self.max_message_numel);
            let send = shard.range(start..start + count);
            let recv = out.reborrow().range(start..(self.size - 1) * s + start + count);
            // SAFETY: the caller's promise covers both buffers.
            unsafe { self.all_gather_part(send, recv, s)? };
            self.received_bytes += ((self.size - 1) * count * shard.dtype().bytes()) as u64;
            start += count;
        }
        Ok(())
    }

    /// One message of every rank, `stride` elements apart in `recv`.
    unsafe fn all_gather_part(&mut self, send: View<'_>, recv: ViewMut<'_>, stride: usize) -> Result<()> {
        let element = datatype(send.dtype());
        let count = send.numel() as c_int;
        let mut request = null_request();
        let (mut recv_count, mut recv_type) = (count, element);
        let strided = send.numel() != stride;
        if strided {
            // Rank r's part lands at r * extent: give the received part the extent of a whole slice.
            let extent = (stride * send.dtype().bytes()) as ffi::MPI_Aint;
            let mut part = element;
            // SAFETY: plain handle outputs; both types are freed below, MPI keeps what pending calls need.
            unsafe {
                check("MPI_Type_contiguous", ffi::MPI_Type_contiguous(count, element, &mut part))?;
                check(
                    "MPI_Type_create_resized",
                    ffi::MPI_Type_create_resized(part, 0, extent, &mut recv_type),
                )?;
                check("MPI_Type_commit", ffi::MPI_Type_commit(&mut recv_type))?;
                check("MPI_Type_free", ffi::MPI_Type_free(&mut part))?;
            }
            recv_count = 1;
        }
        // SAFETY: addresses and counts come from checked views; the caller keeps the buffers until
        // completion.
        let code = unsafe {
            ffi::MPI_Iallgather(
                send.addr() as usize as *const _,
                count,
                element,
                recv.addr() as usize as *mut _,
                recv_count,
                recv_type,
                self.comm.0,
                &mut request,
            )
        };
        check("MPI_Iallgather", code)?;
        self.pending.push(request);
        if strided {
            // SAFETY: the handle was made above.
            check("MPI_Type_free", unsafe { ffi::MPI_Type_free(&mut recv_type) })?;
        }
        Ok(())
    }

    /// Starts receiving `out` from rank `from`.
    ///
    /// # Safety
    /// As for [`Requests::all_gather`].
    pub unsafe fn receive(&mut self, mut out: ViewMut<'_>, from: usize) -> Result<()> {
        let n = out.numel();
        let element = out.dtype().bytes();
        let mut start = 0;
        while start < n {
            let count = (n - start).min(self.max_message_numel);
            let part = out.reborrow().range(start..start + count);
            let mut request = null_request();
            let (addr, kind) = (part.addr() as usize as *mut _, datatype(part.dtype()));
            // SAFETY: as in `all_gather_part`.
            let code = unsafe {
                ffi::MPI_Irecv(addr, count as c_int, kind, from as c_int, 0, self.comm.0, &mut request)
            };
            check("MPI_Irecv", code)?;
            self.pending.push(request);
            self.received_bytes += (count * element) as u64;
            start += count;
        }
        Ok(())
    }

    /// Starts sending `inp` to rank `to`.
    ///
    /// # Safety
    /// As for [`Requests::all_gather`].
    pub unsafe fn send(&mut self, inp: View<'_>, to: usize) -> Result<()> {
        assert_ne!(to, self.rank, "a rank's own slice does not travel");
        let mut start = 0;
        while start < inp.numel() {
            let count = (inp.numel() - start).min(self.max_message_numel);
            let part = inp.range(start..start + count);
            let mut request = null_request();
            let (addr, kind) = (part.addr() as usize as *const _, datatype(part.dtype()));
            // SAFETY: as in `all_gather_part`.
            let code = unsafe {
                ffi::MPI_Isend(addr, count as c_int, kind, to as c_int, 0, self.comm.0, &mut request)
            };
            check("MPI_Isend", code)?;
            self.pending.push(request);
            start += count;
        }
        Ok(())
    }

    /// Starts sending words that are not payload to rank `to`.
    ///
    /// # Safety
    /// As for [`Requests::all_gather`].
    pub unsafe fn send_words(&mut self, words: &[u64], to: usize, tag: c_int) -> Result<()> {
        let mut request = null_request();
        let (addr, n) = (words.as_ptr().cast(), words.len() as c_int);
        // SAFETY: a live slice, which the caller keeps until completion.
        let code = unsafe {
            ffi::MPI_Isend(addr, n, ffi::RSMPI_UINT64_T, to as c_int, tag, self.comm.0, &mut request)
        };
        check("MPI_Isend", code)?;
        self.pending.push(request);
        Ok(())
    }

    /// Starts receiving words that are not payload from rank `from`.
    ///
    /// # Safety
    /// As for [`Requests::all_gather`].
    pub unsafe fn receive_words(&mut self, words: &mut [u64], from: usize, tag: c_int) -> Result<()> {
        let mut request = null_request();
        let (addr, n) = (words.as_mut_ptr().cast(), words.len() as c_int);
        // SAFETY: an exclusive slice, which the caller keeps until completion.
        let code = unsafe {
            ffi::MPI_Irecv(addr, n, ffi::RSMPI_UINT64_T, from as c_int, tag, self.comm.0, &mut request)
        };
        check("MPI_Irecv", code)?;
        self.pending.push(request);
        Ok(())
    }

    /// Lets MPI progress; true once every call has completed.
    pub fn test_all(&mut self) -> Result<bool> {
        let mut done: c_int = 0;
        let n = self.pending.len() as c_int;
        // SAFETY: `pending` holds live requests; completed ones are set to null by MPI.
        let code =
            unsafe { ffi::MPI_Testall(n, self.pending.as_mut_ptr(), &mut done, ffi::RSMPI_STATUSES_IGNORE) };
        check("MPI_Testall", code)?;
        if done != 0 {
            self.pending.clear();
        }
        Ok(done != 0)
    }
}

fn null_request() -> ffi::MPI_Request {
    // SAFETY: a constant of the MPI library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

impl Drop for Requests<'_> {
    /// MPI may still write into buffers of calls in flight: the program cannot go on.
    fn drop(&mut self) {
        if !self.pending.is_empty() {
            log::error!("{} MPI calls were abandoned in flight", self.pending.len());
            std::process::abort();
        }
    }
}

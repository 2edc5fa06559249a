//! Which ranks are there: a byte from every rank to every other one, with a time limit.

use super::call::check;
use crate::clock;
use crate::error::Result;
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::{Communicator, SimpleCommunicator};
use std::os::raw::c_int;
use std::time::Duration;

/// Tag of a roll call: nothing else on the communicator of a group has one.
const ROLL_CALL_TAG: c_int = 1;

/// Rest between two looks at the messages that are missing.
const REST: Duration = Duration::from_millis(1);

/// The ranks whose byte has not arrived within `timeout`. Collective.
pub(super) fn roll_call(comm: &SimpleCommunicator, timeout: Duration) -> Result<Vec<usize>> {
    let others: Vec<c_int> = (0..comm.size()).filter(|&r| r != comm.rank()).collect();
    let comm = comm.as_raw();
    // Where a rank is late MPI may still write here when this returns.
    let bytes: &mut [[u8; 2]] = Vec::leak(vec![[0; 2]; others.len()]);
    let mut sends = Vec::with_capacity(others.len());
    let mut missing: Vec<(usize, ffi::MPI_Request)> = Vec::with_capacity(others.len());
    for (&other, [send, receive]) in others.iter().zip(bytes) {
        // SAFETY: one byte each that is never freed; plain handles.
        unsafe {
            let (mut sent, mut received) = (ffi::RSMPI_REQUEST_NULL, ffi::RSMPI_REQUEST_NULL);
            let kind = ffi::RSMPI_UINT8_T;
            let to: *mut u8 = receive;
            check(
                "MPI_Irecv",
                ffi::MPI_Irecv(to.cast(), 1, kind, other, ROLL_CALL_TAG, comm, &mut received),
            )?;
            let from: *const u8 = send;
            check("MPI_Isend", ffi::MPI_Isend(from.cast(), 1, kind, other, ROLL_CALL_TAG, comm, &mut sent))?;
            sends.push(sent);
            missing.push((other as usize, received));
        }
    }
    let mut done: c_int = 0;
    clock::wait_for(timeout, REST, || {
        let mut failed = Ok(());
        missing.retain_mut(|(_, request)| {
            // SAFETY: a request made above; a completed one is not asked again.
            let code = unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
            failed = std::mem::replace(&mut failed, Ok(())).and(check("MPI_Test", code));
            done == 0
        });
        failed.map(|()| missing.is_empty().then_some(()))
    })?;
    if missing.is_empty() {
        // SAFETY: requests made above; every rank has posted its receives.
        let code =
            unsafe { ffi::MPI_Waitall(sends.len() as c_int, sends.as_mut_ptr(), ffi::RSMPI_STATUSES_IGNORE) };
        check("MPI_Waitall", code)?;
    }
    Ok(missing.into_iter().map(|(rank, _)| rank).collect())
}

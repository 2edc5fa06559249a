// Device memory on the host, at addresses the host cannot touch.
//
// A device address lies in a range that is reserved and never mapped: a host that dereferences one is killed
// by the system, as it would be beside a real device. The bytes themselves are at a fixed distance, in a
// second range that only the double knows ("view"). No address is given out twice, so freed memory faults
// too.
#pragma once
#include "common.hpp"

namespace cuda_double::memory {

// Bytes of each device: CUDA_DOUBLE_MEMORY, 1 GiB where it is not set.
CUDA_DOUBLE_SHARED size_t capacity_bytes();
// Bytes of live allocations of a device.
CUDA_DOUBLE_SHARED size_t used_bytes(int device);

// A new allocation, filled with 0xff (NaN as f32 and bf16), aligned to 512 bytes.
CUDA_DOUBLE_SHARED CUresult allocate(int device, size_t n_bytes, CUdeviceptr* address);
// Ends the allocation that begins at `address`.
CUDA_DOUBLE_SHARED CUresult release(CUdeviceptr address);

// Host view of n_bytes at a device address; null unless they lie in one live allocation of this device.
// One past the end is a fine address of 0 bytes.
CUDA_DOUBLE_SHARED char* view(int device, CUdeviceptr address, size_t n_bytes);
// Whether the number is an address of the reserved range, allocated or not.
CUDA_DOUBLE_SHARED bool is_device_address(CUdeviceptr address);
// Whether a view pointer lies in the range of views; for reports of faults.
bool is_view(const void* pointer);

// Page-locked host memory: copies from it and to it happen when the stream gets there, not at the call.
CUresult allocate_pinned(size_t n_bytes, void** pointer);
CUresult release_pinned(void* pointer);
CUresult register_pinned(void* pointer, size_t n_bytes);
CUresult unregister_pinned(void* pointer);
bool is_pinned(const void* pointer, size_t n_bytes);

}  // namespace cuda_double::memory

// What the parts of the driver double share: devices and the context of a thread.
#pragma once
#include "common.hpp"
#include "executor.hpp"

namespace cuda_double::driver {

constexpr int MAX_DEVICES = 64;

// Devices this process sees: CUDA_DOUBLE_DEVICES (1), those of CUDA_VISIBLE_DEVICES where that is set.
CUDA_DOUBLE_SHARED int n_devices();
// Number in the machine of the device this process calls `ordinal`.
int physical_device(int ordinal);
// "0000:01:00.0" and so on, by the number in the machine.
CUDA_DOUBLE_SHARED std::string bus_id(int ordinal);
// 90 for compute capability 9.0: CUDA_DOUBLE_COMPUTE.
int compute_capability();
// Shared memory that a block may have: CUDA_DOUBLE_SHARED_MEMORY, else what devices of that capability give.
size_t max_shared_bytes();

bool is_initialized();
// Ordinal of the device whose context is current on this thread; -1 where none is.
CUDA_DOUBLE_SHARED int current_device();

}  // namespace cuda_double::driver

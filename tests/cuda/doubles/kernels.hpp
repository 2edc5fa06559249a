// The kernels of the program as the driver double sees them: src/backend/cuda/kernels compiled for the host.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace cuda_double {

struct KernelArgument {
    size_t n_bytes;
    bool is_pointer;  // holds a device address
};

struct Kernel {
    std::string name;
    std::vector<KernelArgument> arguments;
    // Runs all blocks; `arguments` point at the values, as cuLaunchKernel's do. What a GPU would answer with
    // a hang or a fault (a barrier some threads miss) comes back in words; empty where all is well.
    std::function<std::string(const unsigned grid[3], const unsigned block[3], size_t shared_bytes,
                              void** arguments)>
        run;
};

// Null where there is none of that name.
const Kernel* find_kernel(const std::string& name);

// Whether the text is one of the source files that the kernels above were built from, to the byte.
__attribute__((visibility("default"))) bool is_kernel_source(const std::string& text);

// First line of what the NVRTC double gives out instead of machine code; the architecture follows, e.g.
// "sm_90".
constexpr char IMAGE_HEADER[] = "image of the CPU double of NVRTC for ";

}  // namespace cuda_double

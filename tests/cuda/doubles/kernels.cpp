// The program's kernels, built for the host by the shim, and the text they were built from.
#include "../shim/registry.hpp"

#include "kernels.hpp"
#include <map>

namespace cuda_double {
namespace {

std::map<std::string, Kernel> wrap_registry() {
    std::map<std::string, Kernel> kernels;
    for (const shim::Kernel& entry : shim::registry()) {
        Kernel& kernel = kernels[entry.name];
        kernel.name = entry.name;
        for (const shim::Argument& argument : entry.arguments)
            kernel.arguments.push_back({argument.bytes, argument.is_pointer});
        kernel.run = [&entry](const unsigned grid[3], const unsigned block[3], size_t shared_bytes,
                              void** arguments) -> std::string {
            try {
                const dim3 blocks(grid[0], grid[1], grid[2]), threads(block[0], block[1], block[2]);
                // Other orders of threads are the business of the kernels' own tests.
                entry.invoke(blocks, threads, shared_bytes, arguments, 0);
            } catch (const shim::Fault& fault) {
                return fault.what();
            }
            return "";
        };
    }
    return kernels;
}

// Written by the Makefile: each file of src/backend/cuda/kernels as a string.
const std::string SOURCES[] = {
#include "kernel_sources.inc"
};

}  // namespace

const Kernel* find_kernel(const std::string& name) {
    static const auto* const kernels = new std::map<std::string, Kernel>(wrap_registry());
    const auto found = kernels->find(name);
    return found == kernels->end() ? nullptr : &found->second;
}

bool is_kernel_source(const std::string& text) {
    for (const std::string& source : SOURCES)
        if (source == text) return true;
    return false;
}

}  // namespace cuda_double

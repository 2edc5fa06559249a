// Every kernel by its name, to be launched as the driver launches: with an array of pointers to argument
// values. Include it in one file of a program: it brings the kernels' code.
#pragma once
#include "shim.hpp"

#include "../../../src/backend/cuda/kernels/all.cuh"

#include <type_traits>
#include <utility>

namespace shim {

struct Argument {
    size_t bytes;
    bool is_pointer;
};

struct Kernel {
    const char* name;
    const void* code;
    std::vector<Argument> arguments;
    // Throws Fault. `order`: see visiting_order.
    void (*invoke)(dim3 grid, dim3 threads, size_t shared_bytes, void** arguments, unsigned order);
};

template <class... A>
std::vector<Argument> arguments_of(void (*)(A...)) {
    return {Argument{sizeof(A), std::is_pointer_v<A>}...};
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}

template <class... A>
void run(const char* name, void (*kernel)(A...), dim3 grid, dim3 threads, size_t shared_bytes,
         void** arguments, unsigned order) {
    struct Call {
        void (*kernel)(A...);
        void** arguments;
    } the_call{kernel, arguments};
    const auto body = [](void* argument) {
        auto* c = static_cast<Call*>(argument);
        call(c->kernel, c->arguments, std::index_sequence_for<A...>());
    };
    launch_body(name, grid, threads, shared_bytes, body, &the_call, order);
}

inline const std::vector<Kernel>& registry() {
#define ZERO3_ENTRY(NAME)                                                  \
    Kernel{#NAME, reinterpret_cast<const void*>(NAME), arguments_of(NAME), \
           [](dim3 g, dim3 b, size_t shared, void** a, unsigned order) {   \
               run(#NAME, NAME, g, b, shared, a, order);                   \
           }},
    static const std::vector<Kernel> kernels{ZERO3_KERNELS(ZERO3_ENTRY)};
#undef ZERO3_ENTRY
    return kernels;
}

// Null where there is no such kernel.
inline const Kernel* find_kernel(const std::string& name) {
    for (const Kernel& kernel : registry()) {
        if (name == kernel.name) return &kernel;
    }
    return nullptr;
}

}  // namespace shim

// Modules, functions and launches of the driver double.
#include "driver.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

using namespace cuda_double;

namespace {

constexpr size_t DEFAULT_SHARED_BYTES = 48 << 10;

// A kernel as the program loaded it. Never destroyed: modules live as long as the process.
struct Function {
    const Kernel* kernel;
    std::atomic<size_t> max_shared_bytes{DEFAULT_SHARED_BYTES};

    explicit Function(const Kernel* kernel) : kernel(kernel) {}
};

struct Functions {
    std::mutex mutex;
    std::map<std::string, Function*> by_name;
};

Functions& functions() {
    static Functions* const functions = new Functions;
    return *functions;
}

Function* find_function(CUfunction handle) {
    Functions& f = functions();
    const std::lock_guard<std::mutex> lock(f.mutex);
    for (const auto& [name, function] : f.by_name)
        if (function == handle) return function;
    return nullptr;
}

// One module stands for all: what it holds is what the double was built with.
int the_module;

// The values of a launch, copied as the driver copies them, device addresses turned into views.
class Values {
public:
    // False, and a word, where a pointer is not device memory.
    bool copy(const Kernel& kernel, int device, void** parameters) {
        for (size_t i = 0; i < kernel.arguments.size(); i++) {
            const KernelArgument& argument = kernel.arguments[i];
            uint64_t value = 0;
            memcpy(&value, parameters[i], argument.n_bytes);
            if (argument.is_pointer && value != 0) {
                const char* view = memory::view(device, value, 0);
                if (!view) {
                    complain("%s: argument %zu, 0x%llx, is not device memory", kernel.name.c_str(), i,
                             static_cast<unsigned long long>(value));
                    return false;
                }
                value = reinterpret_cast<uint64_t>(view);
            }
            values_.push_back(value);
        }
        return true;
    }

    std::vector<void*> pointers() {
        std::vector<void*> pointers;
        for (uint64_t& value : values_) pointers.push_back(&value);
        return pointers;
    }

private:
    std::vector<uint64_t> values_;
};

bool fits(const unsigned grid[3], const unsigned block[3]) {
    const size_t n_threads = size_t(block[0]) * block[1] * block[2];
    return n_threads > 0 && n_threads <= 1024 && block[2] <= 64 && grid[0] > 0 && grid[0] <= 2147483647u &&
           grid[1] > 0 && grid[1] <= 65535 && grid[2] > 0 && grid[2] <= 65535;
}

}  // namespace

CUDA_DOUBLE_API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    CUDA_DOUBLE_ENTER(cuModuleLoadData);
    if (driver::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const auto* text = static_cast<const char*>(image);
    const size_t n_head = sizeof IMAGE_HEADER - 1;
    if (strncmp(text, IMAGE_HEADER, n_head) != 0) {
        complain("cuModuleLoadData: not an image of the NVRTC double; real machine code cannot run here");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    const std::string wanted = "sm_" + std::to_string(driver::compute_capability());
    if (wanted != text + n_head) {
        complain("cuModuleLoadData: the image is for %s, the device is %s", text + n_head, wanted.c_str());
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    *module = &the_module;
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, int*, void**) {
    CUDA_DOUBLE_ENTER(cuModuleLoadDataEx);
    return cuModuleLoadData(module, image);
}

CUDA_DOUBLE_API CUresult cuModuleUnload(CUmodule module) {
    CUDA_DOUBLE_ENTER(cuModuleUnload);
    return module == &the_module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_DOUBLE_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    CUDA_DOUBLE_ENTER(cuModuleGetFunction);
    if (module != &the_module) return CUDA_ERROR_INVALID_HANDLE;
    const Kernel* kernel = find_kernel(name);
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    Functions& f = functions();
    const std::lock_guard<std::mutex> lock(f.mutex);
    Function*& known = f.by_name[name];
    if (!known) known = new Function(kernel);
    *function = known;
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
    CUDA_DOUBLE_ENTER(cuFuncSetAttribute);
    Function* function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    if (value < 0 || size_t(value) > driver::max_shared_bytes()) return CUDA_ERROR_INVALID_VALUE;
    function->max_shared_bytes = value;
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction handle) {
    CUDA_DOUBLE_ENTER(cuFuncGetAttribute);
    Function* function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = 0; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 0; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 64; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = driver::compute_capability(); return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = int(function->max_shared_bytes);
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUDA_DOUBLE_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n_blocks, CUfunction handle,
                                                                     int n_threads, size_t shared_bytes) {
    CUDA_DOUBLE_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    if (!find_function(handle) || n_threads < 1) return CUDA_ERROR_INVALID_VALUE;
    const size_t by_threads = 2048 / size_t(n_threads);
    const size_t by_shared = driver::max_shared_bytes() / (shared_bytes + 1024);
    *n_blocks = int(std::min({by_threads, by_shared, size_t(32)}));
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                        unsigned block_x, unsigned block_y, unsigned block_z,
                                        unsigned shared_bytes, CUstream stream_handle, void** parameters,
                                        void** extra) {
    CUDA_DOUBLE_ENTER(cuLaunchKernel);
    const int device = driver::current_device();
    Stream* stream = device < 0 ? nullptr : executor::find_stream(stream_handle, device);
    const Function* function = find_function(handle);
    if (!stream || !function) return CUDA_ERROR_INVALID_HANDLE;
    const Kernel& kernel = *function->kernel;
    struct Size {
        unsigned grid[3], block[3];
    } size = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}};
    if (extra || !parameters || !fits(size.grid, size.block)) {
        complain("%s: grid (%u, %u, %u), block (%u, %u, %u) cannot be launched", kernel.name.c_str(), grid_x,
                 grid_y, grid_z, block_x, block_y, block_z);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (shared_bytes > function->max_shared_bytes) {
        complain("%s: %u bytes of shared memory, allowed are %zu", kernel.name.c_str(), shared_bytes,
                 size_t(function->max_shared_bytes));
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto values = std::make_shared<Values>();
    if (!values->copy(kernel, stream->device, parameters)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    Operation operation;
    operation.label = "kernel " + kernel.name;
    operation.run = [=, &kernel] {
        std::vector<void*> pointers = values->pointers();
        const std::string failure = kernel.run(size.grid, size.block, shared_bytes, pointers.data());
        if (!failure.empty()) {
            complain("%s", failure.c_str());
            executor::fault(CUDA_ERROR_LAUNCH_FAILED);
        }
        return Progress::Done;
    };
    executor::enqueue(stream, std::move(operation));
    return executor::current_fault();
}

// Allocations, copies and fills of the driver double.
#include "driver.hpp"
#include "memory.hpp"
#include <cstring>
#include <vector>

using namespace cuda_double;

namespace {

// The stream of a call and the device it works on; null where the handle is none or no context is current.
Stream* stream_of(CUstream handle) {
    const int device = driver::current_device();
    return device < 0 ? nullptr : executor::find_stream(handle, device);
}

// Whether n_bytes at the address are device memory; says so where they are not.
bool check_address(const char* call, const char* which, int device, CUdeviceptr address, size_t n_bytes) {
    if (memory::view(device, address, n_bytes)) return true;
    complain("%s: the %s, %zu bytes at 0x%llx, is not inside one allocation of device %d", call, which,
             n_bytes, address, device);
    return false;
}

bool check_host(const char* call, const void* pointer) {
    if (pointer && !memory::is_device_address(reinterpret_cast<CUdeviceptr>(pointer))) return true;
    complain("%s: host pointer %p is %s", call, pointer, pointer ? "a device address" : "null");
    return false;
}

// The view when the stream gets there. Memory freed meanwhile is a fault of the device.
char* view_now(const Stream* stream, CUdeviceptr address, size_t n_bytes) {
    char* bytes = memory::view(stream->device, address, n_bytes);
    if (!bytes) {
        complain("device memory at 0x%llx was freed before the stream used it", address);
        executor::fault(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    return bytes;
}

template <class Run>
CUresult put(Stream* stream, std::string label, Run run) {
    Operation operation;
    operation.label = std::move(label);
    operation.run = [run] {
        run();
        return Progress::Done;
    };
    executor::enqueue(stream, std::move(operation));
    return executor::current_fault();
}

std::string bytes_text(const char* what, size_t n_bytes) {
    return std::string(what) + " " + std::to_string(n_bytes) + " bytes";
}

}  // namespace

CUDA_DOUBLE_API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t n_bytes) {
    CUDA_DOUBLE_ENTER(cuMemAlloc_v2);
    if (driver::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return memory::allocate(driver::current_device(), n_bytes, address);
}

CUDA_DOUBLE_API CUresult cuMemFree_v2(CUdeviceptr address) {
    CUDA_DOUBLE_ENTER(cuMemFree_v2);
    if (driver::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    // The real call waits for the device too.
    executor::finish_everything(driver::current_device());
    return memory::release(address);
}

CUDA_DOUBLE_API CUresult cuMemAllocAsync(CUdeviceptr* address, size_t n_bytes, CUstream handle) {
    CUDA_DOUBLE_ENTER(cuMemAllocAsync);
    Stream* stream = stream_of(handle);
    return stream ? memory::allocate(stream->device, n_bytes, address) : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_DOUBLE_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    CUDA_DOUBLE_ENTER(cuMemFreeAsync);
    Stream* stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return put(stream, "free", [=] {
        if (const CUresult code = memory::release(address)) executor::fault(code);
    });
}

CUDA_DOUBLE_API CUresult cuMemGetInfo_v2(size_t* n_free, size_t* n_total) {
    CUDA_DOUBLE_ENTER(cuMemGetInfo_v2);
    const int device = driver::current_device();
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    *n_total = memory::capacity_bytes();
    *n_free = *n_total - memory::used_bytes(device);
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuMemHostAlloc(void** pointer, size_t n_bytes, unsigned) {
    CUDA_DOUBLE_ENTER(cuMemHostAlloc);
    if (driver::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return memory::allocate_pinned(n_bytes, pointer);
}

CUDA_DOUBLE_API CUresult cuMemFreeHost(void* pointer) {
    CUDA_DOUBLE_ENTER(cuMemFreeHost);
    if (driver::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    executor::finish_everything(driver::current_device());
    return memory::release_pinned(pointer);
}

CUDA_DOUBLE_API CUresult cuMemHostRegister_v2(void* pointer, size_t n_bytes, unsigned) {
    CUDA_DOUBLE_ENTER(cuMemHostRegister_v2);
    if (driver::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return memory::register_pinned(pointer, n_bytes);
}

CUDA_DOUBLE_API CUresult cuMemHostUnregister(void* pointer) {
    CUDA_DOUBLE_ENTER(cuMemHostUnregister);
    if (driver::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    executor::finish_everything(driver::current_device());
    return memory::unregister_pinned(pointer);
}

CUDA_DOUBLE_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n_bytes,
                                              CUstream handle) {
    CUDA_DOUBLE_ENTER(cuMemcpyHtoDAsync_v2);
    Stream* stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (n_bytes == 0) return CUDA_SUCCESS;
    if (!check_address("cuMemcpyHtoDAsync", "destination", stream->device, to, n_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (!check_host("cuMemcpyHtoDAsync", from)) return CUDA_ERROR_INVALID_VALUE;
    const std::string label = bytes_text("copy to the device,", n_bytes);
    if (memory::is_pinned(from, n_bytes)) {
        return put(stream, label, [=] {
            if (char* bytes = view_now(stream, to, n_bytes)) memcpy(bytes, from, n_bytes);
        });
    }
    // Pageable memory is staged before the call returns, and only then may the caller change it.
    const auto* begin = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(begin, begin + n_bytes);
    return put(stream, label, [=] {
        if (char* bytes = view_now(stream, to, n_bytes)) memcpy(bytes, staged->data(), n_bytes);
    });
}

CUDA_DOUBLE_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n_bytes, CUstream handle) {
    CUDA_DOUBLE_ENTER(cuMemcpyDtoHAsync_v2);
    Stream* stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (n_bytes == 0) return CUDA_SUCCESS;
    if (!check_address("cuMemcpyDtoHAsync", "source", stream->device, from, n_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (!check_host("cuMemcpyDtoHAsync", to)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult code = put(stream, bytes_text("copy to the host,", n_bytes), [=] {
        if (const char* bytes = view_now(stream, from, n_bytes)) memcpy(to, bytes, n_bytes);
    });
    // To pageable memory the real call returns after the copy; to page-locked memory at once.
    return code || memory::is_pinned(to, n_bytes) ? code : executor::finish(stream);
}

CUDA_DOUBLE_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n_bytes,
                                              CUstream handle) {
    CUDA_DOUBLE_ENTER(cuMemcpyDtoDAsync_v2);
    Stream* stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (n_bytes == 0) return CUDA_SUCCESS;
    if (!check_address("cuMemcpyDtoDAsync", "destination", stream->device, to, n_bytes) ||
        !check_address("cuMemcpyDtoDAsync", "source", stream->device, from, n_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    const bool apart = to + n_bytes <= from || from + n_bytes <= to;
    if (!apart && to != from) {
        complain("cuMemcpyDtoDAsync: the %zu bytes at 0x%llx and at 0x%llx overlap", n_bytes, to, from);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return put(stream, bytes_text("copy on the device,", n_bytes), [=] {
        char* target = view_now(stream, to, n_bytes);
        const char* source = view_now(stream, from, n_bytes);
        if (target && source) memmove(target, source, n_bytes);
    });
}

// The calls without a stream run on the null stream and are done when they return.
CUDA_DOUBLE_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t n_bytes) {
    CUDA_DOUBLE_ENTER(cuMemcpyHtoD_v2);
    const CUresult code = cuMemcpyHtoDAsync_v2(to, from, n_bytes, nullptr);
    return code ? code : executor::finish(stream_of(nullptr));
}

CUDA_DOUBLE_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t n_bytes) {
    CUDA_DOUBLE_ENTER(cuMemcpyDtoH_v2);
    const CUresult code = cuMemcpyDtoHAsync_v2(to, from, n_bytes, nullptr);
    return code ? code : executor::finish(stream_of(nullptr));
}

CUDA_DOUBLE_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n_bytes,
                                         CUstream handle) {
    CUDA_DOUBLE_ENTER(cuMemsetD8Async);
    Stream* stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (n_bytes == 0) return CUDA_SUCCESS;
    if (!check_address("cuMemsetD8Async", "destination", stream->device, to, n_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return put(stream, bytes_text("fill", n_bytes), [=] {
        if (char* bytes = view_now(stream, to, n_bytes)) memset(bytes, value, n_bytes);
    });
}

CUDA_DOUBLE_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t n_words, CUstream handle) {
    CUDA_DOUBLE_ENTER(cuMemsetD32Async);
    Stream* stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (n_words == 0) return CUDA_SUCCESS;
    const size_t n_bytes = n_words * sizeof value;
    if (to % sizeof value != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!check_address("cuMemsetD32Async", "destination", stream->device, to, n_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return put(stream, bytes_text("fill", n_bytes), [=] {
        char* bytes = view_now(stream, to, n_bytes);
        for (size_t i = 0; bytes && i < n_words; i++) memcpy(bytes + i * sizeof value, &value, sizeof value);
    });
}

CUDA_DOUBLE_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t n_bytes) {
    CUDA_DOUBLE_ENTER(cuMemsetD8_v2);
    return cuMemsetD8Async(to, value, n_bytes, nullptr);
}

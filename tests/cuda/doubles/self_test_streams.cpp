// Streams, events, memory and kernels of the driver double.
#include "kernels.hpp"
#include "self_test.hpp"
#include <csignal>
#include <cstring>
#include <string>
#include <unistd.h>

// One stream writes, another reads what it wrote. 0 where the reader saw it, 3 where not.
int a_reader_waits_for_its_writer(bool with_wait) {
    begin();
    const CUstream writer = new_stream(), reader = new_stream();
    const CUdeviceptr from = new_words({1, 1, 1}), to = new_words({0, 0, 0});
    const CUevent written = new_event(CU_EVENT_DISABLE_TIMING);
    CHECK(cuMemsetD32Async(from, 7, 3, writer) == CUDA_SUCCESS);
    CHECK(cuEventRecord(written, writer) == CUDA_SUCCESS);
    if (with_wait) CHECK(cuStreamWaitEvent(reader, written, 0) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoDAsync_v2(to, from, 12, reader) == CUDA_SUCCESS);
    return words_at(to, 3, reader) == std::vector<unsigned>{7, 7, 7} ? 0 : 3;
}

// One stream reads, another overwrites afterwards. 0 where the reader saw the old, 3 where not.
int a_writer_waits_for_the_reader(bool with_wait) {
    begin();
    const CUstream writer = new_stream(), reader = new_stream();
    const CUdeviceptr from = new_words({1, 1, 1}), to = new_words({0, 0, 0});
    const CUevent read = new_event(CU_EVENT_DISABLE_TIMING);
    CHECK(cuMemcpyDtoDAsync_v2(to, from, 12, reader) == CUDA_SUCCESS);
    CHECK(cuEventRecord(read, reader) == CUDA_SUCCESS);
    if (with_wait) CHECK(cuStreamWaitEvent(writer, read, 0) == CUDA_SUCCESS);
    CHECK(cuMemsetD32Async(from, 7, 3, writer) == CUDA_SUCCESS);
    return words_at(to, 3, reader) == std::vector<unsigned>{1, 1, 1} ? 0 : 3;
}

// Memory ends where it says, and no call takes what is not memory of the device.
int memory_is_apart() {
    setenv("CUDA_DOUBLE_MEMORY", "1000000", 1);
    begin();
    size_t n_free, n_total;
    CHECK(cuMemGetInfo_v2(&n_free, &n_total) == CUDA_SUCCESS && n_free == 1000000 && n_total == 1000000);
    CUdeviceptr a, b;
    CHECK(cuMemAlloc_v2(&a, 600001) == CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&b, 400000) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAlloc_v2(&b, 399999) == CUDA_SUCCESS && b % 256 == 0);
    CHECK(cuMemGetInfo_v2(&n_free, &n_total) == CUDA_SUCCESS && n_free == 0);
    CHECK(cuMemsetD32Async(a, 0, 150000, nullptr) == CUDA_SUCCESS);
    CHECK(cuMemsetD32Async(a, 0, 150001, nullptr) == CUDA_ERROR_INVALID_VALUE);
    int host[1];
    CHECK(cuMemcpyDtoDAsync_v2(a, reinterpret_cast<CUdeviceptr>(host), 4, nullptr) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemcpyHtoDAsync_v2(a, reinterpret_cast<void*>(b), 4, nullptr) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(b) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoDAsync_v2(a, b, 4, nullptr) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(b) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    return 0;
}

// Dies of SIGSEGV.
int host_touches_device_memory() {
    begin();
    const CUdeviceptr words = new_words({1});
    return *reinterpret_cast<volatile int*>(words);
}

namespace {

CUfunction function_named(const char* name) {
    CUmodule module;
    CUfunction function;
    const std::string image = std::string(cuda_double::IMAGE_HEADER) + "sm_90";
    CHECK(cuModuleLoadData(&module, image.c_str()) == CUDA_SUCCESS);
    CHECK(cuModuleGetFunction(&function, module, "no_such_kernel") == CUDA_ERROR_NOT_FOUND);
    CHECK(cuModuleGetFunction(&function, module, name) == CUDA_SUCCESS);
    return function;
}

CUresult launch_add(CUfunction add, CUdeviceptr out, const void* a, const void* b, long long n,
                    CUstream stream, unsigned threads = 64) {
    void* arguments[] = {&out, &a, &b, &n};
    return cuLaunchKernel(add, 1, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
}

}  // namespace

int host_memory_is_no_argument() {
    begin();
    const CUfunction add = function_named("add_f32");
    const CUdeviceptr out = new_words({0, 0});
    float host[2] = {};
    CHECK(launch_add(add, out, host, host, 2, nullptr) == CUDA_ERROR_ILLEGAL_ADDRESS);
    return 0;
}

int kernels_run() {
    begin();
    const CUfunction add = function_named("add_f32");
    const CUstream stream = new_stream();
    unsigned one_and_half, two;
    const float values[] = {1.5f, 2.0f};
    memcpy(&one_and_half, &values[0], 4);
    memcpy(&two, &values[1], 4);
    const CUdeviceptr a = new_words(std::vector<unsigned>(100, one_and_half)),
                      out = new_words(std::vector<unsigned>(100));
    const void* view = reinterpret_cast<void*>(a);
    CHECK(launch_add(add, out, view, view, 99, stream, 2000) == CUDA_ERROR_INVALID_VALUE);
    CHECK(launch_add(add, out, view, view, 99, stream) == CUDA_SUCCESS);
    const std::vector<unsigned> words = words_at(out, 100, stream);
    float sum;
    memcpy(&sum, &words[98], 4);
    CHECK(sum == 3.0f && words[99] == 0);
    return 0;
}

// Pageable memory is read at the call, page-locked memory when the stream gets there; written likewise.
int copies_happen_in_their_time() {
    begin();
    const CUstream stream = new_stream();
    const CUdeviceptr words = new_words({0, 0});
    unsigned pageable = 1, *pinned;
    CHECK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 8, 0) == CUDA_SUCCESS);
    pinned[0] = 1;
    CHECK(cuMemcpyHtoDAsync_v2(words, &pageable, 4, stream) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoDAsync_v2(words + 4, &pinned[0], 4, stream) == CUDA_SUCCESS);
    pageable = pinned[0] = 2;
    CHECK(words_at(words, 2, stream) == (std::vector<unsigned>{1, 2}));
    CHECK(cuMemcpyDtoHAsync_v2(&pinned[1], words, 4, stream) == CUDA_SUCCESS);
    CHECK(pinned[1] == 0xffffffff);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(pinned[1] == 1);
    return 0;
}

int events_tell_the_time_of_execution() {
    begin();
    const CUstream stream = new_stream();
    const CUevent never = new_event(), before = new_event(), after = new_event(),
                  bare = new_event(CU_EVENT_DISABLE_TIMING);
    const CUdeviceptr words = new_words(std::vector<unsigned>(1 << 20));
    float ms = -1;
    CHECK(cuEventQuery(never) == CUDA_SUCCESS);
    CHECK(cuEventRecord(before, stream) == CUDA_SUCCESS);
    for (int i = 0; i < 20; i++) CHECK(cuMemsetD32Async(words, i, 1 << 20, stream) == CUDA_SUCCESS);
    CHECK(cuEventRecord(after, stream) == CUDA_SUCCESS);
    CHECK(cuEventRecord(bare, stream) == CUDA_SUCCESS);
    CHECK(cuEventElapsedTime(&ms, before, after) == CUDA_ERROR_NOT_READY);
    usleep(50000);
    while (cuEventQuery(after) == CUDA_ERROR_NOT_READY) usleep(100);
    CHECK(cuEventElapsedTime(&ms, before, after) == CUDA_SUCCESS);
    CHECK(ms > 0.1f);
    CHECK(cuEventElapsedTime(&ms, before, bare) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventElapsedTime(&ms, never, after) == CUDA_ERROR_INVALID_HANDLE);
    // A wait takes the record of its time, not a later one.
    const CUstream other = new_stream();
    CHECK(cuStreamWaitEvent(other, after, 0) == CUDA_SUCCESS);
    CHECK(cuEventRecord(after, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    return 0;
}

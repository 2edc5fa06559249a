// Checks of the doubles themselves. Each case is a process of its own: `self_test CASE`; it ends with 0 where
// all is as it should be, and says otherwise what is not. tests/cuda_doubles.rs runs them.
#pragma once
#include "cuda_api.hpp"
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize();
CUresult cuStreamCreate(CUstream*, unsigned);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned);
CUresult cuEventCreate(CUevent*, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventQuery(CUevent);
CUresult cuEventElapsedTime(float*, CUevent, CUevent);
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t*, size_t*);
CUresult cuMemHostAlloc(void**, size_t, unsigned);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2(void*, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuModuleLoadData(CUmodule*, const void*);
CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        CUstream, void**, void**);
}

// Ends the process where the condition does not hold.
#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);   \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

// The first device, current on this thread, and what tests need of it.
void begin();
CUstream new_stream();
CUevent new_event(unsigned flags = 0);
CUdeviceptr new_words(const std::vector<unsigned>& words);
std::vector<unsigned> words_at(CUdeviceptr address, size_t n_words, CUstream stream);

// The cases of each file.
int a_reader_waits_for_its_writer(bool with_wait);
int a_writer_waits_for_the_reader(bool with_wait);
int memory_is_apart();
int host_touches_device_memory();
int host_memory_is_no_argument();
int copies_happen_in_their_time();
int events_tell_the_time_of_execution();
int kernels_run();
int sources_are_known();

int collectives_give_the_right_numbers();
int two_communicators_move_apart();
int a_collective_reads_late();
int differing_calls_are_named();
int a_missing_call_is_named();
int a_dead_rank_is_an_error();
int an_aborted_communicator_lets_go();
int one_device_for_two_ranks_is_refused();

int products_are_right();
int careless_products_are_refused();

// What all doubles share: settings from the environment, planned failures, and a voice.
//
// It lives in libcuda.so.1, the double under the others; they link to that one.
#pragma once
#include "cuda_api.hpp"
#include <string>

// Seen by the doubles of the other libraries.
#define CUDA_DOUBLE_SHARED __attribute__((visibility("default")))

namespace cuda_double {

// Rank of this process as its launcher (Open MPI, MPICH, Slurm) tells; 0 without one.
CUDA_DOUBLE_SHARED int process_rank();

// An environment variable, or a default where it is not set.
CUDA_DOUBLE_SHARED std::string setting(const char* name, const std::string& otherwise);
CUDA_DOUBLE_SHARED long long number_setting(const char* name, long long otherwise);

// The code that CUDA_DOUBLE_FAIL wants this call of `symbol` to fail with, 0 where it wants none. Counts the
// call. CUDA_DOUBLE_FAIL=SYMBOL:NTH:CODE[@RANK], several with commas: the NTH call (from 1) of SYMBOL fails,
// on RANK or on all. With `hang` for the code it never returns.
CUDA_DOUBLE_SHARED int planned_failure(const char* symbol);

// One line on standard error: what the program did that the real library would not bear.
CUDA_DOUBLE_SHARED void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace cuda_double

// First line of each function of an interface.
#define CUDA_DOUBLE_ENTER(symbol) \
    if (const int code_ = ::cuda_double::planned_failure(#symbol)) return code_

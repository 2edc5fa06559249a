// Runs one case of the doubles' self-test.
#include "self_test.hpp"
#include <cstring>
#include <functional>
#include <map>
#include <string>

void begin() {
    CUcontext context;
    CHECK(cuInit(0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

CUstream new_stream() {
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return stream;
}

CUevent new_event(unsigned flags) {
    CUevent event;
    CHECK(cuEventCreate(&event, flags) == CUDA_SUCCESS);
    return event;
}

CUdeviceptr new_words(const std::vector<unsigned>& words) {
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, words.size() * 4) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoDAsync_v2(address, words.data(), words.size() * 4, nullptr) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    return address;
}

std::vector<unsigned> words_at(CUdeviceptr address, size_t n_words, CUstream stream) {
    std::vector<unsigned> words(n_words);
    CHECK(cuMemcpyDtoHAsync_v2(words.data(), address, n_words * 4, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    return words;
}

int main(int n_arguments, char** arguments) {
    const std::map<std::string, std::function<int()>> cases = {
        {"reader_waits", [] { return a_reader_waits_for_its_writer(true); }},
        {"reader_does_not_wait", [] { return a_reader_waits_for_its_writer(false); }},
        {"writer_waits", [] { return a_writer_waits_for_the_reader(true); }},
        {"writer_does_not_wait", [] { return a_writer_waits_for_the_reader(false); }},
        {"memory_is_apart", memory_is_apart},
        {"host_touches_device_memory", host_touches_device_memory},
        {"host_memory_is_no_argument", host_memory_is_no_argument},
        {"copies_happen_in_their_time", copies_happen_in_their_time},
        {"events_tell_the_time_of_execution", events_tell_the_time_of_execution},
        {"kernels_run", kernels_run},
        {"sources_are_known", sources_are_known},
        {"collectives_give_the_right_numbers", collectives_give_the_right_numbers},
        {"two_communicators_move_apart", two_communicators_move_apart},
        {"a_collective_reads_late", a_collective_reads_late},
        {"differing_calls_are_named", differing_calls_are_named},
        {"a_missing_call_is_named", a_missing_call_is_named},
        {"a_dead_rank_is_an_error", a_dead_rank_is_an_error},
        {"an_aborted_communicator_lets_go", an_aborted_communicator_lets_go},
        {"one_device_for_two_ranks_is_refused", one_device_for_two_ranks_is_refused},
        {"products_are_right", products_are_right},
        {"careless_products_are_refused", careless_products_are_refused},
    };
    const auto found = n_arguments == 2 ? cases.find(arguments[1]) : cases.end();
    if (found == cases.end()) {
        fprintf(stderr, "self_test CASE, one of:\n");
        for (const auto& [name, run] : cases) fprintf(stderr, "  %s\n", name.c_str());
        return 2;
    }
    return found->second();
}

// The NCCL double: several ranks, each a process.
#include "self_test.hpp"
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

struct Id {
    char bytes[128];
};
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

constexpr int SUCCESS = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, SYSTEM_ERROR = 2, REMOTE_ERROR = 6,
              IN_PROGRESS = 7;
constexpr int UINT8 = 1, UINT64 = 5, FLOAT32 = 7, BFLOAT16 = 9, SUM = 0;

}  // namespace

extern "C" {
int ncclGetUniqueId(Id*);
int ncclCommInitRankConfig(void**, int, Id, int, const Config*);
int ncclCommGetAsyncError(void*, int*);
int ncclCommFinalize(void*);
int ncclCommDestroy(void*);
int ncclCommAbort(void*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllGather(const void*, void*, size_t, int, void*, CUstream);
int ncclReduceScatter(const void*, void*, size_t, int, int, void*, CUstream);
int ncclAllReduce(const void*, void*, size_t, int, int, void*, CUstream);
int ncclBroadcast(const void*, void*, size_t, int, int, void*, CUstream);
int ncclSend(const void*, size_t, int, int, void*, CUstream);
int ncclRecv(void*, size_t, int, int, void*, CUstream);
const char* ncclGetLastError(void*);
}

namespace {

// Each rank runs `body` in a process of its own, on a device of its own. 0 where all of them return 0.
int on_ranks(int n_ranks, int n_ids, const std::function<int(int rank, const std::vector<Id>&)>& body,
             bool own_device = true) {
    setenv("CUDA_DOUBLE_DEVICES", "8", 1);
    std::vector<Id> ids(n_ids);
    for (Id& id : ids) CHECK(ncclGetUniqueId(&id) == SUCCESS);
    std::vector<pid_t> pids;
    for (int rank = 0; rank < n_ranks; rank++) {
        pids.push_back(fork());
        CHECK(pids.back() >= 0);
        if (pids.back() > 0) continue;
        setenv("PMI_RANK", std::to_string(rank).c_str(), 1);
        setenv("CUDA_VISIBLE_DEVICES", std::to_string(own_device ? rank : 0).c_str(), 1);
        begin();
        const int result = body(rank, ids);
        fflush(nullptr);
        _exit(result);
    }
    int result = 0;
    for (size_t rank = 0; rank < pids.size(); rank++) {
        int status = 0;
        CHECK(waitpid(pids[rank], &status, 0) == pids[rank]);
        const bool killed_itself = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (status != 0 && !killed_itself) {
            fprintf(stderr, "rank %zu ended with %d\n", rank, status);
            result = 1;
        }
    }
    return result;
}

int polled(void* comm) {
    int state = IN_PROGRESS;
    while (state == IN_PROGRESS) {
        CHECK(ncclCommGetAsyncError(comm, &state) == SUCCESS);
        usleep(100);
    }
    return state;
}

void* join(int n_ranks, const Id& id, int rank) {
    const Config config = {sizeof config, 0xcafebeef, 22800, 0};
    void* comm = nullptr;
    CHECK(ncclCommInitRankConfig(&comm, n_ranks, id, rank, &config) == IN_PROGRESS);
    CHECK(polled(comm) == SUCCESS);
    return comm;
}

// The result of a call that may say "in progress".
void expect_done(int result, void* comm) {
    CHECK(result == SUCCESS || result == IN_PROGRESS);
    CHECK(polled(comm) == SUCCESS);
}

void leave(void* comm) {
    CHECK(ncclCommFinalize(comm) == IN_PROGRESS);
    CHECK(polled(comm) == SUCCESS);
    CHECK(ncclCommDestroy(comm) == SUCCESS);
}

void* at(CUdeviceptr address, size_t offset = 0) { return reinterpret_cast<void*>(address + offset); }

unsigned bits(float value) {
    unsigned word;
    memcpy(&word, &value, 4);
    return word;
}

}  // namespace

int collectives_give_the_right_numbers() {
    constexpr int N = 3;
    return on_ranks(N, 1, [](int rank, const std::vector<Id>& ids) {
        void* comm = join(N, ids[0], rank);
        const CUstream stream = new_stream();
        const unsigned r = rank;
        // In place, as gathers of this program are, and apart.
        std::vector<unsigned> whole(6, 99);
        whole[2 * rank] = 10 * r;
        whole[2 * rank + 1] = 10 * r + 1;
        const CUdeviceptr a = new_words(whole), b = new_words(std::vector<unsigned>(6)),
                          mine = new_words({10 * r, 10 * r + 1});
        const std::vector<unsigned> gathered = {0, 1, 10, 11, 20, 21};
        CHECK(ncclGroupStart() == SUCCESS);
        CHECK(ncclAllGather(at(a, 8 * rank), at(a), 8, UINT8, comm, stream) == SUCCESS);
        CHECK(ncclAllGather(at(mine), at(b), 1, UINT64, comm, stream) == SUCCESS);
        const int ended = ncclGroupEnd();
        CHECK(ended == IN_PROGRESS);  // the first group of a communicator that does not block
        CHECK(ncclAllGather(at(mine), at(b), 1, UINT64, comm, stream) == INVALID_ARGUMENT);  // not polled yet
        expect_done(ended, comm);
        CHECK(words_at(a, 6, stream) == gathered && words_at(b, 6, stream) == gathered);
        // Overlapping, but not at the place of this rank.
        CHECK(ncclAllGather(at(a, 8 * ((rank + 1) % N)), at(a), 8, UINT8, comm, stream) == INVALID_ARGUMENT);
        // Sums in the order of ranks: 1 + 2 + 4 and 3 times 0.5.
        const CUdeviceptr full = new_words({bits(float(1 << rank)), bits(0.5f), bits(float(rank))}),
                          sum = new_words({0});
        expect_done(ncclReduceScatter(at(full), at(sum), 1, FLOAT32, SUM, comm, stream), comm);
        CHECK(words_at(sum, 1, stream)[0] == bits(rank == 0 ? 7.0f : rank == 1 ? 1.5f : 3.0f));
        expect_done(ncclAllReduce(at(full), at(full), 3, FLOAT32, SUM, comm, stream), comm);
        CHECK(words_at(full, 3, stream) == (std::vector<unsigned>{bits(7), bits(1.5), bits(3)}));
        // bf16: 1 + 2^-7 and so on, one rounding at the end: 3 + 3 * 2^-7 is rounded to 3 + 2^-6 (even).
        const CUdeviceptr half = new_words({0x3f813f81});
        expect_done(ncclAllReduce(at(half), at(half), 2, BFLOAT16, SUM, comm, stream), comm);
        CHECK(words_at(half, 1, stream)[0] == 0x40424042);
        expect_done(ncclBroadcast(at(mine), at(mine), 2, 3, 1, comm, stream), comm);
        CHECK(words_at(mine, 2, stream) == (std::vector<unsigned>{10, 11}));
        // A ring of sends, to itself too, two rounds, the second before the first was taken.
        const CUdeviceptr out = new_words({r, r + 100}), in = new_words({0, 0, 0});
        CHECK(ncclGroupStart() == SUCCESS);
        for (int round = 0; round < 2; round++) {
            CHECK(ncclSend(at(out, 4 * round), 4, UINT8, (rank + 1) % N, comm, stream) == SUCCESS);
            CHECK(ncclRecv(at(in, 4 * round), 4, UINT8, (rank + 2) % N, comm, stream) == SUCCESS);
        }
        CHECK(ncclSend(at(out), 4, UINT8, rank, comm, stream) == SUCCESS);
        CHECK(ncclRecv(at(in, 8), 4, UINT8, rank, comm, stream) == SUCCESS);
        expect_done(ncclGroupEnd(), comm);
        const unsigned before = (r + 2) % N;
        CHECK(words_at(in, 3, stream) == (std::vector<unsigned>{before, before + 100, r}));
        // Many more messages than an outbox has places.
        for (int i = 0; i < 1500; i++)
            expect_done(ncclAllGather(at(a, 8 * rank), at(a), 8, UINT8, comm, stream), comm);
        CHECK(words_at(a, 6, stream) == gathered);
        leave(comm);
        return 0;
    });
}

// Rank 0 waits for the first communicator first, rank 1 for the second: neither may hold up the other.
int two_communicators_move_apart() {
    return on_ranks(2, 2, [](int rank, const std::vector<Id>& ids) {
        void* comms[2] = {join(2, ids[0], rank), join(2, ids[1], rank)};
        const CUstream streams[2] = {new_stream(), new_stream()};
        const CUdeviceptr words[2] = {new_words({1, 1}), new_words({2, 2})};
        for (int round = 0; round < 20; round++) {
            for (int c = 0; c < 2; c++) {
                std::vector<unsigned> mine = {unsigned(round + 10 * rank)};
                CHECK(cuMemcpyHtoDAsync_v2(words[c] + 4 * rank, mine.data(), 4, streams[c]) == CUDA_SUCCESS);
                expect_done(
                    ncclAllGather(at(words[c], 4 * rank), at(words[c]), 4, UINT8, comms[c], streams[c]),
                    comms[c]);
            }
            for (int i = 0; i < 2; i++) {
                const int c = i ^ rank;
                const unsigned first = round;
                CHECK(words_at(words[c], 2, streams[c]) == (std::vector<unsigned>{first, first + 10}));
            }
        }
        for (void* comm : comms) leave(comm);
        return 0;
    });
}

// 0 where a gather saw what another stream wrote without being waited for; 3 where it did not: some order
// must give 3.
int a_collective_reads_late() {
    begin();
    Id id;
    CHECK(ncclGetUniqueId(&id) == SUCCESS);
    void* comm = join(1, id, 0);
    const CUstream writer = new_stream(), gather = new_stream();
    const CUdeviceptr from = new_words({1}), to = new_words({0});
    CHECK(cuMemsetD32Async(from, 7, 1, writer) == CUDA_SUCCESS);
    expect_done(ncclAllGather(at(from), at(to), 4, UINT8, comm, gather), comm);
    return words_at(to, 1, gather)[0] == 7 ? 0 : 3;
}

int differing_calls_are_named() {
    return on_ranks(2, 1, [](int rank, const std::vector<Id>& ids) {
        void* comm = join(2, ids[0], rank);
        const CUstream stream = new_stream();
        const CUdeviceptr words = new_words({1, 2, 3, 4});
        const CUevent done = new_event();
        expect_done(ncclAllGather(at(words, 8 * rank), at(words), rank == 0 ? 2 : 1,
                                  rank == 0 ? FLOAT32 : UINT64, comm, stream),
                    comm);
        CHECK(cuEventRecord(done, stream) == CUDA_SUCCESS);
        int state = SUCCESS;
        while (state == SUCCESS) {
            CHECK(cuEventQuery(done) == CUDA_ERROR_NOT_READY);
            CHECK(ncclCommGetAsyncError(comm, &state) == SUCCESS);
        }
        CHECK(state == INVALID_USAGE);
        CHECK(strstr(ncclGetLastError(comm), "differs between ranks"));
        CHECK(ncclCommAbort(comm) == SUCCESS);
        CHECK(cuEventSynchronize(done) == CUDA_SUCCESS);
        // Both must see the other's call before one of them leaves.
        usleep(300000);
        return 0;
    });
}

int a_missing_call_is_named() {
    setenv("CUDA_DOUBLE_STALL_S", "1", 1);
    return on_ranks(2, 1, [](int rank, const std::vector<Id>& ids) {
        void* comm = join(2, ids[0], rank);
        if (rank == 1) {
            // It lives, and forgets the collective.
            sleep(3);
            return 0;
        }
        const CUstream stream = new_stream();
        const CUdeviceptr words = new_words({1, 2});
        const CUevent done = new_event();
        expect_done(ncclAllGather(at(words), at(words), 4, UINT8, comm, stream), comm);
        CHECK(cuEventRecord(done, stream) == CUDA_SUCCESS);
        int state = SUCCESS;
        while (state == SUCCESS) {
            CHECK(cuEventQuery(done) == CUDA_ERROR_NOT_READY);
            CHECK(ncclCommGetAsyncError(comm, &state) == SUCCESS);
        }
        CHECK(state == SYSTEM_ERROR);
        CHECK(strstr(ncclGetLastError(comm), "waits for rank 1"));
        CHECK(ncclCommAbort(comm) == SUCCESS);
        return 0;
    });
}

int a_dead_rank_is_an_error() {
    return on_ranks(3, 1, [](int rank, const std::vector<Id>& ids) {
        void* comm = join(3, ids[0], rank);
        // The others have to have seen it come.
        usleep(300000);
        if (rank == 1) raise(SIGKILL);
        const CUstream stream = new_stream();
        const CUdeviceptr words = new_words({1, 2, 3});
        expect_done(ncclAllGather(at(words, 4 * rank), at(words), 4, UINT8, comm, stream), comm);
        const CUevent done = new_event();
        CHECK(cuEventRecord(done, stream) == CUDA_SUCCESS);
        int state = SUCCESS;
        while (state == SUCCESS) {
            CHECK(cuEventQuery(done) == CUDA_ERROR_NOT_READY);
            CHECK(ncclCommGetAsyncError(comm, &state) == SUCCESS);
        }
        CHECK(state == REMOTE_ERROR);
        CHECK(ncclCommAbort(comm) == SUCCESS);
        usleep(300000);
        return 0;
    });
}

int an_aborted_communicator_lets_go() {
    return on_ranks(2, 1, [](int rank, const std::vector<Id>& ids) {
        void* comm = join(2, ids[0], rank);
        const CUstream stream = new_stream();
        const CUdeviceptr words = new_words({1, 2});
        if (rank == 0) {
            expect_done(ncclAllGather(at(words), at(words), 4, UINT8, comm, stream), comm);
            std::thread aborting([comm] {
                usleep(100000);
                CHECK(ncclCommAbort(comm) == SUCCESS);
            });
            CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
            aborting.join();
        } else {
            usleep(500000);
        }
        return 0;
    });
}

int one_device_for_two_ranks_is_refused() {
    return on_ranks(
        2, 1,
        [](int rank, const std::vector<Id>& ids) {
            const Config config = {sizeof config, 0xcafebeef, 22800, 0};
            void* comm = nullptr;
            CHECK(ncclCommInitRankConfig(&comm, 2, ids[0], rank, &config) == IN_PROGRESS);
            CHECK(polled(comm) == INVALID_USAGE);
            usleep(200000);
            CHECK(ncclCommAbort(comm) == SUCCESS);
            return 0;
        },
        false);
}

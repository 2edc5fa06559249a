// Communicators of the NCCL double, and the groups of operations their streams execute.
#pragma once
#include "executor.hpp"
#include "nccl_segment.hpp"
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cuda_double::nccl {

enum ncclResult_t : int {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
};

enum ncclDataType_t : int {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat32 = 7,
    ncclBfloat16 = 9,
};

enum ncclRedOp_t : int { ncclSum = 0, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };

// Bytes of an element; 0 for a type this double does not know.
size_t type_bytes(int type);
const char* type_name(int type);

// One call of a group.
struct Part {
    Call call;
    const char* from = nullptr;  // views of device memory
    char* to = nullptr;
    uint64_t count = 0;  // as given
    int type = 0, reduction = -1, root = -1, peer = -1;
    uint64_t number = 0;  // of the collective, or of the Send or Receive with this peer; from 1
    bool begun = false, sent = false, finished = false;
};

class Comm {
public:
    Comm(Segment* segment, int device, bool blocking)
        : segment(segment), device(device), blocking(blocking) {}

    const std::unique_ptr<Segment> segment;
    const int device;
    const bool blocking;

    // The first error stays; said once.
    void fail(int code, const std::string& why);
    int error() const { return error_; }
    std::string last_error() const;

    std::mutex mutex;  // of all below, but for the atomics
    bool joined = false;
    int n_polls_left = 0;                      // answers of "in progress" until what was put off is launched
    std::vector<std::function<void()>> put_off;  // launches of a communicator that does not block
    uint64_t n_groups = 0;
    uint64_t n_collectives = 0;
    uint64_t n_sends[MAX_RANKS] = {}, n_receives[MAX_RANKS] = {};
    std::atomic<uint64_t> n_unfinished{0};  // groups on streams
    std::atomic<bool> finalizing{false}, aborted{false};

    // Whether all ranks are there; fails where one has died or two use one device.
    bool try_to_join();

private:
    std::atomic<int> error_{0};
    mutable std::mutex text_mutex_;
    std::string last_error_;
};

// Puts the parts of one group on a stream, as one operation.
void launch(const std::shared_ptr<Comm>& comm, Stream* stream, std::vector<Part> parts);

}  // namespace cuda_double::nccl

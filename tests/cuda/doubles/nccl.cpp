// The interface of the NCCL double (docs.nvidia.com/deeplearning/nccl). It is stricter than the real one
// where that helps: calls that differ between ranks are named, not hung on, and a communicator that does not
// block makes its callers poll.
#include "driver.hpp"
#include "memory.hpp"
#include "nccl_comm.hpp"
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <thread>

using namespace cuda_double;
using namespace cuda_double::nccl;

namespace {

constexpr std::chrono::microseconds REST(200);
// After its first group, a communicator that does not block answers "in progress" to every so manieth.
constexpr uint64_t GROUPS_PER_POLL = 16;

struct ncclUniqueId {
    char internal[128];
};

// The beginning of ncclConfig_t, which grows at its end.
struct ConfigHead {
    size_t size;
    unsigned magic, version;
    int blocking;
};
constexpr unsigned CONFIG_MAGIC = 0xcafebeef;
constexpr int UNDEFINED = INT32_MIN;

struct Registry {
    std::mutex mutex;
    std::map<Comm*, std::shared_ptr<Comm>> comms;
    std::map<void*, Comm*> buffers;  // handles of ncclCommRegister
};

Registry& registry() {
    static Registry* const registry = new Registry;
    return *registry;
}

std::shared_ptr<Comm> find(void* handle) {
    Registry& r = registry();
    const std::lock_guard<std::mutex> lock(r.mutex);
    const auto found = r.comms.find(static_cast<Comm*>(handle));
    return found == r.comms.end() ? nullptr : found->second;
}

void forget(const std::shared_ptr<Comm>& comm) {
    Registry& r = registry();
    const std::lock_guard<std::mutex> lock(r.mutex);
    r.comms.erase(comm.get());
}

int refuse(int code, const char* call, const std::string& why) {
    complain("%s: %s", call, why.c_str());
    return code;
}

// The calls between ncclGroupStart and ncclGroupEnd of this thread.
struct Planned {
    std::shared_ptr<Comm> comm;
    Stream* stream;
    Part part;
};
thread_local int group_depth = 0;
thread_local std::vector<Planned> planned;

int end_group() {
    std::vector<Planned> calls;
    calls.swap(planned);
    int result = ncclSuccess;
    while (!calls.empty()) {
        const std::shared_ptr<Comm> comm = calls[0].comm;
        Stream* const stream = calls[0].stream;
        std::vector<Part> parts;
        std::vector<Planned> others;
        for (Planned& call : calls) {
            if (call.comm != comm) others.push_back(call);
            else if (call.stream != stream)
                return refuse(ncclInvalidUsage, "ncclGroupEnd", "one communicator on two streams in a group");
            else parts.push_back(call.part);
        }
        calls.swap(others);
        const std::lock_guard<std::mutex> lock(comm->mutex);
        const bool poll = !comm->blocking && comm->n_groups++ % GROUPS_PER_POLL == 0;
        if (!poll) {
            launch(comm, stream, std::move(parts));
            continue;
        }
        // Launched only once the caller has polled: an event recorded before that is recorded too early.
        comm->n_polls_left = 1;
        comm->put_off.push_back([=] { launch(comm, stream, parts); });
        result = ncclInProgress;
    }
    return result;
}

// n_bytes at a device pointer, as the double sees them; null where they are not device memory.
char* view_of(const Comm& comm, const void* pointer, uint64_t n_bytes) {
    return memory::view(comm.device, reinterpret_cast<CUdeviceptr>(pointer), n_bytes);
}

// One call of a collective, a send or a receive: checked, then made part of the group.
int call(const char* name, Part part, const void* from, uint64_t from_count, void* to, uint64_t to_count,
         void* handle, CUstream stream_handle) {
    const std::shared_ptr<Comm> comm = find(handle);
    if (!comm) return refuse(ncclInvalidArgument, name, "no such communicator");
    const int n = comm->segment->n_ranks(), me = comm->segment->rank();
    if (comm->error()) return comm->error();
    const std::lock_guard<std::mutex> lock(comm->mutex);
    if (!comm->joined || comm->n_polls_left > 0)
        return refuse(ncclInvalidArgument, name,
                      "the communicator is still in progress: poll ncclCommGetAsyncError first");
    if (comm->finalizing) return refuse(ncclInvalidArgument, name, "the communicator is being finalized");
    const uint64_t element = type_bytes(part.type);
    if (element == 0)
        return refuse(ncclInvalidArgument, name,
                      "type " + std::to_string(part.type) + " is not in this double");
    if (part.reduction == 1 || part.reduction > ncclAvg)
        return refuse(ncclInvalidArgument, name, "this reduction is not in this double");
    if (part.peer >= n || part.root >= n || part.peer < -1 || part.root < -1)
        return refuse(ncclInvalidArgument, name, "no such rank");
    Stream* stream = executor::find_stream(stream_handle, comm->device);
    if (!stream || stream->device != comm->device)
        return refuse(ncclInvalidArgument, name, "no such stream on the communicator's device");
    const uint64_t from_bytes = from_count * element, to_bytes = to_count * element;
    if (from_bytes > 0 && !(part.from = view_of(*comm, from, from_bytes)))
        return refuse(ncclInvalidArgument, name,
                      std::to_string(from_bytes) + " bytes to send are not device memory");
    if (to_bytes > 0 && !(part.to = view_of(*comm, to, to_bytes)))
        return refuse(ncclInvalidArgument, name,
                      std::to_string(to_bytes) + " bytes to receive into are not device memory");
    if (from_bytes > Segment::ring_bytes())
        return refuse(ncclInternalError, name,
                      "more bytes than the double's ring has; set CUDA_DOUBLE_NCCL_RING");
    if (from_bytes > 0 && to_bytes > 0) {
        // In place means at this rank's own place in the larger buffer.
        const char* place = part.call == Call::AllGather ? part.to + me * from_bytes : part.to;
        const char* source = part.call == Call::ReduceScatter ? part.from + me * to_bytes : part.from;
        const bool apart = part.from + from_bytes <= part.to || part.to + to_bytes <= part.from;
        if (!apart && place != source)
            return refuse(ncclInvalidArgument, name, "the buffers overlap and are not in place");
    }
    if (part.call == Call::Send) part.number = ++comm->n_sends[part.peer];
    else if (part.call == Call::Receive) part.number = ++comm->n_receives[part.peer];
    else part.number = ++comm->n_collectives;
    planned.push_back({comm, stream, part});
    return ncclSuccess;
}

// A call outside a group is a group of one.
int call_alone_or_in_group(const char* name, Part part, const void* from, uint64_t from_count, void* to,
                           uint64_t to_count, void* comm, CUstream stream) {
    const int result = call(name, part, from, from_count, to, to_count, comm, stream);
    return result || group_depth > 0 ? result : end_group();
}

}  // namespace

CUDA_DOUBLE_API int ncclGetVersion(int* version) {
    CUDA_DOUBLE_ENTER(ncclGetVersion);
    *version = int(number_setting("CUDA_DOUBLE_NCCL_VERSION", 22809));
    return ncclSuccess;
}

CUDA_DOUBLE_API int ncclGetUniqueId(ncclUniqueId* id) {
    CUDA_DOUBLE_ENTER(ncclGetUniqueId);
    *id = {};
    snprintf(id->internal, sizeof id->internal, "%s", fresh_segment_name().c_str());
    return ncclSuccess;
}

namespace {

// By what NCCL tells devices apart: where they are in a host, and the host, which NCCL_HOSTID may give
// another name. From 2.30 on a switch lets ranks share a device.
std::string device_for_all(int device, int rank) {
    const bool shared = number_setting("CUDA_DOUBLE_NCCL_VERSION", 22809) >= 23000 &&
                        setting("NCCL_MULTI_RANK_GPU_ENABLE", "0") == "1";
    return driver::bus_id(device) + " of host '" + setting("NCCL_HOSTID", "") +
           (shared ? "' for " + std::to_string(rank) : "'");
}

}  // namespace

CUDA_DOUBLE_API int ncclCommInitRankConfig(void** handle, int n_ranks, ncclUniqueId id, int rank,
                                           const ConfigHead* config) {
    CUDA_DOUBLE_ENTER(ncclCommInitRankConfig);
    const char* name = "ncclCommInitRankConfig";
    if (!handle || n_ranks < 1 || n_ranks > MAX_RANKS || rank < 0 || rank >= n_ranks)
        return ncclInvalidArgument;
    if (config && config->magic != CONFIG_MAGIC)
        return refuse(ncclInvalidArgument, name, "the config was not initialized");
    const int device = driver::current_device();
    if (device < 0) return refuse(ncclUnhandledCudaError, name, "no context is current");
    id.internal[sizeof id.internal - 1] = '\0';
    if (strncmp(id.internal, "/zero3-nccl-double-", 19) != 0)
        return refuse(ncclInvalidArgument, name, "not an id of ncclGetUniqueId");
    std::string error;
    Segment* segment = Segment::join(id.internal, n_ranks, rank, device_for_all(device, rank), &error);
    if (!segment) return refuse(ncclInvalidUsage, name, error);
    const bool blocking = !config || config->blocking == UNDEFINED || config->blocking == 1;
    auto comm = std::make_shared<Comm>(segment, device, blocking);
    {
        Registry& r = registry();
        const std::lock_guard<std::mutex> lock(r.mutex);
        r.comms[comm.get()] = comm;
    }
    *handle = comm.get();
    if (!blocking) return ncclInProgress;
    for (;;) {
        const std::lock_guard<std::mutex> lock(comm->mutex);
        if (comm->try_to_join()) return ncclSuccess;
        if (comm->error()) return comm->error();
        std::this_thread::sleep_for(REST);
    }
}

CUDA_DOUBLE_API int ncclCommInitRank(void** handle, int n_ranks, ncclUniqueId id, int rank) {
    CUDA_DOUBLE_ENTER(ncclCommInitRank);
    return ncclCommInitRankConfig(handle, n_ranks, id, rank, nullptr);
}

CUDA_DOUBLE_API int ncclCommGetAsyncError(void* handle, int* state) {
    const std::shared_ptr<Comm> comm = find(handle);
    if (!comm || !state) return ncclInvalidArgument;
    // A planned failure is one of the communicator, seen here.
    if (const int code = planned_failure("ncclCommGetAsyncError"))
        comm->fail(code, "a failure planned by CUDA_DOUBLE_FAIL");
    const std::lock_guard<std::mutex> lock(comm->mutex);
    *state = ncclInProgress;
    if (comm->error() || (!comm->joined && !comm->try_to_join())) {
        if (comm->error()) *state = comm->error();
        return ncclSuccess;
    }
    if (comm->n_polls_left > 0) {
        comm->n_polls_left--;
        return ncclSuccess;
    }
    for (const auto& launch : comm->put_off) launch();
    comm->put_off.clear();
    if (!comm->finalizing || comm->n_unfinished == 0) *state = ncclSuccess;
    return ncclSuccess;
}

CUDA_DOUBLE_API int ncclCommCount(void* handle, int* count) {
    CUDA_DOUBLE_ENTER(ncclCommCount);
    const std::shared_ptr<Comm> comm = find(handle);
    if (!comm) return ncclInvalidArgument;
    *count = comm->segment->n_ranks();
    return ncclSuccess;
}

CUDA_DOUBLE_API int ncclCommUserRank(void* handle, int* rank) {
    CUDA_DOUBLE_ENTER(ncclCommUserRank);
    const std::shared_ptr<Comm> comm = find(handle);
    if (!comm) return ncclInvalidArgument;
    *rank = comm->segment->rank();
    return ncclSuccess;
}

CUDA_DOUBLE_API int ncclCommCuDevice(void* handle, int* device) {
    CUDA_DOUBLE_ENTER(ncclCommCuDevice);
    const std::shared_ptr<Comm> comm = find(handle);
    if (!comm) return ncclInvalidArgument;
    *device = comm->device;
    return ncclSuccess;
}

// Waits until every group of the communicator is done; only asks for it where the communicator does not
// block.
CUDA_DOUBLE_API int ncclCommFinalize(void* handle) {
    CUDA_DOUBLE_ENTER(ncclCommFinalize);
    const std::shared_ptr<Comm> comm = find(handle);
    if (!comm) return ncclInvalidArgument;
    if (comm->error()) return comm->error();
    if (comm->finalizing.exchange(true))
        return refuse(ncclInvalidArgument, "ncclCommFinalize", "called twice");
    if (!comm->blocking) return ncclInProgress;
    while (comm->n_unfinished > 0 && !comm->error()) std::this_thread::sleep_for(REST);
    return comm->error();
}

CUDA_DOUBLE_API int ncclCommDestroy(void* handle) {
    CUDA_DOUBLE_ENTER(ncclCommDestroy);
    const std::shared_ptr<Comm> comm = find(handle);
    if (!comm) return ncclInvalidArgument;
    comm->finalizing = true;
    while (comm->n_unfinished > 0 && !comm->error()) std::this_thread::sleep_for(REST);
    if (comm->error()) comm->aborted = true;
    forget(comm);
    return ncclSuccess;
}

// What is on streams ends without effect.
CUDA_DOUBLE_API int ncclCommAbort(void* handle) {
    CUDA_DOUBLE_ENTER(ncclCommAbort);
    const std::shared_ptr<Comm> comm = find(handle);
    if (!comm) return ncclInvalidArgument;
    comm->aborted = true;
    forget(comm);
    return ncclSuccess;
}

CUDA_DOUBLE_API int ncclCommRegister(void* handle, void* buffer, size_t n_bytes, void** registration) {
    CUDA_DOUBLE_ENTER(ncclCommRegister);
    const std::shared_ptr<Comm> comm = find(handle);
    if (!comm || !registration) return ncclInvalidArgument;
    if (!view_of(*comm, buffer, n_bytes))
        return refuse(ncclInvalidArgument, "ncclCommRegister", "not device memory");
    Registry& r = registry();
    const std::lock_guard<std::mutex> lock(r.mutex);
    *registration = new char;
    r.buffers[*registration] = comm.get();
    return ncclSuccess;
}

CUDA_DOUBLE_API int ncclCommDeregister(void* handle, void* registration) {
    CUDA_DOUBLE_ENTER(ncclCommDeregister);
    Registry& r = registry();
    const std::lock_guard<std::mutex> lock(r.mutex);
    const auto found = r.buffers.find(registration);
    if (found == r.buffers.end() || found->second != handle)
        return refuse(ncclInvalidArgument, "ncclCommDeregister", "no such registration");
    delete static_cast<char*>(registration);
    r.buffers.erase(found);
    return ncclSuccess;
}

CUDA_DOUBLE_API int ncclMemAlloc(void** pointer, size_t n_bytes) {
    CUDA_DOUBLE_ENTER(ncclMemAlloc);
    if (driver::current_device() < 0 || !pointer) return ncclInvalidArgument;
    CUdeviceptr address = 0;
    const CUresult code = memory::allocate(driver::current_device(), n_bytes, &address);
    *pointer = reinterpret_cast<void*>(address);
    return code ? ncclUnhandledCudaError : ncclSuccess;
}

CUDA_DOUBLE_API int ncclMemFree(void* pointer) {
    CUDA_DOUBLE_ENTER(ncclMemFree);
    return memory::release(reinterpret_cast<CUdeviceptr>(pointer)) ? ncclInvalidArgument : ncclSuccess;
}

CUDA_DOUBLE_API int ncclGroupStart() {
    CUDA_DOUBLE_ENTER(ncclGroupStart);
    group_depth++;
    return ncclSuccess;
}

CUDA_DOUBLE_API int ncclGroupEnd() {
    CUDA_DOUBLE_ENTER(ncclGroupEnd);
    if (group_depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd", "without ncclGroupStart");
    return --group_depth > 0 ? int(ncclSuccess) : end_group();
}

CUDA_DOUBLE_API int ncclAllGather(const void* from, void* to, size_t count, int type, void* comm,
                                  CUstream stream) {
    CUDA_DOUBLE_ENTER(ncclAllGather);
    int n_ranks = 0;
    if (ncclCommCount(comm, &n_ranks)) return ncclInvalidArgument;
    Part part{Call::AllGather};
    part.count = count;
    part.type = type;
    return call_alone_or_in_group("ncclAllGather", part, from, count, to, count * n_ranks, comm, stream);
}

CUDA_DOUBLE_API int ncclReduceScatter(const void* from, void* to, size_t count, int type, int reduction,
                                      void* comm, CUstream stream) {
    CUDA_DOUBLE_ENTER(ncclReduceScatter);
    int n_ranks = 0;
    if (ncclCommCount(comm, &n_ranks)) return ncclInvalidArgument;
    Part part{Call::ReduceScatter};
    part.count = count;
    part.type = type;
    part.reduction = reduction;
    return call_alone_or_in_group("ncclReduceScatter", part, from, count * n_ranks, to, count, comm, stream);
}

CUDA_DOUBLE_API int ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction,
                                  void* comm, CUstream stream) {
    CUDA_DOUBLE_ENTER(ncclAllReduce);
    Part part{Call::AllReduce};
    part.count = count;
    part.type = type;
    part.reduction = reduction;
    return call_alone_or_in_group("ncclAllReduce", part, from, count, to, count, comm, stream);
}

CUDA_DOUBLE_API int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* comm,
                                  CUstream stream) {
    CUDA_DOUBLE_ENTER(ncclBroadcast);
    int rank = 0;
    if (ncclCommUserRank(comm, &rank)) return ncclInvalidArgument;
    Part part{Call::Broadcast};
    part.count = count;
    part.type = type;
    part.root = root;
    return call_alone_or_in_group("ncclBroadcast", part, from, rank == root ? count : 0, to, count, comm,
                                  stream);
}

CUDA_DOUBLE_API int ncclSend(const void* from, size_t count, int type, int peer, void* comm,
                             CUstream stream) {
    CUDA_DOUBLE_ENTER(ncclSend);
    Part part{Call::Send};
    part.count = count;
    part.type = type;
    part.peer = peer < 0 ? MAX_RANKS : peer;  // refused as no rank
    return call_alone_or_in_group("ncclSend", part, from, count, nullptr, 0, comm, stream);
}

CUDA_DOUBLE_API int ncclRecv(void* to, size_t count, int type, int peer, void* comm, CUstream stream) {
    CUDA_DOUBLE_ENTER(ncclRecv);
    Part part{Call::Receive};
    part.count = count;
    part.type = type;
    part.peer = peer < 0 ? MAX_RANKS : peer;
    return call_alone_or_in_group("ncclRecv", part, nullptr, 0, to, count, comm, stream);
}

CUDA_DOUBLE_API const char* ncclGetErrorString(int code) {
    switch (code) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}

CUDA_DOUBLE_API const char* ncclGetLastError(void* handle) {
    static thread_local std::string text;
    const std::shared_ptr<Comm> comm = find(handle);
    text = comm ? comm->last_error() : "";
    return text.c_str();
}

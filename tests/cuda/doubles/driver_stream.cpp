// Streams and events of the driver double.
#include "driver.hpp"
#include <algorithm>
#include <mutex>
#include <set>

using namespace cuda_double;

namespace {

struct Event {
    bool timing = true;
    std::shared_ptr<Mark> mark;  // of the last record; null before the first
};

// Live events; never destroyed, as threads may outlive main.
struct Events {
    std::mutex mutex;
    std::set<Event*> live;
};

Events& events() {
    static Events* const events = new Events;
    return *events;
}

// Whether the handle is a live event, and its last mark and kind as of now.
bool look_up(CUevent handle, std::shared_ptr<Mark>* mark, bool* timing = nullptr) {
    Events& e = events();
    const std::lock_guard<std::mutex> lock(e.mutex);
    auto* event = static_cast<Event*>(handle);
    if (!e.live.count(event)) return false;
    *mark = event->mark;
    if (timing) *timing = event->timing;
    return true;
}

Stream* stream_of(CUstream handle) {
    // The null stream belongs to the current device.
    const int device = driver::current_device();
    return !handle && device < 0 ? nullptr : executor::find_stream(handle, device);
}

}  // namespace

CUDA_DOUBLE_API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
    CUDA_DOUBLE_ENTER(cuStreamCreateWithPriority);
    if (driver::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != CU_STREAM_NON_BLOCKING) {
        complain(
            "a stream that synchronises with the null stream is not in this double: ask for "
            "CU_STREAM_NON_BLOCKING");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *stream = executor::create_stream(driver::current_device());
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    CUDA_DOUBLE_ENTER(cuStreamCreate);
    return cuStreamCreateWithPriority(stream, flags, 0);
}

CUDA_DOUBLE_API CUresult cuStreamDestroy_v2(CUstream handle) {
    CUDA_DOUBLE_ENTER(cuStreamDestroy_v2);
    Stream* stream = handle ? stream_of(handle) : nullptr;
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    executor::destroy_stream(stream);
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuStreamSynchronize(CUstream handle) {
    CUDA_DOUBLE_ENTER(cuStreamSynchronize);
    Stream* stream = stream_of(handle);
    return stream ? executor::finish(stream) : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_DOUBLE_API CUresult cuStreamQuery(CUstream handle) {
    CUDA_DOUBLE_ENTER(cuStreamQuery);
    Stream* stream = stream_of(handle);
    return stream ? executor::query(stream) : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_DOUBLE_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    CUDA_DOUBLE_ENTER(cuStreamWaitEvent);
    std::shared_ptr<Mark> mark;
    Stream* stream = stream_of(handle);
    if (!stream || !look_up(event, &mark)) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    // An event that was never recorded orders nothing, on a real device too.
    if (mark) executor::wait_for(stream, mark);
    return executor::current_fault();
}

CUDA_DOUBLE_API CUresult cuEventCreate(CUevent* event, unsigned flags) {
    CUDA_DOUBLE_ENTER(cuEventCreate);
    if (driver::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
    auto* fresh = new Event;
    fresh->timing = !(flags & CU_EVENT_DISABLE_TIMING);
    Events& e = events();
    const std::lock_guard<std::mutex> lock(e.mutex);
    e.live.insert(fresh);
    *event = fresh;
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuEventDestroy_v2(CUevent handle) {
    CUDA_DOUBLE_ENTER(cuEventDestroy_v2);
    Events& e = events();
    const std::lock_guard<std::mutex> lock(e.mutex);
    auto* event = static_cast<Event*>(handle);
    if (e.live.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    delete event;  // waits that were put on streams hold the mark
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
    CUDA_DOUBLE_ENTER(cuEventRecord);
    Stream* stream = stream_of(stream_handle);
    Events& e = events();
    const std::lock_guard<std::mutex> lock(e.mutex);
    auto* event = static_cast<Event*>(handle);
    if (!stream || !e.live.count(event)) return CUDA_ERROR_INVALID_HANDLE;
    event->mark = executor::record(stream);
    return executor::current_fault();
}

CUDA_DOUBLE_API CUresult cuEventSynchronize(CUevent event) {
    CUDA_DOUBLE_ENTER(cuEventSynchronize);
    std::shared_ptr<Mark> mark;
    if (!look_up(event, &mark)) return CUDA_ERROR_INVALID_HANDLE;
    return mark ? executor::finish(mark) : CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuEventQuery(CUevent event) {
    CUDA_DOUBLE_ENTER(cuEventQuery);
    std::shared_ptr<Mark> mark;
    if (!look_up(event, &mark)) return CUDA_ERROR_INVALID_HANDLE;
    return mark ? executor::query(mark) : CUDA_SUCCESS;
}

// By the clock of execution, not by that of the calls.
CUDA_DOUBLE_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    CUDA_DOUBLE_ENTER(cuEventElapsedTime_v2);
    std::shared_ptr<Mark> marks[2];
    bool timing[2] = {};
    if (!look_up(start, &marks[0], &timing[0]) || !look_up(end, &marks[1], &timing[1]))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!timing[0] || !timing[1] || !marks[0] || !marks[1]) {
        complain("cuEventElapsedTime: %s", !timing[0] || !timing[1] ? "an event was made without timing"
                                                                    : "an event was never recorded");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!executor::is_done(marks[0]) || !executor::is_done(marks[1])) return CUDA_ERROR_NOT_READY;
    *milliseconds = float((marks[1]->nanoseconds - marks[0]->nanoseconds) / 1e6);
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

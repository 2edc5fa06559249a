// The device's thread and the orders in which it runs what the streams hold.
#include "executor.hpp"
#include "fault_report.hpp"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace cuda_double::executor {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

// Rests of the thread while it waits for other processes: short ones first, for they are usually about to
// come.
constexpr int N_YIELDS = 20;
constexpr std::chrono::microseconds REST(100);

enum class Order { Demand, Others, Random };

// Somebody needs the first `position` operations of a stream.
struct Demand {
    Stream* stream;
    uint64_t position;
};

// All of it guarded by `mutex`. Never destroyed: the device's thread outlives main.
struct State {
    std::mutex mutex;
    std::condition_variable work;      // the device's thread waits for demands
    std::condition_variable progress;  // hosts wait for operations to be done
    std::vector<Stream*> streams;
    std::vector<Stream*> null_streams;  // by device
    std::vector<Demand> demands;
    uint64_t n_fruitless_rounds = 0;
    size_t n_peer_operations = 0;  // queued ones that other processes may want
    bool started = false;
    Order order = Order::Demand;
    std::mt19937_64 random;
    uint64_t n_until_redraw = 0;
    Clock::time_point last_progress = Clock::now();
    FILE* log = nullptr;
};

std::atomic<CUresult> device_fault{CUDA_SUCCESS};

void read_settings(State& s) {
    const std::string order = setting("CUDA_DOUBLE_ORDER", "demand");
    if (order == "demand") {
        s.order = Order::Demand;
    } else if (order == "others") {
        s.order = Order::Others;
    } else {
        s.order = Order::Random;
        s.random.seed(number_setting("CUDA_DOUBLE_ORDER", 0) * 1000003 + process_rank());
    }
    const std::string log = setting("CUDA_DOUBLE_LOG", "");
    if (!log.empty()) s.log = fopen((log + "." + std::to_string(process_rank())).c_str(), "w");
}

State& state() {
    static State* const state = [] {
        auto* fresh = new State;
        read_settings(*fresh);
        return fresh;
    }();
    return *state;
}

bool may_run(const Stream* stream) {
    if (stream->queue.empty()) return false;
    const auto& after = stream->queue.front().after;
    return !after || after->done;
}

// Runs the first operation of a stream that may run. The mutex is free meanwhile. False: it needs other
// processes yet.
bool run_first(State& s, Lock& lock, Stream* stream) {
    Operation& operation = stream->queue.front();  // push_back leaves references to elements of a deque valid
    Progress result = Progress::Done;
    if (operation.run) {
        lock.unlock();
        set_running(operation.label.c_str());
        result = operation.run();
        set_running(nullptr);
        lock.lock();
    }
    if (result == Progress::NotYet) return false;
    if (s.log) {
        fprintf(s.log, "%s %s\n", stream->name.c_str(), operation.label.c_str());
        fflush(s.log);
    }
    if (operation.wanted_by_peers) s.n_peer_operations--;
    stream->queue.pop_front();
    stream->n_executed++;
    s.last_progress = Clock::now();
    return true;
}

// One step towards the end of a stream's first operation: that operation, or what it waits for.
bool step_towards(State& s, Lock& lock, Stream* stream) {
    while (!stream->queue.empty() && !may_run(stream)) stream = stream->queue.front().after->stream;
    return !stream->queue.empty() && run_first(s, lock, stream);
}

// One operation of any other stream that may run.
bool step_elsewhere(State& s, Lock& lock, const Stream* wanted) {
    const std::vector<Stream*> streams = s.streams;
    for (Stream* stream : streams)
        if (stream != wanted && may_run(stream) && run_first(s, lock, stream)) return true;
    return false;
}

// One operation of the stream of highest priority that can go on.
bool step_at_random(State& s, Lock& lock) {
    if (s.n_until_redraw == 0) {
        for (Stream* stream : s.streams) stream->priority = s.random();
        // Between one operation and some dozens: short runs find small gaps, long ones far delays.
        s.n_until_redraw = uint64_t(1) << (s.random() % 7);
    }
    std::vector<Stream*> streams = s.streams;
    std::sort(streams.begin(), streams.end(),
              [](const Stream* a, const Stream* b) { return a->priority > b->priority; });
    for (Stream* stream : streams) {
        if (may_run(stream) && run_first(s, lock, stream)) {
            s.n_until_redraw--;
            return true;
        }
    }
    return false;
}

bool step(State& s, Lock& lock, Stream* wanted) {
    switch (s.order) {
    case Order::Demand: return step_towards(s, lock, wanted);
    case Order::Others: return step_elsewhere(s, lock, wanted) || step_towards(s, lock, wanted);
    case Order::Random: return step_at_random(s, lock);
    }
    return false;
}

// What the host waits for, and what peers wait for.
std::vector<Demand> current_demands(State& s) {
    s.demands.erase(std::remove_if(s.demands.begin(), s.demands.end(),
                                   [](const Demand& d) { return d.stream->n_executed >= d.position; }),
                    s.demands.end());
    std::vector<Demand> demands = s.demands;
    if (s.n_peer_operations == 0) return demands;
    for (Stream* stream : s.streams) {
        uint64_t position = stream->n_executed;
        for (const Operation& operation : stream->queue) {
            position++;
            if (operation.wanted_by_peers && operation.wanted_by_peers())
                demands.push_back({stream, position});
        }
    }
    return demands;
}

void sweep_destroyed_streams(State& s) {
    const auto finished = [](const Stream* stream) { return stream->destroyed && stream->queue.empty(); };
    for (Stream* stream : s.streams)
        if (finished(stream)) {
            s.demands.erase(std::remove_if(s.demands.begin(), s.demands.end(),
                                           [=](const Demand& d) { return d.stream == stream; }),
                            s.demands.end());
        }
    // The objects stay: marks of events may still name them. There are few.
    s.streams.erase(std::remove_if(s.streams.begin(), s.streams.end(), finished), s.streams.end());
}

// Says once what everybody waits for, and lets the collectives among it report an error.
void report_stall(State& s) {
    for (Stream* stream : s.streams) {
        if (stream->queue.empty()) continue;
        const Operation& first = stream->queue.front();
        complain("nothing moves: %s has %zu operations and stands at %s", stream->name.c_str(),
                 stream->queue.size(), first.label.c_str());
        if (first.on_stall) first.on_stall();
    }
}

void run_device() {
    State& s = state();
    const std::chrono::duration<double> patience(number_setting("CUDA_DOUBLE_STALL_S", 120));
    Lock lock(s.mutex);
    for (int n_idle = 0;;) {
        const std::vector<Demand> demands = current_demands(s);
        bool moved = false;
        for (const Demand& demand : demands)
            if (demand.stream->n_executed < demand.position) moved |= step(s, lock, demand.stream);
        sweep_destroyed_streams(s);
        if (moved) {
            n_idle = 0;
            s.progress.notify_all();
            continue;
        }
        s.n_fruitless_rounds++;
        s.progress.notify_all();
        if (demands.empty()) {
            s.last_progress = Clock::now();
            // Peers may come to want something; the host says so itself.
            if (s.n_peer_operations > 0) s.work.wait_for(lock, REST);
            else s.work.wait(lock);
            continue;
        }
        if (Clock::now() - s.last_progress > patience) {
            report_stall(s);
            s.last_progress = Clock::now();
        }
        if (++n_idle <= N_YIELDS) {
            lock.unlock();
            std::this_thread::yield();
            lock.lock();
        } else {
            s.work.wait_for(lock, REST);
        }
    }
}

void demand(State& s, Stream* stream, uint64_t position) {
    if (stream->n_executed >= position) return;
    for (Demand& known : s.demands) {
        if (known.stream == stream) {
            known.position = std::max(known.position, position);
            s.work.notify_one();
            return;
        }
    }
    if (s.demands.empty()) s.last_progress = Clock::now();
    s.demands.push_back({stream, position});
    s.work.notify_one();
}

CUresult finish(State& s, Lock& lock, Stream* stream, uint64_t position) {
    demand(s, stream, position);
    s.progress.wait(lock, [&] { return stream->n_executed >= position; });
    return current_fault();
}

CUresult query(State& s, Lock& lock, Stream* stream, uint64_t position) {
    demand(s, stream, position);
    // A round that began before this call may not have seen it; the one after it has.
    const uint64_t enough = s.n_fruitless_rounds + 2;
    s.progress.wait(lock, [&] { return stream->n_executed >= position || s.n_fruitless_rounds >= enough; });
    if (current_fault() != CUDA_SUCCESS) return current_fault();
    return stream->n_executed >= position ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

Stream* add_stream(State& s, int device, const char* kind) {
    static int n_streams = 0;
    auto* stream = new Stream;
    stream->device = device;
    stream->name = kind + std::to_string(n_streams++);
    stream->priority = s.random();
    s.streams.push_back(stream);
    if (!s.started) {
        s.started = true;
        std::thread(run_device).detach();
    }
    return stream;
}

}  // namespace

Stream* create_stream(int device) {
    State& s = state();
    const Lock lock(s.mutex);
    return add_stream(s, device, "stream ");
}

void destroy_stream(Stream* stream) {
    State& s = state();
    const Lock lock(s.mutex);
    stream->destroyed = true;
    demand(s, stream, stream->n_enqueued);
    s.work.notify_one();
}

Stream* find_stream(CUstream handle, int current_device) {
    State& s = state();
    const Lock lock(s.mutex);
    if (!handle) {
        if (s.null_streams.size() <= size_t(current_device)) s.null_streams.resize(current_device + 1);
        Stream*& stream = s.null_streams[current_device];
        if (!stream) stream = add_stream(s, current_device, "null stream ");
        return stream;
    }
    const auto found = std::find(s.streams.begin(), s.streams.end(), static_cast<Stream*>(handle));
    return found == s.streams.end() || (*found)->destroyed ? nullptr : *found;
}

void enqueue(Stream* stream, Operation operation) {
    State& s = state();
    const Lock lock(s.mutex);
    const bool for_peers = static_cast<bool>(operation.wanted_by_peers);
    stream->queue.push_back(std::move(operation));
    stream->n_enqueued++;
    if (for_peers && s.n_peer_operations++ == 0) s.work.notify_one();
}

std::shared_ptr<Mark> record(Stream* stream) {
    State& s = state();
    const Lock lock(s.mutex);
    auto mark = std::make_shared<Mark>();
    mark->stream = stream;
    mark->position = stream->n_enqueued + 1;
    Operation operation;
    operation.label = "event record";
    operation.run = [mark, &s] {
        const Lock lock(s.mutex);
        mark->nanoseconds = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
        mark->done = true;
        return Progress::Done;
    };
    stream->queue.push_back(std::move(operation));
    stream->n_enqueued++;
    return mark;
}

void wait_for(Stream* stream, std::shared_ptr<Mark> mark) {
    Operation operation;
    operation.label = "event wait";
    operation.after = std::move(mark);
    enqueue(stream, std::move(operation));
}

CUresult finish(const std::shared_ptr<Mark>& mark) {
    State& s = state();
    Lock lock(s.mutex);
    return finish(s, lock, mark->stream, mark->position);
}

CUresult finish(Stream* stream) {
    State& s = state();
    Lock lock(s.mutex);
    return finish(s, lock, stream, stream->n_enqueued);
}

CUresult finish_everything(int device) {
    State& s = state();
    Lock lock(s.mutex);
    const std::vector<Stream*> streams = s.streams;
    for (Stream* stream : streams)
        if (stream->device == device) finish(s, lock, stream, stream->n_enqueued);
    return current_fault();
}

CUresult query(const std::shared_ptr<Mark>& mark) {
    State& s = state();
    Lock lock(s.mutex);
    return query(s, lock, mark->stream, mark->position);
}

CUresult query(Stream* stream) {
    State& s = state();
    Lock lock(s.mutex);
    return query(s, lock, stream, stream->n_enqueued);
}

bool is_done(const std::shared_ptr<Mark>& mark) {
    const Lock lock(state().mutex);
    return mark->done;
}

void fault(CUresult code) {
    CUresult none = CUDA_SUCCESS;
    device_fault.compare_exchange_strong(none, code);
}

CUresult current_fault() { return device_fault; }

}  // namespace cuda_double::executor

// Streams that do nothing until somebody must see what they did.
//
// A real device orders two streams by events alone and may run everything else in any order. This one has a
// thread that runs operations one at a time, and CUDA_DOUBLE_ORDER says in which of the allowed orders:
//   demand   (default) only what the host waits for, and what that waits for: other streams run as late as
//   possible others   whatever else may run goes first: other streams run as early as possible N random
//   priorities of the streams, drawn anew now and then, from seed N and the rank (compare
//            Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs",
//            ASPLOS 2010)
// A forgotten event wait is then a wrong number in some order instead of a rare one.
//
// An operation that needs other processes (a collective) is asked again until all its parts are there;
// meanwhile the other streams go on. What a peer waits for is a demand like the host's own.
#pragma once
#include "common.hpp"
#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace cuda_double {

// A recorded point of a stream.
struct Mark {
    struct Stream* stream = nullptr;
    uint64_t position = 0;        // operations of the stream up to and with this one
    bool done = false;            // guarded by the executor's mutex
    int64_t nanoseconds = 0;      // of the clock of execution; valid once done
};

enum class Progress { Done, NotYet };

struct Operation {
    std::string label;                          // for reports, e.g. "kernel gelu_forward_f32"
    std::function<Progress()> run;              // on the device's thread
    std::shared_ptr<Mark> after;                // a wait: nothing to run, but not before this mark
    std::function<bool()> wanted_by_peers;  // whether another process waits for this operation; may be empty
    std::function<void()> on_stall;         // nothing has moved for CUDA_DOUBLE_STALL_S seconds; may be empty
};

struct Stream {
    int device = 0;
    std::string name;
    std::deque<Operation> queue;
    uint64_t n_enqueued = 0;
    uint64_t n_executed = 0;
    uint64_t priority = 0;
    bool destroyed = false;  // forgotten by the program, kept until its work is done
};

namespace executor {

// Makes a stream; `destroy` lets its work finish.
Stream* create_stream(int device);
void destroy_stream(Stream* stream);
// The stream behind a handle of the program (null: the device's own stream); null for a handle that is none.
CUDA_DOUBLE_SHARED Stream* find_stream(CUstream handle, int current_device);

CUDA_DOUBLE_SHARED void enqueue(Stream* stream, Operation operation);
std::shared_ptr<Mark> record(Stream* stream);
void wait_for(Stream* stream, std::shared_ptr<Mark> mark);

// Blocks until the mark, or all work put on a stream so far, is done. CUDA_SUCCESS or the device's fault.
CUresult finish(const std::shared_ptr<Mark>& mark);
CUresult finish(Stream* stream);
CUresult finish_everything(int device);
// Sets the device to work towards the mark; returns whether it is done, without waiting for other processes.
CUresult query(const std::shared_ptr<Mark>& mark);
CUresult query(Stream* stream);
// Whether the mark is done, without setting anything in motion.
bool is_done(const std::shared_ptr<Mark>& mark);

// A fault of the device: every later call reports it, as a real context does.
CUDA_DOUBLE_SHARED void fault(CUresult code);
CUDA_DOUBLE_SHARED CUresult current_fault();

}  // namespace executor
}  // namespace cuda_double

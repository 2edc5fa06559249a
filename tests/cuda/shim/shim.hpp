// Runs CUDA kernels on the host, compiled by an ordinary C++ compiler from the very text that a GPU gets: one
// fiber for each CUDA thread, blocks one after the other.
//
// It is built to find what a GPU would punish at random. Threads and blocks run in an order chosen by a seed,
// and each runs as far as it can before another does, so a missing barrier gives a wrong number. Shared
// memory is full of NaN at the start of each block. A barrier or a warp operation that some threads do not
// reach is a Fault that says who waits where. With -fsanitize=address each shared array is an allocation of
// its own.
//
// What it does not show: speed, races between blocks that run at the same time, and an order of memory
// operations that only hardware has.
#pragma once
#include "fiber.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline dim3 blockIdx, blockDim, gridDim;

namespace shim {

constexpr unsigned WARP = 32;
constexpr unsigned MAX_BLOCK_THREADS = 1024;
// Bytes a block may have on the smallest of the architectures: with and without asking for more (sm_80).
constexpr size_t MAX_SHARED_BYTES = 163 << 10;
constexpr size_t MAX_STATIC_SHARED_BYTES = 48 << 10;

// What a GPU would answer with a hang, an error, or a wrong number.
struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The order in which threads, and blocks, get their turn: 0 ascending, 1 descending, else shuffled by this
// seed.
inline std::vector<unsigned> visiting_order(unsigned n, unsigned order) {
    std::vector<unsigned> turn(n);
    std::iota(turn.begin(), turn.end(), 0u);
    if (order == 1) std::reverse(turn.begin(), turn.end());
    uint64_t state = order * 0x9e3779b97f4a7c15ull + 1;
    for (unsigned i = n; order > 1 && i > 1; i--) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(turn[i - 1], turn[(state >> 33) % i]);
    }
    return turn;
}

enum class State { Ready, AtBarrier, AtWarp, Ended };

struct Thread {
    Context context;
    dim3 index;
    State state = State::Ready;
};

// What lanes of a warp show each other, in two turns: a lane may write for the next exchange while others
// still read what was written for this one.
struct Warp {
    static constexpr size_t SLOT_BYTES = 32;
    unsigned n_lanes = 0, n_waiting = 0, turn = 0;
    int line = 0;  // of the source, where those who wait are
    alignas(16) unsigned char slots[2][WARP][SLOT_BYTES];
};

// A shared array: which one, by the address of something that only its declaration has.
struct SharedArray {
    const void* site;
    size_t bytes;
    std::unique_ptr<unsigned char[]> memory;
};

// The block that runs. There is one at a time in the process.
struct Block {
    Stacks stacks{MAX_BLOCK_THREADS};
    Context scheduler;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<SharedArray> shared;
    std::unique_ptr<unsigned char[]> dynamic_shared;
    size_t dynamic_shared_bytes = 0;
    unsigned current = 0, n_at_barrier = 0, n_ended = 0;
    int barrier_line = 0;  // of the source, where those who wait are
    void (*body)(void*) = nullptr;
    void* body_argument = nullptr;
    std::string fault;

    Thread& thread() { return threads[current]; }
    Warp& warp() { return warps[current / WARP]; }
};

inline Block& block() {
    static Block the_block;
    return the_block;
}

inline void give_way() {
    Block& b = block();
    switch_to(b.thread().context, b.scheduler);
}

// Ends the launch; the other threads of the block never go on.
[[noreturn]] inline void fault(const std::string& what) {
    Block& b = block();
    const dim3 t = b.thread().index;
    b.fault = "thread (" + std::to_string(t.x) + "," + std::to_string(t.y) + "," + std::to_string(t.z) +
              "): " + what;
    for (;;) give_way();
}

inline void wait_for_block(int line) {
    Block& b = block();
    if (b.n_at_barrier == 0) b.barrier_line = line;
    if (b.barrier_line != line) {
        fault("at __syncthreads of line " + std::to_string(line) + " while others are at that of line " +
              std::to_string(b.barrier_line));
    }
    if (++b.n_at_barrier == b.threads.size()) {
        b.n_at_barrier = 0;
        for (Thread& thread : b.threads) thread.state = State::Ready;
    } else {
        b.thread().state = State::AtBarrier;
        give_way();
    }
}

inline void wait_for_warp(unsigned mask, int line) {
    Block& b = block();
    Warp& w = b.warp();
    if (mask != 0xffffffffu) fault("a warp operation of line " + std::to_string(line) + " without all lanes");
    if (w.n_waiting == 0) w.line = line;
    if (w.line != line) {
        fault("at a warp operation of line " + std::to_string(line) +
              " while other lanes are at one of line " + std::to_string(w.line));
    }
    if (++w.n_waiting == w.n_lanes) {
        w.n_waiting = 0;
        w.turn ^= 1;
        const unsigned first = b.current / WARP * WARP;
        for (unsigned i = first; i < first + w.n_lanes; i++) b.threads[i].state = State::Ready;
    } else {
        b.thread().state = State::AtWarp;
        give_way();
    }
}

// What every lane showed; valid until the exchange after the next.
template <class T>
struct Seen {
    const unsigned char (*slots)[Warp::SLOT_BYTES];
    T operator[](unsigned lane) const {
        T value;
        std::memcpy(&value, slots[lane], sizeof value);
        return value;
    }
};

// Shows `value` to the warp.
template <class T>
Seen<T> show(const T& value, unsigned mask, int line) {
    static_assert(sizeof(T) <= Warp::SLOT_BYTES);
    Warp& w = block().warp();
    auto* slots = w.slots[w.turn];
    std::memcpy(slots[block().current % WARP], &value, sizeof value);
    wait_for_warp(mask, line);
    return Seen<T>{slots};
}

inline unsigned lane() { return block().current % WARP; }

// What lane `from` shows; one's own value where there is no such lane.
template <class T>
T from_lane(const T& value, unsigned from, unsigned mask, int line) {
    const Seen<T> seen = show(value, mask, line);
    return from < block().warp().n_lanes ? seen[from] : value;
}

// The shared array declared at `site`. Its first user in a block finds NaN.
inline void* static_shared(const void* site, size_t bytes) {
    Block& b = block();
    size_t total = bytes;
    for (const SharedArray& array : b.shared) {
        if (array.site == site) return array.memory.get();
        total += array.bytes;
    }
    if (total > MAX_STATIC_SHARED_BYTES) fault(std::to_string(total) + " bytes of static shared memory");
    std::unique_ptr<unsigned char[]> memory(new unsigned char[bytes]);
    std::memset(memory.get(), 0xff, bytes);
    b.shared.push_back({site, bytes, std::move(memory)});
    return b.shared.back().memory.get();
}

inline void* dynamic_shared() { return block().dynamic_shared.get(); }

inline void thread_main() {
    Block& b = block();
    arrived(b.scheduler);
    b.body(b.body_argument);
    b.thread().state = State::Ended;
    b.n_ended++;
    switch_to(b.thread().context, b.scheduler, true);
}

// Why nobody can go on.
inline std::string who_waits(const Block& b) {
    std::string text =
        std::to_string(b.n_ended) + " of " + std::to_string(b.threads.size()) + " threads have ended";
    if (b.n_at_barrier > 0) {
        text += ", " + std::to_string(b.n_at_barrier) + " wait at __syncthreads of line " +
                std::to_string(b.barrier_line);
    }
    for (const Warp& w : b.warps) {
        if (w.n_waiting == 0) continue;
        text += ", " + std::to_string(w.n_waiting) + " lanes of a warp at line " + std::to_string(w.line);
    }
    return text + ": the others never get there";
}

inline void run_block(const std::vector<unsigned>& turns) {
    Block& b = block();
    const unsigned n = unsigned(b.threads.size());
    for (SharedArray& array : b.shared) std::memset(array.memory.get(), 0xff, array.bytes);
    std::memset(b.dynamic_shared.get(), 0xff, b.dynamic_shared_bytes);
    b.n_at_barrier = b.n_ended = 0;
    for (unsigned i = 0; i < n; i++) {
        Thread& t = b.threads[i];
        t.state = State::Ready;
        t.index = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y));
        prepare(t.context, b.stacks.low(i), thread_main);
    }
    for (unsigned i = 0; i < b.warps.size(); i++) {
        b.warps[i].n_lanes = std::min(WARP, n - i * WARP);
        b.warps[i].n_waiting = 0;
    }
    while (b.n_ended < n && b.fault.empty()) {
        bool someone_ran = false;
        for (const unsigned i : turns) {
            if (b.threads[i].state != State::Ready) continue;
            someone_ran = true;
            b.current = i;
            switch_to(b.scheduler, b.threads[i].context);
            if (!b.fault.empty()) break;
        }
        if (!someone_ran) b.fault = who_waits(b);
    }
}

// Runs `body` as a grid. Throws Fault.
inline void launch_body(const char* name, dim3 grid, dim3 threads, size_t shared_bytes, void (*body)(void*),
                        void* argument, unsigned order) {
    static std::mutex one_at_a_time;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    const auto refuse = [&](const std::string& what) { throw Fault(std::string(name) + ": " + what); };
    const uint64_t n_threads = uint64_t(threads.x) * threads.y * threads.z;
    if (n_threads == 0 || n_threads > MAX_BLOCK_THREADS)
        refuse(std::to_string(n_threads) + " threads in a block");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
        grid.z > 65535) {
        refuse("no such grid: " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
               std::to_string(grid.z));
    }
    if (shared_bytes > MAX_SHARED_BYTES) refuse(std::to_string(shared_bytes) + " bytes of shared memory");

    Block& b = block();
    b.body = body;
    b.body_argument = argument;
    b.fault.clear();
    b.shared.clear();
    b.dynamic_shared_bytes = shared_bytes;
    // At least one byte, so that there is an address; one too many is still found.
    b.dynamic_shared.reset(new unsigned char[std::max<size_t>(shared_bytes, 1)]);
    b.threads.resize(n_threads);
    b.warps.resize((n_threads + WARP - 1) / WARP);
    gridDim = grid;
    blockDim = threads;
    const uint64_t n_blocks = uint64_t(grid.x) * grid.y * grid.z;
    const std::vector<unsigned> blocks = visiting_order(unsigned(n_blocks), order);
    for (const unsigned i : blocks) {
        blockIdx = dim3(i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y));
        run_block(visiting_order(unsigned(n_threads), order > 1 ? order + i : order));
        if (!b.fault.empty()) {
            b.stacks.forget_frames();
            refuse("block (" + std::to_string(blockIdx.x) + "," + std::to_string(blockIdx.y) + "," +
                   std::to_string(blockIdx.z) + "): " + b.fault);
        }
    }
}

}  // namespace shim

#include "cuda_builtins.hpp"

// Device and pinned allocations of the driver double.
#include "memory.hpp"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace cuda_double::memory {
namespace {

constexpr size_t RANGE_BYTES = size_t(256) << 30;

struct Allocation {
    size_t n_bytes;
    int device;
};

struct Pinned {
    size_t n_bytes;
    bool ours;  // allocated here, not registered
};

// Never destroyed: threads of the program may still call when the process ends.
struct State {
    std::mutex mutex;
    char* addresses = nullptr;  // reserved, never accessible
    char* views = nullptr;      // the same offsets, accessible where allocated
    size_t next_offset = 0;
    std::map<CUdeviceptr, Allocation> allocations;
    std::map<uintptr_t, Pinned> pinned;

    State() : addresses(reserve()), views(reserve()) {}

    static char* reserve() {
        void* range =
            mmap(nullptr, RANGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) {
            complain("cannot reserve %zu bytes of address space: %s", RANGE_BYTES, strerror(errno));
            abort();
        }
        return static_cast<char*>(range);
    }

    // The allocation that holds n_bytes at address.
    const Allocation* find(CUdeviceptr address, size_t n_bytes) const {
        auto after = allocations.upper_bound(address);
        if (after == allocations.begin()) return nullptr;
        const auto& [start, allocation] = *--after;
        const size_t offset = address - start;
        if (offset > allocation.n_bytes || n_bytes > allocation.n_bytes - offset) return nullptr;
        return &allocation;
    }
};

State& state() {
    static State* const state = new State;
    return *state;
}

size_t rounded_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

size_t used(const State& s, int device) {
    size_t sum = 0;
    for (const auto& [address, allocation] : s.allocations)
        if (allocation.device == device) sum += allocation.n_bytes;
    return sum;
}

}  // namespace

size_t capacity_bytes() {
    static const size_t n_bytes = number_setting("CUDA_DOUBLE_MEMORY", 1ll << 30);
    return n_bytes;
}

size_t used_bytes(int device) {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    return used(s, device);
}

CUresult allocate(int device, size_t n_bytes, CUdeviceptr* address) {
    if (n_bytes == 0 || !address) return CUDA_ERROR_INVALID_VALUE;
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    const size_t n_used = used(s, device);
    if (n_bytes > capacity_bytes() || n_used > capacity_bytes() - n_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    // A page that stays inaccessible follows each allocation; the end of the bytes is as near to it as the
    // alignment of the beginning allows.
    const size_t span = rounded_up(n_bytes, page_bytes());
    const size_t lead = (span - n_bytes) / 512 * 512;
    if (s.next_offset + span + page_bytes() > RANGE_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
    char* view = s.views + s.next_offset;
    if (mprotect(view, span, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(view, 0xff, span);
    *address = reinterpret_cast<CUdeviceptr>(s.addresses + s.next_offset + lead);
    s.allocations[*address] = {n_bytes, device};
    s.next_offset += span + page_bytes();
    return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr address) {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    const auto found = s.allocations.find(address);
    if (found == s.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    const size_t offset = address - reinterpret_cast<CUdeviceptr>(s.addresses);
    const size_t first = offset / page_bytes() * page_bytes();
    const size_t span = rounded_up(offset + found->second.n_bytes, page_bytes()) - first;
    // A fresh reservation gives the pages back and makes every later access fault.
    mmap(s.views + first, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    s.allocations.erase(found);
    return CUDA_SUCCESS;
}

char* view(int device, CUdeviceptr address, size_t n_bytes) {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    const Allocation* allocation = s.find(address, n_bytes);
    if (!allocation || allocation->device != device) return nullptr;
    return s.views + (address - reinterpret_cast<CUdeviceptr>(s.addresses));
}

bool is_device_address(CUdeviceptr address) {
    const auto begin = reinterpret_cast<CUdeviceptr>(state().addresses);
    return address >= begin && address < begin + RANGE_BYTES;
}

bool is_view(const void* pointer) {
    const auto* byte = static_cast<const char*>(pointer);
    return byte >= state().views && byte < state().views + RANGE_BYTES;
}

CUresult allocate_pinned(size_t n_bytes, void** pointer) {
    if (n_bytes == 0 || !pointer) return CUDA_ERROR_INVALID_VALUE;
    void* bytes = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(bytes, 0xff, n_bytes);
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.pinned[reinterpret_cast<uintptr_t>(bytes)] = {n_bytes, true};
    *pointer = bytes;
    return CUDA_SUCCESS;
}

CUresult release_pinned(void* pointer) {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    const auto found = s.pinned.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == s.pinned.end() || !found->second.ours) return CUDA_ERROR_INVALID_VALUE;
    munmap(pointer, found->second.n_bytes);
    s.pinned.erase(found);
    return CUDA_SUCCESS;
}

CUresult register_pinned(void* pointer, size_t n_bytes) {
    if (!pointer || n_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    const bool is_new = s.pinned.emplace(reinterpret_cast<uintptr_t>(pointer), Pinned{n_bytes, false}).second;
    return is_new ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult unregister_pinned(void* pointer) {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    const auto found = s.pinned.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == s.pinned.end() || found->second.ours) return CUDA_ERROR_INVALID_VALUE;
    s.pinned.erase(found);
    return CUDA_SUCCESS;
}

bool is_pinned(const void* pointer, size_t n_bytes) {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    const auto begin = reinterpret_cast<uintptr_t>(pointer);
    auto after = s.pinned.upper_bound(begin);
    if (after == s.pinned.begin()) return false;
    const auto& [start, pinned] = *--after;
    return begin - start <= pinned.n_bytes && n_bytes <= pinned.n_bytes - (begin - start);
}

}  // namespace cuda_double::memory

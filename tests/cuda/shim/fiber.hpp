// One fiber: a function with a stack of its own that runs until it gives way. What a CUDA thread is on the
// host. Must not know: kernels, blocks, barriers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Switching with swapcontext works everywhere and asks the kernel of the operating system twice; on x86-64 a
// dozen instructions do. -DSHIM_UCONTEXT takes the slow way, for a test of it.
#if !defined(__x86_64__) && !defined(SHIM_UCONTEXT)
#define SHIM_UCONTEXT
#endif
#if defined(SHIM_UCONTEXT)
#include <ucontext.h>
#else
// Saves the registers that a callee must keep on the stack, and that stack's address in `*from`; goes on from
// `to`.
extern "C" void zero3_shim_switch(void** from, void* to);
asm(R"(
.text
.weak zero3_shim_switch
.type zero3_shim_switch, @function
zero3_shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size zero3_shim_switch, .-zero3_shim_switch
)");
#endif

namespace shim {

// AddressSanitizer's frames are several times larger than others.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif

// Stacks of `count` fibers, each with a page below it that faults: overflow ends the program instead of
// spoiling a neighbour. Pages are taken from the system when first touched.
class Stacks {
public:
    explicit Stacks(size_t count) : count_(count), page_(size_t(sysconf(_SC_PAGESIZE))) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* base = mmap(nullptr, count * stride(), PROT_READ | PROT_WRITE, flags, -1, 0);
        if (base == MAP_FAILED) {
            std::perror("shim: mmap of the stacks");
            std::abort();
        }
        base_ = static_cast<char*>(base);
        for (size_t i = 0; i < count; i++) {
            if (mprotect(base_ + i * stride(), page_, PROT_NONE) != 0) {
                std::perror("shim: mprotect of a stack");
                std::abort();
            }
        }
    }
    ~Stacks() { munmap(base_, count_ * stride()); }
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;

    char* low(size_t i) const { return base_ + i * stride() + page_; }

    // After fibers were left in the middle of a call, whose frames AddressSanitizer still guards.
    void forget_frames() const {
#if defined(__SANITIZE_ADDRESS__)
        for (size_t i = 0; i < count_; i++) __asan_unpoison_memory_region(low(i), STACK_BYTES);
#endif
    }

private:
    size_t stride() const { return STACK_BYTES + page_; }
    size_t count_, page_;
    char* base_;
};

// The scheduler's side and the fibers' side of a switch are both a Context.
struct Context {
#if defined(SHIM_UCONTEXT)
    ucontext_t registers;
#else
    void* stack_pointer = nullptr;
#endif
    const void* stack_low = nullptr;
    size_t stack_bytes = 0;
};

// `context` will run `entry` on the given stack at the first switch to it. `entry` must not return.
inline void prepare(Context& context, char* stack_low, void (*entry)()) {
    context.stack_low = stack_low;
    context.stack_bytes = STACK_BYTES;
#if defined(__SANITIZE_ADDRESS__)
    // The last fiber on this stack never returned from its outermost call, whose frame is still guarded.
    __asan_unpoison_memory_region(stack_low + STACK_BYTES - 4096, 4096);
#endif
#if defined(SHIM_UCONTEXT)
    getcontext(&context.registers);
    context.registers.uc_stack.ss_sp = stack_low;
    context.registers.uc_stack.ss_size = STACK_BYTES;
    context.registers.uc_link = nullptr;
    makecontext(&context.registers, entry, 0);
#else
    // As if a function with an aligned frame had called `entry`: a return address of its own that is never
    // used, then what the switch pops.
    auto** top = reinterpret_cast<void**>(stack_low + STACK_BYTES);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    context.stack_pointer = top;
#endif
}

// Leaves `from` where it is and goes on with `to`. `last`: `from` never runs again.
#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize("address")))
#endif
inline void switch_to(Context& from, Context& to, [[maybe_unused]] bool last = false) {
#if defined(__SANITIZE_ADDRESS__)
    void* frames = nullptr;
    __sanitizer_start_switch_fiber(last ? nullptr : &frames, to.stack_low, to.stack_bytes);
#endif
#if defined(SHIM_UCONTEXT)
    swapcontext(&from.registers, &to.registers);
#else
    zero3_shim_switch(&from.stack_pointer, to.stack_pointer);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(frames, nullptr, nullptr);
#endif
}

// The first thing a fiber does. Learns where the scheduler's stack is, which only AddressSanitizer asks.
inline void arrived([[maybe_unused]] Context& scheduler) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack_low, &scheduler.stack_bytes);
#endif
}

}  // namespace shim

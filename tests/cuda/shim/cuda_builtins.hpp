// The words of CUDA C++ that the kernels use, on top of shim.hpp: qualifiers, shared memory, barriers,
// shuffles, integer atomics, mathematics. Nothing else of CUDA exists here: a kernel that uses more does not
// compile.
#pragma once

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// kernels/common.cuh declares shared memory through these two where a compiler of CUDA does not.
#define SHARED(type, name, extent)                                        \
    auto& name = *reinterpret_cast<type(*) extent>(::shim::static_shared( \
        [] {                                                              \
            static const char site = 0;                                   \
            return &site;                                                 \
        }(),                                                              \
        sizeof(type extent)))
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(::shim::dynamic_shared())

#define threadIdx (::shim::block().thread().index)

// __builtin_LINE as a default argument is the line of the caller.
inline void __syncthreads(int line = __builtin_LINE()) { shim::wait_for_block(line); }
inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    shim::wait_for_warp(mask, line);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int line = __builtin_LINE()) {
    return shim::from_lane(value, unsigned(from) % shim::WARP, mask, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int line = __builtin_LINE()) {
    return shim::from_lane(value, shim::lane() ^ unsigned(flip), mask, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int line = __builtin_LINE()) {
    return shim::from_lane(value, shim::lane() + distance, mask, line);
}

// Blocks and fibers run one at a time, so plain code is atomic. Integers alone: sums of floats would depend
// on order.
template <class T>
T atomicAdd(T* at, T value) {
    static_assert(std::is_integral_v<T>, "float atomics have no fixed order");
    const T before = *at;
    *at = before + value;
    return before;
}

[[noreturn]] inline void __trap() { shim::fault("the kernel stopped itself (__trap)"); }

inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
inline float sinpif(float x) { return float(std::sin(M_PI * double(x))); }
inline float cospif(float x) { return float(std::cos(M_PI * double(x))); }

namespace shim {

inline float bf16_value(unsigned bits) { return __uint_as_float(bits << 16); }

// Instruction mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 of the PTX manual: lane 4g + t holds of A
// (16 x 16) rows g and g + 8 at columns 2t, 2t + 1, 2t + 8, 2t + 9; of B (16 x 8) those rows of column g; of
// C (16 x 8) rows g and g + 8 at columns 2t, 2t + 1.
inline void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], int line) {
    struct Fragments {
        unsigned a[4], b[2];
    };
    const Seen<Fragments> seen = show(Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, 0xffffffffu, line);
    const unsigned g = lane() / 4, t = lane() % 4;
    float sums[4] = {c[0], c[1], c[2], c[3]};
    for (unsigned k = 0; k < 16; k++) {
        // Which lane of a group of four, which register and which half hold column k of A, or row k of B.
        const unsigned owner = k % 8 / 2, upper = k / 8, shift = k % 2 * 16;
        const Fragments rows = seen[4 * g + owner];
        const float a_low = bf16_value(rows.a[2 * upper] >> shift & 0xffff);
        const float a_high = bf16_value(rows.a[2 * upper + 1] >> shift & 0xffff);
        const float b_left = bf16_value(seen[4 * (2 * t) + owner].b[upper] >> shift & 0xffff);
        const float b_right = bf16_value(seen[4 * (2 * t + 1) + owner].b[upper] >> shift & 0xffff);
        sums[0] = std::fmaf(a_low, b_left, sums[0]);
        sums[1] = std::fmaf(a_low, b_right, sums[1]);
        sums[2] = std::fmaf(a_high, b_left, sums[2]);
        sums[3] = std::fmaf(a_high, b_right, sums[3]);
    }
    std::copy(sums, sums + 4, c);
}

// Instruction ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16: lane 8i + r names row r of matrix i (16
// aligned bytes); lane 4g + t gets of each matrix row g, columns 2t and 2t + 1 (transposed: column g, rows 2t
// and 2t + 1).
inline void load_matrices(unsigned (&out)[4], const void* row, bool transposed, int line) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0)
        fault("ldmatrix of a row that is not aligned to 16 bytes");
    const Seen<const unsigned short*> seen = show(static_cast<const unsigned short*>(row), 0xffffffffu, line);
    const unsigned g = lane() / 4, t = lane() % 4;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned first = transposed ? seen[8 * i + 2 * t][g] : seen[8 * i + g][2 * t];
        const unsigned second = transposed ? seen[8 * i + 2 * t + 1][g] : seen[8 * i + g][2 * t + 1];
        out[i] = first | second << 16;
    }
    // The rows were read after the exchange: nobody may overwrite them before all have.
    wait_for_warp(0xffffffffu, line);
}

}  // namespace shim

// What all kernels share: element types, access in chunks of eight, sums over a warp, a row's threads and a
// grid.
//
// These files are compiled by NVRTC on the machine that runs them, so they include nothing but each other.
// They are compiled without contraction of a * b + c (--fmad=false): where fmaf stands, and only there, one
// rounding is left out, as in the CPU's kernels. All arithmetic is f32, rounded once to nearest even when it
// is stored.
//
// [Note: fixed order] A sum's order follows from the shape alone: which thread adds what, and how threads'
// sums are put together, never depends on the grid, on an address or on which thread comes first. No float is
// ever added atomically. An element is the same thread's business whether it is read alone or with seven
// others in 16-byte words.
#pragma once

using f32 = float;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// The upper half of an f32.
struct bf16 {
    unsigned short bits;
};

// The tests' host build brings its own.
#ifndef SHARED
#define SHARED(type, name, extent) __shared__ __align__(16) type name extent
#define DYNAMIC_SHARED(type, name)                                \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    type* const name = reinterpret_cast<type*>(dynamic_shared)
#endif

// A kernel: its C name follows. Of at most `threads` threads, with registers for `blocks` blocks on a
// multiprocessor.
#define KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define KERNEL KERNEL_OF(MAX_THREADS, 3)

constexpr int WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;
// Most threads of a block, in all kernels that do not say otherwise.
constexpr int MAX_THREADS = 256;

__device__ __forceinline__ int min_of(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ i64 min_of(i64 a, i64 b) { return a < b ? a : b; }

// ---- numbers

__device__ __forceinline__ f32 to_f32(f32 x) { return x; }
__device__ __forceinline__ f32 to_f32(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// To nearest, ties to even, for every f32 but NaN.
__device__ __forceinline__ u32 bf16_bits(f32 x) {
    const u32 bits = __float_as_uint(x);
    const u32 nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    // The quiet bit: a NaN whose payload lies in the lower half must not become infinity.
    return x != x ? (bits >> 16) | 0x40u : nearest;
}

// Two neighbours, the first one in the lower half.
__device__ __forceinline__ u32 bf16_pair(f32 first, f32 second) {
#ifdef __CUDACC__
    // One instruction from sm_80 on; of a NaN it keeps no payload.
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return bf16_bits(first) | bf16_bits(second) << 16;
#endif
}

template <class T>
__device__ __forceinline__ T from_f32(f32 x);
template <>
__device__ __forceinline__ f32 from_f32<f32>(f32 x) {
    return x;
}
template <>
__device__ __forceinline__ bf16 from_f32<bf16>(f32 x) {
    return bf16{(unsigned short)(bf16_pair(x, 0.0f) & 0xffffu)};
}

// ---- memory, eight elements at a time

// Elements that a thread reads or writes together: one 16-byte word of bf16, two of f32.
constexpr int CHUNK = 8;

// 16 bytes, moved in one instruction.
struct alignas(16) Words {
    u32 word[4];
};

// Whether words can be used: all addresses, and all distances in bytes between rows, are multiples of 16.
__device__ __forceinline__ bool aligned(u64 addresses_or_bytes) { return addresses_or_bytes % 16 == 0; }
template <class T>
__device__ __forceinline__ u64 address(const T* p) {
    return reinterpret_cast<u64>(p);
}

// Where words lie. Those in device memory are moved by instructions that say so: the compiler is free to take
// copies of words apart, and does where it finds the same elements moved one by one close by.
struct DeviceMemory {
    static __device__ __forceinline__ Words read(const Words* p) {
#ifdef __CUDACC__
        Words words;
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
                     : "l"(__cvta_generic_to_global(p))
                     : "memory");
        return words;
#else
        return *p;
#endif
    }
    static __device__ __forceinline__ void write(Words* p, const Words& words) {
#ifdef __CUDACC__
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(__cvta_generic_to_global(p)), "r"(words.word[0]), "r"(words.word[1]),
                       "r"(words.word[2]), "r"(words.word[3])
                     : "memory");
#else
        *p = words;
#endif
    }
};
struct SharedMemory {
    static __device__ __forceinline__ Words read(const Words* p) { return *p; }
    static __device__ __forceinline__ void write(Words* p, const Words& words) { *p = words; }
};

template <class Memory>
__device__ __forceinline__ void unpack(f32 (&x)[CHUNK], const f32* p) {
    const Words* words = reinterpret_cast<const Words*>(p);
    const Words low = Memory::read(words), high = Memory::read(words + 1);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = __uint_as_float(low.word[i]);
        x[4 + i] = __uint_as_float(high.word[i]);
    }
}

template <class Memory>
__device__ __forceinline__ void unpack(f32 (&x)[CHUNK], const bf16* p) {
    const Words words = Memory::read(reinterpret_cast<const Words*>(p));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(words.word[i] << 16);
        x[2 * i + 1] = __uint_as_float(words.word[i] & 0xffff0000u);
    }
}

template <class Memory>
__device__ __forceinline__ void pack(f32* p, const f32 (&x)[CHUNK]) {
    Words low, high;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low.word[i] = __float_as_uint(x[i]);
        high.word[i] = __float_as_uint(x[4 + i]);
    }
    Words* words = reinterpret_cast<Words*>(p);
    Memory::write(words, low);
    Memory::write(words + 1, high);
}

template <class Memory>
__device__ __forceinline__ void pack(bf16* p, const f32 (&x)[CHUNK]) {
    Words words;
#pragma unroll
    for (int i = 0; i < 4; i++) words.word[i] = bf16_pair(x[2 * i], x[2 * i + 1]);
    Memory::write(reinterpret_cast<Words*>(p), words);
}

// The first `n` (or all, if there are more) of the eight elements at `p`; zeros for the others. `in_words`:
// see aligned.
template <class T>
__device__ __forceinline__ void load(f32 (&x)[CHUNK], const T* p, i64 n, bool in_words) {
    if (in_words && n >= CHUNK) {
        unpack<DeviceMemory>(x, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++) x[i] = i < n ? to_f32(p[i]) : 0.0f;
}

// Overwrites the first `n` (or all, if there are more) of the eight elements at `p`, each rounded once.
template <class T>
__device__ __forceinline__ void store(T* p, const f32 (&x)[CHUNK], i64 n, bool in_words) {
    if (in_words && n >= CHUNK) {
        pack<DeviceMemory>(p, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        if (i < n) p[i] = from_f32<T>(x[i]);
    }
}

// ---- grids over elements: each thread takes a chunk, then the one a whole grid further on

__device__ __forceinline__ i64 first_chunk() { return (i64(blockIdx.x) * blockDim.x + threadIdx.x) * CHUNK; }
__device__ __forceinline__ i64 next_chunk() { return i64(gridDim.x) * blockDim.x * CHUNK; }

// ---- sums

// The sum over the lanes of a warp, the same bits in every lane: a + b = b + a, and each step adds pairs.
__device__ __forceinline__ f32 warp_sum(f32 x) {
#pragma unroll
    for (int flip = WARP / 2; flip > 0; flip /= 2) x += __shfl_xor_sync(ALL_LANES, x, flip);
    return x;
}

__device__ __forceinline__ f32 warp_max(f32 x) {
#pragma unroll
    for (int flip = WARP / 2; flip > 0; flip /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, flip));
    return x;
}

// The threads that work on one row together: `threads` of a block, whole warps, side by side. A block has
// several rows where rows are short. All threads of a block call row_sums the same number of times.
struct RowTeam {
    int threads;  // of the team
    int rank;     // of this thread in it
    int row;      // of the team, counted in the block
    int rows;     // of the block

    __device__ __forceinline__ explicit RowTeam(int threads)
        : threads(threads),
          rank(int(threadIdx.x) % threads),
          row(int(threadIdx.x) / threads),
          rows(int(blockDim.x) / threads) {}
};

// Sums of `a` and of `b` over the team, in every one of its threads.
__device__ __forceinline__ void row_sums(const RowTeam& team, f32& a, f32& b) {
    SHARED(f32, sums, [2][MAX_THREADS / WARP]);
    a = warp_sum(a);
    b = warp_sum(b);
    if (team.threads == WARP) return;
    const int warp = int(threadIdx.x) / WARP;
    __syncthreads();  // the sums of the call before were read
    if (threadIdx.x % WARP == 0) {
        sums[0][warp] = a;
        sums[1][warp] = b;
    }
    __syncthreads();
    const int n_warps = team.threads / WARP, first = team.row * n_warps;
    a = sums[0][first];
    b = sums[1][first];
    for (int i = 1; i < n_warps; i++) {
        a += sums[0][first + i];
        b += sums[1][first + i];
    }
}

__device__ __forceinline__ f32 row_sum(const RowTeam& team, f32 a) {
    f32 unused = 0.0f;
    row_sums(team, a, unused);
    return a;
}

// Products of tiles in shared memory, which attention is made of, in two ways with one face: FmaTiles
// multiplies f32 one by one, MmaTiles bf16 on tensor cores (mma.sync m16n8k16, sm_80 and later). Sums are f32
// in both.
//
// A tile has rows of DP elements: channels of a head, zeros from d_head to DP. A block works on ROWS rows at
// a time. What a thread holds of a product with N tile rows is f32[OWN_ROWS][COLUMNS<N>], where (i, j) is row
// row(i), column column(j); of one with channels, f32[OWN_ROWS][COLUMNS<DP>], where (i, j) is row row(i),
// channel channel<DP>(j), and channels of an even j and of the next are neighbours.
#pragma once
#include "common.cuh"

// 16 bytes more than it needs: rows one under the other then begin in different banks.
template <class S, int WIDTH>
constexpr int TILE_STRIDE = WIDTH + 16 / int(sizeof(S));

// Overwrites `rows` rows of a tile with rows of a matrix, `stride` elements apart, of which the first
// `n_rows` exist and have `d` elements. Zeros elsewhere. All threads of the block take part.
template <int DP, class S, class T>
__device__ __forceinline__ void load_tile(S* tile, int rows, const T* matrix, i64 stride, int n_rows, int d,
                                          bool in_words) {
    for (int k = int(threadIdx.x); k < rows * (DP / CHUNK); k += int(blockDim.x)) {
        const int row = k / (DP / CHUNK), i = k % (DP / CHUNK) * CHUNK;
        f32 x[CHUNK];
        load(x, matrix + row * stride + i, row < n_rows ? d - i : 0, in_words);
        pack<SharedMemory>(tile + row * TILE_STRIDE<S, DP> + i, x);
    }
}

// Two neighbours, the first one's place even.
__device__ __forceinline__ void store_pair(f32* p, f32 first, f32 second) {
    p[0] = first;
    p[1] = second;
}
__device__ __forceinline__ void store_pair(bf16* p, f32 first, f32 second) {
    *reinterpret_cast<u32*>(p) = bf16_pair(first, second);
}

// [Note: two ways] 256 threads: thread 16y + x has rows 4y .. 4y + 3. Of a product with tile rows as columns
// (dot) it has columns x, x + 16, ...; of one with channels as columns (mul) neighbouring ones, read in one
// word.
struct FmaTiles {
    using Element = f32;
    static constexpr int THREADS = 256;
    static constexpr int ROWS = 64;     // of a block
    static constexpr int OWN_ROWS = 4;  // of a thread
    static constexpr int LANES = 16;    // neighbouring lanes that share rows
    template <int N>
    static constexpr int COLUMNS = N / 16;  // of a thread
    // Left operands of `mul` pass through shared memory.
    template <int N>
    static constexpr int SCRATCH = ROWS * TILE_STRIDE<f32, N>;

    static __device__ __forceinline__ int row(int i) { return int(threadIdx.x) / 16 * 4 + i; }
    static __device__ __forceinline__ int column(int j) { return int(threadIdx.x) % 16 + 16 * j; }
    template <int DP>
    static __device__ __forceinline__ int channel(int j) {
        constexpr int NEAR = DP / 16 < 4 ? DP / 16 : 4;
        return (j / NEAR * 16 + int(threadIdx.x) % 16) * NEAR + j % NEAR;
    }

    // sums(row, n) += a(row, :) . b(n, :), channels of two tiles.
    template <int DP, int N>
    static __device__ __forceinline__ void dot(f32 (&sums)[OWN_ROWS][COLUMNS<N>], const f32* a,
                                               const f32* b) {
        constexpr int LD = TILE_STRIDE<f32, DP>;
#pragma unroll 2
        for (int k = 0; k < DP; k += 4) {
            f32 left[OWN_ROWS][4], right[COLUMNS<N>][4];
#pragma unroll
            for (int i = 0; i < OWN_ROWS; i++) read4(left[i], a + row(i) * LD + k);
#pragma unroll
            for (int j = 0; j < COLUMNS<N>; j++) read4(right[j], b + column(j) * LD + k);
#pragma unroll
            for (int q = 0; q < 4; q++) {
#pragma unroll
                for (int i = 0; i < OWN_ROWS; i++) {
#pragma unroll
                    for (int j = 0; j < COLUMNS<N>; j++)
                        sums[i][j] = fmaf(left[i][q], right[j][q], sums[i][j]);
                }
            }
        }
    }

    // sums(row, channel) += sum over n of left(row, n) * b(n, channel). `left` is a product as `dot` leaves
    // it.
    template <int DP, int N>
    static __device__ __forceinline__ void mul(f32 (&sums)[OWN_ROWS][COLUMNS<DP>],
                                               const f32 (&left)[OWN_ROWS][COLUMNS<N>], const f32* b,
                                               f32* scratch) {
        constexpr int LD = TILE_STRIDE<f32, DP>, LEFT_LD = TILE_STRIDE<f32, N>;
        constexpr int NEAR = DP / 16 < 4 ? DP / 16 : 4;
        // The lanes that share a row are the only ones that write and read it.
        __syncwarp();
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
#pragma unroll
            for (int j = 0; j < COLUMNS<N>; j++) scratch[row(i) * LEFT_LD + column(j)] = left[i][j];
        }
        __syncwarp();
#pragma unroll 1
        for (int k = 0; k < N; k += 4) {
            f32 factor[OWN_ROWS][4];
#pragma unroll
            for (int i = 0; i < OWN_ROWS; i++) read4(factor[i], scratch + row(i) * LEFT_LD + k);
#pragma unroll
            for (int q = 0; q < 4; q++) {
#pragma unroll
                for (int j = 0; j < COLUMNS<DP>; j += NEAR) {
                    f32 right[4];
                    const f32* from = b + (k + q) * LD + channel<DP>(j);
                    if constexpr (NEAR == 4) {
                        read4(right, from);
                    } else {
#pragma unroll
                        for (int p = 0; p < NEAR; p++) right[p] = from[p];
                    }
#pragma unroll
                    for (int p = 0; p < NEAR; p++) {
#pragma unroll
                        for (int i = 0; i < OWN_ROWS; i++)
                            sums[i][j + p] = fmaf(factor[i][q], right[p], sums[i][j + p]);
                    }
                }
            }
        }
    }

private:
    static __device__ __forceinline__ void read4(f32 (&x)[4], const f32* p) {
        const Words words = *reinterpret_cast<const Words*>(p);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = __uint_as_float(words.word[i]);
    }
};

// c (16 x 8) += a (16 x 16) b (16 x 8): lane 4g + t holds of a the rows g, g + 8 at columns 2t, 2t + 1 (a[0],
// a[1]) and 2t + 8, 2t + 9 (a[2], a[3]); of b those rows of column g; of c the rows g, g + 8 at columns 2t,
// 2t + 1.
__device__ __forceinline__ void mma(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    shim::mma_m16n8k16(c, a, b, __LINE__);
#endif
}

// Four matrices of 8 x 8 bf16 from shared memory: lane 8i + r names row r of matrix i; lane 4g + t gets row
// g, columns 2t, 2t + 1 of each (transposed: column g, rows 2t, 2t + 1). The row is `offset` elements after
// `base`: a constant, which then costs no register.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(u32 (&x)[4], const bf16* base, int offset) {
#ifdef __CUDACC__
    const u32 at = u32(__cvta_generic_to_shared(base)) + u32(offset) * u32(sizeof(bf16));
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at)
                     : "memory");
    }
#else
    shim::load_matrices(x, base + offset, TRANSPOSED, __LINE__);
#endif
}

// 4 warps of 16 rows each. A thread has rows g and g + 8 of its warp's, and pairs of columns 8j + 2t, 8j + 2t
// + 1.
struct MmaTiles {
    using Element = bf16;
    static constexpr int THREADS = 128;
    static constexpr int ROWS = 64;
    static constexpr int OWN_ROWS = 2;
    static constexpr int LANES = 4;
    template <int N>
    static constexpr int COLUMNS = N / 4;
    // Left operands of `mul` stay in registers.
    template <int N>
    static constexpr int SCRATCH = 0;

    static __device__ __forceinline__ int row(int i) {
        return int(threadIdx.x) / WARP * 16 + int(threadIdx.x) % WARP / 4 + 8 * i;
    }
    static __device__ __forceinline__ int column(int j) {
        return j / 2 * 8 + int(threadIdx.x) % 4 * 2 + j % 2;
    }
    template <int DP>
    static __device__ __forceinline__ int channel(int j) {
        return column(j);
    }

    template <int DP, int N>
    static __device__ __forceinline__ void dot(f32 (&sums)[OWN_ROWS][COLUMNS<N>], const bf16* a,
                                               const bf16* b) {
        constexpr int LD = TILE_STRIDE<bf16, DP>;
        const int lane = int(threadIdx.x) % WARP, warp = int(threadIdx.x) / WARP;
        const bf16* const a_rows = a + (warp * 16 + lane % 16) * LD + lane / 16 * 8;
        const bf16* const b_rows = b + (lane % 8 + lane / 16 * 8) * LD + lane / 8 % 2 * 8;
#pragma unroll
        for (int k = 0; k < DP; k += 16) {
            u32 left[4];  // matrices: upper and lower rows of the left columns, then of the right ones
            load_matrices<false>(left, a_rows, k);
#pragma unroll
            for (int n = 0; n < N; n += 16) {
                u32 right[4];  // columns n .. n + 7 at both halves of k, then columns n + 8 .. n + 15
                load_matrices<false>(right, b_rows, n * LD + k);
                add_product(sums, n, left, right);
            }
        }
    }

    template <int DP, int N>
    static __device__ __forceinline__ void mul(f32 (&sums)[OWN_ROWS][COLUMNS<DP>],
                                               const f32 (&left)[OWN_ROWS][COLUMNS<N>], const bf16* b,
                                               bf16*) {
        constexpr int LD = TILE_STRIDE<bf16, DP>;
        const int lane = int(threadIdx.x) % WARP;
        const bf16* const b_rows = b + lane % 16 * LD + lane / 16 * 8;
#pragma unroll
        for (int k = 0; k < N; k += 16) {
            // What a thread holds of a product is what it has to hold of a left operand, rounded.
            const int j = k / 4;
            const u32 factors[4] = {
                bf16_pair(left[0][j], left[0][j + 1]), bf16_pair(left[1][j], left[1][j + 1]),
                bf16_pair(left[0][j + 2], left[0][j + 3]), bf16_pair(left[1][j + 2], left[1][j + 3])};
#pragma unroll
            for (int n = 0; n < DP; n += 16) {
                u32 right[4];
                load_matrices<true>(right, b_rows, k * LD + n);
                add_product(sums, n, factors, right);
            }
        }
    }

private:
    // Columns n .. n + 15 of the sums.
    template <int C>
    static __device__ __forceinline__ void add_product(f32 (&sums)[OWN_ROWS][C], int n, const u32 (&left)[4],
                                                       const u32 (&right)[4]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int j = n / 4 + 2 * half;
            f32 c[4] = {sums[0][j], sums[0][j + 1], sums[1][j], sums[1][j + 1]};
            const u32 b[2] = {right[2 * half], right[2 * half + 1]};
            mma(c, left, b);
            sums[0][j] = c[0];
            sums[0][j + 1] = c[1];
            sums[1][j] = c[2];
            sums[1][j + 1] = c[3];
        }
    }
};

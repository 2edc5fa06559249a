// Token and position embedding. Additions in the order of backend/cpu/ops/embedding.rs: same bits.
#include "common.cuh"

// A token outside of the vocabulary would read or write another tensor: the launch ends with an error.
__device__ __forceinline__ u32 known_token(u32 token, u32 vocab) {
    if (token >= vocab) __trap();
    return token;
}

// out[row] = wte[tokens[row]] + wpe[row % t], the second where there is a wpe. Overwrites out (rows, C).
template <class T>
__device__ void embedding_forward(T* out, const u32* tokens, const T* wte, const T* wpe, i64 rows, int t,
                                  int c, u32 vocab) {
    const bool in_words = aligned(address(out) | address(wte) | address(wpe) | u64(c) * sizeof(T));
    const int chunks = (c + CHUNK - 1) / CHUNK;
    for (i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x; k < rows * chunks;
         k += i64(gridDim.x) * blockDim.x) {
        const i64 row = k / chunks;
        const int i = int(k % chunks) * CHUNK;
        f32 x[CHUNK], p[CHUNK] = {};
        load(x, wte + i64(known_token(tokens[row], vocab)) * c + i, c - i, in_words);
        if (wpe != nullptr) load(p, wpe + row % t * c + i, c - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) x[j] += p[j];
        store(out + row * c + i, x, c - i, in_words);
    }
}

// Rows in the order of (token, row). Overwrites order (rows). A row's place is the number of rows before it,
// counted by comparing with all: rows^2 comparisons from shared memory, which for the rows of a micro-batch
// is quicker than sorting.
__device__ void order_rows(u32* order, const u32* tokens, int rows) {
    SHARED(u32, others, [MAX_THREADS]);
    for (i64 first = i64(blockIdx.x) * MAX_THREADS; first < rows; first += i64(gridDim.x) * MAX_THREADS) {
        const int row = int(first) + int(threadIdx.x);
        const u32 token = row < rows ? tokens[row] : 0;
        int place = 0;
        for (int tile = 0; tile < rows; tile += MAX_THREADS) {
            const int other = tile + int(threadIdx.x);
            __syncthreads();  // the tile before this one was read
            // No token is as large, so what is past the end comes after every row.
            others[threadIdx.x] = other < rows ? tokens[other] : 0xffffffffu;
            __syncthreads();
#pragma unroll 8
            for (int k = 0; k < MAX_THREADS; k++) {
                place += others[k] < token || (others[k] == token && tile + k < row) ? 1 : 0;
            }
        }
        if (row < rows) order[place] = u32(row);
    }
}

// dwte[token] += sum of the rows of dout with that token, in their order, rounded once. Accumulates. A warp
// takes a place in `order` and a stripe of columns, and has something to do where a token's rows begin.
template <class G, class T>
__device__ void embedding_backward_wte(G* dwte, const T* dout, const u32* tokens, const u32* order, int rows,
                                       int c, u32 vocab) {
    const bool in_words = aligned(address(dwte) | address(dout) | u64(c) * sizeof(T) | u64(c) * sizeof(G));
    const int lane = int(threadIdx.x) % WARP;
    const i64 warp = (i64(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
    const i64 n_warps = i64(gridDim.x) * blockDim.x / WARP;
    const int stripes = (c + WARP * CHUNK - 1) / (WARP * CHUNK);
    for (i64 k = warp; k < i64(rows) * stripes; k += n_warps) {
        const int place = int(k / stripes), i = int(k % stripes) * WARP * CHUNK + lane * CHUNK;
        const u32 token = known_token(tokens[order[place]], vocab);
        if (place > 0 && tokens[order[place - 1]] == token) continue;
        G* const out = dwte + i64(token) * c + i;
        f32 sums[CHUNK];
        load(sums, out, c - i, in_words);
        for (int next = place;; next += WARP) {
            // The lanes look at 32 places at once; those of this token come first.
            const u32 row = next + lane < rows ? order[next + lane] : 0;
            const bool same = next + lane < rows && tokens[row] == token;
            const int n = int(warp_sum(same ? 1.0f : 0.0f));
#pragma unroll 4
            for (int from = 0; from < n; from++) {
                f32 d[CHUNK];
                load(d, dout + i64(__shfl_sync(ALL_LANES, row, from)) * c + i, c - i, in_words);
#pragma unroll
                for (int j = 0; j < CHUNK; j++) sums[j] += d[j];
            }
            if (n < WARP) break;
        }
        store(out, sums, c - i, in_words);
    }
}

// dwpe[p] = sum over sequences of dout at position p, in their order; zeros at and after t. Overwrites dwpe
// (t_max, C).
template <class G, class T>
__device__ void embedding_backward_wpe(G* dwpe, const T* dout, i64 rows, int t, int t_max, int c) {
    const bool in_words = aligned(address(dwpe) | address(dout) | u64(c) * sizeof(T) | u64(c) * sizeof(G));
    const int chunks = (c + CHUNK - 1) / CHUNK;
    for (i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x; k < i64(t_max) * chunks;
         k += i64(gridDim.x) * blockDim.x) {
        const i64 position = k / chunks;
        const int i = int(k % chunks) * CHUNK;
        f32 sums[CHUNK] = {};
        if (position < t) {
#pragma unroll 4
            for (i64 row = position; row < rows; row += t) {
                f32 d[CHUNK];
                load(d, dout + row * c + i, c - i, in_words);
#pragma unroll
                for (int j = 0; j < CHUNK; j++) sums[j] += d[j];
            }
        }
        store(dwpe + position * c + i, sums, c - i, in_words);
    }
}

KERNEL embedding_order(u32* order, const u32* tokens, int rows) { order_rows(order, tokens, rows); }

#define EMBEDDING_FORWARD_KERNEL(T)                                                                      \
    KERNEL embedding_forward_##T(T* out, const u32* tokens, const T* wte, const T* wpe, i64 rows, int t, \
                                 int c, u32 vocab) {                                                     \
        embedding_forward(out, tokens, wte, wpe, rows, t, c, vocab);                                     \
    }
EMBEDDING_FORWARD_KERNEL(f32)
EMBEDDING_FORWARD_KERNEL(bf16)
#undef EMBEDDING_FORWARD_KERNEL

#define EMBEDDING_BACKWARD_KERNELS(T, G)                                                                 \
    KERNEL embedding_backward_wte_##T##_##G(G* dwte, const T* dout, const u32* tokens, const u32* order, \
                                            int rows, int c, u32 vocab) {                                \
        embedding_backward_wte(dwte, dout, tokens, order, rows, c, vocab);                               \
    }                                                                                                    \
    KERNEL embedding_backward_wpe_##T##_##G(G* dwpe, const T* dout, i64 rows, int t, int t_max, int c) { \
        embedding_backward_wpe(dwpe, dout, rows, t, t_max, c);                                           \
    }
EMBEDDING_BACKWARD_KERNELS(f32, f32)
EMBEDDING_BACKWARD_KERNELS(f32, bf16)
EMBEDDING_BACKWARD_KERNELS(bf16, f32)
EMBEDDING_BACKWARD_KERNELS(bf16, bf16)
#undef EMBEDDING_BACKWARD_KERNELS

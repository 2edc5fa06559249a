// Causal softmax attention over a fused projection, forward and backward, without the matrix of scores ever
// in memory (arXiv:2205.14135, arXiv:2307.08691).
//
// A block has ROWS = 64 rows of one head (queries, or keys for their gradients) and goes over the other side
// in tiles of N rows, leaving out those that the mask hides whole: half of the work. Statistics are f32.
// Probabilities exist in registers alone; the backward recomputes them from the log-sum-exp.
//
// Gradients of queries, and of keys and values, come from two kernels. One kernel for both would have blocks
// add to the same rows in an order that changes from run to run.
//
// A row of qkv is [q: n_heads * d | k: n_kv_heads * d | v: n_kv_heads * d]; heads of a group share a kv head.
// Tiles have DP channels, the smallest of 32, 64, 128 that is at least d.
#include "tiles.cuh"

// The kernels' way with elements of type T.
template <class T>
struct TilesOf;
template <>
struct TilesOf<f32> {
    using Tiles = FmaTiles;
};
template <>
struct TilesOf<bf16> {
    using Tiles = MmaTiles;
};

constexpr f32 LOG2_E = 1.44269504f;
constexpr f32 LN_2 = 0.693147182f;

// 2^x within 2 units in the last place; results too small for a normal number are 0.
__device__ __forceinline__ f32 exp2_fast(f32 x) {
#ifdef __CUDACC__
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

template <int LANES>
__device__ __forceinline__ f32 lanes_max(f32 x) {
#pragma unroll
    for (int flip = LANES / 2; flip > 0; flip /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, flip));
    return x;
}

template <int LANES>
__device__ __forceinline__ f32 lanes_sum(f32 x) {
#pragma unroll
    for (int flip = LANES / 2; flip > 0; flip /= 2) x += __shfl_xor_sync(ALL_LANES, x, flip);
    return x;
}

// Where a sequence's head lies in qkv, and how far its rows are apart.
struct Head {
    i64 row_numel;  // of qkv
    i64 q, k, v;    // elements from the first row of qkv
    i64 out;        // elements from the first row of the output, whose rows have n_heads * d elements
    i64 lse;        // elements from the start of lse

    __device__ __forceinline__ Head(int sequence, int head, int t, int n_heads, int n_kv_heads, int d) {
        row_numel = i64(n_heads + 2 * n_kv_heads) * d;
        const i64 first = i64(sequence) * t * row_numel;
        const int kv_head = head / (n_heads / n_kv_heads);
        q = first + i64(head) * d;
        k = first + i64(n_heads + kv_head) * d;
        v = first + i64(n_heads + n_kv_heads + kv_head) * d;
        out = i64(sequence) * t * n_heads * d + i64(head) * d;
        lse = (i64(sequence) * n_heads + head) * t;
    }
};

// Rounds what threads hold of a product of ROWS rows into rows of a matrix, the first `n_rows` of them and
// `d` channels. By way of `tile`, which nobody needs any more when all have come here: from there whole words
// go to memory.
template <class Tiles, int DP, class T>
__device__ __forceinline__ void store_rows(T* matrix, i64 stride,
                                           const f32 (&x)[Tiles::OWN_ROWS][Tiles::template COLUMNS<DP>],
                                           T* tile, int n_rows, int d, bool in_words) {
    constexpr int LD = TILE_STRIDE<T, DP>;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Tiles::OWN_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < Tiles::template COLUMNS<DP>; j += 2) {
            T* const to = tile + Tiles::row(i) * LD + Tiles::template channel<DP>(j);
            store_pair(to, x[i][j], x[i][j + 1]);
        }
    }
    __syncthreads();
    for (int k = int(threadIdx.x); k < n_rows * (DP / CHUNK); k += int(blockDim.x)) {
        const int row = k / (DP / CHUNK), i = k % (DP / CHUNK) * CHUNK;
        f32 v[CHUNK];
        unpack<SharedMemory>(v, tile + row * LD + i);
        store(matrix + row * stride + i, v, d - i, in_words);
    }
}

// Overwrites out (B, T, H * D) and lse (B, H, T), the log-sum-exp of the scaled scores.
template <class T, int DP, int N>
__device__ __forceinline__ void attention_forward(T* out, f32* lse, const T* qkv, int b, int t, int n_heads,
                                                  int n_kv_heads, int d, f32 scale) {
    using Tiles = typename TilesOf<T>::Tiles;
    using S = typename Tiles::Element;
    constexpr int OWN_ROWS = Tiles::OWN_ROWS, COLUMNS = Tiles::template COLUMNS<N>;
    constexpr int CHANNELS = Tiles::template COLUMNS<DP>, LD = TILE_STRIDE<S, DP>;
    DYNAMIC_SHARED(S, shared);
    S* const q_tile = shared;
    S* const k_tile = q_tile + Tiles::ROWS * LD;
    S* const v_tile = k_tile + N * LD;
    S* const scratch = v_tile + N * LD;

    const int n_tiles = (t + Tiles::ROWS - 1) / Tiles::ROWS;
    const i64 n_items = i64(n_tiles) * n_heads * b;
    const f32 scale_log2 = scale * LOG2_E;
    for (i64 item = blockIdx.x; item < n_items; item += gridDim.x) {
        // Late queries see most keys: they go first, so that the last blocks to run are short.
        const int first = (n_tiles - 1 - int(item / (n_heads * b))) * Tiles::ROWS;
        const int head = int(item % n_heads), sequence = int(item / n_heads % b);
        const Head at(sequence, head, t, n_heads, n_kv_heads, d);
        const bool in_words = aligned(address(qkv) | u64(d) * sizeof(T));
        const int n_rows = min_of(Tiles::ROWS, t - first);

        __syncthreads();  // the tiles of the item before were used
        load_tile<DP>(q_tile, Tiles::ROWS, qkv + at.q + first * at.row_numel, at.row_numel, n_rows, d,
                      in_words);

        f32 max[OWN_ROWS], sum[OWN_ROWS], product[OWN_ROWS][CHANNELS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            max[i] = __uint_as_float(0xff800000u);  // -infinity
            sum[i] = 0.0f;
#pragma unroll
            for (int j = 0; j < CHANNELS; j++) product[i][j] = 0.0f;
        }
        const int end = min_of(t, first + Tiles::ROWS);  // no key at or after it is seen
        for (int key = 0; key < end; key += N) {
            __syncthreads();  // the tiles before these were used
            load_tile<DP>(k_tile, N, qkv + at.k + key * at.row_numel, at.row_numel, t - key, d, in_words);
            load_tile<DP>(v_tile, N, qkv + at.v + key * at.row_numel, at.row_numel, t - key, d, in_words);
            __syncthreads();

            f32 scores[OWN_ROWS][COLUMNS] = {};
            Tiles::template dot<DP, N>(scores, q_tile, k_tile);
            const bool masked = key + N - 1 > first;
#pragma unroll
            for (int i = 0; i < OWN_ROWS; i++) {
                f32 new_max = max[i];
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    scores[i][j] *= scale_log2;
                    if (masked && key + Tiles::column(j) > first + Tiles::row(i)) {
                        scores[i][j] = __uint_as_float(0xff800000u);
                    }
                    new_max = fmaxf(new_max, scores[i][j]);
                }
                new_max = lanes_max<Tiles::LANES>(new_max);
                const f32 correction = exp2_fast(max[i] - new_max);
                max[i] = new_max;
                sum[i] *= correction;
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    scores[i][j] = exp2_fast(scores[i][j] - new_max);
                    sum[i] += scores[i][j];
                }
#pragma unroll
                for (int j = 0; j < CHANNELS; j++) product[i][j] *= correction;
            }
            Tiles::template mul<DP, N>(product, scores, v_tile, scratch);
        }
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            sum[i] = lanes_sum<Tiles::LANES>(sum[i]);
            const f32 factor = 1.0f / sum[i];
#pragma unroll
            for (int j = 0; j < CHANNELS; j++) product[i][j] *= factor;
            const int row = Tiles::row(i);
            if (row < n_rows && int(threadIdx.x) % Tiles::LANES == 0)
                lse[at.lse + first + row] = max[i] * LN_2 + logf(sum[i]);
        }
        const i64 out_row = i64(n_heads) * d;
        store_rows<Tiles, DP>(out + at.out + first * out_row, out_row, product, q_tile, n_rows, d,
                              aligned(address(out) | u64(d) * sizeof(T)));
    }
}

// delta (B, H, T) = dout . out of each query's head. Overwrites. Eight lanes have one head of a row.
template <class T>
__device__ void attention_delta(f32* delta, const T* dout, const T* out, int b, int t, int n_heads, int d) {
    const bool in_words = aligned(address(dout) | address(out) | u64(d) * sizeof(T));
    const i64 n_items = i64(b) * t * n_heads;
    const int lane = int(threadIdx.x) % 8;
    const i64 step = i64(gridDim.x) * blockDim.x / 8;
    // Rounded up, so that all lanes of a warp go around equally often.
    for (i64 k = (i64(blockIdx.x) * blockDim.x + threadIdx.x) / 8; k - int(threadIdx.x) % WARP / 8 < n_items;
         k += step) {
        f32 sum = 0.0f;
        for (int i = lane * CHUNK; k < n_items && i < d; i += 8 * CHUNK) {
            f32 a[CHUNK], o[CHUNK];
            load(a, dout + k * d + i, d - i, in_words);
            load(o, out + k * d + i, d - i, in_words);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) sum = fmaf(a[j], o[j], sum);
        }
        sum = lanes_sum<8>(sum);
        const i64 row = k / n_heads;
        if (lane == 0 && k < n_items) delta[(row / t * n_heads + k % n_heads) * t + row % t] = sum;
    }
}

// The gradient of queries: overwrites the q part of dqkv (B, T, (H + 2 Hkv) * D).
template <class T, int DP, int N>
__device__ __forceinline__ void attention_backward_q(T* dqkv, const T* dout, const T* qkv, const f32* lse,
                                                     const f32* delta, int b, int t, int n_heads,
                                                     int n_kv_heads, int d, f32 scale) {
    using Tiles = typename TilesOf<T>::Tiles;
    using S = typename Tiles::Element;
    constexpr int OWN_ROWS = Tiles::OWN_ROWS, COLUMNS = Tiles::template COLUMNS<N>;
    constexpr int CHANNELS = Tiles::template COLUMNS<DP>, LD = TILE_STRIDE<S, DP>;
    DYNAMIC_SHARED(S, shared);
    S* const q_tile = shared;
    S* const dout_tile = q_tile + Tiles::ROWS * LD;
    S* const k_tile = dout_tile + Tiles::ROWS * LD;
    S* const v_tile = k_tile + N * LD;
    S* const scratch = v_tile + N * LD;

    const int n_tiles = (t + Tiles::ROWS - 1) / Tiles::ROWS;
    const i64 n_items = i64(n_tiles) * n_heads * b, out_row = i64(n_heads) * d;
    for (i64 item = blockIdx.x; item < n_items; item += gridDim.x) {
        const int first = (n_tiles - 1 - int(item / (n_heads * b))) * Tiles::ROWS;
        const int head = int(item % n_heads), sequence = int(item / n_heads % b);
        const Head at(sequence, head, t, n_heads, n_kv_heads, d);
        const bool in_words = aligned(address(qkv) | address(dout) | u64(d) * sizeof(T));
        const int n_rows = min_of(Tiles::ROWS, t - first);

        __syncthreads();  // the tiles of the item before were used
        load_tile<DP>(q_tile, Tiles::ROWS, qkv + at.q + first * at.row_numel, at.row_numel, n_rows, d,
                      in_words);
        load_tile<DP>(dout_tile, Tiles::ROWS, dout + at.out + first * out_row, out_row, n_rows, d, in_words);
        f32 row_lse[OWN_ROWS], row_delta[OWN_ROWS], dq[OWN_ROWS][CHANNELS] = {};
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            const int row = Tiles::row(i);
            row_lse[i] = row < n_rows ? lse[at.lse + first + row] * LOG2_E : 0.0f;
            row_delta[i] = row < n_rows ? delta[at.lse + first + row] : 0.0f;
        }
        const int end = min_of(t, first + Tiles::ROWS);
        for (int key = 0; key < end; key += N) {
            __syncthreads();  // the tiles before these were used
            load_tile<DP>(k_tile, N, qkv + at.k + key * at.row_numel, at.row_numel, t - key, d, in_words);
            load_tile<DP>(v_tile, N, qkv + at.v + key * at.row_numel, at.row_numel, t - key, d, in_words);
            __syncthreads();
            f32 scores[OWN_ROWS][COLUMNS] = {}, dprobs[OWN_ROWS][COLUMNS] = {};
            Tiles::template dot<DP, N>(scores, q_tile, k_tile);
            Tiles::template dot<DP, N>(dprobs, dout_tile, v_tile);
#pragma unroll
            for (int i = 0; i < OWN_ROWS; i++) {
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    const bool seen =
                        key + Tiles::column(j) <= first + Tiles::row(i) && Tiles::row(i) < n_rows;
                    const f32 prob = seen ? exp2_fast(fmaf(scores[i][j], scale * LOG2_E, -row_lse[i])) : 0.0f;
                    dprobs[i][j] = prob * (dprobs[i][j] - row_delta[i]) * scale;
                }
            }
            Tiles::template mul<DP, N>(dq, dprobs, k_tile, scratch);
        }
        store_rows<Tiles, DP>(dqkv + at.q + first * at.row_numel, at.row_numel, dq, q_tile, n_rows, d,
                              aligned(address(dqkv) | u64(d) * sizeof(T)));
    }
}

// The gradients of keys and values: overwrites the k and v parts of dqkv. A block's rows are keys; queries of
// all heads of the group go by, head by head.
template <class T, int DP, int N>
__device__ __forceinline__ void attention_backward_kv(T* dqkv, const T* dout, const T* qkv, const f32* lse,
                                                      const f32* delta, int b, int t, int n_heads,
                                                      int n_kv_heads, int d, f32 scale) {
    using Tiles = typename TilesOf<T>::Tiles;
    using S = typename Tiles::Element;
    constexpr int OWN_ROWS = Tiles::OWN_ROWS, COLUMNS = Tiles::template COLUMNS<N>;
    constexpr int CHANNELS = Tiles::template COLUMNS<DP>, LD = TILE_STRIDE<S, DP>;
    DYNAMIC_SHARED(S, shared);
    SHARED(f32, query_lse, [N]);
    SHARED(f32, query_delta, [N]);
    S* const k_tile = shared;
    S* const v_tile = k_tile + Tiles::ROWS * LD;
    S* const q_tile = v_tile + Tiles::ROWS * LD;
    S* const dout_tile = q_tile + N * LD;
    S* const scratch = dout_tile + N * LD;

    const int n_tiles = (t + Tiles::ROWS - 1) / Tiles::ROWS, group = n_heads / n_kv_heads;
    const i64 n_items = i64(n_tiles) * n_kv_heads * b, out_row = i64(n_heads) * d;
    for (i64 item = blockIdx.x; item < n_items; item += gridDim.x) {
        // Early keys are seen by most queries: they go first.
        const int first = int(item / (n_kv_heads * b)) * Tiles::ROWS;
        const int kv_head = int(item % n_kv_heads), sequence = int(item / n_kv_heads % b);
        const Head shared_by(sequence, kv_head * group, t, n_heads, n_kv_heads, d);
        const bool in_words = aligned(address(qkv) | address(dout) | u64(d) * sizeof(T));
        const int n_rows = min_of(Tiles::ROWS, t - first);
        const i64 stride = shared_by.row_numel;

        __syncthreads();  // the tiles of the item before were used
        load_tile<DP>(k_tile, Tiles::ROWS, qkv + shared_by.k + first * stride, stride, n_rows, d, in_words);
        load_tile<DP>(v_tile, Tiles::ROWS, qkv + shared_by.v + first * stride, stride, n_rows, d, in_words);
        f32 dk[OWN_ROWS][CHANNELS] = {}, dv[OWN_ROWS][CHANNELS] = {};
        for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
            const Head at(sequence, head, t, n_heads, n_kv_heads, d);
            for (int query = first / N * N; query < t; query += N) {
                __syncthreads();  // the tiles before these were used
                load_tile<DP>(q_tile, N, qkv + at.q + query * stride, stride, t - query, d, in_words);
                load_tile<DP>(dout_tile, N, dout + at.out + query * out_row, out_row, t - query, d, in_words);
                for (int i = int(threadIdx.x); i < N; i += int(blockDim.x)) {
                    query_lse[i] = query + i < t ? lse[at.lse + query + i] * LOG2_E : 0.0f;
                    query_delta[i] = query + i < t ? delta[at.lse + query + i] : 0.0f;
                }
                __syncthreads();
                // Rows are keys here, columns queries.
                f32 probs[OWN_ROWS][COLUMNS] = {}, dscores[OWN_ROWS][COLUMNS] = {};
                Tiles::template dot<DP, N>(probs, k_tile, q_tile);
#pragma unroll
                for (int i = 0; i < OWN_ROWS; i++) {
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) {
                        const int column = Tiles::column(j);
                        const bool seen = first + Tiles::row(i) <= query + column && query + column < t;
                        probs[i][j] =
                            seen ? exp2_fast(fmaf(probs[i][j], scale * LOG2_E, -query_lse[column])) : 0.0f;
                    }
                }
                Tiles::template mul<DP, N>(dv, probs, dout_tile, scratch);
                Tiles::template dot<DP, N>(dscores, v_tile, dout_tile);
#pragma unroll
                for (int i = 0; i < OWN_ROWS; i++) {
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) {
                        dscores[i][j] = probs[i][j] * (dscores[i][j] - query_delta[Tiles::column(j)]) * scale;
                    }
                }
                Tiles::template mul<DP, N>(dk, dscores, q_tile, scratch);
            }
        }
        const bool out_in_words = aligned(address(dqkv) | u64(d) * sizeof(T));
        store_rows<Tiles, DP>(dqkv + shared_by.k + first * stride, stride, dk, k_tile, n_rows, d,
                              out_in_words);
        store_rows<Tiles, DP>(dqkv + shared_by.v + first * stride, stride, dv, v_tile, n_rows, d,
                              out_in_words);
    }
}

// Tiles of N rows: fewer where gradients of 128 channels leave few registers, and once more with as few as
// fit where a block has 99 KiB of shared memory (compute capability 8.6, 8.9, 12.0).
#define ATTENTION_KERNELS(T, DP, N)                                                                        \
    KERNEL_OF(TilesOf<T>::Tiles::THREADS, 1)                                                               \
    attention_forward_##T##_##DP##x##N(T* out, f32* lse, const T* qkv, int b, int t, int n_heads,          \
                                       int n_kv_heads, int d, f32 scale) {                                 \
        attention_forward<T, DP, N>(out, lse, qkv, b, t, n_heads, n_kv_heads, d, scale);                   \
    }                                                                                                      \
    KERNEL_OF(TilesOf<T>::Tiles::THREADS, 1)                                                               \
    attention_backward_q_##T##_##DP##x##N(T* dqkv, const T* dout, const T* qkv, const f32* lse,            \
                                          const f32* delta, int b, int t, int n_heads, int n_kv_heads,     \
                                          int d, f32 scale) {                                              \
        attention_backward_q<T, DP, N>(dqkv, dout, qkv, lse, delta, b, t, n_heads, n_kv_heads, d, scale);  \
    }                                                                                                      \
    KERNEL_OF(TilesOf<T>::Tiles::THREADS, 1)                                                               \
    attention_backward_kv_##T##_##DP##x##N(T* dqkv, const T* dout, const T* qkv, const f32* lse,           \
                                           const f32* delta, int b, int t, int n_heads, int n_kv_heads,    \
                                           int d, f32 scale) {                                             \
        attention_backward_kv<T, DP, N>(dqkv, dout, qkv, lse, delta, b, t, n_heads, n_kv_heads, d, scale); \
    }
ATTENTION_KERNELS(f32, 32, 64)
ATTENTION_KERNELS(f32, 64, 64)
ATTENTION_KERNELS(f32, 128, 64)
ATTENTION_KERNELS(f32, 128, 16)
ATTENTION_KERNELS(bf16, 32, 64)
ATTENTION_KERNELS(bf16, 64, 64)
ATTENTION_KERNELS(bf16, 128, 32)
#undef ATTENTION_KERNELS

KERNEL attention_delta_f32(f32* delta, const f32* dout, const f32* out, int b, int t, int n_heads, int d) {
    attention_delta(delta, dout, out, b, t, n_heads, d);
}
KERNEL attention_delta_bf16(f32* delta, const bf16* dout, const bf16* out, int b, int t, int n_heads, int d) {
    attention_delta(delta, dout, out, b, t, n_heads, d);
}

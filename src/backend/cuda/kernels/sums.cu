// Sums over the rows of a matrix, for gradients of biases and norms: partial sums of fixed chunks of rows,
// which many blocks make side by side, then the sum of these in their order.
//
// A block adds a stripe of STRIPE columns of one chunk: warp w the rows w, w + 8, ... of it, then the warps'
// sums in order.
#include "common.cuh"

constexpr int STRIPE = WARP * CHUNK;
constexpr int SUM_WARPS = MAX_THREADS / WARP;

// Adds up f(row, column chunk, sums) of each warp's rows, then the warps, and writes the stripe's sums to
// `partials`. `width` sums for each column; those of column i and kind k go to partials[k * c + i]. All
// threads of a block enter.
template <int WIDTH, class F>
__device__ __forceinline__ void chunk_sums(f32* partials, i64 first_row, i64 end_row, int first_column, int c,
                                           F add_row) {
    SHARED(f32, stripes, [SUM_WARPS][WIDTH][STRIPE]);
    const int warp = int(threadIdx.x) / WARP, column = int(threadIdx.x) % WARP * CHUNK;
    f32 sums[WIDTH][CHUNK];
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sums[k][j] = 0.0f;
    }
    if (first_column + column < c) {
        for (i64 row = first_row + warp; row < end_row; row += SUM_WARPS)
            add_row(row, first_column + column, sums);
    }
    __syncthreads();  // the stripe before this one was read
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
#pragma unroll
        for (int j = 0; j < CHUNK; j++) stripes[warp][k][column + j] = sums[k][j];
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < STRIPE && first_column + i < c; i += int(blockDim.x)) {
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            f32 total = stripes[0][k][i];
            for (int w = 1; w < SUM_WARPS; w++) total += stripes[w][k][i];
            partials[i64(k) * c + first_column + i] = total;
        }
    }
}

// Runs chunk_sums over all stripes and chunks: partials (chunks, WIDTH, C), chunks of `chunk_rows` rows.
template <int WIDTH, class F>
__device__ __forceinline__ void all_chunk_sums(f32* partials, i64 rows, int c, int chunk_rows, F add_row) {
    const i64 stripes = (c + STRIPE - 1) / STRIPE, chunks = (rows + chunk_rows - 1) / chunk_rows;
    for (i64 k = blockIdx.x; k < stripes * chunks; k += gridDim.x) {
        const i64 chunk = k / stripes;
        const i64 first = chunk * chunk_rows;
        chunk_sums<WIDTH>(partials + chunk * WIDTH * c, first, min_of(rows, first + chunk_rows),
                          int(k % stripes) * STRIPE, c, add_row);
    }
}

// Overwrites partials (chunks, C): sums of the rows of inp (rows, C). Blocks of MAX_THREADS threads, here and
// below.
template <class T>
__device__ void column_sums(f32* partials, const T* inp, i64 rows, int c, int chunk_rows) {
    const bool in_words = aligned(address(inp) | u64(c) * sizeof(T));
    all_chunk_sums<1>(partials, rows, c, chunk_rows, [&](i64 row, int i, f32(&sums)[1][CHUNK]) {
        f32 x[CHUNK];
        load(x, inp + row * c + i, c - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sums[0][j] += x[j];
    });
}

// Overwrites partials (chunks, 2, C): of dweight and of dbias of LayerNorm.
template <class T>
__device__ void layer_norm_weight_sums(f32* partials, const T* dout, const T* inp, const f32* mean,
                                       const f32* rstd, i64 rows, int c, int chunk_rows) {
    const bool in_words = aligned(address(dout) | address(inp) | u64(c) * sizeof(T));
    all_chunk_sums<2>(partials, rows, c, chunk_rows, [&](i64 row, int i, f32(&sums)[2][CHUNK]) {
        const f32 mu = mean[row], r = rstd[row];
        f32 d[CHUNK], x[CHUNK];
        load(d, dout + row * c + i, c - i, in_words);
        load(x, inp + row * c + i, c - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            sums[0][j] = fmaf(d[j], (x[j] - mu) * r, sums[0][j]);
            sums[1][j] += d[j];
        }
    });
}

// Overwrites partials (chunks, C): of dweight of RMSNorm.
template <class T>
__device__ void rms_norm_weight_sums(f32* partials, const T* dout, const T* inp, const f32* rstd, i64 rows,
                                     int c, int chunk_rows) {
    const bool in_words = aligned(address(dout) | address(inp) | u64(c) * sizeof(T));
    all_chunk_sums<1>(partials, rows, c, chunk_rows, [&](i64 row, int i, f32(&sums)[1][CHUNK]) {
        const f32 r = rstd[row];
        f32 d[CHUNK], x[CHUNK];
        load(d, dout + row * c + i, c - i, in_words);
        load(x, inp + row * c + i, c - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sums[0][j] = fmaf(d[j], x[j] * r, sums[0][j]);
    });
}

// out (C) = sum over k of partials[k * stride + i], k < chunks. Overwrites. A warp's lanes are columns; warp
// w adds the w-th part of the chunks, then the parts are added in order.
template <class G>
__device__ void fold_chunks(G* out, const f32* partials, int chunks, i64 stride, int c) {
    SHARED(f32, parts, [SUM_WARPS][WARP]);
    const int warp = int(threadIdx.x) / WARP, lane = int(threadIdx.x) % WARP;
    const int part = (chunks + SUM_WARPS - 1) / SUM_WARPS;
    for (int first = int(blockIdx.x) * WARP; first < c; first += int(gridDim.x) * WARP) {
        const int i = first + lane;
        f32 sum = 0.0f;
        if (i < c) {
            const int end = min_of(chunks, (warp + 1) * part);
#pragma unroll 4
            for (int k = warp * part; k < end; k++) sum += partials[k * stride + i];
        }
        __syncthreads();  // the parts before these were read
        parts[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && i < c) {
            for (int w = 1; w < SUM_WARPS; w++) sum += parts[w][lane];
            out[i] = from_f32<G>(sum);
        }
    }
}

#define SUM_KERNELS(T)                                                                                     \
    KERNEL column_sums_##T(f32* partials, const T* inp, i64 rows, int c, int chunk_rows) {                 \
        column_sums(partials, inp, rows, c, chunk_rows);                                                   \
    }                                                                                                      \
    KERNEL layer_norm_weight_sums_##T(f32* partials, const T* dout, const T* inp, const f32* mean,         \
                                      const f32* rstd, i64 rows, int c, int chunk_rows) {                  \
        layer_norm_weight_sums(partials, dout, inp, mean, rstd, rows, c, chunk_rows);                      \
    }                                                                                                      \
    KERNEL rms_norm_weight_sums_##T(f32* partials, const T* dout, const T* inp, const f32* rstd, i64 rows, \
                                    int c, int chunk_rows) {                                               \
        rms_norm_weight_sums(partials, dout, inp, rstd, rows, c, chunk_rows);                              \
    }                                                                                                      \
    KERNEL fold_chunks_##T(T* out, const f32* partials, int chunks, i64 stride, int c) {                   \
        fold_chunks(out, partials, chunks, stride, c);                                                     \
    }
SUM_KERNELS(f32)
SUM_KERNELS(bf16)
#undef SUM_KERNELS

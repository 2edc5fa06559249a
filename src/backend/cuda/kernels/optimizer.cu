// What happens to a rank's slices of gradients and parameters: contributions added in order, the exact sum of
// squares, AdamW.
#include "common.cuh"

// sum (n) = contributions of ranks 0 .. contributors, added from left to right in f32; the first is copied
// where `first`, else added to what is there. Rank r's lies at `own` where r = rank, else in `staging`, whose
// rows of `stride` elements belong to the other ranks in their order. Same fold as
// backend/cpu/collectives.rs.
template <class T>
__device__ void ordered_add(f32* sum, const T* own, const T* staging, i64 n, i64 stride, int contributors,
                            int rank, int first) {
    const bool in_words = aligned(address(sum) | address(own) | address(staging) | u64(stride) * sizeof(T));
    for (i64 i = first_chunk(); i < n; i += next_chunk()) {
        f32 total[CHUNK];
        if (!first) load(total, sum + i, n - i, in_words);
        for (int from = 0; from < contributors; from++) {
            const T* contribution = from == rank ? own : staging + (from - (from > rank ? 1 : 0)) * stride;
            f32 x[CHUNK];
            load(x, contribution + i, n - i, in_words);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) total[j] = first && from == 0 ? x[j] : total[j] + x[j];
        }
        store(sum + i, total, n - i, in_words);
    }
}

constexpr int EXPONENTS = 256;
constexpr int SQUARES_THREADS = 256;
// Elements that go through a block's 32-bit bins before those are emptied: 2^16 addends below 2^16 fit one.
constexpr int SQUARES_PER_EMPTYING = 1 << 16;
constexpr int SQUARES_WARPS = SQUARES_THREADS / WARP;

// Exact sum of squares of inp (n). An element is m * 2^e with an integer m of 24 bits; m * m goes to the bin
// of its exponent field: bins (256, 2) of u64, where bin[e][0] + bin[e][1] * 2^32 grows by the sum of the
// squares. Adds to what is there, in integers, so no order shows. Infinity and NaN make bin 255 non-zero.
//
// Most gradients share few exponents, so the lanes of a warp often meet in a bin. Squares are cut in three
// parts of 16 bits for bins of 32, whose addition in shared memory is one instruction, and each warp has bins
// of its own.
template <class T>
__device__ void sum_of_squares(u64* bins, const T* inp, i64 n) {
    SHARED(u32, parts, [SQUARES_WARPS][3][EXPONENTS]);
    const bool in_words = aligned(address(inp));
    const int warp = int(threadIdx.x) / WARP;
    for (int i = int(threadIdx.x); i < SQUARES_WARPS * 3 * EXPONENTS; i += int(blockDim.x))
        parts[0][0][i] = 0;
    __syncthreads();
    const i64 n_emptyings = (n + SQUARES_PER_EMPTYING - 1) / SQUARES_PER_EMPTYING;
    for (i64 k = blockIdx.x; k < n_emptyings; k += gridDim.x) {
        const i64 end = min_of(n, (k + 1) * SQUARES_PER_EMPTYING);
        for (i64 i = k * SQUARES_PER_EMPTYING + threadIdx.x * CHUNK; i < end; i += blockDim.x * CHUNK) {
            f32 x[CHUNK];
            load(x, inp + i, end - i, in_words);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                const u32 bits = __float_as_uint(x[j]);
                const u32 exponent = (bits >> 23) & 0xffu;
                const u64 mantissa = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
                const u64 square = mantissa * mantissa;
                if (square == 0) continue;
                atomicAdd(&parts[warp][0][exponent], u32(square) & 0xffffu);
                atomicAdd(&parts[warp][1][exponent], u32(square >> 16) & 0xffffu);
                atomicAdd(&parts[warp][2][exponent], u32(square >> 32));
            }
        }
        __syncthreads();
        for (int e = int(threadIdx.x); e < EXPONENTS; e += int(blockDim.x)) {
            u64 sums[3] = {0, 0, 0};
            for (int w = 0; w < SQUARES_WARPS; w++) {
                for (int part = 0; part < 3; part++) {
                    sums[part] += parts[w][part][e];
                    parts[w][part][e] = 0;
                }
            }
            // Below 2^16 * 2^48 in all, so it fits.
            const u64 total = sums[0] + (sums[1] << 16) + (sums[2] << 32);
            if (total == 0) continue;
            atomicAdd(&bins[2 * e], total & 0xffffffffull);
            atomicAdd(&bins[2 * e + 1], total >> 32);
        }
        __syncthreads();
    }
}

// One AdamW update (arXiv:1711.05101) in PyTorch's order: decay first. Updates master, m, v (n) in place;
// `param` (n), or null, is overwritten with the rounded master. Operations in the order of
// backend/cpu/ops/update/adamw.rs; the host has computed decay = 1 - lr * weight_decay,
// step_size = lr / bias_correction1 and the square root of bias_correction2.
template <class G>
__device__ void adamw(f32* master, f32* m, f32* v, const G* grad, bf16* param, i64 n, f32 grad_scale,
                      f32 decay, f32 one_minus_beta1, f32 beta2, f32 one_minus_beta2, f32 step_size,
                      f32 bias_correction2_sqrt, f32 eps) {
    const bool in_words = aligned(address(master) | address(m) | address(v) | address(grad) | address(param));
    for (i64 i = first_chunk(); i < n; i += next_chunk()) {
        f32 p[CHUNK], mean[CHUNK], square[CHUNK], g[CHUNK];
        load(p, master + i, n - i, in_words);
        load(mean, m + i, n - i, in_words);
        load(square, v + i, n - i, in_words);
        load(g, grad + i, n - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            const f32 scaled = g[j] * grad_scale;
            mean[j] = fmaf(one_minus_beta1, scaled - mean[j], mean[j]);
            square[j] = fmaf(one_minus_beta2 * scaled, scaled, square[j] * beta2);
            const f32 denom = sqrtf(square[j]) / bias_correction2_sqrt + eps;
            p[j] = p[j] * decay - step_size * mean[j] / denom;
        }
        store(master + i, p, n - i, in_words);
        store(m + i, mean, n - i, in_words);
        store(v + i, square, n - i, in_words);
        if (param != nullptr) store(param + i, p, n - i, in_words);
    }
}

#define OPTIMIZER_KERNELS(T)                                                                                 \
    KERNEL                                                                                                   \
    ordered_add_##T(f32* sum, const T* own, const T* staging, i64 n, i64 stride, int contributors, int rank, \
                    int first) {                                                                             \
        ordered_add(sum, own, staging, n, stride, contributors, rank, first);                                \
    }                                                                                                        \
    KERNEL_OF(SQUARES_THREADS, 3) sum_of_squares_##T(u64* bins, const T* inp, i64 n) {                       \
        sum_of_squares(bins, inp, n);                                                                        \
    }                                                                                                        \
    KERNEL                                                                                                   \
    adamw_##T(f32* master, f32* m, f32* v, const T* grad, bf16* param, i64 n, f32 grad_scale, f32 decay,     \
              f32 one_minus_beta1, f32 beta2, f32 one_minus_beta2, f32 step_size, f32 bias_correction2_sqrt, \
              f32 eps) {                                                                                     \
        adamw(master, m, v, grad, param, n, grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2,      \
              step_size, bias_correction2_sqrt, eps);                                                        \
    }
OPTIMIZER_KERNELS(f32)
OPTIMIZER_KERNELS(bf16)
#undef OPTIMIZER_KERNELS

// LayerNorm (eps 1e-5, biased variance) and RMSNorm over the last dimension, forward and backward.
//
// A row belongs to a team of `team_threads` threads (32 for short rows, more for long ones: kernels read the
// row three times, from the first-level cache but for the first). The gradients of weight and bias are sums
// over rows: of each chunk of `chunk_rows` rows by partial sums, then of the chunks in order by sums.cu.
#include "common.cuh"

constexpr f32 LAYER_NORM_EPS = 1e-5f;

// Mean (0 for RMSNorm) and reciprocal standard deviation of the row at `x`, in every thread of the team.
template <bool CENTRED, class T>
__device__ __forceinline__ void row_statistics(f32& mean, f32& rstd, const RowTeam& team, const T* x, int c,
                                               f32 eps, bool in_words) {
    mean = 0.0f;
    if (CENTRED) {
        f32 sum = 0.0f;
        for (int i = team.rank * CHUNK; i < c; i += team.threads * CHUNK) {
            f32 v[CHUNK];
            load(v, x + i, c - i, in_words);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) sum += v[j];
        }
        mean = row_sum(team, sum) / f32(c);
    }
    f32 squares = 0.0f;
    for (int i = team.rank * CHUNK; i < c; i += team.threads * CHUNK) {
        f32 v[CHUNK];
        load(v, x + i, c - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            const f32 d = i + j < c ? v[j] - mean : 0.0f;
            squares = fmaf(d, d, squares);
        }
    }
    rstd = 1.0f / sqrtf(row_sum(team, squares) / f32(c) + eps);
}

// out = (x - mean) * rstd * weight + bias of one row; without mean and bias for RMSNorm.
template <bool CENTRED, class T>
__device__ __forceinline__ void write_normed(T* out, const T* x, const T* weight, const T* bias, f32 mean,
                                             f32 rstd, const RowTeam& team, int c, bool in_words) {
    for (int i = team.rank * CHUNK; i < c; i += team.threads * CHUNK) {
        f32 v[CHUNK], w[CHUNK], b[CHUNK];
        load(v, x + i, c - i, in_words);
        load(w, weight + i, c - i, in_words);
        if (CENTRED) load(b, bias + i, c - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            const f32 normed = (v[j] - mean) * rstd;
            v[j] = CENTRED ? fmaf(normed, w[j], b[j]) : normed * w[j];
        }
        store(out + i, v, c - i, in_words);
    }
}

// Overwrites out (rows, C), mean and rstd (rows).
template <class T>
__device__ void layer_norm_forward(T* out, f32* mean, f32* rstd, const T* inp, const T* weight, const T* bias,
                                   i64 rows, int c, int team_threads) {
    const RowTeam team(team_threads);
    const bool in_words =
        aligned(address(out) | address(inp) | address(weight) | address(bias) | u64(c) * sizeof(T));
    for (i64 first = i64(blockIdx.x) * team.rows; first < rows; first += i64(gridDim.x) * team.rows) {
        const i64 row = first + team.row;
        // A team without a row goes along to the barriers with a row of no elements.
        const int n = row < rows ? c : 0;
        const T* x = inp + row * c;
        f32 mu, r;
        row_statistics<true>(mu, r, team, x, n, LAYER_NORM_EPS, in_words);
        write_normed<true>(out + row * c, x, weight, bias, mu, r, team, n, in_words);
        if (n > 0 && team.rank == 0) {
            mean[row] = mu;
            rstd[row] = r;
        }
    }
}

// sum = a + b, rounded, and the norm of that. Overwrites sum and out (rows, C), mean and rstd (rows). What a
// thread reads of `sum` it has written itself.
template <class T>
__device__ void add_layer_norm_forward(T* sum, T* out, f32* mean, f32* rstd, const T* a, const T* b,
                                       const T* weight, const T* bias, i64 rows, int c, int team_threads) {
    const RowTeam team(team_threads);
    const bool in_words = aligned(address(sum) | address(out) | address(a) | address(b) | address(weight) |
                                  address(bias) | u64(c) * sizeof(T));
    for (i64 first = i64(blockIdx.x) * team.rows; first < rows; first += i64(gridDim.x) * team.rows) {
        const i64 row = first + team.row;
        const int n = row < rows ? c : 0;
        T* x = sum + row * c;
        for (int i = team.rank * CHUNK; i < n; i += team.threads * CHUNK) {
            f32 left[CHUNK], right[CHUNK];
            load(left, a + row * c + i, n - i, in_words);
            load(right, b + row * c + i, n - i, in_words);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) left[j] += right[j];
            store(x + i, left, n - i, in_words);
        }
        f32 mu, r;
        row_statistics<true>(mu, r, team, x, n, LAYER_NORM_EPS, in_words);
        write_normed<true>(out + row * c, x, weight, bias, mu, r, team, n, in_words);
        if (n > 0 && team.rank == 0) {
            mean[row] = mu;
            rstd[row] = r;
        }
    }
}

// Overwrites out (rows, C) and rstd (rows).
template <class T>
__device__ void rms_norm_forward(T* out, f32* rstd, const T* inp, const T* weight, i64 rows, int c, f32 eps,
                                 int team_threads) {
    const RowTeam team(team_threads);
    const bool in_words = aligned(address(out) | address(inp) | address(weight) | u64(c) * sizeof(T));
    for (i64 first = i64(blockIdx.x) * team.rows; first < rows; first += i64(gridDim.x) * team.rows) {
        const i64 row = first + team.row;
        const int n = row < rows ? c : 0;
        const T* x = inp + row * c;
        f32 mu, r;
        row_statistics<false>(mu, r, team, x, n, eps, in_words);
        write_normed<false>(out + row * c, x, weight, weight, mu, r, team, n, in_words);
        if (n > 0 && team.rank == 0) rstd[row] = r;
    }
}

// Accumulates into dinp (rows, C): (dout * weight - mean(dout * weight) - norm * mean(dout * weight * norm))
// * rstd, the first mean for LayerNorm alone.
template <bool CENTRED, class T>
__device__ __forceinline__ void norm_backward(T* dinp, const T* dout, const T* inp, const T* weight,
                                              const f32* mean, const f32* rstd, i64 rows, int c,
                                              int team_threads) {
    const RowTeam team(team_threads);
    const bool in_words =
        aligned(address(dinp) | address(dout) | address(inp) | address(weight) | u64(c) * sizeof(T));
    const f32 per_channel = 1.0f / f32(c);
    for (i64 first = i64(blockIdx.x) * team.rows; first < rows; first += i64(gridDim.x) * team.rows) {
        const i64 row = first + team.row;
        const int n = row < rows ? c : 0;
        const f32 mu = CENTRED && n > 0 ? mean[row] : 0.0f;
        const f32 r = n > 0 ? rstd[row] : 0.0f;
        f32 sum = 0.0f, sum_norm = 0.0f;
        for (int i = team.rank * CHUNK; i < n; i += team.threads * CHUNK) {
            f32 d[CHUNK], x[CHUNK], w[CHUNK];
            load(d, dout + row * c + i, n - i, in_words);
            load(x, inp + row * c + i, n - i, in_words);
            load(w, weight + i, n - i, in_words);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                const f32 dnorm = d[j] * w[j];  // 0 past the end of the row
                sum += dnorm;
                sum_norm = fmaf(dnorm, (x[j] - mu) * r, sum_norm);
            }
        }
        row_sums(team, sum, sum_norm);
        const f32 dnorm_mean = CENTRED ? sum * per_channel : 0.0f, dnorm_norm_mean = sum_norm * per_channel;
        for (int i = team.rank * CHUNK; i < n; i += team.threads * CHUNK) {
            f32 d[CHUNK], x[CHUNK], w[CHUNK], dx[CHUNK];
            load(d, dout + row * c + i, n - i, in_words);
            load(x, inp + row * c + i, n - i, in_words);
            load(w, weight + i, n - i, in_words);
            load(dx, dinp + row * c + i, n - i, in_words);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                const f32 norm = (x[j] - mu) * r;
                const f32 centred = fmaf(d[j], w[j], -dnorm_mean);
                dx[j] = fmaf(fmaf(-norm, dnorm_norm_mean, centred), r, dx[j]);
            }
            store(dinp + row * c + i, dx, n - i, in_words);
        }
    }
}

#define NORM_KERNELS(T)                                                                                     \
    KERNEL                                                                                                  \
    layer_norm_forward_##T(T* out, f32* mean, f32* rstd, const T* inp, const T* weight, const T* bias,      \
                           i64 rows, int c, int team_threads) {                                             \
        layer_norm_forward(out, mean, rstd, inp, weight, bias, rows, c, team_threads);                      \
    }                                                                                                       \
    KERNEL                                                                                                  \
    add_layer_norm_forward_##T(T* sum, T* out, f32* mean, f32* rstd, const T* a, const T* b,                \
                               const T* weight, const T* bias, i64 rows, int c, int team_threads) {         \
        add_layer_norm_forward(sum, out, mean, rstd, a, b, weight, bias, rows, c, team_threads);            \
    }                                                                                                       \
    KERNEL                                                                                                  \
    layer_norm_backward_##T(T* dinp, const T* dout, const T* inp, const T* weight, const f32* mean,         \
                            const f32* rstd, i64 rows, int c, int team_threads) {                           \
        norm_backward<true>(dinp, dout, inp, weight, mean, rstd, rows, c, team_threads);                    \
    }                                                                                                       \
    KERNEL                                                                                                  \
    rms_norm_forward_##T(T* out, f32* rstd, const T* inp, const T* weight, i64 rows, int c, f32 eps,        \
                         int team_threads) {                                                                \
        rms_norm_forward(out, rstd, inp, weight, rows, c, eps, team_threads);                               \
    }                                                                                                       \
    KERNEL                                                                                                  \
    rms_norm_backward_##T(T* dinp, const T* dout, const T* inp, const T* weight, const f32* rstd, i64 rows, \
                          int c, int team_threads) {                                                        \
        norm_backward<false>(dinp, dout, inp, weight, static_cast<const f32*>(nullptr), rstd, rows, c,      \
                             team_threads);                                                                 \
    }
NORM_KERNELS(f32)
NORM_KERNELS(bf16)
#undef NORM_KERNELS

// Kernels without neighbours: activations, additions, casts. `n` counts elements; operations are those of
// backend/cpu/ops/elementwise.rs, in the same order.
#include "exp.cuh"

constexpr f32 GELU_SCALE = 0.797884561f;  // sqrt(2 / pi)
constexpr f32 GELU_CUBE = 0.044715f;      // arXiv:1606.08415

// u of gelu(x) = x * (1 + tanh(u)) / 2 = x / (1 + exp(-2u)).
__device__ __forceinline__ f32 gelu_argument(f32 x) { return GELU_SCALE * x * fmaf(GELU_CUBE * x, x, 1.0f); }

__device__ __forceinline__ f32 gelu(f32 x) { return x / (1.0f + exp_f32(-2.0f * gelu_argument(x))); }

__device__ __forceinline__ f32 gelu_derivative(f32 x) {
    // Beyond 30 the curve is straight; so near every power stays finite.
    f32 near = x > 30.0f ? 30.0f : x;
    near = near < -30.0f ? -30.0f : near;
    const f32 argument = -2.0f * gelu_argument(near);
    const f32 e = exp_f32(argument > 80.0f ? 80.0f : argument);
    const f32 sigmoid = 1.0f / (1.0f + e);
    // d(sigmoid(2u))/du = 2 sigmoid (1 - sigmoid), and 1 - sigmoid = e * sigmoid without cancellation.
    const f32 du = GELU_SCALE * fmaf(3.0f * GELU_CUBE * near, near, 1.0f);
    return fmaf(2.0f * near * du * e * sigmoid, sigmoid, sigmoid);
}

// 1 / (1 + e^-x). Below -88 the power would be infinite and 0 * infinity is NaN in the derivative.
__device__ __forceinline__ f32 sigmoid_of(f32 x) {
    const f32 argument = -x;
    return 1.0f / (1.0f + exp_f32(argument > 80.0f ? 80.0f : argument));
}

// out = f(a), chunk by chunk.
template <class O, class A, class F>
__device__ __forceinline__ void map(O* out, const A* a, i64 n, F f) {
    const bool in_words = aligned(address(out) | address(a));
    for (i64 i = first_chunk(); i < n; i += next_chunk()) {
        f32 x[CHUNK];
        load(x, a + i, n - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) x[j] = f(x[j]);
        store(out + i, x, n - i, in_words);
    }
}

// out = f(a, b), chunk by chunk. `out` may be `a`.
template <class O, class A, class B, class F>
__device__ __forceinline__ void map2(O* out, const A* a, const B* b, i64 n, F f) {
    const bool in_words = aligned(address(out) | address(a) | address(b));
    for (i64 i = first_chunk(); i < n; i += next_chunk()) {
        f32 x[CHUNK], y[CHUNK];
        load(x, a + i, n - i, in_words);
        load(y, b + i, n - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) x[j] = f(x[j], y[j]);
        store(out + i, x, n - i, in_words);
    }
}

struct Gelu {
    __device__ f32 operator()(f32 x) const { return gelu(x); }
};
struct GeluBackward {
    __device__ f32 operator()(f32 d, f32 x) const { return d * gelu_derivative(x); }
};
struct Same {
    __device__ f32 operator()(f32 x) const { return x; }
};
struct Add {
    __device__ f32 operator()(f32 a, f32 b) const { return a + b; }
};

// out (rows, F) = silu(gate) * up of gate_up (rows, 2F) = [gate | up]. Overwrites. arXiv:2002.05202.
template <class T>
__device__ void swiglu_forward(T* out, const T* gate_up, i64 rows, int f) {
    const bool in_words = aligned(address(out) | address(gate_up) | u64(f) * sizeof(T));
    const int chunks = (f + CHUNK - 1) / CHUNK;
    for (i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x; k < rows * chunks;
         k += i64(gridDim.x) * blockDim.x) {
        const i64 row = k / chunks;
        const int i = int(k % chunks) * CHUNK;
        f32 gate[CHUNK], up[CHUNK];
        load(gate, gate_up + row * 2 * f + i, f - i, in_words);
        load(up, gate_up + row * 2 * f + f + i, f - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) gate[j] = gate[j] * sigmoid_of(gate[j]) * up[j];
        store(out + row * f + i, gate, f - i, in_words);
    }
}

// dgate_up (rows, 2F) from dout (rows, F). Overwrites.
template <class T>
__device__ void swiglu_backward(T* dgate_up, const T* dout, const T* gate_up, i64 rows, int f) {
    const bool in_words = aligned(address(dgate_up) | address(dout) | address(gate_up) | u64(f) * sizeof(T));
    const int chunks = (f + CHUNK - 1) / CHUNK;
    for (i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x; k < rows * chunks;
         k += i64(gridDim.x) * blockDim.x) {
        const i64 row = k / chunks;
        const int i = int(k % chunks) * CHUNK;
        f32 gate[CHUNK], up[CHUNK], d[CHUNK];
        load(gate, gate_up + row * 2 * f + i, f - i, in_words);
        load(up, gate_up + row * 2 * f + f + i, f - i, in_words);
        load(d, dout + row * f + i, f - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            const f32 s = sigmoid_of(gate[j]);
            const f32 derivative = s * fmaf(gate[j], 1.0f - s, 1.0f);
            const f32 dgate = d[j] * up[j] * derivative;
            up[j] = d[j] * (gate[j] * s);
            gate[j] = dgate;
        }
        store(dgate_up + row * 2 * f + i, gate, f - i, in_words);
        store(dgate_up + row * 2 * f + f + i, up, f - i, in_words);
    }
}

// n columns of each of `rows` rows, which are to_row elements apart in out and from_row in inp. Overwrites;
// numbers stay as they are.
template <class T>
__device__ void copy_columns(T* out, const T* inp, i64 rows, int n, int to_row, int from_row) {
    const bool in_words =
        aligned(address(out) | address(inp) | u64(to_row) * sizeof(T) | u64(from_row) * sizeof(T));
    const int chunks = (n + CHUNK - 1) / CHUNK;
    for (i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x; k < rows * chunks;
         k += i64(gridDim.x) * blockDim.x) {
        const i64 row = k / chunks;
        const int i = int(k % chunks) * CHUNK;
        f32 x[CHUNK];
        load(x, inp + row * from_row + i, n - i, in_words);
        store(out + row * to_row + i, x, n - i, in_words);
    }
}

#define ELEMENTWISE_KERNELS(T)                                                                  \
    KERNEL gelu_forward_##T(T* out, const T* inp, i64 n) { map(out, inp, n, Gelu()); }          \
    KERNEL gelu_backward_##T(T* dout_to_dinp, const T* inp, i64 n) {                            \
        map2(dout_to_dinp, dout_to_dinp, inp, n, GeluBackward());                               \
    }                                                                                           \
    KERNEL add_##T(T* out, const T* a, const T* b, i64 n) { map2(out, a, b, n, Add()); }        \
    KERNEL accumulate_##T(f32* out, const T* inp, i64 n) { map2(out, out, inp, n, Add()); }     \
    KERNEL copy_columns_##T(T* out, const T* inp, i64 rows, int n, int to_row, int from_row) {  \
        copy_columns(out, inp, rows, n, to_row, from_row);                                      \
    }                                                                                           \
    KERNEL swiglu_forward_##T(T* out, const T* gate_up, i64 rows, int f) {                      \
        swiglu_forward(out, gate_up, rows, f);                                                  \
    }                                                                                           \
    KERNEL swiglu_backward_##T(T* dgate_up, const T* dout, const T* gate_up, i64 rows, int f) { \
        swiglu_backward(dgate_up, dout, gate_up, rows, f);                                      \
    }
ELEMENTWISE_KERNELS(f32)
ELEMENTWISE_KERNELS(bf16)
#undef ELEMENTWISE_KERNELS

// cast_OUT_IN: exact from bf16 to f32, rounded the other way; NaN stays NaN.
#define CAST_KERNEL(O, I) \
    KERNEL cast_##O##_##I(O* out, const I* inp, i64 n) { map(out, inp, n, Same()); }
CAST_KERNEL(f32, f32)
CAST_KERNEL(f32, bf16)
CAST_KERNEL(bf16, f32)
CAST_KERNEL(bf16, bf16)
#undef CAST_KERNEL

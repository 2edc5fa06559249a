// e^x, operation by operation that of backend/cpu/math.rs, so both backends give the same bits.
#pragma once
#include "common.cuh"

// 0 below about -103.97, infinity above about 88.72, NaN for NaN; within 1.1 units in the last place.
//
// x = n ln 2 + r (Cody and Waite), then the polynomial of Cephes' expf on |r| <= ln 2 / 2.
__device__ __forceinline__ f32 exp_f32(f32 x) {
    const f32 round_bias = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    x = x > 89.0f ? 89.0f : x;           // written so that NaN stays NaN
    x = x < -104.0f ? -104.0f : x;
    const f32 rounded = fmaf(x, 1.44269504f, round_bias);
    const int n = int(__float_as_uint(rounded) - __float_as_uint(round_bias));
    const f32 n_float = rounded - round_bias;
    const f32 r = fmaf(-n_float, -1.904654323e-9f, fmaf(-n_float, 0.693147182f, x));
    f32 p = 1.9875691e-4f;
    p = fmaf(p, r, 1.3981999e-3f);
    p = fmaf(p, r, 8.333452e-3f);
    p = fmaf(p, r, 4.1665796e-2f);
    p = fmaf(p, r, 1.6666665e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r * r, r) + 1.0f;
    // 2^n as two factors: n reaches -150 and 128, neither of which is the exponent of one normal number.
    const int half = n >> 1;
    return p * __uint_as_float(u32(half + 127) << 23) * __uint_as_float(u32(n - half + 127) << 23);
}

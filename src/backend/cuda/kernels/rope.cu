// Rotary position embedding (arXiv:2104.09864), the rotate-half form, on the query and key heads of a fused
// projection.
#include "common.cuh"

// A number as the sum of two f32, about 48 bits: angles grow with the position, and an f32 would lose their
// fraction.
struct Split {
    f32 high, low;
};

// a * b to about 2^-46 of it.
__device__ __forceinline__ Split product(Split a, Split b) {
    const f32 high = a.high * b.high;
    const f32 low = fmaf(a.high, b.high, -high) + fmaf(a.high, b.low, a.low * b.high);
    const f32 sum = high + low;
    return Split{sum, low - (sum - high)};
}

// Rotates in place, in each of the first `heads` heads of every row of x (rows of `row_numel` elements,
// sequences of t rows, the first at position `first`), channel i against i + d / 2 by position * turn_ratio^i
// * one_radian turns; `inverse`: backwards, which is also the gradient. `turn_ratio` = theta^(-2/d),
// `one_radian` = 1 / (2 pi), each a Split.
template <class T>
__device__ void rope(T* x, i64 rows, int t, int first, int heads, int row_numel, int d, f32 ratio_high,
                     f32 ratio_low, f32 radian_high, f32 radian_low, int inverse) {
    const int half = d / 2;
    for (i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x; k < rows * half;
         k += i64(gridDim.x) * blockDim.x) {
        const i64 row = k / half;
        const int i = int(k % half);
        Split turns = product(Split{radian_high, radian_low}, Split{f32(first + row % t), 0.0f});
        Split factor{ratio_high, ratio_low};
        for (int power = i; power > 0; power /= 2) {
            if (power % 2 == 1) turns = product(turns, factor);
            factor = product(factor, factor);
        }
        // Whole turns change nothing; taking them off is exact.
        const f32 fraction = (turns.high - rintf(turns.high)) + turns.low;
        const f32 cosine = cospif(2.0f * fraction);
        const f32 sine = inverse ? -sinpif(2.0f * fraction) : sinpif(2.0f * fraction);
        T* pair = x + row * row_numel + i;
        for (int head = 0; head < heads; head++, pair += d) {
            const f32 a = to_f32(pair[0]), b = to_f32(pair[half]);
            pair[0] = from_f32<T>(fmaf(a, cosine, -(b * sine)));
            pair[half] = from_f32<T>(fmaf(a, sine, b * cosine));
        }
    }
}

#define ROPE_KERNEL(T)                                                                                 \
    KERNEL rope_##T(T* x, i64 rows, int t, int first, int heads, int row_numel, int d, f32 ratio_high, \
                    f32 ratio_low, f32 radian_high, f32 radian_low, int inverse) {                     \
        rope(x, rows, t, first, heads, row_numel, d, ratio_high, ratio_low, radian_high, radian_low,   \
             inverse);                                                                                 \
    }
ROPE_KERNEL(f32)
ROPE_KERNEL(bf16)
#undef ROPE_KERNEL

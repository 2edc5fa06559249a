// Activations, additions and casts. A sum of two numbers, rounded once, has one right answer: those are
// compared as bits.
#pragma once
#include "harness.hpp"

namespace test {

// Of a few f32 operations in a row; exp of an argument of size a is off by another a units.
inline double rounding(double operations, double exp_argument = 0) {
    return (operations + 2 * std::fabs(exp_argument)) * HALF_ULP<f32>;
}

constexpr double GELU_ARGUMENT_SCALE = 0.7978845608028654;
inline double gelu_argument_f64(double x) { return GELU_ARGUMENT_SCALE * x * (1 + 0.044715 * x * x); }
inline double sigmoid_f64(double x) { return 1 / (1 + std::exp(-x)); }

// The chunk kernels' launch: few threads and blocks, so that they go around.
constexpr unsigned FEW_BLOCKS = 2, FEW_THREADS = 64;

// The gradient takes e^80 for all larger powers: where the true one is smaller than this.
constexpr double FAR_LEFT = 2e-31;

template <class T>
void check_gelu(size_t n, size_t skip) {
    const Array<T> inp(n, skip, 1, 12.0), dout(n, skip, 2);
    const auto out = same_in_every_order([&](unsigned order) {
        Array<T> y(n, skip);
        launch("gelu_forward", OF_TYPE(T, gelu_forward), FEW_BLOCKS, FEW_THREADS, 0, order, y.data(),
               inp.data(), n);
        return y;
    });
    const auto dinp = same_in_every_order([&](unsigned order) {
        Array<T> d(dout);
        launch("gelu_backward", OF_TYPE(T, gelu_backward), FEW_BLOCKS, FEW_THREADS, 0, order, d.data(),
               inp.data(), n);
        return d;
    });
    Worst worst("gelu"), worst_backward("gradient of gelu");
    for (size_t i = 0; i < n; i++) {
        const double x = inp.at(i), u = gelu_argument_f64(x), s = sigmoid_f64(2 * u);
        const double y = x * s;
        // Below the smallest normal number a unit is no longer relative.
        worst.check(i, out.at(i), y, std::fabs(y) * (rounding(12, 4 * u) + HALF_ULP<T>) + 1e-37);
        const double slope = 2 * x * GELU_ARGUMENT_SCALE * (1 + 3 * 0.044715 * x * x) * s * (1 - s);
        const double want = dout.at(i) * (s + slope);
        worst_backward.check(i, dinp.at(i), want,
                             std::fabs(dout.at(i)) * (s + std::fabs(slope)) * rounding(16, 4 * u) +
                                 HALF_ULP<T> * std::fabs(want) + FAR_LEFT);
    }
}

TEST(gelu_and_its_gradient_are_the_definition) {
    for (const size_t n : odd_sizes())
        for (const size_t skip : skips()) {
            check_gelu<f32>(n, skip);
            check_gelu<bf16>(n, skip);
        }
}

TEST(gelu_of_the_odd_ones) {
    const f32 inf = INFINITY;
    Array<f32> x(6), y(6), d(6);
    const f32 inputs[6] = {0.0f, -inf, inf, NAN, 1e30f, -1e30f};
    for (int i = 0; i < 6; i++) x[i] = inputs[i], d[i] = 1.0f;
    launch("gelu_forward_f32", gelu_forward_f32, 1, 32, 0, 0, y.data(), x.data(), 6);
    launch("gelu_backward_f32", gelu_backward_f32, 1, 32, 0, 0, d.data(), x.data(), 6);
    REQUIRE(y[0] == 0.0f && d[0] == 0.5f);
    REQUIRE(y[2] == inf && d[2] == 1.0f);
    REQUIRE(std::isnan(y[3]) && std::isnan(d[3]));
    REQUIRE(y[4] == 1e30f && d[4] == 1.0f);
    REQUIRE(y[5] == 0.0f && std::fabs(d[1]) < FAR_LEFT && std::fabs(d[5]) < FAR_LEFT);
}

template <class T>
void check_swiglu(size_t rows, int f, size_t skip) {
    const Array<T> gate_up(rows * 2 * f, skip, 1, 6.0), dout(rows * f, skip, 2);
    const auto out = same_in_every_order([&](unsigned order) {
        Array<T> y(rows * f, skip);
        launch("swiglu_forward", OF_TYPE(T, swiglu_forward), FEW_BLOCKS, FEW_THREADS, 0, order, y.data(),
               gate_up.data(), rows, f);
        return y;
    });
    const auto dgate_up = same_in_every_order([&](unsigned order) {
        Array<T> d(rows * 2 * f, skip);
        launch("swiglu_backward", OF_TYPE(T, swiglu_backward), FEW_BLOCKS, FEW_THREADS, 0, order, d.data(),
               dout.data(), gate_up.data(), rows, f);
        return d;
    });
    Worst worst("swiglu"), worst_backward("gradient of swiglu");
    for (size_t row = 0; row < rows; row++)
        for (int i = 0; i < f; i++) {
            const size_t at = row * f + i, gate_at = row * 2 * f + i, up_at = gate_at + f;
            const double g = gate_up.at(gate_at), u = gate_up.at(up_at), d = dout.at(at), s = sigmoid_f64(g);
            const double y = g * s * u, dup = d * g * s, dgate = d * u * s * (1 + g * (1 - s));
            worst.check(at, out.at(at), y, std::fabs(y) * (rounding(12, g) + HALF_ULP<T>));
            worst_backward.check(up_at, dgate_up.at(up_at), dup,
                                 std::fabs(dup) * (rounding(12, g) + HALF_ULP<T>));
            worst_backward.check(
                gate_at, dgate_up.at(gate_at), dgate,
                std::fabs(d * u) * s * (1 + std::fabs(g)) * rounding(16, g) + HALF_ULP<T> * std::fabs(dgate));
        }
}

TEST(swiglu_and_its_gradient_are_the_definition) {
    for (const int f : {1, 8, 31, 64, 300})
        for (const size_t skip : skips()) {
            check_swiglu<f32>(5, f, skip);
            check_swiglu<bf16>(5, f, skip);
        }
    check_swiglu<f32>(0, 8, 0);
}

template <class T>
void check_copy_columns(size_t rows, int n, size_t skip) {
    const int to_row = 3 * n + 8, from_row = n + 16, to_first = 8, from_first = 16;
    const Array<T> inp(rows * from_row, skip, 1), before(rows * to_row, skip, 2);
    const auto out = same_in_every_order([&](unsigned order) {
        Array<T> y(before);
        launch("copy_columns", OF_TYPE(T, copy_columns), FEW_BLOCKS, FEW_THREADS, 0, order,
               y.data() + to_first, inp.data() + from_first, rows, n, to_row, from_row);
        return y;
    });
    for (size_t row = 0; row < rows; row++)
        for (int i = 0; i < to_row; i++) {
            const bool copied = i >= to_first && i < to_first + n;
            const double want =
                copied ? inp.at(row * from_row + from_first + i - to_first) : before.at(row * to_row + i);
            REQUIRE(out.at(row * to_row + i) == want);
        }
}

TEST(columns_are_copied_and_all_others_stay) {
    for (const int n : {1, 8, 31, 64, 300})
        for (const size_t skip : skips()) {
            check_copy_columns<f32>(5, n, skip);
            check_copy_columns<bf16>(5, n, skip);
        }
}

template <class T>
void check_additions(size_t n, size_t skip) {
    const Array<T> a(n, skip, 1), b(n, skip, 2, 3.0);
    const Array<f32> before(n, skip, 3);
    const auto sum = same_in_every_order([&](unsigned order) {
        Array<T> out(n, skip);
        launch("add", OF_TYPE(T, add), FEW_BLOCKS, FEW_THREADS, 0, order, out.data(), a.data(), b.data(), n);
        return out;
    });
    const auto total = same_in_every_order([&](unsigned order) {
        Array<f32> out(before);
        launch("accumulate", OF_TYPE(T, accumulate), FEW_BLOCKS, FEW_THREADS, 0, order, out.data(), a.data(),
               n);
        return out;
    });
    for (size_t i = 0; i < n; i++) {
        REQUIRE(sum.at(i) == value(from_f32<T>(to_f32(a[i]) + to_f32(b[i]))));
        REQUIRE(total[i] == before[i] + to_f32(a[i]));
    }
}

TEST(additions_round_once) {
    for (const size_t n : odd_sizes())
        for (const size_t skip : skips()) {
            check_additions<f32>(n, skip);
            check_additions<bf16>(n, skip);
        }
}

// Rounding of a bf16 is where the whole backend's exactness begins: every tie, every NaN, both zeros.
TEST(casts_round_to_nearest_even_and_keep_nan) {
    std::vector<u32> bits;
    for (u32 high = 0; high < 0x10000; high++) {
        for (const u32 low : {0x0000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) bits.push_back(high << 16 | low);
    }
    Array<f32> x(bits.size());
    for (size_t i = 0; i < bits.size(); i++) x[i] = __uint_as_float(bits[i]);
    Array<bf16> rounded(x.size());
    Array<f32> back(x.size());
    launch("cast_bf16_f32", cast_bf16_f32, 5, 256, 0, 0, rounded.data(), x.data(), x.size());
    launch("cast_f32_bf16", cast_f32_bf16, 5, 256, 0, 0, back.data(), rounded.data(), x.size());
    for (size_t i = 0; i < x.size(); i++) {
        if (std::isnan(x[i])) {
            REQUIRE(std::isnan(back[i]));
            continue;
        }
        // Of the two bf16 around x the nearer one; of equally near ones the even one.
        const u32 down = bits[i] & 0xffff0000u, up = down + 0x10000u;
        const u32 rest = bits[i] & 0xffffu;
        const u32 want = rest > 0x8000u || (rest == 0x8000u && (down >> 16) % 2 == 1) ? up : down;
        REQUIRE(__float_as_uint(back[i]) == want);
    }
}

TEST(casts_to_the_same_type_copy) {
    for (const size_t skip : skips()) {
        const Array<bf16> a(1001, skip, 1);
        const Array<f32> b(1001, skip, 2);
        Array<bf16> a_copy(1001, skip);
        Array<f32> b_copy(1001, skip);
        launch("cast_bf16_bf16", cast_bf16_bf16, 2, 32, 0, 0, a_copy.data(), a.data(), 1001);
        launch("cast_f32_f32", cast_f32_f32, 2, 32, 0, 0, b_copy.data(), b.data(), 1001);
        REQUIRE(a_copy.same_bits(a) && b_copy.same_bits(b));
    }
}

}  // namespace test

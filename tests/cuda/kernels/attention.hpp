// Attention against the definition, in f64. Bounds are worked out beside the results: each f32 sum of n
// products is off by at most n 2^-24 of the sum of their magnitudes, and the bf16 kernels round probabilities
// and gradients of scores once before they are multiplied (2^-8 of each).
#pragma once
#include "harness.hpp"

namespace test {

struct AttentionCase {
    int b, t, n_heads, n_kv_heads, d;
    size_t skip;  // elements after an aligned address where every array begins
};

inline const std::vector<AttentionCase>& attention_cases() {
    static const std::vector<AttentionCase> cases{
        {1, 1, 1, 1, 8, 0},    {2, 33, 3, 1, 16, 0},  {1, 65, 4, 2, 20, 0},  {1, 70, 2, 2, 7, 1},
        {1, 64, 2, 2, 64, 0},  {1, 257, 2, 1, 64, 0}, {2, 33, 1, 1, 100, 0}, {1, 130, 2, 2, 128, 0},
        {1, 129, 1, 1, 32, 1}, {1, 66, 2, 1, 80, 0},  {1, 35, 1, 1, 96, 1},
    };
    return cases;
}

template <class T>
struct Attention {
    AttentionCase shape;
    int rows;  // of the tiles that go by
    f32 scale;
    size_t qkv_row, out_row;
    Array<T> qkv, dout;

    Attention(const AttentionCase& c, int rows)
        : shape(c),
          rows(rows),
          scale(1.0f / std::sqrt(f32(c.d))),
          qkv_row(size_t(c.n_heads + 2 * c.n_kv_heads) * c.d),
          out_row(size_t(c.n_heads) * c.d),
          qkv(size_t(c.b) * c.t * qkv_row, c.skip, 1, 2.0),
          dout(size_t(c.b) * c.t * out_row, c.skip, 2) {}

    int padded() const { return shape.d <= 32 ? 32 : shape.d <= 64 ? 64 : 128; }
    // Bytes of dynamic shared memory: `own` tiles of 64 rows, `other` tiles that go by, and scratch.
    size_t shared_bytes(int own, int other) const {
        const size_t stride = padded() + 16 / sizeof(T);
        const size_t scratch = sizeof(T) == 4 ? 64 * (rows + 4) : 0;
        return ((own * 64 + other * rows) * stride + scratch) * sizeof(T);
    }
    unsigned threads() const { return sizeof(T) == 4 ? 256 : 128; }

    size_t q_at(int s, int i, int h) const {
        return (size_t(s) * shape.t + i) * qkv_row + size_t(h) * shape.d;
    }
    size_t k_at(int s, int i, int h) const {
        return q_at(s, i, shape.n_heads + h / (shape.n_heads / shape.n_kv_heads));
    }
    size_t v_at(int s, int i, int h) const { return k_at(s, i, h) + size_t(shape.n_kv_heads) * shape.d; }
    size_t out_at(int s, int i, int h) const {
        return (size_t(s) * shape.t + i) * out_row + size_t(h) * shape.d;
    }
    size_t lse_at(int s, int i, int h) const { return (size_t(s) * shape.n_heads + h) * shape.t + i; }

    // Sum of products, and its bound as an f32 sum.
    template <class A, class B>
    std::pair<double, double> dot(const A& a, size_t a_at, const B& b, size_t b_at) const {
        double sum = 0, magnitude = 0;
        for (int c = 0; c < shape.d; c++) {
            sum += a.at(a_at + c) * b.at(b_at + c);
            magnitude += std::fabs(a.at(a_at + c) * b.at(b_at + c));
        }
        return {sum, (shape.d + 2) * HALF_ULP<f32> * magnitude};
    }
};

// What the bf16 kernels round on the way.
template <class T>
constexpr double MIDDLE_ROUNDING = sizeof(T) == 2 ? HALF_ULP<bf16> : 0.0;
// Powers of two within 2 ulp, a few more operations.
constexpr double POWER_ERROR = 8 * HALF_ULP<f32>;

template <class T, class F>
void check_attention_forward(const AttentionCase& shape, int rows, F kernel) {
    const Attention<T> a(shape, rows);
    const auto [b, t, n_heads, n_kv_heads, d, skip] = shape;
    std::unique_ptr<Array<T>> first;
    for (const unsigned order : orders()) {
        Array<T> out(size_t(b) * t * a.out_row, skip);
        Array<f32> lse(size_t(b) * n_heads * t, skip);
        // Fewer blocks than there is work, so that they go around.
        launch("attention_forward", kernel, dim3(3), dim3(a.threads()), a.shared_bytes(1, 2), order,
               out.data(), lse.data(), a.qkv.data(), b, t, n_heads, n_kv_heads, d, a.scale);
        if (first) {
            REQUIRE(out.same_bits(*first));
            continue;
        }
        first = std::make_unique<Array<T>>(out);
        Worst worst_out(text("out of t = %d, d = %d", t, d)), worst_lse(text("lse of t = %d, d = %d", t, d));
        for (int s = 0; s < b; s++)
            for (int h = 0; h < n_heads; h++)
                for (int i = 0; i < t; i++) {
                    std::vector<double> scores(i + 1);
                    double max = -INFINITY, sum = 0, score_error = 0;
                    for (int j = 0; j <= i; j++) {
                        const auto [score, error] = a.dot(a.qkv, a.q_at(s, i, h), a.qkv, a.k_at(s, j, h));
                        scores[j] = score * a.scale;
                        max = std::max(max, scores[j]);
                        score_error =
                            std::max(score_error, error * a.scale + 2 * HALF_ULP<f32> * std::fabs(scores[j]));
                    }
                    for (double& x : scores) sum += x = std::exp(x - max);
                    const double relative = 2 * score_error + POWER_ERROR + (i + 1) * HALF_ULP<f32>;
                    for (int c = 0; c < d; c++) {
                        double want = 0, magnitude = 0;
                        for (int j = 0; j <= i; j++) {
                            want += scores[j] / sum * a.qkv.at(a.v_at(s, j, h) + c);
                            magnitude += scores[j] / sum * std::fabs(a.qkv.at(a.v_at(s, j, h) + c));
                        }
                        const size_t at = a.out_at(s, i, h) + c;
                        worst_out.check(
                            at, out.at(at), want,
                            magnitude * (relative + MIDDLE_ROUNDING<T>)+HALF_ULP<T> * std::fabs(want));
                    }
                    const double want = max + std::log(sum);
                    const size_t at = a.lse_at(s, i, h);
                    worst_lse.check(at, lse.at(at), want,
                                    relative + 4 * HALF_ULP<f32> * (std::fabs(max) + 1));
                }
    }
}

template <class T, class Delta, class Q, class Kv>
void check_attention_backward(const AttentionCase& shape, int rows, Delta delta_kernel, Q q_kernel,
                              Kv kv_kernel) {
    const Attention<T> a(shape, rows);
    const auto [b, t, n_heads, n_kv_heads, d, skip] = shape;
    // The forward's results, in f64 and then rounded, are inputs here.
    Array<T> out(size_t(b) * t * a.out_row, skip);
    Array<f32> lse(size_t(b) * n_heads * t, skip);
    Array<f32> want_delta(lse.size());
    // Sums and their bounds.
    std::vector<double> dqkv(a.qkv.size()), bound(a.qkv.size());
    for (int s = 0; s < b; s++)
        for (int h = 0; h < n_heads; h++)
            for (int i = 0; i < t; i++) {
                std::vector<double> p(i + 1), p_error(i + 1);
                double sum = 0, max = -INFINITY;
                for (int j = 0; j <= i; j++) {
                    const auto [score, error] = a.dot(a.qkv, a.q_at(s, i, h), a.qkv, a.k_at(s, j, h));
                    p[j] = score * a.scale;
                    p_error[j] = error * a.scale + 2 * HALF_ULP<f32> * std::fabs(p[j]);
                    max = std::max(max, p[j]);
                }
                for (int j = 0; j <= i; j++) sum += std::exp(p[j] - max);
                lse[a.lse_at(s, i, h)] = f32(max + std::log(sum));
                const double the_lse = lse.at(a.lse_at(s, i, h));
                for (int j = 0; j <= i; j++) {
                    p_error[j] += POWER_ERROR + 2 * HALF_ULP<f32> * std::fabs(the_lse);
                    p[j] = std::exp(p[j] - the_lse);
                }
                for (int c = 0; c < d; c++) {
                    double o = 0;
                    for (int j = 0; j <= i; j++) o += p[j] * a.qkv.at(a.v_at(s, j, h) + c);
                    out[a.out_at(s, i, h) + c] = rounded<T>(o);
                }
                const auto [delta, delta_error] = a.dot(a.dout, a.out_at(s, i, h), out, a.out_at(s, i, h));
                for (int j = 0; j <= i; j++) {
                    const auto [dp, dp_error] = a.dot(a.dout, a.out_at(s, i, h), a.qkv, a.v_at(s, j, h));
                    const double ds = p[j] * (dp - delta) * a.scale;
                    const double sums = (t * n_heads / n_kv_heads + 4) * HALF_ULP<f32>;
                    const double ds_error = p[j] * a.scale * (dp_error + delta_error) +
                                            std::fabs(ds) * (p_error[j] + MIDDLE_ROUNDING<T> + sums);
                    const double dp_v_error = p[j] * (p_error[j] + MIDDLE_ROUNDING<T> + sums);
                    for (int c = 0; c < d; c++) {
                        const size_t q = a.q_at(s, i, h) + c, k = a.k_at(s, j, h) + c,
                                     v = a.v_at(s, j, h) + c;
                        const double g = a.dout.at(a.out_at(s, i, h) + c);
                        dqkv[q] += ds * a.qkv.at(k);
                        bound[q] += ds_error * std::fabs(a.qkv.at(k));
                        dqkv[k] += ds * a.qkv.at(q);
                        bound[k] += ds_error * std::fabs(a.qkv.at(q));
                        dqkv[v] += p[j] * g;
                        bound[v] += dp_v_error * std::fabs(g);
                    }
                }
            }
    std::unique_ptr<Array<T>> first;
    for (const unsigned order : orders()) {
        Array<f32> delta(lse.size(), skip);
        Array<T> got(a.qkv.size(), skip);
        launch("attention_delta", delta_kernel, dim3(2), dim3(256), 0, order, delta.data(), a.dout.data(),
               out.data(), b, t, n_heads, d);
        launch("attention_backward_q", q_kernel, dim3(3), dim3(a.threads()), a.shared_bytes(2, 2), order,
               got.data(), a.dout.data(), a.qkv.data(), lse.data(), delta.data(), b, t, n_heads, n_kv_heads,
               d, a.scale);
        launch("attention_backward_kv", kv_kernel, dim3(3), dim3(a.threads()), a.shared_bytes(2, 2), order,
               got.data(), a.dout.data(), a.qkv.data(), lse.data(), delta.data(), b, t, n_heads, n_kv_heads,
               d, a.scale);
        if (first) {
            REQUIRE(got.same_bits(*first));
            continue;
        }
        first = std::make_unique<Array<T>>(got);
        Worst worst(text("dqkv of t = %d, d = %d", t, d));
        for (size_t i = 0; i < got.size(); i++) {
            // Where all cancels, so does the bound: what is left is the smallest numbers.
            worst.check(i, got.at(i), dqkv[i], bound[i] + HALF_ULP<T> * std::fabs(dqkv[i]) + 1e-30);
        }
    }
}

#define CHECK_ATTENTION_FORWARD(T, DP, N) check_attention_forward<T>(c, N, attention_forward_##T##_##DP##x##N)

TEST(attention_forward_is_the_definition) {
    for (const AttentionCase& c : attention_cases()) {
        if (c.d <= 32) {
            CHECK_ATTENTION_FORWARD(f32, 32, 64);
            CHECK_ATTENTION_FORWARD(bf16, 32, 64);
        } else if (c.d <= 64) {
            CHECK_ATTENTION_FORWARD(f32, 64, 64);
            CHECK_ATTENTION_FORWARD(bf16, 64, 64);
        } else {
            CHECK_ATTENTION_FORWARD(f32, 128, 64);
            CHECK_ATTENTION_FORWARD(f32, 128, 16);
            CHECK_ATTENTION_FORWARD(bf16, 128, 32);
        }
    }
}

#define CHECK_ATTENTION_BACKWARD(T, DP, N)                                                         \
    check_attention_backward<T>(c, N, attention_delta_##T, attention_backward_q_##T##_##DP##x##N, \
                                attention_backward_kv_##T##_##DP##x##N)

TEST(attention_backward_is_the_gradient_of_the_definition) {
    for (const AttentionCase& c : attention_cases()) {
        if (c.d <= 32) {
            CHECK_ATTENTION_BACKWARD(f32, 32, 64);
            CHECK_ATTENTION_BACKWARD(bf16, 32, 64);
        } else if (c.d <= 64) {
            CHECK_ATTENTION_BACKWARD(f32, 64, 64);
            CHECK_ATTENTION_BACKWARD(bf16, 64, 64);
        } else {
            CHECK_ATTENTION_BACKWARD(f32, 128, 64);
            CHECK_ATTENTION_BACKWARD(f32, 128, 16);
            CHECK_ATTENTION_BACKWARD(bf16, 128, 32);
        }
    }
}

}  // namespace test

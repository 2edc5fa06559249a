// LayerNorm, alone and after an addition, RMSNorm, and sums over rows, against f64.
#pragma once
#include "harness.hpp"

namespace test {

struct NormCase {
    int rows, c, team;
    size_t skip;
};

inline const std::vector<NormCase>& norm_cases() {
    static const std::vector<NormCase> cases{
        {37, 1, 32, 0},  {37, 31, 32, 0},  {20, 64, 32, 1},    {9, 768, 32, 0}, {7, 768, 64, 1},
        {5, 1600, 128, 0}, {3, 5000, 256, 0}, {1, 257, 256, 1}, {0, 64, 32, 0},
    };
    return cases;
}

// Additions on the longest way of an element into a row's sum.
inline double additions(int c) { return c / 32 + 24; }

// Checks out = norm(x) * w + b of one row, and its statistics, against what they should be from x.
template <class T>
void check_normed_row(Worst& worst, size_t row, int c, const Array<T>& x, const Array<T>& w,
                      const Array<T>* b, const Array<T>& out, const Array<f32>* mean, const Array<f32>& rstd,
                      double eps) {
    double mu = 0, magnitude = 0, squares = 0;
    for (int i = 0; i < c; i++) mu += x.at(row * c + i), magnitude += std::fabs(x.at(row * c + i));
    mu = mean ? mu / c : 0;
    for (int i = 0; i < c; i++) squares += std::pow(x.at(row * c + i) - mu, 2);
    const double r = 1 / std::sqrt(squares / c + eps), u = HALF_ULP<f32>;
    const double mean_error = mean ? additions(c) * u * magnitude / c : 0;
    // An error of the mean enters the variance squared only; the square root halves an error.
    const double r_error = (additions(c) / 2 + 4) * u + std::pow(mean_error * r, 2);
    if (mean) worst.check(row, mean->at(row), mu, mean_error + 1e-30);
    worst.check(row, rstd.at(row), r, r * r_error);
    for (int i = 0; i < c; i++) {
        const double norm = (x.at(row * c + i) - mu) * r;
        const double want = norm * w.at(i) + (b ? b->at(i) : 0);
        const double error = mean_error * r + std::fabs(norm) * (r_error + 4 * u);
        worst.check(row * c + i, out.at(row * c + i), want,
                    std::fabs(w.at(i)) * error + (2 * u + HALF_ULP<T>) * std::fabs(want) + 1e-30);
    }
}

template <class T>
void check_layer_norm_forward(const NormCase& n) {
    const size_t numel = size_t(n.rows) * n.c;
    const Array<T> inp(numel, n.skip, 1, 2.0, 0.3), w(n.c, n.skip, 2), b(n.c, n.skip, 3);
    Array<f32> mean(n.rows, n.skip), rstd(n.rows, n.skip);
    const auto out = same_in_every_order([&](unsigned order) {
        Array<T> y(numel, n.skip);
        launch("layer_norm_forward", OF_TYPE(T, layer_norm_forward), 3, 256, 0, order, y.data(), mean.data(),
               rstd.data(), inp.data(), w.data(), b.data(), n.rows, n.c, n.team);
        return y;
    });
    Worst worst(text("layer norm of %d x %d", n.rows, n.c));
    for (int row = 0; row < n.rows; row++)
        check_normed_row(worst, row, n.c, inp, w, &b, out, &mean, rstd, 1e-5);
}

TEST(layer_norm_forward_is_the_definition) {
    for (const NormCase& n : norm_cases()) {
        check_layer_norm_forward<f32>(n);
        check_layer_norm_forward<bf16>(n);
    }
}

template <class T>
void check_add_layer_norm(const NormCase& n) {
    const size_t numel = size_t(n.rows) * n.c;
    const Array<T> a(numel, n.skip, 1), b(numel, n.skip, 2), w(n.c, n.skip, 3), bias(n.c, n.skip, 4);
    // The two apart.
    Array<T> want_sum(numel, n.skip), want(numel, n.skip);
    Array<f32> want_mean(n.rows), want_rstd(n.rows);
    launch("add", OF_TYPE(T, add), 2, 64, 0, 0, want_sum.data(), a.data(), b.data(), numel);
    launch("layer_norm_forward", OF_TYPE(T, layer_norm_forward), 3, 256, 0, 0, want.data(), want_mean.data(),
           want_rstd.data(), want_sum.data(), w.data(), bias.data(), n.rows, n.c, n.team);
    for (const unsigned order : orders()) {
        Array<T> sum(numel, n.skip), out(numel, n.skip);
        Array<f32> mean(n.rows), rstd(n.rows);
        launch("add_layer_norm_forward", OF_TYPE(T, add_layer_norm_forward), 3, 256, 0, order, sum.data(),
               out.data(), mean.data(), rstd.data(), a.data(), b.data(), w.data(), bias.data(), n.rows, n.c,
               n.team);
        REQUIRE(sum.same_bits(want_sum) && out.same_bits(want));
        REQUIRE(mean.same_bits(want_mean) && rstd.same_bits(want_rstd));
    }
}

TEST(addition_and_layer_norm_together_are_the_two_apart) {
    for (const NormCase& n : norm_cases()) {
        check_add_layer_norm<f32>(n);
        check_add_layer_norm<bf16>(n);
    }
}

template <class T>
void check_rms_norm_forward(const NormCase& n) {
    const size_t numel = size_t(n.rows) * n.c;
    const Array<T> inp(numel, n.skip, 1, 2.0, 0.3), w(n.c, n.skip, 2);
    Array<f32> rstd(n.rows, n.skip);
    const auto out = same_in_every_order([&](unsigned order) {
        Array<T> y(numel, n.skip);
        launch("rms_norm_forward", OF_TYPE(T, rms_norm_forward), 3, 256, 0, order, y.data(), rstd.data(),
               inp.data(), w.data(), n.rows, n.c, 1e-6f, n.team);
        return y;
    });
    Worst worst(text("rms norm of %d x %d", n.rows, n.c));
    for (int row = 0; row < n.rows; row++) {
        check_normed_row<T>(worst, row, n.c, inp, w, nullptr, out, nullptr, rstd, double(1e-6f));
    }
}

TEST(rms_norm_forward_is_the_definition) {
    for (const NormCase& n : norm_cases()) {
        check_rms_norm_forward<f32>(n);
        check_rms_norm_forward<bf16>(n);
    }
}

// The gradient of the input, for given statistics, as backward gets them; mean is 0 and its term missing for
// RMSNorm.
template <class T>
void check_norm_backward(const NormCase& n, bool centred) {
    const size_t numel = size_t(n.rows) * n.c;
    const Array<T> before(numel, n.skip, 1), dout(numel, n.skip, 2), inp(numel, n.skip, 3, 2.0, 0.3),
        w(n.c, n.skip, 4);
    const Array<f32> mean(n.rows, n.skip, 5, 0.3), rstd(n.rows, n.skip, 6, 0.5, 1.0);
    const auto dinp = same_in_every_order([&](unsigned order) {
        Array<T> d(before);
        if (centred) {
            launch("layer_norm_backward", OF_TYPE(T, layer_norm_backward), 3, 256, 0, order, d.data(),
                   dout.data(), inp.data(), w.data(), mean.data(), rstd.data(), n.rows, n.c, n.team);
        } else {
            launch("rms_norm_backward", OF_TYPE(T, rms_norm_backward), 3, 256, 0, order, d.data(),
                   dout.data(), inp.data(), w.data(), rstd.data(), n.rows, n.c, n.team);
        }
        return d;
    });
    Worst worst(text("gradient of the norm of %d x %d", n.rows, n.c));
    for (int row = 0; row < n.rows; row++) {
        const double mu = centred ? mean.at(row) : 0, r = rstd.at(row);
        double sum = 0, sum_norm = 0, magnitude = 0, magnitude_norm = 0;
        for (int i = 0; i < n.c; i++) {
            const double d = dout.at(row * n.c + i) * w.at(i), norm = (inp.at(row * n.c + i) - mu) * r;
            sum += d, sum_norm += d * norm;
            magnitude += std::fabs(d), magnitude_norm += std::fabs(d * norm);
        }
        for (int i = 0; i < n.c; i++) {
            const size_t at = size_t(row) * n.c + i;
            const double d = dout.at(at) * w.at(i), norm = (inp.at(at) - mu) * r;
            const double first = centred ? sum / n.c : 0;
            const double want = before.at(at) + (d - first - norm * sum_norm / n.c) * r;
            const double all =
                std::fabs(before.at(at)) +
                (std::fabs(d) + (centred ? magnitude / n.c : 0) + std::fabs(norm) * magnitude_norm / n.c) * r;
            worst.check(at, dinp.at(at), want,
                        all * (additions(n.c) + 12) * HALF_ULP<f32> + HALF_ULP<T> * std::fabs(want));
        }
    }
}

TEST(layer_norm_backward_is_the_gradient) {
    for (const NormCase& n : norm_cases()) {
        check_norm_backward<f32>(n, true);
        check_norm_backward<bf16>(n, true);
    }
}

TEST(rms_norm_backward_is_the_gradient) {
    for (const NormCase& n : norm_cases()) {
        check_norm_backward<f32>(n, false);
        check_norm_backward<bf16>(n, false);
    }
}

// Column sums of three kinds, by way of partial sums of chunks of 32 rows; G is the type of the result.
template <class T, class G>
void check_sums(int rows, int c, size_t skip) {
    const int chunk_rows = 32;
    const size_t numel = size_t(rows) * c, chunks = (rows + chunk_rows - 1) / chunk_rows;
    const Array<T> dout(numel, skip, 1), inp(numel, skip, 2, 2.0, 0.3);
    const Array<f32> mean(rows, skip, 3, 0.3), rstd(rows, skip, 4, 0.5, 1.0);
    const auto fold = [&](const Array<f32>& partials, size_t first, size_t stride, unsigned order) {
        Array<G> out(c, skip);
        launch("fold_chunks", OF_TYPE(G, fold_chunks), 2, 256, 0, order, out.data(),
               partials.data() + (chunks ? first : 0), chunks, stride, c);
        return out;
    };
    const auto column_sum = same_in_every_order([&](unsigned order) {
        Array<f32> partials(chunks * c, skip);
        launch("column_sums", OF_TYPE(T, column_sums), 3, 256, 0, order, partials.data(), dout.data(), rows,
               c, chunk_rows);
        return fold(partials, 0, c, order);
    });
    const auto layer_norm = [&](size_t kind) {
        return same_in_every_order([&](unsigned order) {
            Array<f32> partials(chunks * 2 * c, skip);
            launch("layer_norm_weight_sums", OF_TYPE(T, layer_norm_weight_sums), 3, 256, 0, order,
                   partials.data(), dout.data(), inp.data(), mean.data(), rstd.data(), rows, c, chunk_rows);
            return fold(partials, kind * c, 2 * c, order);
        });
    };
    const auto dweight = layer_norm(0), dbias = layer_norm(1);
    const auto rms_dweight = same_in_every_order([&](unsigned order) {
        Array<f32> partials(chunks * c, skip);
        launch("rms_norm_weight_sums", OF_TYPE(T, rms_norm_weight_sums), 3, 256, 0, order, partials.data(),
               dout.data(), inp.data(), rstd.data(), rows, c, chunk_rows);
        return fold(partials, 0, c, order);
    });
    REQUIRE(column_sum.same_bits(dbias));
    Worst worst(text("sums of %d x %d", rows, c));
    for (int i = 0; i < c; i++) {
        double sum[3] = {}, magnitude[3] = {};
        for (int row = 0; row < rows; row++) {
            const size_t at = size_t(row) * c + i;
            const double term[3] = {dout.at(at), dout.at(at) * (inp.at(at) - mean.at(row)) * rstd.at(row),
                                    dout.at(at) * inp.at(at) * rstd.at(row)};
            for (int k = 0; k < 3; k++) sum[k] += term[k], magnitude[k] += std::fabs(term[k]);
        }
        const double got[3] = {column_sum.at(i), dweight.at(i), rms_dweight.at(i)};
        // On its way an element meets those of its warp in its chunk, 8 warps, and at most all chunks.
        const double ways = (chunk_rows / 8 + 8 + double(chunks) + 12) * HALF_ULP<f32>;
        for (int k = 0; k < 3; k++) {
            worst.check(i, got[k], sum[k], magnitude[k] * ways + HALF_ULP<G> * std::fabs(sum[k]) + 1e-30);
        }
    }
}

TEST(sums_over_rows_are_complete_and_in_one_order) {
    for (const auto& [rows, c, skip] : std::vector<std::tuple<int, int, size_t>>{
             {1, 1, 0}, {33, 31, 1}, {257, 64, 0}, {100, 768, 0}, {40, 1600, 1}, {0, 64, 0}, {700, 3, 0}}) {
        check_sums<f32, f32>(rows, c, skip);
        check_sums<f32, bf16>(rows, c, skip);
        check_sums<bf16, f32>(rows, c, skip);
        check_sums<bf16, bf16>(rows, c, skip);
    }
}

}  // namespace test

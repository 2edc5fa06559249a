// What happens to a rank's slices: contributions in order, the exact sum of squares, AdamW.
#pragma once
#include "harness.hpp"

namespace test {

template <class T>
void check_ordered_add(size_t n, size_t skip, int contributors, int rank, int first) {
    const size_t stride = n + 5;  // staging rows hold more than this piece
    const Array<T> own(n, skip, 1), staging(std::max(contributors, 1) * stride, skip, 2);
    const Array<f32> before(n, skip, 3);
    const auto sum = same_in_every_order([&](unsigned order) {
        Array<f32> s(before);
        launch("ordered_add", OF_TYPE(T, ordered_add), 2, 64, 0, order, s.data(), own.data(), staging.data(),
               n, stride, contributors, rank, first);
        return s;
    });
    for (size_t i = 0; i < n; i++) {
        f32 want = before[i];
        for (int from = 0, place = 0; from < contributors; from++) {
            const f32 x = to_f32(from == rank ? own[i] : staging[place * stride + i]);
            if (from != rank) place++;
            want = first && from == 0 ? x : want + x;
        }
        REQUIRE(sum[i] == want);
    }
}

TEST(contributions_are_added_in_the_order_of_ranks) {
    for (const size_t n : odd_sizes())
        for (const size_t skip : skips()) {
            check_ordered_add<f32>(n, skip, 1, 0, 1);
            check_ordered_add<f32>(n, skip, 3, 0, 1);
            check_ordered_add<f32>(n, skip, 4, 2, 0);
            check_ordered_add<bf16>(n, skip, 3, 2, 1);
            check_ordered_add<bf16>(n, skip, 2, 5, 0);  // a rank that has nothing of its own
            check_ordered_add<bf16>(n, skip, 7, 3, 1);
        }
}

// Bins as numbers.
using Bins = std::vector<unsigned __int128>;

Bins bins_of(const Array<u64>& words) {
    Bins bins(EXPONENTS);
    for (int e = 0; e < EXPONENTS; e++) bins[e] = words[2 * e] + ((unsigned __int128)words[2 * e + 1] << 32);
    return bins;
}

template <class T>
void check_sum_of_squares(const std::vector<Array<T>>& parts) {
    Bins want(EXPONENTS);
    for (const Array<T>& part : parts)
        for (size_t i = 0; i < part.size(); i++) {
            const u32 bits = __float_as_uint(to_f32(part[i]));
            const int exponent = int(bits >> 23 & 0xff);
            const u64 mantissa = (bits & 0x7fffff) + (exponent > 0 ? 0x800000 : 0);
            want[exponent] += mantissa * mantissa;
        }
    for (const unsigned order : orders()) {
        Array<u64> bins(2 * EXPONENTS);
        std::memset(bins.data(), 0, bins.size() * sizeof(u64));
        for (const Array<T>& part : parts) {
            launch("sum_of_squares", OF_TYPE(T, sum_of_squares), 3, SQUARES_THREADS, 0, order, bins.data(),
                   part.data(), part.size());
        }
        REQUIRE(bins_of(bins) == want);
    }
}

TEST(sums_of_squares_are_exact_over_several_slices) {
    for (const size_t skip : skips()) {
        std::vector<Array<f32>> slices;
        slices.emplace_back(5000, skip, 1, 1e-3);
        slices.emplace_back(0, skip);
        slices.emplace_back(200003, skip, 2, 1e20);
        slices.emplace_back(1, skip, 3);
        check_sum_of_squares(slices);
        std::vector<Array<bf16>> rounded;
        rounded.emplace_back(4097, skip, 4, 1e-30);
        check_sum_of_squares(rounded);
    }
}

TEST(sums_of_squares_of_the_extremes) {
    std::vector<Array<f32>> slices;
    slices.emplace_back(12);
    const u32 bits[12] = {0,           0x80000000u, 1,           0x007fffffu, 0x00800000u, 0x7f7fffffu,
                          0xff7fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0x3f800000u};
    for (int i = 0; i < 12; i++) slices[0][i] = __uint_as_float(bits[i]);
    check_sum_of_squares(slices);
    // As many of the largest mantissa as 32-bit bins must hold between two emptyings, and more.
    std::vector<Array<f32>> full;
    full.emplace_back(3 * SQUARES_PER_EMPTYING + 5);
    for (size_t i = 0; i < full[0].size(); i++) full[0][i] = __uint_as_float(0x3fffffffu);
    check_sum_of_squares(full);
}

template <class G>
void check_adamw(size_t n, size_t skip, bool with_param) {
    const f32 lr = 1e-2f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, decay_rate = 0.1f, grad_scale = 0.5f;
    const f32 correction1 = 0.271f, correction2 = 0.142625f;
    const Array<f32> p0(n, skip, 1), m0(n, skip, 2, 0.1), v0(n, skip, 3, 0.01, 0.011);
    const Array<G> grad(n, skip, 4);
    Array<f32> m(n, skip), v(n, skip);
    Array<bf16> param(n, skip);
    const auto p = same_in_every_order([&](unsigned order) {
        Array<f32> master(p0);
        std::memcpy(m.data(), m0.data(), n * sizeof(f32));
        std::memcpy(v.data(), v0.data(), n * sizeof(f32));
        launch("adamw", OF_TYPE(G, adamw), 2, 64, 0, order, master.data(), m.data(), v.data(), grad.data(),
               with_param ? param.data() : static_cast<bf16*>(nullptr), n, grad_scale, 1.0f - lr * decay_rate,
               1.0f - beta1, beta2, 1.0f - beta2, lr / correction1, std::sqrt(correction2), eps);
        return master;
    });
    Worst worst("adamw");
    const double u = HALF_ULP<f32>;
    for (size_t i = 0; i < n; i++) {
        const double g = grad.at(i) * grad_scale;
        const double want_m = beta1 * m0.at(i) + (1 - double(beta1)) * g;
        const double want_v = beta2 * v0.at(i) + (1 - double(beta2)) * g * g;
        const double m_error = 6 * u * (std::fabs(m0.at(i)) + std::fabs(g)), v_error = 6 * u * want_v;
        const double denom = std::sqrt(want_v / correction2) + eps, step = lr / double(correction1) / denom;
        worst.check(i, m.at(i), want_m, m_error);
        worst.check(i, v.at(i), want_v, v_error);
        worst.check(i, p.at(i), p0.at(i) * (1 - double(lr) * decay_rate) - step * want_m,
                    step * (m_error + std::fabs(want_m) * 12 * u) + 4 * u * std::fabs(p0.at(i)));
        if (with_param) REQUIRE(param.at(i) == value(from_f32<bf16>(p[i])));
    }
}

TEST(adamw_is_the_definition_and_rounds_the_masters) {
    for (const size_t n : odd_sizes())
        for (const size_t skip : skips()) {
            check_adamw<f32>(n, skip, false);
            check_adamw<f32>(n, skip, true);
            check_adamw<bf16>(n, skip, true);
        }
}

template <class G>
void check_lion(size_t n, size_t skip, bool with_param) {
    const f32 lr = 1e-2f, beta1 = 0.9f, beta2 = 0.99f, decay_rate = 0.1f, grad_scale = 0.5f;
    const Array<f32> p0(n, skip, 1), m0(n, skip, 2, 0.1);
    const Array<G> grad(n, skip, 3);
    Array<f32> m(n, skip);
    Array<bf16> param(n, skip);
    const auto p = same_in_every_order([&](unsigned order) {
        Array<f32> master(p0);
        std::memcpy(m.data(), m0.data(), n * sizeof(f32));
        launch("lion", OF_TYPE(G, lion), 2, 64, 0, order, master.data(), m.data(), grad.data(),
               with_param ? param.data() : static_cast<bf16*>(nullptr), n, grad_scale, 1.0f - lr * decay_rate,
               1.0f - beta1, 1.0f - beta2, lr);
        return master;
    });
    Worst worst("lion");
    const double u = HALF_ULP<f32>;
    for (size_t i = 0; i < n; i++) {
        const double g = grad.at(i) * grad_scale, size = std::fabs(m0.at(i)) + std::fabs(g);
        const double direction = beta1 * m0.at(i) + (1 - double(beta1)) * g;
        worst.check(i, m.at(i), beta2 * m0.at(i) + (1 - double(beta2)) * g, 6 * u * size);
        // Within rounding of zero the sign is anybody's.
        if (std::fabs(direction) > 6 * u * size) {
            const double step = direction > 0 ? lr : -lr;
            worst.check(i, p.at(i), p0.at(i) * (1 - double(lr) * decay_rate) - step,
                        4 * u * (std::fabs(p0.at(i)) + lr));
        }
        if (with_param) REQUIRE(param.at(i) == value(from_f32<bf16>(p[i])));
    }
}

TEST(lion_is_the_definition_and_rounds_the_masters) {
    for (const size_t n : odd_sizes())
        for (const size_t skip : skips()) {
            check_lion<f32>(n, skip, false);
            check_lion<f32>(n, skip, true);
            check_lion<bf16>(n, skip, true);
        }
}

template <class G>
void check_sgd(size_t n, size_t skip, bool with_param, bool with_buffer, bool nesterov) {
    const f32 lr = 1e-2f, momentum = 0.9f, decay_rate = 0.1f, grad_scale = 0.5f;
    const Array<f32> p0(n, skip, 1), sum0(n, skip, 2, 0.1);
    const Array<G> grad(n, skip, 3);
    Array<f32> sum(n, skip);
    Array<bf16> param(n, skip);
    const auto p = same_in_every_order([&](unsigned order) {
        Array<f32> master(p0);
        std::memcpy(sum.data(), sum0.data(), n * sizeof(f32));
        launch("sgd", OF_TYPE(G, sgd), 2, 64, 0, order, master.data(),
               with_buffer ? sum.data() : static_cast<f32*>(nullptr), grad.data(),
               with_param ? param.data() : static_cast<bf16*>(nullptr), n, grad_scale, 1.0f - lr * decay_rate,
               momentum, nesterov ? 1.0f : 0.0f, lr);
        return master;
    });
    Worst worst("sgd");
    const double u = HALF_ULP<f32>;
    for (size_t i = 0; i < n; i++) {
        const double g = grad.at(i) * grad_scale, size = std::fabs(sum0.at(i)) + std::fabs(g);
        const double want_sum = with_buffer ? momentum * sum0.at(i) + g : sum0.at(i);
        const double direction = !with_buffer ? g : nesterov ? g + momentum * want_sum : want_sum;
        worst.check(i, sum.at(i), want_sum, 4 * u * size);
        worst.check(i, p.at(i), p0.at(i) * (1 - double(lr) * decay_rate) - lr * direction,
                    4 * u * std::fabs(p0.at(i)) + lr * 12 * u * size);
        if (with_param) REQUIRE(param.at(i) == value(from_f32<bf16>(p[i])));
    }
}

TEST(sgd_is_the_definition_and_rounds_the_masters) {
    for (const size_t n : odd_sizes())
        for (const size_t skip : skips()) {
            check_sgd<f32>(n, skip, false, true, false);
            check_sgd<f32>(n, skip, true, false, false);
            check_sgd<bf16>(n, skip, true, true, true);
        }
}

}  // namespace test

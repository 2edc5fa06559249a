// Where tokens come in and losses go out: embedding, rotary positions, the classifier.
#pragma once
#include "harness.hpp"

namespace test {

// Tokens that repeat, one of them often.
inline Array<u32> some_tokens(size_t rows, u32 vocab) {
    Array<u32> tokens(rows);
    for (size_t i = 0; i < rows; i++) {
        const double x = (random_at(99, i) + 1) / 2;
        tokens[i] = x < 0.3 ? vocab / 2 : u32(x * vocab) % vocab;
    }
    return tokens;
}

struct EmbeddingCase {
    int b, t, t_max, c;
    u32 vocab;
    size_t skip;
};

inline const std::vector<EmbeddingCase>& embedding_cases() {
    static const std::vector<EmbeddingCase> cases{
        {1, 1, 1, 1, 1, 0},        {3, 33, 40, 31, 7, 1}, {2, 257, 257, 64, 257, 0},
        {4, 8, 16, 768, 50257, 0}, {5, 70, 70, 8, 3, 0},
    };
    return cases;
}

template <class T>
void check_embedding_forward(const EmbeddingCase& e) {
    const size_t rows = size_t(e.b) * e.t;
    const auto tokens = some_tokens(rows, e.vocab);
    const Array<T> wte(size_t(e.vocab) * e.c, e.skip, 1), wpe(size_t(e.t_max) * e.c, e.skip, 2);
    for (const bool positions : {true, false}) {
        const auto out = same_in_every_order([&](unsigned order) {
            Array<T> y(rows * e.c, e.skip);
            launch("embedding_forward", OF_TYPE(T, embedding_forward), 3, 64, 0, order, y.data(),
                   tokens.data(), wte.data(), positions ? wpe.data() : nullptr, rows, e.t, e.c, e.vocab);
            return y;
        });
        for (size_t row = 0; row < rows; row++)
            for (int i = 0; i < e.c; i++) {
                const f32 position = positions ? to_f32(wpe[row % e.t * e.c + i]) : 0.0f;
                const f32 sum = to_f32(wte[size_t(tokens[row]) * e.c + i]) + position;
                REQUIRE(out.at(row * e.c + i) == value(from_f32<T>(sum)));
            }
    }
}

TEST(embedding_forward_adds_token_and_position) {
    for (const EmbeddingCase& e : embedding_cases()) {
        check_embedding_forward<f32>(e);
        check_embedding_forward<bf16>(e);
    }
}

// Additions in the order of rows, in f32, rounded once: as bits.
template <class T, class G, class Wte, class Wpe>
void check_embedding_backward(const EmbeddingCase& e, Wte wte_kernel, Wpe wpe_kernel) {
    const size_t rows = size_t(e.b) * e.t;
    const auto tokens = some_tokens(rows, e.vocab);
    const Array<T> dout(rows * e.c, e.skip, 1);
    const Array<G> before(size_t(e.vocab) * e.c, e.skip, 2);
    const auto order_of_rows = same_in_every_order([&](unsigned order) {
        Array<u32> places(rows);
        launch("embedding_order", embedding_order, 2, 256, 0, order, places.data(), tokens.data(), int(rows));
        return places;
    });
    for (size_t i = 1; i < rows; i++) {
        const u32 a = order_of_rows[i - 1], b = order_of_rows[i];
        REQUIRE(tokens[a] < tokens[b] || (tokens[a] == tokens[b] && a < b));
    }
    const auto dwte = same_in_every_order([&](unsigned order) {
        Array<G> d(before);
        launch("embedding_backward_wte", wte_kernel, 3, 128, 0, order, d.data(), dout.data(), tokens.data(),
               order_of_rows.data(), int(rows), e.c, e.vocab);
        return d;
    });
    const auto dwpe = same_in_every_order([&](unsigned order) {
        Array<G> d(size_t(e.t_max) * e.c, e.skip);
        launch("embedding_backward_wpe", wpe_kernel, 3, 64, 0, order, d.data(), dout.data(), rows, e.t,
               e.t_max, e.c);
        return d;
    });
    std::vector<f32> want_wte(before.size()), want_wpe(dwpe.size());
    for (size_t i = 0; i < before.size(); i++) want_wte[i] = to_f32(before[i]);
    for (size_t row = 0; row < rows; row++)
        for (int i = 0; i < e.c; i++) {
            want_wte[size_t(tokens[row]) * e.c + i] += to_f32(dout[row * e.c + i]);
            want_wpe[row % e.t * e.c + i] += to_f32(dout[row * e.c + i]);
        }
    for (size_t i = 0; i < before.size(); i++) REQUIRE(dwte.at(i) == value(from_f32<G>(want_wte[i])));
    for (size_t i = 0; i < dwpe.size(); i++) REQUIRE(dwpe.at(i) == value(from_f32<G>(want_wpe[i])));
}

TEST(embedding_backward_adds_rows_in_their_order) {
    for (const EmbeddingCase& e : embedding_cases()) {
        check_embedding_backward<f32, f32>(e, embedding_backward_wte_f32_f32, embedding_backward_wpe_f32_f32);
        check_embedding_backward<f32, bf16>(e, embedding_backward_wte_f32_bf16,
                                            embedding_backward_wpe_f32_bf16);
        check_embedding_backward<bf16, f32>(e, embedding_backward_wte_bf16_f32,
                                            embedding_backward_wpe_bf16_f32);
        check_embedding_backward<bf16, bf16>(e, embedding_backward_wte_bf16_bf16,
                                             embedding_backward_wpe_bf16_bf16);
    }
}

template <class F>
void expect_fault(const char* words, F run) {
    try {
        run();
    } catch (const shim::Fault& fault) {
        if (std::strstr(fault.what(), words) == nullptr) fail(std::string("the fault says ") + fault.what());
        return;
    }
    fail(std::string("no fault of ") + words);
}

TEST(a_token_outside_of_the_vocabulary_stops_the_kernel) {
    Array<u32> tokens(1);
    tokens[0] = 7;
    const Array<f32> weights(7 * 8, 0, 1);
    Array<f32> out(8), losses(1), logits(7, 0, 1);
    expect_fault("__trap", [&] {
        launch("embedding_forward_f32", embedding_forward_f32, 1, 32, 0, 0, out.data(), tokens.data(),
               weights.data(), weights.data(), 1, 1, 8, 7u);
    });
    expect_fault("__trap", [&] {
        launch("cross_entropy", cross_entropy, 1, 32, 0, 0, logits.data(), losses.data(), tokens.data(), 1, 7,
               1.0f, 1);
    });
}

template <class T>
void check_rope(int b, int t, int heads, int kept_heads, int d, size_t skip, int first = 0) {
    const double theta = 10000.0;
    const int row_numel = (heads + kept_heads) * d;
    const size_t rows = size_t(b) * t;
    const Array<T> before(rows * row_numel, skip, 1);
    const double ratio = std::pow(theta, -2.0 / d), radian = 1 / (2 * M_PI);
    const auto rotated = [&](const Array<T>& x, int inverse) {
        return same_in_every_order([&](unsigned order) {
            Array<T> y(x);
            launch("rope", OF_TYPE(T, rope), 3, 64, 0, order, y.data(), rows, t, first, heads, row_numel, d,
                   f32(ratio), f32(ratio - f32(ratio)), f32(radian), f32(radian - f32(radian)), inverse);
            return y;
        });
    };
    const auto there = rotated(before, 0), back = rotated(there, 1);
    Worst worst(text("rope of t = %d, d = %d", t, d)), worst_back("rope there and back");
    for (size_t row = 0; row < rows; row++) {
        for (int i = 0; i < d / 2; i++) {
            const double angle = double(first + row % t) * std::pow(theta, -2.0 * i / d);
            for (int head = 0; head < heads; head++) {
                const size_t at = row * row_numel + head * d + i, other = at + d / 2;
                const double a = before.at(at), o = before.at(other), size = std::fabs(a) + std::fabs(o);
                const double want_a = a * std::cos(angle) - o * std::sin(angle);
                const double want_o = a * std::sin(angle) + o * std::cos(angle);
                // Half a turn in f32 is off by 2^-25 of it; sine, cosine and two products by a few units.
                const double tolerance = size * 12 * HALF_ULP<f32>;
                worst.check(at, there.at(at), want_a, tolerance + HALF_ULP<T> * std::fabs(want_a));
                worst.check(other, there.at(other), want_o, tolerance + HALF_ULP<T> * std::fabs(want_o));
                const double twice = 2 * tolerance + 3 * HALF_ULP<T> * size;
                worst_back.check(at, back.at(at), a, twice);
                worst_back.check(other, back.at(other), o, twice);
            }
        }
        for (int i = heads * d; i < row_numel; i++)
            REQUIRE(there.at(row * row_numel + i) == before.at(row * row_numel + i));
    }
}

TEST(rope_turns_pairs_and_its_inverse_turns_them_back) {
    check_rope<f32>(2, 33, 3, 1, 8, 1);
    check_rope<bf16>(2, 33, 3, 1, 64, 0);
    check_rope<f32>(1, 9000, 1, 0, 4, 0);
    check_rope<f32>(1, 257, 2, 2, 128, 0);
    check_rope<f32>(2, 3, 2, 1, 8, 0, 1003);
}

void check_cross_entropy(int rows, int vocab, unsigned threads, size_t skip, bool with_gradient) {
    const Array<f32> logits(size_t(rows) * vocab, skip, 1, 12.0);
    Array<u32> targets(rows);
    for (int row = 0; row < rows; row++) targets[row] = u32((row * 7919 + vocab - 1) % vocab);
    const f32 scale = 1.0f / 1000;
    Array<f32> losses(rows);
    const auto dlogits = same_in_every_order([&](unsigned order) {
        Array<f32> x(logits);
        launch("cross_entropy", cross_entropy, 2, threads, 0, order, x.data(), losses.data(), targets.data(),
               rows, vocab, scale, int(with_gradient));
        return x;
    });
    if (!with_gradient) REQUIRE(dlogits.same_bits(logits));
    Worst worst_loss("losses"), worst("dlogits");
    for (int row = 0; row < rows; row++) {
        const size_t first = size_t(row) * vocab;
        double max = -INFINITY, sum = 0;
        for (int i = 0; i < vocab; i++) max = std::max(max, logits.at(first + i));
        for (int i = 0; i < vocab; i++) sum += std::exp(logits.at(first + i) - max);
        // Each power is off by 2 units and by the rounding of its argument, at most 24; then come the
        // additions.
        const double relative = (vocab / double(threads) + 32 + 8 + 32 + 2 * 24) * HALF_ULP<f32>;
        const double loss = std::log(sum) + max - logits.at(first + targets[row]);
        worst_loss.check(row, losses.at(row), loss,
                         relative + 4 * HALF_ULP<f32> * (std::fabs(loss) + std::log(sum)) + 1e-30);
        for (int i = 0; with_gradient && i < vocab; i++) {
            const double p = std::exp(logits.at(first + i) - max) / sum;
            const double want = (p - (u32(i) == targets[row])) * scale;
            worst.check(first + i, dlogits.at(first + i), want,
                        scale * (2 * p * relative + 4 * HALF_ULP<f32> * std::fabs(want / scale)));
        }
    }
}

TEST(cross_entropy_and_its_gradient_are_the_definition) {
    for (const bool with_gradient : {true, false}) {
        check_cross_entropy(3, 50257, 1024, 0, with_gradient);
        check_cross_entropy(5, 257, 64, 1, with_gradient);
        check_cross_entropy(4, 64, 32, 0, with_gradient);
        check_cross_entropy(7, 1, 32, 3, with_gradient);
        check_cross_entropy(7, 3, 32, 2, with_gradient);
        check_cross_entropy(2, 5001, 1024, 0, with_gradient);
    }
}

TEST(cross_entropy_of_the_odd_ones) {
    const f32 inf = INFINITY;
    const int vocab = 300;
    Array<f32> logits(4 * vocab, 0, 1), losses(4);
    Array<u32> targets(4);
    for (int i = 0; i < 4; i++) targets[i] = 1;
    // Row 0: all but two are masked. Row 1: one NaN among masked ones. Row 2: large numbers. Row 3: an
    // infinity.
    for (int i = 0; i < vocab; i++) logits[i] = logits[vocab + i] = -inf;
    logits[1] = logits[7] = 2.0f;
    logits[vocab + 200] = NAN;
    for (int i = 0; i < vocab; i++) logits[2 * vocab + i] *= 3e38f;
    logits[3 * vocab + 9] = inf;
    launch("cross_entropy", cross_entropy, 1, 64, 0, 0, logits.data(), losses.data(), targets.data(), 4,
           vocab, 1.0f, 1);
    REQUIRE(std::fabs(losses[0] - std::log(2.0)) < 1e-6 && logits[1] == -0.5f && logits[7] == 0.5f &&
            logits[0] == 0.0f);
    REQUIRE(std::isnan(losses[1]) && std::isnan(logits[vocab]));
    REQUIRE(!std::isnan(losses[2]));
    REQUIRE(std::isnan(losses[3]));
}

}  // namespace test

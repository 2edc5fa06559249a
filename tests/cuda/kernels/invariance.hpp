// The order of a sum follows from the shape alone: other grids and other addresses give the same bits.
#pragma once
#include "harness.hpp"

namespace test {

// `run(blocks, skip)` returns an output, whatever grid it is computed with and wherever its arrays begin.
template <class F>
void same_for_grids_and_addresses(const char* what, F run) {
    const auto first = run(1u, size_t(0));
    for (const unsigned blocks : {1u, 2u, 7u, 40u})
        for (const size_t skip : {0, 1, 2, 3}) {
            const auto other = run(blocks, skip);
            REQUIRE(other.size() == first.size());
            for (size_t i = 0; i < first.size(); i++) {
                if (other.at(i) != first.at(i))
                    fail(text("%s[%zu] with %u blocks, skip %zu", what, i, blocks, skip));
            }
        }
}

template <class T>
void check_norm_invariance(int rows, int c, int team) {
    const size_t numel = size_t(rows) * c;
    same_for_grids_and_addresses("layer norm", [&](unsigned blocks, size_t skip) {
        const Array<T> inp(numel, skip, 1, 2.0), w(c, skip, 2), b(c, skip, 3);
        Array<T> out(numel, skip);
        Array<f32> mean(rows, skip), rstd(rows, skip);
        launch("layer_norm_forward", OF_TYPE(T, layer_norm_forward), blocks, 256, 0, 0, out.data(),
               mean.data(), rstd.data(), inp.data(), w.data(), b.data(), rows, c, team);
        return out;
    });
    same_for_grids_and_addresses("sums over rows", [&](unsigned blocks, size_t skip) {
        const int chunk_rows = 32, chunks = (rows + chunk_rows - 1) / chunk_rows;
        const Array<T> dout(numel, skip, 1);
        Array<f32> partials(size_t(chunks) * c, skip), out(c, skip);
        launch("column_sums", OF_TYPE(T, column_sums), blocks, 256, 0, 0, partials.data(), dout.data(), rows,
               c, chunk_rows);
        launch("fold_chunks_f32", fold_chunks_f32, blocks, 256, 0, 0, out.data(), partials.data(), chunks, c,
               c);
        return out;
    });
}

TEST(grids_and_addresses_change_no_bit_of_sums_over_rows_and_columns) {
    check_norm_invariance<f32>(70, 300, 32);
    check_norm_invariance<bf16>(70, 600, 64);
}

TEST(grids_and_addresses_change_no_bit_of_the_classifier) {
    const int rows = 3, vocab = 1001;
    for (const bool want_losses : {true, false}) {
        same_for_grids_and_addresses("classifier", [&](unsigned blocks, size_t skip) {
            Array<f32> logits(size_t(rows) * vocab, skip, 1, 10.0), losses(rows, skip);
            Array<u32> targets(rows, skip);
            for (int row = 0; row < rows; row++) targets[row] = u32(row);
            launch("cross_entropy", cross_entropy, blocks, 128, 0, 0, logits.data(), losses.data(),
                   targets.data(), rows, vocab, 0.01f, 1);
            return want_losses ? losses : logits;
        });
    }
}

template <class T, class F>
void check_attention_invariance(F kernel) {
    same_for_grids_and_addresses("attention", [&](unsigned blocks, size_t skip) {
        const Attention<T> a(AttentionCase{1, 130, 2, 1, 40, skip}, 64);
        Array<T> out(size_t(a.shape.t) * a.out_row, skip);
        Array<f32> lse(2 * a.shape.t, skip);
        launch("attention_forward", kernel, blocks, a.threads(), a.shared_bytes(1, 2), 0, out.data(),
               lse.data(), a.qkv.data(), 1, a.shape.t, 2, 1, a.shape.d, a.scale);
        return out;
    });
}

TEST(grids_and_addresses_change_no_bit_of_attention) {
    check_attention_invariance<f32>(attention_forward_f32_64x64);
    check_attention_invariance<bf16>(attention_forward_bf16_64x64);
}

}  // namespace test

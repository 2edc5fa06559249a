// A plain blocked product in f32, with the epilogues.
#include "cublaslt_product.hpp"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace cuda_double::cublaslt {
namespace {

// Rows of D that a block keeps in registers while k runs.
constexpr uint64_t BLOCK_ROWS = 32;
constexpr uint64_t BLOCK_COLS = 4;

float load(const Matrix& matrix, int batch, uint64_t row, uint64_t col) {
    const uint64_t i = batch * matrix.stride + col * matrix.ld + row;
    if (matrix.type == CUDA_R_32F) {
        float value;
        memcpy(&value, matrix.bytes + i * sizeof value, sizeof value);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, matrix.bytes + i * sizeof bits, sizeof bits);
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

void store(const Matrix& matrix, int batch, uint64_t row, uint64_t col, float value) {
    const uint64_t i = batch * matrix.stride + col * matrix.ld + row;
    if (matrix.type == CUDA_R_32F) {
        memcpy(matrix.bytes + i * sizeof value, &value, sizeof value);
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    const auto rounded = uint16_t(is_nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy(matrix.bytes + i * sizeof rounded, &rounded, sizeof rounded);
}

// op(M) with `outer` running slowest: element (i, p) at p * outer_step + i, zeros up to the padded length of
// i.
std::vector<float> packed(const Matrix& matrix, int batch, bool transpose, uint64_t n_inner, uint64_t padded,
                          uint64_t n_outer) {
    std::vector<float> out(padded * n_outer);
    for (uint64_t p = 0; p < n_outer; p++)
        for (uint64_t i = 0; i < n_inner; i++)
            out[p * padded + i] = transpose ? load(matrix, batch, p, i) : load(matrix, batch, i, p);
    return out;
}

// Tanh form, arXiv:1606.08415.
constexpr float SQRT_2_OVER_PI = 0.7978845608028654f;
constexpr float CUBIC = 0.044715f;

float gelu(float x) { return 0.5f * x * (1 + std::tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x))); }

float gelu_slope(float x) {
    const float t = std::tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
}

// The epilogue of one element; stores into D and aux and returns what D got before rounding.
float finish(const Product& p, int batch, uint64_t row, uint64_t col, float value) {
    value *= p.alpha;
    if (p.beta != 0) value += p.beta * load(p.c, batch, row, col);
    if (p.epilogue & EPILOGUE_BIAS) value += load(p.bias, 0, row, 0);
    if ((p.epilogue & EPILOGUE_DGELU) == EPILOGUE_DGELU) {
        value *= gelu_slope(load(p.aux, batch, row, col));
    } else if (p.epilogue & EPILOGUE_GELU) {
        if ((p.epilogue & EPILOGUE_GELU_AUX) == EPILOGUE_GELU_AUX) store(p.aux, batch, row, col, value);
        value = gelu(value);
    }
    store(p.d, batch, row, col, value);
    return value;
}

// Row sums of op(A), column sums of op(B), or row sums of D.
void store_bias_gradient(const Product& p, const std::vector<float>& sums) {
    for (size_t i = 0; i < sums.size(); i++) store(p.bias, 0, i, 0, sums[i]);
}

void multiply_one(const Product& p, int batch) {
    const uint64_t m = p.m(), n = p.n(), k = p.k();
    const uint64_t m_padded = (m + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
    const uint64_t n_padded = (n + BLOCK_COLS - 1) / BLOCK_COLS * BLOCK_COLS;
    const std::vector<float> a = packed(p.a, batch, p.transpose_a, m, m_padded, k);
    const std::vector<float> b = packed(p.b, batch, !p.transpose_b, n, n_padded, k);
    std::vector<float> row_sums(m);
    for (uint64_t j0 = 0; j0 < n; j0 += BLOCK_COLS) {
        for (uint64_t i0 = 0; i0 < m; i0 += BLOCK_ROWS) {
            float sums[BLOCK_COLS][BLOCK_ROWS] = {};
            for (uint64_t q = 0; q < k; q++) {
                const float* column = &a[q * m_padded + i0];
                const float* row = &b[q * n_padded + j0];
                for (uint64_t j = 0; j < BLOCK_COLS; j++)
                    for (uint64_t i = 0; i < BLOCK_ROWS; i++) sums[j][i] += column[i] * row[j];
            }
            for (uint64_t j = 0; j < std::min(BLOCK_COLS, n - j0); j++)
                for (uint64_t i = 0; i < std::min(BLOCK_ROWS, m - i0); i++)
                    row_sums[i0 + i] += finish(p, batch, i0 + i, j0 + j, sums[j][i]);
        }
    }
    if (p.epilogue == EPILOGUE_DGELU_BGRAD) store_bias_gradient(p, row_sums);
    if (p.epilogue == EPILOGUE_BGRADA || p.epilogue == EPILOGUE_BGRADB) {
        const bool of_a = p.epilogue == EPILOGUE_BGRADA;
        const std::vector<float>& matrix = of_a ? a : b;
        const uint64_t padded = of_a ? m_padded : n_padded;
        std::vector<float> sums(of_a ? m : n);
        for (uint64_t q = 0; q < k; q++)
            for (size_t i = 0; i < sums.size(); i++) sums[i] += matrix[q * padded + i];
        store_bias_gradient(p, sums);
    }
}

}  // namespace

void multiply(const Product& product) {
    for (int batch = 0; batch < product.n_batches; batch++) multiply_one(product, batch);
}

}  // namespace cuda_double::cublaslt

// The matrix product behind the cuBLASLt double.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cuda_double::cublaslt {

enum DataType : int { CUDA_R_32F = 0, CUDA_R_16BF = 14 };

// Bits of cublasLtEpilogue_t.
enum Epilogue : int {
    EPILOGUE_DEFAULT = 1,
    EPILOGUE_BIAS = 4,
    EPILOGUE_GELU = 32,
    EPILOGUE_GELU_BIAS = EPILOGUE_GELU | EPILOGUE_BIAS,
    EPILOGUE_GELU_AUX = EPILOGUE_GELU | 128,
    EPILOGUE_GELU_AUX_BIAS = EPILOGUE_GELU_AUX | EPILOGUE_BIAS,
    EPILOGUE_DGELU = 64 | 128,
    EPILOGUE_DGELU_BGRAD = EPILOGUE_DGELU | 16,
    EPILOGUE_BGRADA = 256,
    EPILOGUE_BGRADB = 512,
};

// A column-major matrix; matrices of a batch lie `stride` elements apart.
struct Matrix {
    char* bytes = nullptr;
    int type = CUDA_R_32F;
    uint64_t rows = 0, cols = 0;
    int64_t ld = 0, stride = 0;
};

struct Product {
    Matrix a, b, c, d;
    bool transpose_a = false, transpose_b = false;
    float alpha = 1, beta = 0;
    int n_batches = 1;
    int epilogue = EPILOGUE_DEFAULT;
    Matrix bias;  // one column, read or (gradients) written; no batches
    Matrix aux;   // like d

    uint64_t m() const { return d.rows; }
    uint64_t n() const { return d.cols; }
    uint64_t k() const { return transpose_a ? a.rows : a.cols; }
};

// 0 for a type that is not in this double.
inline size_t type_bytes(int type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 0; }

// D = epilogue(alpha op(A) op(B) + beta C). Sums run over k from 0 up, in f32; each output is rounded once.
void multiply(const Product& product);

}  // namespace cuda_double::cublaslt

// The cuBLASLt double against sums in double precision.
#include "cublaslt_product.hpp"
#include "self_test.hpp"
#include <cmath>
#include <cstring>

using namespace cuda_double::cublaslt;

extern "C" {
int cublasLtCreate(void**);
int cublasLtMatmulDescCreate(void**, int, int);
int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t);
int cublasLtMatrixLayoutCreate(void**, int, uint64_t, uint64_t, int64_t);
int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t);
int cublasLtMatmulPreferenceCreate(void**);
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t);
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int*);
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                   const void*, void*, void*, void*, const void*, void*, size_t, CUstream);
}

namespace {

struct Heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

// Small numbers that bf16 holds exactly, the same every time.
float number(uint64_t i) { return float(int(i * 2654435761u >> 20 & 31) - 15) / 16; }

// A matrix on the device and its numbers on the host.
struct Operand {
    int type;
    uint64_t rows, cols;
    int64_t ld;
    std::vector<float> values;
    CUdeviceptr address = 0;
    void* layout = nullptr;

    Operand(int type, uint64_t rows, uint64_t cols, int n_batches, int64_t ld, uint64_t seed)
        : type(type), rows(rows), cols(cols), ld(ld), values(ld * cols * n_batches) {
        for (size_t i = 0; i < values.size(); i++) values[i] = number(seed + i);
        std::vector<unsigned> words((values.size() * type_bytes(type) + 3) / 4);
        for (size_t i = 0; i < values.size(); i++) {
            unsigned bits;
            memcpy(&bits, &values[i], 4);
            const unsigned short high = bits >> 16;
            if (type == CUDA_R_32F) words[i] = bits;
            else memcpy(reinterpret_cast<char*>(words.data()) + 2 * i, &high, 2);
        }
        address = new_words(words);
        const int64_t stride = ld * cols;
        CHECK(cublasLtMatrixLayoutCreate(&layout, type, rows, cols, ld) == 0);
        CHECK(cublasLtMatrixLayoutSetAttribute(layout, 5, &n_batches, 4) == 0);
        CHECK(cublasLtMatrixLayoutSetAttribute(layout, 6, &stride, 8) == 0);
    }

    float at(int batch, uint64_t row, uint64_t col) const {
        return values[batch * ld * cols + col * ld + row];
    }

    void download(CUstream stream) {
        const std::vector<unsigned> words =
            words_at(address, (values.size() * type_bytes(type) + 3) / 4, stream);
        for (size_t i = 0; i < values.size(); i++) {
            unsigned bits = 0;
            if (type == CUDA_R_32F) bits = words[i];
            else
                memcpy(reinterpret_cast<char*>(&bits) + 2,
                       reinterpret_cast<const char*>(words.data()) + 2 * i, 2);
            memcpy(&values[i], &bits, 4);
        }
    }
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

// By differences: the double has it in closed form.
double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

void expect_near(double have, double want, int type, const char* what) {
    const double tolerance = type == CUDA_R_32F ? 2e-5 : 1.0 / 128;
    if (std::abs(have - want) <= tolerance * (1 + std::abs(want))) return;
    fprintf(stderr, "%s is %g, should be %g\n", what, have, want);
    exit(1);
}

void set(void* desc, int attribute, const void* value, size_t n_bytes) {
    CHECK(cublasLtMatmulDescSetAttribute(desc, attribute, value, n_bytes) == 0);
}

void check_product(void* library, CUstream stream, int in, int out, bool ta, bool tb, int epilogue,
                   int n_batches, float alpha, float beta) {
    // 37 and 5 are multiples of no block; 40 is a leading dimension that auxiliary matrices may have.
    const uint64_t m = 37, n = 5, k = 19;
    Operand a(in, ta ? k : m, ta ? m : k, n_batches, ta ? k + 2 : m + 1, 1),
        b(in, tb ? n : k, tb ? k : n, n_batches, tb ? n : k + 3, 77);
    Operand d(out, m, n, n_batches, m + 3, 200),
        bias(out, epilogue == EPILOGUE_BGRADB ? n : m, 1, 1, 37, 300), aux(out, m, n, n_batches, 40, 400);
    const std::vector<float> old = d.values;
    void *desc, *preference;
    CHECK(cublasLtMatmulDescCreate(&desc, 68, CUDA_R_32F) == 0);
    const int transpose[2] = {ta, tb};
    set(desc, 3, &transpose[0], 4);
    set(desc, 4, &transpose[1], 4);
    set(desc, 7, &epilogue, 4);
    set(desc, 8, &bias.address, 8);
    set(desc, 11, &aux.address, 8);
    set(desc, 12, &aux.ld, 8);
    const int64_t aux_stride = aux.ld * n;
    set(desc, 13, &aux_stride, 8);
    CHECK(cublasLtMatmulPreferenceCreate(&preference) == 0);
    Heuristic heuristic;
    int n_found = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(library, desc, a.layout, b.layout, d.layout, d.layout, preference, 1,
                                         &heuristic, &n_found) == 0);
    CHECK(n_found == 1 && heuristic.workspace_bytes == 0);
    const auto pointer = [](const Operand& o) { return reinterpret_cast<void*>(o.address); };
    CHECK(cublasLtMatmul(library, desc, &alpha, pointer(a), a.layout, pointer(b), b.layout, &beta, pointer(d),
                         d.layout, pointer(d), d.layout, heuristic.algorithm, nullptr, 0, stream) == 0);
    const Operand aux_before = aux;
    for (Operand* o : {&d, &bias, &aux}) o->download(stream);
    const Operand bias_before(out, bias.rows, 1, 1, 37, 300);
    std::vector<double> row_sums(m);
    for (int batch = 0; batch < n_batches; batch++) {
        for (uint64_t j = 0; j < n; j++) {
            for (uint64_t i = 0; i < m; i++) {
                double want = 0;
                for (uint64_t q = 0; q < k; q++)
                    want += double(ta ? a.at(batch, q, i) : a.at(batch, i, q)) *
                            (tb ? b.at(batch, j, q) : b.at(batch, q, j));
                want = alpha * want + beta * old[batch * d.ld * n + j * d.ld + i];
                if (epilogue & EPILOGUE_BIAS) want += bias_before.at(0, i, 0);
                if (epilogue == EPILOGUE_GELU_AUX || epilogue == EPILOGUE_GELU_AUX_BIAS)
                    expect_near(aux.at(batch, i, j), want, out, "aux");
                if ((epilogue & EPILOGUE_DGELU) == EPILOGUE_DGELU)
                    want *= gelu_slope(aux_before.at(batch, i, j));
                else if (epilogue & EPILOGUE_GELU) want = gelu(want);
                expect_near(d.at(batch, i, j), want, out, "D");
                row_sums[i] += want;
            }
        }
    }
    for (uint64_t i = 0; i < bias.rows; i++) {
        double want = bias_before.at(0, i, 0);
        if (epilogue == EPILOGUE_DGELU_BGRAD) want = row_sums[i];
        if (epilogue == EPILOGUE_BGRADA || epilogue == EPILOGUE_BGRADB) want = 0;
        for (uint64_t q = 0; q < k; q++) {
            if (epilogue == EPILOGUE_BGRADA) want += ta ? a.at(0, q, i) : a.at(0, i, q);
            if (epilogue == EPILOGUE_BGRADB) want += tb ? b.at(0, i, q) : b.at(0, q, i);
        }
        expect_near(bias.at(0, i, 0), want, out, "the bias");
    }
}

}  // namespace

int products_are_right() {
    begin();
    void* library;
    CHECK(cublasLtCreate(&library) == 0);
    const CUstream stream = new_stream();
    const int types[][2] = {{CUDA_R_32F, CUDA_R_32F}, {CUDA_R_16BF, CUDA_R_32F}, {CUDA_R_16BF, CUDA_R_16BF}};
    const int epilogues[] = {EPILOGUE_DEFAULT,  EPILOGUE_BIAS,          EPILOGUE_GELU,  EPILOGUE_GELU_BIAS,
                             EPILOGUE_GELU_AUX, EPILOGUE_GELU_AUX_BIAS, EPILOGUE_DGELU, EPILOGUE_DGELU_BGRAD,
                             EPILOGUE_BGRADA,   EPILOGUE_BGRADB};
    for (const auto& [in, out] : types) {
        for (int transposes = 0; transposes < 4; transposes++) {
            for (const int epilogue : epilogues)
                check_product(library, stream, in, out, transposes & 1, transposes & 2, epilogue, 1, 1, 0);
            check_product(library, stream, in, out, transposes & 1, transposes & 2, EPILOGUE_DEFAULT, 3, 0.5f,
                          2);
        }
    }
    return 0;
}

int careless_products_are_refused() {
    begin();
    void *library, *desc, *preference, *other_layout;
    CHECK(cublasLtCreate(&library) == 0);
    const CUstream stream = new_stream();
    Operand a(CUDA_R_32F, 8, 8, 1, 8, 1), b(CUDA_R_32F, 8, 8, 1, 8, 2), d(CUDA_R_32F, 8, 8, 1, 8, 3),
        workspace(CUDA_R_32F, 1 << 15, 1, 1, 1 << 15, 4);
    const size_t max_workspace_bytes = 1 << 20;
    CHECK(cublasLtMatmulDescCreate(&desc, 68, CUDA_R_32F) == 0);
    CHECK(cublasLtMatmulPreferenceCreate(&preference) == 0);
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, 1, &max_workspace_bytes, 8) == 0);
    Heuristic heuristic;
    int n_found = 0;
    const auto find = [&] {
        return cublasLtMatmulAlgoGetHeuristic(library, desc, a.layout, b.layout, d.layout, d.layout,
                                              preference, 1, &heuristic, &n_found);
    };
    CHECK(find() == 0 && heuristic.workspace_bytes > 0);
    const float one = 1, zero = 0;
    const auto multiply = [&](CUdeviceptr a_address, void* b_layout, size_t workspace_bytes) {
        const auto pointer = [](CUdeviceptr address) { return reinterpret_cast<void*>(address); };
        return cublasLtMatmul(library, desc, &one, pointer(a_address), a.layout, pointer(b.address), b_layout,
                              &zero, pointer(d.address), d.layout, pointer(d.address), d.layout,
                              heuristic.algorithm, pointer(workspace.address), workspace_bytes, stream);
    };
    constexpr int INVALID_VALUE = 7, NOT_SUPPORTED = 15;
    CHECK(multiply(a.address, b.layout, heuristic.workspace_bytes) == 0);
    CHECK(multiply(a.address, b.layout, heuristic.workspace_bytes - 1) == INVALID_VALUE);
    // Claimed to be aligned to 256 bytes, by default.
    Operand long_a(CUDA_R_32F, 8, 9, 1, 8, 1);
    CHECK(multiply(long_a.address + 4, b.layout, heuristic.workspace_bytes) == INVALID_VALUE);
    CHECK(cublasLtMatrixLayoutCreate(&other_layout, CUDA_R_32F, 8, 8, 9) == 0);
    CHECK(multiply(a.address, other_layout, heuristic.workspace_bytes) == INVALID_VALUE);
    CHECK(cublasLtMatrixLayoutCreate(&other_layout, CUDA_R_32F, 8, 8, 7) == 0);
    CHECK(multiply(a.address, other_layout, heuristic.workspace_bytes) == NOT_SUPPORTED);
    // The workspace is nobody else's.
    workspace.download(stream);
    CHECK(std::isnan(workspace.values[0]));
    const int epilogue = EPILOGUE_GELU_AUX;
    const int64_t aux_ld = 9;
    set(desc, 7, &epilogue, 4);
    set(desc, 12, &aux_ld, 8);
    CHECK(find() == NOT_SUPPORTED && n_found == 0);
    // Of a bias the address itself says what it is aligned to; before there is one it is aligned to
    // everything.
    const int with_bias = EPILOGUE_BIAS;
    set(desc, 7, &with_bias, 4);
    CHECK(find() == 0);
    Operand bias(CUDA_R_32F, 9, 1, 1, 9, 5);
    for (const auto& [offset, expected] : {std::pair<int, int>{4, INVALID_VALUE}, {0, 0}}) {
        const CUdeviceptr address = bias.address + offset;
        set(desc, 8, &address, 8);
        CHECK(multiply(a.address, b.layout, heuristic.workspace_bytes) == expected);
    }
    const CUdeviceptr address = bias.address + 4;
    set(desc, 8, &address, 8);
    CHECK(find() == 0 && multiply(a.address, b.layout, heuristic.workspace_bytes) == 0);
    return 0;
}

// CPU double of libcublasLt (docs.nvidia.com/cuda/cublas, "Using the cuBLASLt API"): f32 and bf16 products
// with the epilogues of a transformer, run when the stream gets there.
//
// It holds the caller to what the manual only asks: an algorithm belongs to the problem it was found for,
// pointers have the alignment that was claimed, the workspace is as large as the algorithm says and is
// written all over.
#include "cublaslt_product.hpp"
#include "driver.hpp"
#include "memory.hpp"
#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>

using namespace cuda_double;
using namespace cuda_double::cublaslt;

namespace {

enum cublasStatus_t : int {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
};

enum ComputeType : int {
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_PEDANTIC = 69,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77
};

enum MatmulAttribute : int {
    DESC_POINTER_MODE = 2,
    DESC_TRANSA = 3,
    DESC_TRANSB = 4,
    DESC_EPILOGUE = 7,
    DESC_BIAS_POINTER = 8,
    DESC_EPILOGUE_AUX_POINTER = 11,
    DESC_EPILOGUE_AUX_LD = 12,
    DESC_EPILOGUE_AUX_BATCH_STRIDE = 13,
    DESC_EPILOGUE_AUX_DATA_TYPE = 22,
    DESC_BIAS_DATA_TYPE = 26,
};

enum LayoutAttribute : int {
    LAYOUT_TYPE = 0,
    LAYOUT_ORDER = 1,
    LAYOUT_ROWS = 2,
    LAYOUT_COLS = 3,
    LAYOUT_LD = 4,
    LAYOUT_BATCH_COUNT = 5,
    LAYOUT_STRIDED_BATCH_OFFSET = 6,
};

enum PreferenceAttribute : int {
    PREF_SEARCH_MODE = 0,
    PREF_MAX_WORKSPACE_BYTES = 1,
    PREF_REDUCTION_SCHEME_MASK = 3,
    PREF_MIN_ALIGNMENT_A_BYTES = 5,  // B, C, D follow
    PREF_MIN_ALIGNMENT_D_BYTES = 8,
};

struct MatmulDesc {
    int compute_type = 0;
    int transpose[2] = {};
    int epilogue = EPILOGUE_DEFAULT;
    CUdeviceptr bias = 0, aux = 0;
    int64_t aux_ld = 0, aux_stride = 0;
    int bias_type = -1, aux_type = -1;  // -1: that of D
};

struct Layout {
    int type = 0;
    uint64_t rows = 0, cols = 0;
    int64_t ld = 0;
    int n_batches = 1;
    int64_t stride = 0;
};

struct Preference {
    size_t max_workspace_bytes = 0;
    uint32_t alignment[4] = {256, 256, 256, 256};
};

// cublasLtMatmulAlgo_t: 64 bytes for the caller to keep. Here they say what the algorithm is for.
struct Algorithm {
    uint64_t mark;
    uint64_t problem;  // digest of types, shapes, and epilogue
    uint64_t workspace_bytes;
    uint32_t alignment[4];
    uint32_t bias_alignment, aux_alignment;
    uint64_t unused[2];
};
static_assert(sizeof(Algorithm) == 64, "the size of cublasLtMatmulAlgo_t");
constexpr uint64_t ALGORITHM_MARK = 0x6375646120646f75;
// What a split sum might want, so that a caller who gives less is found.
constexpr size_t WISHED_WORKSPACE_BYTES = 64 << 10;

struct HeuristicResult {
    Algorithm algorithm;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

// Handles that are alive, of any kind; each kind has its own set.
template <class T>
class Handles {
public:
    T* add(T value) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return *live_.insert(new T(std::move(value))).first;
    }
    T* find(const void* handle) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = live_.find(static_cast<T*>(const_cast<void*>(handle)));
        return found == live_.end() ? nullptr : *found;
    }
    bool remove(void* handle) {
        const std::lock_guard<std::mutex> lock(mutex_);
        auto* object = static_cast<T*>(handle);
        if (live_.erase(object) == 0) return false;
        delete object;
        return true;
    }

private:
    std::mutex mutex_;
    std::set<T*> live_;
};

template <class T>
Handles<T>& handles() {
    static Handles<T>* const handles = new Handles<T>;
    return *handles;
}

struct Library {
    int device;
};

int refuse(int code, const std::string& why) {
    complain("cuBLASLt: %s", why.c_str());
    return code;
}

// Reads a value of the attribute's own size; false where the caller gives another.
template <class T>
bool read(const void* from, size_t n_bytes, T& to) {
    if (n_bytes != sizeof to) return false;
    memcpy(&to, from, sizeof to);
    return true;
}

// The product that descriptors and layouts describe, without pointers. False, and why, where cuBLASLt has
// none.
bool describe(const MatmulDesc& desc, const Layout layouts[4], Product& product, std::string& why) {
    Matrix* matrices[] = {&product.a, &product.b, &product.c, &product.d};
    for (int i = 0; i < 4; i++) {
        const Layout& layout = layouts[i];
        *matrices[i] = {nullptr, layout.type, layout.rows, layout.cols, layout.ld, layout.stride};
        const std::string name(1, "ABCD"[i]);
        if (layout.rows == 0 || layout.cols == 0) why = name + " is empty";
        if (type_bytes(layout.type) == 0)
            why = name + " has type " + std::to_string(layout.type) + ", not in this double";
        if (layout.ld < int64_t(layout.rows)) why = name + " has a leading dimension under its rows";
        if (layout.n_batches != layouts[3].n_batches) why = name + " has another batch count than D";
    }
    product.transpose_a = desc.transpose[0];
    product.transpose_b = desc.transpose[1];
    product.n_batches = layouts[3].n_batches;
    product.epilogue = desc.epilogue;
    const Matrix &a = product.a, &b = product.b, &c = product.c, &d = product.d;
    const bool fits = (product.transpose_a ? a.cols : a.rows) == d.rows &&
                      (product.transpose_b ? b.rows : b.cols) == d.cols &&
                      (product.transpose_b ? b.cols : b.rows) == product.k() && c.rows == d.rows &&
                      c.cols == d.cols;
    if (!fits) why = "the shapes do not fit together";
    const bool types_fit =
        a.type == b.type && c.type == d.type && (a.type == CUDA_R_16BF || d.type == CUDA_R_32F);
    if (!types_fit) why = "this mix of types is not supported";
    if (desc.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type != CUDA_R_32F)
        why = "TF32 is for f32 operands";
    static const std::set<int> epilogues = {
        EPILOGUE_DEFAULT,       EPILOGUE_BIAS,  EPILOGUE_GELU,        EPILOGUE_GELU_BIAS, EPILOGUE_GELU_AUX,
        EPILOGUE_GELU_AUX_BIAS, EPILOGUE_DGELU, EPILOGUE_DGELU_BGRAD, EPILOGUE_BGRADA,    EPILOGUE_BGRADB};
    if (!epilogues.count(desc.epilogue))
        why = "epilogue " + std::to_string(desc.epilogue) + " is not in this double";
    const bool has_bias = desc.epilogue & (EPILOGUE_BIAS | 16 | EPILOGUE_BGRADA | EPILOGUE_BGRADB);
    if (has_bias) {
        const uint64_t length = desc.epilogue == EPILOGUE_BGRADB ? d.cols : d.rows;
        product.bias = {nullptr, desc.bias_type < 0 ? d.type : desc.bias_type, length, 1, int64_t(length), 0};
        // The manual's table: the bias has the type of D, but for gradients into f32 of bf16 products.
        if (product.bias.type != d.type) why = "the bias has another type than D";
        if (product.n_batches > 1) why = "bias and batches together are not in this double";
    }
    if (desc.epilogue & 128) {
        product.aux = {nullptr,     desc.aux_type < 0 ? d.type : desc.aux_type,
                       d.rows,      d.cols,
                       desc.aux_ld, desc.aux_stride};
        if (desc.aux_ld < int64_t(d.rows) || desc.aux_ld % 8 != 0)
            why = "the auxiliary leading dimension " + std::to_string(desc.aux_ld) +
                  " is under the rows or no multiple of 8";
        if (product.aux.type != d.type) why = "the auxiliary matrix has another type than D";
    }
    return why.empty();
}

// FNV-1a of all that an algorithm may depend on.
uint64_t digest(const MatmulDesc& desc, const Layout layouts[4]) {
    uint64_t hash = 0xcbf29ce484222325;
    const auto add = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
    for (int i = 0; i < 4; i++)
        for (const uint64_t value :
             {uint64_t(layouts[i].type), layouts[i].rows, layouts[i].cols, uint64_t(layouts[i].ld),
              uint64_t(layouts[i].n_batches), uint64_t(layouts[i].stride)})
            add(value);
    for (const int value : {desc.compute_type, desc.transpose[0], desc.transpose[1], desc.epilogue,
                            desc.bias_type, desc.aux_type})
        add(value);
    add(desc.aux_ld);
    return hash;
}

// What an epilogue's address is a multiple of. The search for an algorithm goes by it, as the manual says;
// none yet is a multiple of everything.
uint32_t alignment_of(CUdeviceptr address) {
    uint32_t alignment = 256;
    while (address % alignment != 0) alignment /= 2;
    return alignment;
}

// Bytes from the first to the last element of a matrix, all batches.
size_t span_bytes(const Matrix& matrix, int n_batches) {
    return ((n_batches - 1) * matrix.stride + (matrix.cols - 1) * matrix.ld + matrix.rows) *
           type_bytes(matrix.type);
}

// Points the matrix at device memory; false, and a word, where that is none or badly aligned.
bool point(Matrix& matrix, const char* name, int device, CUdeviceptr address, int n_batches,
           uint64_t alignment) {
    matrix.bytes = memory::view(device, address, span_bytes(matrix, n_batches));
    if (!matrix.bytes)
        complain("cuBLASLt: %s at 0x%llx is not device memory of %zu bytes", name, address,
                 span_bytes(matrix, n_batches));
    else if (address % alignment != 0)
        complain("cuBLASLt: %s at 0x%llx is not aligned to %llu bytes, as was claimed", name, address,
                 static_cast<unsigned long long>(alignment));
    else return true;
    return false;
}

}  // namespace

CUDA_DOUBLE_API size_t cublasLtGetVersion() {
    return size_t(number_setting("CUDA_DOUBLE_CUBLASLT_VERSION", 130000));
}

CUDA_DOUBLE_API size_t cublasLtGetCudartVersion() { return 13000; }

CUDA_DOUBLE_API const char* cublasLtGetStatusString(int status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
    default: return "unknown status";
    }
}

CUDA_DOUBLE_API int cublasLtCreate(void** handle) {
    CUDA_DOUBLE_ENTER(cublasLtCreate);
    if (driver::current_device() < 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = handles<Library>().add({driver::current_device()});
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_DOUBLE_API int cublasLtDestroy(void* handle) {
    CUDA_DOUBLE_ENTER(cublasLtDestroy);
    return handles<Library>().remove(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

CUDA_DOUBLE_API int cublasLtMatmulDescCreate(void** handle, int compute_type, int scale_type) {
    CUDA_DOUBLE_ENTER(cublasLtMatmulDescCreate);
    const bool known = compute_type == CUBLAS_COMPUTE_32F || compute_type == CUBLAS_COMPUTE_32F_PEDANTIC ||
                       compute_type == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (!known || scale_type != CUDA_R_32F)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "only f32 sums and scales are in this double");
    MatmulDesc desc;
    desc.compute_type = compute_type;
    *handle = handles<MatmulDesc>().add(desc);
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_DOUBLE_API int cublasLtMatmulDescDestroy(void* handle) {
    CUDA_DOUBLE_ENTER(cublasLtMatmulDescDestroy);
    return handles<MatmulDesc>().remove(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

CUDA_DOUBLE_API int cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* value,
                                                   size_t n_bytes) {
    CUDA_DOUBLE_ENTER(cublasLtMatmulDescSetAttribute);
    MatmulDesc* desc = handles<MatmulDesc>().find(handle);
    if (!desc || !value) return CUBLAS_STATUS_INVALID_VALUE;
    bool good = false;
    int pointer_mode = 0;
    switch (attribute) {
    case DESC_POINTER_MODE: good = read(value, n_bytes, pointer_mode) && pointer_mode == 0; break;
    // 0 as it is, 1 transposed; 2, conjugate, is the same for real numbers but not asked for here.
    case DESC_TRANSA: good = read(value, n_bytes, desc->transpose[0]) && desc->transpose[0] <= 1; break;
    case DESC_TRANSB: good = read(value, n_bytes, desc->transpose[1]) && desc->transpose[1] <= 1; break;
    case DESC_EPILOGUE: good = read(value, n_bytes, desc->epilogue); break;
    case DESC_BIAS_POINTER: good = read(value, n_bytes, desc->bias); break;
    case DESC_EPILOGUE_AUX_POINTER: good = read(value, n_bytes, desc->aux); break;
    case DESC_EPILOGUE_AUX_LD: good = read(value, n_bytes, desc->aux_ld); break;
    case DESC_EPILOGUE_AUX_BATCH_STRIDE: good = read(value, n_bytes, desc->aux_stride); break;
    case DESC_EPILOGUE_AUX_DATA_TYPE: good = read(value, n_bytes, desc->aux_type); break;
    case DESC_BIAS_DATA_TYPE: good = read(value, n_bytes, desc->bias_type); break;
    }
    return good ? int(CUBLAS_STATUS_SUCCESS)
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "product attribute " + std::to_string(attribute) +
                                                          ": not in this double, or a wrong value or size");
}

CUDA_DOUBLE_API int cublasLtMatrixLayoutCreate(void** handle, int type, uint64_t rows, uint64_t cols,
                                               int64_t ld) {
    CUDA_DOUBLE_ENTER(cublasLtMatrixLayoutCreate);
    Layout layout;
    layout.type = type;
    layout.rows = rows;
    layout.cols = cols;
    layout.ld = ld;
    *handle = handles<Layout>().add(layout);
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_DOUBLE_API int cublasLtMatrixLayoutDestroy(void* handle) {
    CUDA_DOUBLE_ENTER(cublasLtMatrixLayoutDestroy);
    return handles<Layout>().remove(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

CUDA_DOUBLE_API int cublasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* value,
                                                     size_t n_bytes) {
    CUDA_DOUBLE_ENTER(cublasLtMatrixLayoutSetAttribute);
    Layout* layout = handles<Layout>().find(handle);
    if (!layout || !value) return CUBLAS_STATUS_INVALID_VALUE;
    bool good = false;
    int order = 0;
    switch (attribute) {
    case LAYOUT_TYPE: good = read(value, n_bytes, layout->type); break;
    case LAYOUT_ORDER: good = read(value, n_bytes, order) && order == 0; break;  // column-major alone
    case LAYOUT_ROWS: good = read(value, n_bytes, layout->rows); break;
    case LAYOUT_COLS: good = read(value, n_bytes, layout->cols); break;
    case LAYOUT_LD: good = read(value, n_bytes, layout->ld); break;
    case LAYOUT_BATCH_COUNT: good = read(value, n_bytes, layout->n_batches) && layout->n_batches > 0; break;
    case LAYOUT_STRIDED_BATCH_OFFSET: good = read(value, n_bytes, layout->stride); break;
    }
    return good ? int(CUBLAS_STATUS_SUCCESS)
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "layout attribute " + std::to_string(attribute) +
                                                          ": not in this double, or a wrong value or size");
}

CUDA_DOUBLE_API int cublasLtMatmulPreferenceCreate(void** handle) {
    CUDA_DOUBLE_ENTER(cublasLtMatmulPreferenceCreate);
    *handle = handles<Preference>().add({});
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_DOUBLE_API int cublasLtMatmulPreferenceDestroy(void* handle) {
    CUDA_DOUBLE_ENTER(cublasLtMatmulPreferenceDestroy);
    return handles<Preference>().remove(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

CUDA_DOUBLE_API int cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* value,
                                                         size_t n_bytes) {
    CUDA_DOUBLE_ENTER(cublasLtMatmulPreferenceSetAttribute);
    Preference* preference = handles<Preference>().find(handle);
    if (!preference || !value) return CUBLAS_STATUS_INVALID_VALUE;
    bool good = false;
    uint32_t word = 0;
    if (attribute == PREF_MAX_WORKSPACE_BYTES) {
        good = read(value, n_bytes, preference->max_workspace_bytes);
    } else if (attribute >= PREF_MIN_ALIGNMENT_A_BYTES && attribute <= PREF_MIN_ALIGNMENT_D_BYTES) {
        good = read(value, n_bytes, word) && word > 0 && (word & (word - 1)) == 0;
        preference->alignment[attribute - PREF_MIN_ALIGNMENT_A_BYTES] = word;
    } else if (attribute == PREF_SEARCH_MODE || attribute == PREF_REDUCTION_SCHEME_MASK) {
        good = read(value, n_bytes, word);  // there is one algorithm
    }
    return good ? int(CUBLAS_STATUS_SUCCESS)
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "preference attribute " + std::to_string(attribute) +
                                                          ": not in this double, or a wrong value or size");
}

CUDA_DOUBLE_API int cublasLtMatmulAlgoGetHeuristic(void* library, const void* desc_handle, const void* a,
                                                   const void* b, const void* c, const void* d,
                                                   const void* preference_handle, int n_requested,
                                                   HeuristicResult* results, int* n_found) {
    CUDA_DOUBLE_ENTER(cublasLtMatmulAlgoGetHeuristic);
    const MatmulDesc* desc = handles<MatmulDesc>().find(desc_handle);
    const Preference* preference = handles<Preference>().find(preference_handle);
    Layout layouts[4];
    const void* layout_handles[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
        const Layout* layout = handles<Layout>().find(layout_handles[i]);
        if (!layout)
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasLtMatmulAlgoGetHeuristic: no such layout");
        layouts[i] = *layout;
    }
    if (!handles<Library>().find(library) || !desc || !preference || n_requested < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    *n_found = 0;
    Product product;
    std::string why;
    if (!describe(*desc, layouts, product, why))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm: " + why);
    Algorithm algorithm = {};
    algorithm.mark = ALGORITHM_MARK;
    algorithm.problem = digest(*desc, layouts);
    algorithm.workspace_bytes = std::min(preference->max_workspace_bytes, WISHED_WORKSPACE_BYTES);
    memcpy(algorithm.alignment, preference->alignment, sizeof algorithm.alignment);
    algorithm.bias_alignment = alignment_of(desc->bias);
    algorithm.aux_alignment = alignment_of(desc->aux);
    results[0] = {algorithm, size_t(algorithm.workspace_bytes), CUBLAS_STATUS_SUCCESS, 1.0f, {}};
    *n_found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_DOUBLE_API int cublasLtMatmul(void* library_handle, const void* desc_handle, const void* alpha,
                                   const void* a, const void* a_layout, const void* b, const void* b_layout,
                                   const void* beta, const void* c, const void* c_layout, void* d,
                                   const void* d_layout, const Algorithm* algorithm, void* workspace,
                                   size_t workspace_bytes, CUstream stream_handle) {
    CUDA_DOUBLE_ENTER(cublasLtMatmul);
    const Library* library = handles<Library>().find(library_handle);
    const MatmulDesc* desc = handles<MatmulDesc>().find(desc_handle);
    if (!library || !desc || !alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
    const int device = library->device;
    Stream* stream = executor::find_stream(stream_handle, device);
    if (!stream || stream->device != device)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no such stream on the handle's device");
    Layout layouts[4];
    const void* layout_handles[4] = {a_layout, b_layout, c_layout, d_layout};
    for (int i = 0; i < 4; i++) {
        const Layout* layout = handles<Layout>().find(layout_handles[i]);
        if (!layout) return refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasLtMatmul: no such layout");
        layouts[i] = *layout;
    }
    Product product;
    std::string why;
    if (!describe(*desc, layouts, product, why)) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
    uint32_t alignment[4];
    for (int i = 0; i < 4; i++) alignment[i] = type_bytes(layouts[i].type);
    uint32_t bias_alignment = type_bytes(product.bias.type), aux_alignment = 16;
    size_t used_workspace_bytes = 0;
    if (algorithm) {
        if (algorithm->mark != ALGORITHM_MARK || algorithm->problem != digest(*desc, layouts))
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "the algorithm was found for another problem");
        memcpy(alignment, algorithm->alignment, sizeof alignment);
        bias_alignment = std::max(bias_alignment, algorithm->bias_alignment);
        aux_alignment = std::max(aux_alignment, algorithm->aux_alignment);
        used_workspace_bytes = algorithm->workspace_bytes;
    }
    product.alpha = *static_cast<const float*>(alpha);
    product.beta = *static_cast<const float*>(beta);
    const auto address = [](const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); };
    const int n = product.n_batches;
    bool good = point(product.a, "A", device, address(a), n, alignment[0]) &&
                point(product.b, "B", device, address(b), n, alignment[1]) &&
                point(product.c, "C", device, address(c), n, alignment[2]) &&
                point(product.d, "D", device, address(d), n, alignment[3]);
    if (product.bias.rows > 0)
        good = good && point(product.bias, "the bias", device, desc->bias, 1, bias_alignment);
    if (product.aux.rows > 0)
        good = good && point(product.aux, "the auxiliary matrix", device, desc->aux, n, aux_alignment);
    Matrix scratch = {nullptr, CUDA_R_16BF, used_workspace_bytes / 2, 1, int64_t(used_workspace_bytes / 2),
                      0};
    if (used_workspace_bytes > 0) {
        if (workspace_bytes < used_workspace_bytes)
            return refuse(CUBLAS_STATUS_INVALID_VALUE,
                          "the workspace has " + std::to_string(workspace_bytes) +
                              " bytes, the algorithm needs " + std::to_string(used_workspace_bytes));
        good = good && point(scratch, "the workspace", device, address(workspace), 1, 16);
    }
    if (!good) return CUBLAS_STATUS_INVALID_VALUE;
    Operation operation;
    operation.label = "product " + std::to_string(product.m()) + " x " + std::to_string(product.n()) + " x " +
                      std::to_string(product.k());
    operation.run = [=] {
        // Nobody else's data may lie in the workspace.
        if (scratch.bytes) memset(scratch.bytes, 0xff, used_workspace_bytes);
        multiply(product);
        return Progress::Done;
    };
    executor::enqueue(stream, std::move(operation));
    return executor::current_fault() ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

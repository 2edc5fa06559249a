// Every kernel, and the list of their names. `T` is the type of parameters and activations (of gradients in
// optimizer.cu), `G` that of gradients of parameters: each of f32, bf16. `TILE` has the channels and rows of
// attention's tiles. The device looks kernels up by these names, and the tests' host build makes its registry
// from the list.
#include "common.cuh"

#include "attention.cu"
#include "cross_entropy.cu"
#include "elementwise.cu"
#include "embedding.cu"
#include "lion.cu"
#include "norm.cu"
#include "optimizer.cu"
#include "rope.cu"
#include "sgd.cu"
#include "sums.cu"

#define KERNELS_OF_TYPE(X, T)             \
    X(accumulate_##T)                     \
    X(adamw_##T)                          \
    X(add_##T)                            \
    X(add_layer_norm_forward_##T)         \
    X(attention_delta_##T)                \
    X(column_sums_##T)                    \
    X(copy_columns_##T)                   \
    X(embedding_forward_##T)              \
    X(fold_chunks_##T)                    \
    X(gelu_backward_##T)                  \
    X(gelu_forward_##T)                   \
    X(layer_norm_backward_##T)            \
    X(layer_norm_forward_##T)             \
    X(layer_norm_weight_sums_##T)         \
    X(lion_##T)                           \
    X(ordered_add_##T)                    \
    X(rms_norm_backward_##T)              \
    X(rms_norm_forward_##T)               \
    X(rms_norm_weight_sums_##T)           \
    X(rope_##T)                           \
    X(sgd_##T)                            \
    X(sum_of_squares_##T)                 \
    X(swiglu_backward_##T)                \
    X(swiglu_forward_##T)

#define KERNELS_OF_TILES(X, T, TILE)      \
    X(attention_backward_kv_##T##_##TILE) \
    X(attention_backward_q_##T##_##TILE)  \
    X(attention_forward_##T##_##TILE)

#define KERNELS_OF_TWO_TYPES(X, T, G)     \
    X(cast_##T##_##G)                     \
    X(embedding_backward_wpe_##T##_##G)   \
    X(embedding_backward_wte_##T##_##G)

#define ZERO3_KERNELS(X)                  \
    X(cross_entropy)                      \
    X(embedding_order)                    \
    KERNELS_OF_TYPE(X, f32)               \
    KERNELS_OF_TYPE(X, bf16)              \
    KERNELS_OF_TILES(X, f32, 32x64)       \
    KERNELS_OF_TILES(X, f32, 64x64)       \
    KERNELS_OF_TILES(X, f32, 128x64)      \
    KERNELS_OF_TILES(X, f32, 128x16)      \
    KERNELS_OF_TILES(X, bf16, 32x64)      \
    KERNELS_OF_TILES(X, bf16, 64x64)      \
    KERNELS_OF_TILES(X, bf16, 128x32)     \
    KERNELS_OF_TWO_TYPES(X, f32, f32)     \
    KERNELS_OF_TWO_TYPES(X, f32, bf16)    \
    KERNELS_OF_TWO_TYPES(X, bf16, f32)    \
    KERNELS_OF_TWO_TYPES(X, bf16, bf16)

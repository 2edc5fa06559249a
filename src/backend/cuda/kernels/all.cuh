// Every kernel, and the list of their names. `T` is the type of parameters and activations (of gradients in
// optimizer.cu), `G` that of gradients of parameters: each of f32, bf16. The device looks kernels up by these names, and
// the tests' host build makes its registry from the list.
#include "common.cuh"

#include "elementwise.cu"
#include "norm.cu"
#include "optimizer.cu"

#define KERNELS_OF_TYPE(X, T)                                                                                     \
    X(gelu_forward_##T)                                                                                           \
    X(gelu_backward_##T)                                                                                          \
    X(add_##T)                                                                                                    \
    X(accumulate_##T)                                                                                             \
    X(swiglu_forward_##T)                                                                                         \
    X(swiglu_backward_##T)                                                                                        \
    X(add_bias_##T)                                                                                               \
    X(layer_norm_forward_##T)                                                                                     \
    X(add_layer_norm_forward_##T)                                                                                 \
    X(layer_norm_backward_##T)                                                                                    \
    X(rms_norm_forward_##T)                                                                                       \
    X(rms_norm_backward_##T)                                                                                      \
    X(ordered_add_##T)                                                                                            \
    X(sum_of_squares_##T)                                                                                         \
    X(adamw_##T)                                                                                                  \
    X(find_non_finite_##T)

#define KERNELS_OF_TWO_TYPES(X, T, G) X(cast_##T##_##G)

#define ZERO3_KERNELS(X)                  \
    KERNELS_OF_TYPE(X, f32)               \
    KERNELS_OF_TYPE(X, bf16)              \
    KERNELS_OF_TWO_TYPES(X, f32, f32)     \
    KERNELS_OF_TWO_TYPES(X, f32, bf16)    \
    KERNELS_OF_TWO_TYPES(X, bf16, f32)    \
    KERNELS_OF_TWO_TYPES(X, bf16, bf16)

// One Lion update (arXiv:2302.06675, algorithm 2). Updates master and m (n) in place; `param` (n), or null,
// is overwritten with the rounded master. Operations in the order of backend/cpu/ops/update/lion.rs; the host
// has computed decay = 1 - lr * weight_decay.
#include "common.cuh"

template <class G>
__device__ void lion(f32* master, f32* m, const G* grad, bf16* param, i64 n, f32 grad_scale, f32 decay,
                     f32 one_minus_beta1, f32 one_minus_beta2, f32 lr) {
    const bool in_words = aligned(address(master) | address(m) | address(grad) | address(param));
    for (i64 i = first_chunk(); i < n; i += next_chunk()) {
        f32 p[CHUNK], mean[CHUNK], g[CHUNK];
        load(p, master + i, n - i, in_words);
        load(mean, m + i, n - i, in_words);
        load(g, grad + i, n - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            const f32 from_mean = g[j] * grad_scale - mean[j];
            const f32 direction = fmaf(one_minus_beta1, from_mean, mean[j]);
            mean[j] = fmaf(one_minus_beta2, from_mean, mean[j]);
            const f32 up = direction > 0.0f ? lr : 0.0f, down = direction < 0.0f ? lr : 0.0f;
            p[j] = p[j] * decay - (up - down);
        }
        store(master + i, p, n - i, in_words);
        store(m + i, mean, n - i, in_words);
        if (param != nullptr) store(param + i, p, n - i, in_words);
    }
}

#define LION_KERNEL(T)                                                                            \
    KERNEL                                                                                        \
    lion_##T(f32* master, f32* m, const T* grad, bf16* param, i64 n, f32 grad_scale, f32 decay,   \
             f32 one_minus_beta1, f32 one_minus_beta2, f32 lr) {                                  \
        lion(master, m, grad, param, n, grad_scale, decay, one_minus_beta1, one_minus_beta2, lr); \
    }
LION_KERNEL(f32)
LION_KERNEL(bf16)
#undef LION_KERNEL

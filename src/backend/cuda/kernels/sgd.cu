// One update of SGD as torch.optim.SGD has it without dampening, but with decoupled weight decay. Updates
// master and the momentum buffer (n) in place; where `buffer` is null there is no momentum. `param` (n), or
// null, is overwritten with the rounded master. Operations in the order of backend/cpu/ops/update/sgd.rs; the
// host has computed decay = 1 - lr * weight_decay. `nesterov` is 0 or 1.
#include "common.cuh"

template <class G>
__device__ void sgd(f32* master, f32* buffer, const G* grad, bf16* param, i64 n, f32 grad_scale, f32 decay,
                    f32 momentum, f32 nesterov, f32 lr) {
    const bool in_words = aligned(address(master) | address(buffer) | address(grad) | address(param));
    for (i64 i = first_chunk(); i < n; i += next_chunk()) {
        f32 p[CHUNK], sum[CHUNK] = {}, g[CHUNK];
        load(p, master + i, n - i, in_words);
        load(g, grad + i, n - i, in_words);
        if (buffer != nullptr) load(sum, buffer + i, n - i, in_words);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            const f32 scaled = g[j] * grad_scale;
            f32 direction = scaled;
            if (buffer != nullptr) {
                sum[j] = fmaf(momentum, sum[j], scaled);
                direction = nesterov != 0.0f ? fmaf(momentum, sum[j], scaled) : sum[j];
            }
            p[j] = p[j] * decay - lr * direction;
        }
        store(master + i, p, n - i, in_words);
        if (buffer != nullptr) store(buffer + i, sum, n - i, in_words);
        if (param != nullptr) store(param + i, p, n - i, in_words);
    }
}

#define SGD_KERNEL(T)                                                                               \
    KERNEL                                                                                          \
    sgd_##T(f32* master, f32* buffer, const T* grad, bf16* param, i64 n, f32 grad_scale, f32 decay, \
            f32 momentum, f32 nesterov, f32 lr) {                                                   \
        sgd(master, buffer, grad, param, n, grad_scale, decay, momentum, nesterov, lr);             \
    }
SGD_KERNEL(f32)
SGD_KERNEL(bf16)
#undef SGD_KERNEL

// The classifier's end: softmax cross-entropy and its gradient, in place of the logits.
#include "exp.cuh"

constexpr int CLASSIFIER_THREADS = 1024;
// Logits that a thread has on their way from memory at a time.
constexpr int LOGITS_IN_FLIGHT = 8;

// losses[row] = logsumexp(logits[row]) - logits[row][target], in nats; where `with_gradient`, logits (rows,
// V) become (softmax - onehot) * scale. Overwrites losses (rows). A block takes a row, whole warps of
// threads.
//
// The first pass over a row finds maximum and sum together: a sum is scaled again when its maximum grows. It
// reads element by element, neighbours by neighbouring threads, because rows of an odd length begin anywhere
// and the order of the sum must not depend on that. The second pass has no sum: it moves 16-byte words from
// where the row is aligned.
__device__ void loss_and_gradient(f32* logits, f32* losses, const u32* targets, i64 rows, int vocab,
                                  f32 scale, int with_gradient) {
    SHARED(f32, maxima, [CLASSIFIER_THREADS / WARP]);
    SHARED(f32, sums, [CLASSIFIER_THREADS / WARP]);
    const f32 lowest = __uint_as_float(0xff800000u);  // -infinity
    const int n_threads = int(blockDim.x), rank = int(threadIdx.x);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        f32* const x = logits + row * vocab;
        const u32 target = targets[row];
        if (target >= u32(vocab)) __trap();
        const f32 at_target = x[target];
        f32 max = lowest, sum = 0.0f;
        for (int i = rank; i < vocab; i += n_threads * LOGITS_IN_FLIGHT) {
            f32 v[LOGITS_IN_FLIGHT];
            f32 new_max = max;
#pragma unroll
            for (int j = 0; j < LOGITS_IN_FLIGHT; j++) {
                const int at = i + j * n_threads;
                v[j] = at < vocab ? x[at] : lowest;
                new_max = fmaxf(new_max, v[j]);
            }
            if (new_max > max) {
                sum *= exp_f32(max - new_max);
                max = new_max;
            }
#pragma unroll
            for (int j = 0; j < LOGITS_IN_FLIGHT; j++) sum += v[j] == lowest ? 0.0f : exp_f32(v[j] - max);
        }
        const f32 warp_maximum = warp_max(max);
        sum = warp_sum(sum == 0.0f ? 0.0f : sum * exp_f32(max - warp_maximum));
        __syncthreads();  // the sums of the row before were read
        if (rank % WARP == 0) {
            maxima[rank / WARP] = warp_maximum;
            sums[rank / WARP] = sum;
        }
        __syncthreads();
        const int n_warps = n_threads / WARP;
        max = maxima[0];
        for (int w = 1; w < n_warps; w++) max = fmaxf(max, maxima[w]);
        sum = 0.0f;
        for (int w = 0; w < n_warps; w++) sum += sums[w] == 0.0f ? 0.0f : sums[w] * exp_f32(maxima[w] - max);
        if (rank == 0) losses[row] = logf(sum) + (max - at_target);
        if (!with_gradient) continue;

        const f32 factor = scale / sum;
        const f32 target_gradient = (exp_f32(at_target - max) / sum - 1.0f) * scale;
        // Elements of the row before the first 16-byte word that it has a part of.
        const int ahead = int(address(x) / sizeof(f32) % 4);
        for (int word = rank; word * 4 < vocab + ahead; word += n_threads) {
            const int first = word * 4 - ahead;
            f32 v[4];
            if (first >= 0 && first + 4 <= vocab) {
                Words* const words = reinterpret_cast<Words*>(x + first);
                const Words in = DeviceMemory::read(words);
                Words out;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    v[j] = exp_f32(__uint_as_float(in.word[j]) - max) * factor;
                    if (u32(first + j) == target) v[j] = target_gradient;
                    out.word[j] = __float_as_uint(v[j]);
                }
                DeviceMemory::write(words, out);
                continue;
            }
            for (int j = 0; j < 4; j++) {
                const int i = first + j;
                if (i >= 0 && i < vocab)
                    x[i] = u32(i) == target ? target_gradient : exp_f32(x[i] - max) * factor;
            }
        }
    }
}

KERNEL_OF(CLASSIFIER_THREADS, 1)
cross_entropy(f32* logits, f32* losses, const u32* targets, i64 rows, int vocab, f32 scale,
              int with_gradient) {
    loss_and_gradient(logits, losses, targets, rows, vocab, scale, with_gradient);
}

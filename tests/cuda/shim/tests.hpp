// The shim's own tests: it runs every thread once, in many orders, and finds what it promises to find.
#pragma once
#include "../kernels/harness.hpp"

namespace test {

__global__ void count_visits(u32* visits, u32* turn, u32* turns) {
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    atomicAdd(&visits[i], 1u);
    turns[i] = atomicAdd(turn, 1u);
}

TEST(shim_runs_every_thread_of_a_grid_once_and_orders_differ) {
    std::vector<std::vector<u32>> seen;
    for (const unsigned order : {0u, 1u, 2u, 3u}) {
        std::vector<u32> visits(2 * 3 * 2 * 40, 0), turns(visits.size(), 0);
        u32 turn = 0;
        launch("count_visits", count_visits, dim3(2, 3, 2), dim3(10, 2, 2), 0, order, visits.data(), &turn,
               turns.data());
        for (const u32 n : visits) REQUIRE(n == 1);
        for (const auto& other : seen) REQUIRE(other != turns);
        seen.push_back(turns);
    }
    REQUIRE(seen[0][0] == 0 && seen[0].back() == seen[0].size() - 1);
    REQUIRE(seen[1][0] == seen[0].size() - 1 && seen[1].back() == 0);
}

__global__ void some_leave_early(int* x) {
    if (threadIdx.x == 3) return;
    __syncthreads();
    *x = 1;
}

__global__ void branches_with_a_barrier_each(int* x) {
    if (threadIdx.x < 16) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    *x = 1;
}

__global__ void some_lanes_shuffle(int* x) {
    if (threadIdx.x < 16) *x = __shfl_xor_sync(0xffffffffu, 1, 1);
}

__global__ void a_mask_of_some_lanes(int* x) { *x = __shfl_xor_sync(0xffffu, 1, 1); }

TEST(shim_finds_barriers_and_warp_operations_that_not_all_reach) {
    int x = 0;
    expect_fault("wait at __syncthreads",
                 [&] { launch("some_leave_early", some_leave_early, 1, 64, 0, 7, &x); });
    expect_fault("at __syncthreads of line",
                 [&] { launch("branches", branches_with_a_barrier_each, 1, 32, 0, 0, &x); });
    expect_fault("lanes of a warp",
                 [&] { launch("some_lanes_shuffle", some_lanes_shuffle, 1, 32, 0, 0, &x); });
    expect_fault("without all lanes", [&] { launch("a_mask", a_mask_of_some_lanes, 1, 32, 0, 0, &x); });
    // A launch after a fault starts afresh.
    u32 visits[32] = {}, turns[32], turn = 0;
    launch("count_visits", count_visits, 1, 32, 0, 0, visits, &turn, turns);
    REQUIRE(visits[31] == 1);
}

TEST(shim_refuses_launches_that_a_device_refuses) {
    int x = 0;
    expect_fault("threads in a block", [&] { launch("kernel", some_leave_early, 1, 1025, 0, 0, &x); });
    expect_fault("no such grid", [&] { launch("kernel", some_leave_early, dim3(1, 70000), 32, 0, 0, &x); });
    expect_fault("of shared memory", [&] { launch("kernel", some_leave_early, 1, 32, 200 << 10, 0, &x); });
}

__global__ void leftovers(f32* fixed, f32* dynamic) {
    SHARED(f32, tile, [2][4]);
    DYNAMIC_SHARED(f32, more);
    fixed[blockIdx.x] = tile[1][3];
    dynamic[blockIdx.x] = more[5];
    __syncthreads();
    tile[1][3] = more[5] = 1.0f;
}

TEST(shim_fills_shared_memory_with_nan_for_each_block) {
    f32 fixed[3] = {}, dynamic[3] = {};
    launch("leftovers", leftovers, 3, 2, 6 * sizeof(f32), 0, fixed, dynamic);
    for (int i = 0; i < 3; i++) REQUIRE(std::isnan(fixed[i]) && std::isnan(dynamic[i]));
}

template <bool WITH_BARRIER>
__global__ void reverse_through_shared(u32* out) {
    SHARED(u32, all, [64]);
    all[threadIdx.x] = threadIdx.x;
    if (WITH_BARRIER) __syncthreads();
    out[threadIdx.x] = all[63 - threadIdx.x];
}

TEST(shim_shows_a_missing_barrier_as_a_wrong_number) {
    int wrong = 0;
    for (const unsigned order : orders()) {
        u32 out[64];
        launch("with", reverse_through_shared<true>, 1, 64, 0, order, out);
        for (u32 i = 0; i < 64; i++) REQUIRE(out[i] == 63 - i);
        launch("without", reverse_through_shared<false>, 1, 64, 0, order, out);
        for (u32 i = 0; i < 64; i++) wrong += out[i] != 63 - i;
    }
    REQUIRE(wrong > 0);
}

__global__ void shuffles(u32* from, u32* flipped, u32* down) {
    const u32 lane = threadIdx.x;
    from[lane] = __shfl_sync(0xffffffffu, 10 * lane, 5);
    flipped[lane] = __shfl_xor_sync(0xffffffffu, 10 * lane, 3);
    down[lane] = __shfl_down_sync(0xffffffffu, 10 * lane, 4);
}

TEST(shim_shuffles_are_those_of_a_warp) {
    for (const unsigned order : orders()) {
        u32 from[32], flipped[32], down[32];
        launch("shuffles", shuffles, 1, 32, 0, order, from, flipped, down);
        for (u32 i = 0; i < 32; i++) {
            REQUIRE(from[i] == 50 && flipped[i] == 10 * (i ^ 3) && down[i] == 10 * (i + 4 < 32 ? i + 4 : i));
        }
    }
}

// a (16 x 16) times b (16 x 8), row-major both, through the two instructions.
__global__ void one_product(f32* c, const bf16* a, const bf16* b) {
    SHARED(bf16, a_tile, [16][16]);
    SHARED(bf16, b_tile, [16][16]);
    const int lane = int(threadIdx.x);
    for (int i = lane; i < 256; i += 32) {
        a_tile[i / 16][i % 16] = a[i];
        b_tile[i / 16][i % 16] = i % 16 < 8 ? b[i / 16 * 8 + i % 16] : bf16{0};
    }
    __syncwarp();
    u32 left[4], right[4];
    load_matrices<false>(left, &a_tile[lane % 16][lane / 16 * 8], 0);
    load_matrices<true>(right, &b_tile[lane % 16][lane / 16 * 8], 0);
    f32 sums[4] = {};
    const u32 columns[2] = {right[0], right[1]};
    mma(sums, left, columns);
    for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

TEST(shim_multiplies_matrices_as_the_instructions_say) {
    const Array<bf16> a(256, 0, 1), b(128, 0, 2);
    for (const unsigned order : orders()) {
        Array<f32> c(128);
        launch("one_product", one_product, 1, 32, 0, order, c.data(), a.data(), b.data());
        Worst worst("product");
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                double want = 0;
                for (int k = 0; k < 16; k++) want += a.at(16 * i + k) * b.at(8 * k + j);
                worst.check(8 * i + j, c.at(8 * i + j), want, 16 * 16 * HALF_ULP<f32>);
            }
    }
}

TEST(shim_registry_describes_arguments_as_they_are) {
    const shim::Kernel* kernel = shim::find_kernel("cross_entropy");
    REQUIRE(kernel != nullptr && kernel->arguments.size() == 7);
    REQUIRE(kernel->arguments[0].is_pointer && !kernel->arguments[3].is_pointer);
    REQUIRE(kernel->arguments[3].bytes == 8 && kernel->arguments[4].bytes == 4);
    REQUIRE(shim::find_kernel("no_such_kernel") == nullptr);
}

}  // namespace test

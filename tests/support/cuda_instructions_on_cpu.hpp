// The functions of instructions.cuh on a CPU, each with its meaning: a tensor-core product is of what all lanes of the warp
// hold, and a copy arrives only when its thread waits for it, so that a missing wait or barrier shows.
#pragma once
#include "cuda_on_cpu.hpp"

namespace emulation {
struct Copy {
    void *to;
    const void *from;
};
static std::vector<std::vector<std::vector<Copy>>> copies;  // thread, group, copy
static uint32_t deposited[1024][6];                          // thread, word
static unsigned long long cycles;

static void meet_warp() { wait(warps[threadIdx.x / 32], lanes()); }

static std::vector<std::vector<Copy>> &groups() {
    if (copies.size() < blockDim.x) copies.resize(blockDim.x);
    auto &mine = copies[threadIdx.x];
    if (mine.empty()) mine.emplace_back();
    return mine;
}
}  // namespace emulation

#define HOST_EMULATION
#define DEVICE static inline
#define DEVICE_MEMBER inline
#define KERNEL(threads) static void
#define RESIDENT_KERNEL(threads, blocks) static void
#define SHARED_ARRAY(type, name, count) alignas(16) static type name[count]

DEVICE unsigned long long sm_clock() { return emulation::cycles += 7; }
DEVICE unsigned int sm_number() { return blockIdx.x % 4; }
DEVICE unsigned int pack_halves(float low, float high) {
    return emulation::to_half(low) | emulation::to_half(high) << 16;
}
DEVICE float exponential_of_two(float x) { return std::exp2(x); }
DEVICE void wait_for_block() { __syncthreads(); }
DEVICE float exchange(float value, int lane_mask) { return __shfl_xor_sync(0xffffffffu, value, lane_mask); }

DEVICE void start_copy(void *shared, const void *global) {
    emulation::groups().back().push_back({emulation::aligned(shared), emulation::aligned(global)});
}
DEVICE void close_copies() { emulation::groups().emplace_back(); }
template <int pending> DEVICE void wait_for_copies() {
    auto &groups = emulation::groups();
    while (groups.size() > pending + 1) {
        for (auto &copy : groups.front()) std::memcpy(copy.to, copy.from, 16);
        groups.erase(groups.begin());
    }
}

DEVICE void multiply_accumulate(float (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    unsigned int lane = threadIdx.x % 32;
    auto *warp = emulation::deposited + threadIdx.x - lane;
    std::memcpy(&warp[lane][0], a, 16);
    std::memcpy(&warp[lane][4], b, 8);
    emulation::meet_warp();
    for (unsigned int i = 0; i < 4; i++) {
        unsigned int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (unsigned int k = 0; k < 16; k++) {
            uint32_t left = warp[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> k % 2 * 16 & 0xffff;
            uint32_t right = warp[column * 4 + k % 8 / 2][4 + k / 8] >> k % 2 * 16 & 0xffff;
            d[i] += emulation::from_half(left) * emulation::from_half(right);
        }
    }
    emulation::meet_warp();
}

// Rows that the registers of some threads hold.
#pragma once

#include "normalization_rows.cuh"

// Optimised, one pass: LANES threads hold a row of at most 4 * LANES * SLOTS values (3 fewer unless rows are aligned)
// in registers, loaded and stored 16 bytes at a time. Up to 32 lanes, a block has several rows and no barrier.
template <int LANES, int SLOTS, bool ALIGNED>
DEVICE void normalize_in_registers(const Element* __restrict__ x, Element* __restrict__ y, long long rows, int length) {
    SHARED(Exchange, exchange);
    int turn = 0;
    const int lane = threadIdx.x % LANES;
    const int rows_of_block = LANES <= 32 ? blockDim.x / LANES : 1;
    for (long long first = static_cast<long long>(blockIdx.x) * rows_of_block; first < rows;
         first += static_cast<long long>(gridDim.x) * rows_of_block) {
        const long long index = first + threadIdx.x / LANES;
        const bool live = index < rows;
        const Row row = locate<ALIGNED>(live ? index : first, live ? length : 0);
        const float start = widen(x[4 * row.first_slot + row.skipped]);
        unsigned bits = members_of_thread<LANES, SLOTS, ALIGNED>(row, lane);
        float4 values[SLOTS];
        float scale = 1.0f, mean, variance;
        for (int attempt = 0;; ++attempt) {
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                values[s] = load_row_slot<true, ALIGNED>(x, row, s * LANES + lane, bits >> 4 * s);
            }
            bits = afresh(bits);
            // In place: registers have room for one copy.
            const float reference = start * scale;
            float sum = 0.0f;
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                values[s] = difference(values[s], scale, reference);
                sum += total(values[s], bits >> 4 * s);
            }
            sum = sum_of_lanes<LANES>(sum);
            int held = length;
            if (LANES > 32) {
                held = 0;
#pragma unroll
                for (int s = 0; s < SLOTS; ++s) held += values_in(row, s * LANES + (lane & ~31), 32);
            }
            mean = held > 0 ? sum / static_cast<float>(held) : 0.0f;
            float m2 = 0.0f;
            bits = afresh(bits);
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) m2 += squares(values[s], bits >> 4 * s, mean);
            const Moments warp = {static_cast<float>(held), mean, sum_of_lanes<LANES>(m2)};
            const Moments all = merge_warps<LANES>(warp, exchange, turn);
            mean = all.mean;
            variance = all.m2 / static_cast<float>(length);
            const bool again = live && attempt == 0 && out_of_range(variance);
            // The same in all threads of a row; shuffles need the same in all lanes of a warp.
            if (!(LANES < 32 ? __any_sync(EVERY_LANE, again) : again)) break;
            float largest = 0.0f;
            bits = afresh(bits);
#pragma unroll 1
            for (int s = 0; s < SLOTS; ++s) {
                const float4 found = load_row_slot<false, ALIGNED>(x, row, s * LANES + lane, bits >> 4 * s);
                largest = fmaxf(largest, magnitude(found));
            }
            scale = scale_for(largest_of_row<LANES>(largest, exchange, turn));
        }

        const float factor = inverse_std(variance);
        bits = afresh(bits);
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            store_row_slot<ALIGNED>(y, row, s * LANES + lane, bits >> 4 * s, standardise(values[s], mean, factor));
        }
    }
}

// Rows that the registers of some threads hold.
#pragma once

#include "normalization_rows.cuh"

// Optimised, one pass: LANES threads of each of BLOCKS blocks, a cluster if they are several, hold a row of at most
// LANES * SLOTS * BLOCKS slots in registers, as elements. Up to 32 lanes, a block has several rows and no barrier. The
// few values at the ends of a row that is not aligned, which are in no whole slot, are held beside.
template <int LANES, int SLOTS, bool ALIGNED, int BLOCKS = 1>
DEVICE void normalize_in_registers(const Element* __restrict__ x, Element* __restrict__ y, long long rows, int length) {
    SHARED(Exchange, exchange);
    int turn = 0;
    constexpr int WIDTH = LANES < 32 ? LANES : 32;
    constexpr int EDGES = ALIGNED ? 0 : (2 * (VALUES - 1) + LANES - 1) / LANES;
    int lane = threadIdx.x % LANES;
#ifdef CLUSTERS
    if (BLOCKS > 1) lane += LANES * static_cast<int>(cluster_rank());
#endif
    // The slots of a warp lie together.
    const int warp_slot = lane / 32 * 32 * SLOTS, slot_of_any_row = warp_slot + lane % WIDTH;
    const int rows_of_block = LANES <= 32 ? blockDim.x / LANES : 1;
    for (long long first = static_cast<long long>(blockIdx.x / BLOCKS) * rows_of_block; first < rows;
         first += static_cast<long long>(gridDim.x / BLOCKS) * rows_of_block) {
        const long long index = LANES > 32 ? first : first + threadIdx.x / LANES;
        const bool live = LANES > 32 || index < rows;
        const Row row = locate<ALIGNED>(live ? index : first, live ? length : 0);
        // Nothing here waits for a load, so that all are under way together.
        const Element start = x[row.begin];
        const int slot = afresh(slot_of_any_row);
        const long long mine = afresh(slot_at(row, slot));
        int have = row.slots - slot;
        float4 slots[SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            slots[s] = load_slot(x + (mine + s * WIDTH * VALUES), s * WIDTH < have);
        }
        Element ends[EDGES + 1];
#pragma unroll
        for (int e = 0; e < EDGES; ++e) {
            const int k = lane + e * LANES;
            ends[e] = x[k < edges(row) ? edge(row, k) : row.begin];
        }
        int held = row.length;
        if (LANES > 32) {
            const int left = row.slots - warp_slot;
            held = VALUES * (left < 0 ? 0 : left < 32 * SLOTS ? left : 32 * SLOTS) + (lane < 32 ? edges(row) : 0);
        }
        float scale = 1.0f, mean, variance, reference;
        for (int attempt = 0;; ++attempt) {
            reference = widen(start) * scale;
            float sum = 0.0f;
            have = afresh(have);
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                const float found = total(differences(slots[s], scale, reference));
                sum += s * WIDTH < have ? found : 0.0f;
            }
#pragma unroll
            for (int e = 0; e < EDGES; ++e) {
                if (lane + e * LANES < edges(row)) sum += fmaf(widen(ends[e]), scale, -reference);
            }
            sum = sum_of_lanes<LANES>(sum);
            mean = held > 0 ? sum / static_cast<float>(held) : 0.0f;
            float m2 = 0.0f;
            have = afresh(have);
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                if (CROWDED<SLOTS>) slots[s] = afresh(slots[s]);
                const float found = squares(differences(slots[s], scale, reference), mean);
                m2 += s * WIDTH < have ? found : 0.0f;
            }
#pragma unroll
            for (int e = 0; e < EDGES; ++e) {
                if (lane + e * LANES < edges(row)) m2 += square(fmaf(widen(ends[e]), scale, -reference) - mean);
            }
            const Moments warp = {static_cast<float>(held), mean, sum_of_lanes<LANES>(m2)};
            const Moments all = merge_warps<LANES, BLOCKS>(warp, exchange, turn);
            mean = all.mean;
            variance = all.m2 / static_cast<float>(length);
            const bool again = live && attempt == 0 && out_of_range(variance);
            // The same in all threads of a row; shuffles need the same in all lanes of a warp.
            if (!(LANES < 32 ? __any_sync(EVERY_LANE, again) : again)) break;
            float largest = 0.0f;
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) largest = fmaxf(largest, magnitude(slots[s]));
#pragma unroll
            for (int e = 0; e < EDGES; ++e) largest = fmaxf(largest, fabsf(widen(ends[e])));
            scale = scale_for(largest_of_row<LANES, BLOCKS>(largest, exchange, turn));
        }

        const float factor = inverse_std(variance);
        have = afresh(have);
        // Found again: registers have no room to keep it.
        const Row same = locate<ALIGNED>(afresh(index), row.length);
        const long long there = afresh(slot_at(same, same.slots - have));
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            if (CROWDED<SLOTS>) slots[s] = afresh(slots[s]);
            const Values d = differences(slots[s], scale, reference);
            store_slot(y + (there + s * WIDTH * VALUES), s * WIDTH < have, standardise(d, mean, factor));
        }
#pragma unroll
        for (int e = 0; e < EDGES; ++e) {
            const int k = lane + e * LANES;
            if (k < edges(same)) y[edge(same, k)] = narrow((fmaf(widen(ends[e]), scale, -reference) - mean) * factor);
        }
    }
#ifdef CLUSTERS
    if (BLOCKS > 1) leave_cluster();
#endif
}

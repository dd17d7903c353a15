// Rows that registers do not hold: kept in the shared memory of a block or of a cluster, as far as it reaches.
#pragma once

#include "normalization_rows.cuh"

// A block that has a row to itself.
struct Alone {
    __device__ __forceinline__ int rank() const { return 0; }
    __device__ __forceinline__ int blocks() const { return 1; }
    __device__ __forceinline__ Moments merge_blocks(Moments moments) { return moments; }
    __device__ __forceinline__ float largest_of_blocks(float value) { return value; }
    __device__ __forceinline__ void leave() const {}
};

#ifdef CLUSTERS
// A block of a cluster that has a row to itself. Blocks read each other's moments in two copies by turns, in the order of
// their ranks, so that all get the same bits.
struct Pair {
    Moments moments[2];
};

struct Together {
    Moments* mine;
    int turn = 0;

    __device__ __forceinline__ explicit Together(Moments* two) : mine(two) {}
    __device__ __forceinline__ int rank() const { return cluster_rank(); }
    __device__ __forceinline__ int blocks() const { return cluster_blocks(); }

    __device__ __forceinline__ const Moments* tell(Moments moments) {
        Moments* place = mine + turn;
        turn ^= 1;
        if (threadIdx.x == 0) *place = moments;
        wait_for_cluster();
        return place;
    }

    __device__ __forceinline__ Moments merge_blocks(Moments moments) {
        const Moments* place = tell(moments);
        Moments all = moments_of_block(place, 0);
        for (int other = 1; other < blocks(); ++other) all = merge(all, moments_of_block(place, other));
        return all;
    }

    __device__ __forceinline__ float largest_of_blocks(float value) {
        const Moments* place = tell({0.0f, value, 0.0f});
        for (int other = 0; other < blocks(); ++other) value = fmaxf(value, moments_of_block(place, other).mean);
        return value;
    }

    __device__ __forceinline__ void leave() const { leave_cluster(); }
};
#endif

// Optimised, for rows that registers do not hold: a block, or the blocks of a cluster by turns, go over a row once for its
// moments, each thread merging SLOTS slots at a time, then backwards to write. The end of the row stays in as much dynamic
// shared memory as the launch gives each block, in rounds of 16 * LANES * SLOTS bytes; the rest is read twice, what was
// read last, and so is most likely still in L2, first.
template <int LANES, int SLOTS, bool ALIGNED, typename Team>
DEVICE void normalize_streaming(const Element* __restrict__ x, Element* __restrict__ y, long long rows, int length,
                                Team team) {
    SHARED(Exchange, exchange);
    DYNAMIC_SHARED(float4, kept);
    int turn = 0;
    const int lane = threadIdx.x;
    const int room = dynamic_shared_bytes() / (16 * LANES * SLOTS);
    const int rank = team.rank(), blocks = team.blocks();
    for (long long index = blockIdx.x / blocks; index < rows; index += gridDim.x / blocks) {
        const Row row = locate<ALIGNED>(index, length);
        const float start = widen(x[row.begin]);
        const int whole = (row.slots + LANES * SLOTS - 1) / (LANES * SLOTS);
        // This block's: every blocks-th from its rank on.
        const int rounds = (whole - rank + blocks - 1) / blocks;
        const int first_kept = rounds - room;
        // The row's ends are the first block's, a value for each thread.
        const bool has_end = !ALIGNED && rank == 0 && lane < edges(row);

        float scale = 1.0f, mean, variance;
        for (int attempt = 0;; ++attempt) {
            const float reference = start * scale;
            Moments moments = {0.0f, 0.0f, 0.0f};
            if (has_end) moments = {1.0f, fmaf(widen(x[edge(row, lane)]), scale, -reference), 0.0f};
            for (int round = 0; round < rounds; ++round) {
                const int slot = (round * blocks + rank) * SLOTS * LANES + lane;
                float4 slots[SLOTS];
#pragma unroll
                for (int s = 0; s < SLOTS; ++s) {
                    slots[s] = load_slot(x + slot_at(row, slot + s * LANES), slot + s * LANES < row.slots);
                }
                if (round >= first_kept) {
                    // For this thread alone: no barrier.
#pragma unroll
                    for (int s = 0; s < SLOTS; ++s) kept[((round - first_kept) * SLOTS + s) * LANES + lane] = slots[s];
                }
                int held = 0;
                float sum = 0.0f;
#pragma unroll
                for (int s = 0; s < SLOTS; ++s) {
                    const bool whole_slot = slot + s * LANES < row.slots;
                    const float found = total(differences(slots[s], scale, reference));
                    sum += whole_slot ? found : 0.0f;
                    held += whole_slot ? VALUES : 0;
                }
                const float group = held > 0 ? sum / static_cast<float>(held) : 0.0f;
                float m2 = 0.0f;
#pragma unroll
                for (int s = 0; s < SLOTS; ++s) {
                    if (CROWDED<SLOTS>) slots[s] = afresh(slots[s]);
                    const float found = squares(differences(slots[s], scale, reference), group);
                    m2 += slot + s * LANES < row.slots ? found : 0.0f;
                }
                moments = merge(moments, {static_cast<float>(held), group, m2});
            }
            const Moments all = team.merge_blocks(merge_warps<LANES, 1>(merge_lanes(moments, 32), exchange, turn));
            mean = all.mean;
            variance = all.m2 / static_cast<float>(length);
            if (attempt > 0 || !out_of_range(variance)) break;
            float largest = fabsf(has_end ? widen(x[edge(row, lane)]) : start);
            for (int slot = rank * LANES + lane; slot < row.slots; slot += blocks * LANES) {
                largest = fmaxf(largest, magnitude(load_slot(x + slot_at(row, slot), true)));
            }
            scale = scale_for(team.largest_of_blocks(largest_of_row<LANES, 1>(largest, exchange, turn)));
        }

        const float factor = inverse_std(variance);
        for (int round = rounds - 1; round >= 0; --round) {
            const int slot = (round * blocks + rank) * SLOTS * LANES + lane;
            float4 slots[SLOTS];
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                const int at = slot + s * LANES;
                slots[s] = round >= first_kept ? kept[((round - first_kept) * SLOTS + s) * LANES + lane]
                                               : load_slot(x + slot_at(row, at), at < row.slots);
            }
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                const Values d = differences(slots[s], scale, start * scale);
                const int at = slot + s * LANES;
                store_slot(y + slot_at(row, at), at < row.slots, standardise(d, mean, factor));
            }
        }
        if (has_end) {
            const long long end = edge(row, lane);
            y[end] = narrow((fmaf(widen(x[end]), scale, -start * scale) - mean) * factor);
        }
    }
    team.leave();
}

template <int LANES, int SLOTS, bool ALIGNED>
DEVICE void normalize_alone(const Element* x, Element* y, long long rows, int length) {
    normalize_streaming<LANES, SLOTS, ALIGNED>(x, y, rows, length, Alone());
}

#ifdef CLUSTERS
// The blocks of a cluster have a row together, so that their shared memories hold it.
template <int LANES, int SLOTS, bool ALIGNED>
DEVICE void normalize_together(const Element* x, Element* y, long long rows, int length) {
    SHARED(Pair, pair);
    normalize_streaming<LANES, SLOTS, ALIGNED>(x, y, rows, length, Together(pair.moments));
}
#endif

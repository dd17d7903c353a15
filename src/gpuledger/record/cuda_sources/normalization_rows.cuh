// A row as whole slots of 16 bytes and the values at its ends, and the moments of values, of lanes and of warps.
#pragma once

#include "normalization.cuh"

struct Row {
    long long begin;
    int length, head, slots;  // values; those before the first whole slot; whole slots
};

struct Values {
    float of[VALUES];
};

#if ELEMENT == 0
DEVICE Values widen_slot(float4 slot) { return {{slot.x, slot.y, slot.z, slot.w}}; }
DEVICE float4 narrow_slot(Values values) {
    return make_float4(values.of[0], values.of[1], values.of[2], values.of[3]);
}
#else
DEVICE Values widen_slot(float4 slot) {
    const unsigned words[] = {
        static_cast<unsigned>(__float_as_int(slot.x)), static_cast<unsigned>(__float_as_int(slot.y)),
        static_cast<unsigned>(__float_as_int(slot.z)), static_cast<unsigned>(__float_as_int(slot.w))};
    Values values;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) values.of[i] = widen(i % 2 ? high_of(words[i / 2]) : low_of(words[i / 2]));
    return values;
}
DEVICE float4 narrow_slot(Values values) {
    float words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        words[i] = __int_as_float(static_cast<int>(pack(values.of[2 * i], values.of[2 * i + 1])));
    }
    return make_float4(words[0], words[1], words[2], words[3]);
}
#endif

template <bool ALIGNED>
DEVICE Row locate(long long row, int length) {
    const long long begin = row * length;
    if (ALIGNED) return {begin, length, 0, length / VALUES};
    const int before = static_cast<int>(-begin & (VALUES - 1)), head = before < length ? before : length;
    return {begin, length, head, (length - head) / VALUES};
}

DEVICE long long slot_at(Row row, int slot) { return row.begin + row.head + static_cast<long long>(slot) * VALUES; }

// A slot if the row has it, else zeros.
DEVICE float4 load_slot(const Element* from, bool has) {
    return has ? *reinterpret_cast<const float4*>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

DEVICE void store_slot(Element* to, bool has, Values values) {
    if (has) *reinterpret_cast<float4*>(to) = narrow_slot(values);
}

// Values at a row's ends that are in no whole slot, fewer than two slots: how many, and where the k-th one is.
DEVICE int edges(Row row) { return row.length - VALUES * row.slots; }
DEVICE long long edge(Row row, int k) { return row.begin + k + (k < row.head ? 0 : VALUES * row.slots); }

// Have the compiler forget what it knows of a value: it would keep what it computed from it, for which there are not
// enough registers, rather than compute it anew.
#ifdef __CUDA_ARCH__
#define FORGET(TYPE, REGISTER)              \
    DEVICE TYPE afresh(TYPE value) {        \
        asm volatile("" : REGISTER(value)); \
        return value;                       \
    }
#else
#define FORGET(TYPE, REGISTER) \
    DEVICE TYPE afresh(TYPE value) { return value; }
#endif
FORGET(int, "+r")
FORGET(long long, "+l")
FORGET(float, "+f")
DEVICE float4 afresh(float4 slot) { return make_float4(afresh(slot.x), afresh(slot.y), afresh(slot.z), afresh(slot.w)); }

// Whether a thread's values are so many that their differences have to be computed anew each time.
template <int SLOTS>
constexpr bool CROWDED = SLOTS * VALUES >= 32;

DEVICE Values differences(float4 slot, float scale, float reference) {
    Values d = widen_slot(slot);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) d.of[i] = fmaf(d.of[i], scale, -reference);
    return d;
}

DEVICE Values standardise(Values d, float mean, float factor) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) d.of[i] = (d.of[i] - mean) * factor;
    return d;
}

DEVICE float magnitude(float4 slot) {
    const Values x = widen_slot(slot);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) largest = fmaxf(largest, fabsf(x.of[i]));
    return largest;
}

DEVICE float total(Values d) {
    const float sum = (d.of[0] + d.of[1]) + (d.of[2] + d.of[3]);
    return VALUES == 4 ? sum : sum + ((d.of[VALUES - 4] + d.of[VALUES - 3]) + (d.of[VALUES - 2] + d.of[VALUES - 1]));
}

DEVICE float square(float x) { return x * x; }

DEVICE float squares(Values d, float mean) {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 0; i < VALUES; i += 2) {
        const float x = d.of[i] - mean, y = d.of[i + 1] - mean;
        even = i ? fmaf(x, x, even) : x * x;
        odd = i ? fmaf(y, y, odd) : y * y;
    }
    return even + odd;
}

// Combine the moments of two sets (T. Chan, G. Golub, R. LeVeque, 1979, after B. Welford, 1962). Exchanging a and b
// changes no bit, so that in a butterfly both partners hold the same.
DEVICE Moments merge(Moments a, Moments b) {
    const float count = a.count + b.count;
    const float inverse = count > 0.0f ? 1.0f / count : 0.0f;
    const float delta = b.mean - a.mean;
    const float mean = (a.count * a.mean + b.count * b.mean) * inverse;
    const float m2 = (a.m2 + b.m2) + delta * delta * (a.count * b.count * inverse);
    // An empty set leaves the other as it is, whatever rounding would make of its mean.
    if (a.count == 0.0f) return b;
    if (b.count == 0.0f) return a;
    return {count, mean, m2};
}

template <int LANES>
DEVICE float sum_of_lanes(float value) {
#pragma unroll
    for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(EVERY_LANE, value, step);
    }
    return value;
}

template <int LANES>
DEVICE float largest_of_lanes(float value) {
#pragma unroll
    for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, step));
    }
    return value;
}

DEVICE Moments merge_lanes(Moments moments, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) {
        Moments other;
        other.count = __shfl_xor_sync(EVERY_LANE, moments.count, step);
        other.mean = __shfl_xor_sync(EVERY_LANE, moments.mean, step);
        other.m2 = __shfl_xor_sync(EVERY_LANE, moments.m2, step);
        moments = merge(moments, other);
    }
    return moments;
}

// What the warps of a block, and the blocks of a cluster, tell each other, in two copies by turns: so one barrier for
// each exchange is enough.
struct Exchange {
    Moments warps[2][32];
    Moments block[2];
};

// Combine the moments of LANES lanes, in the same order for all of them, so that all get the same bits.
template <int LANES>
DEVICE Moments merge_sets(Moments some) {
    const float count = sum_of_lanes<LANES>(some.count);
    const float sum = sum_of_lanes<LANES>(some.count * some.mean), mean = count > 0.0f ? sum / count : 0.0f;
    return {count, mean, sum_of_lanes<LANES>(some.m2 + some.count * square(some.mean - mean))};
}

// Moments of another warp of the block for each lane.
template <int WARPS>
DEVICE Moments tell_warps(Moments moments, Exchange& exchange, int turn) {
    Moments* warps = exchange.warps[turn];
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = moments;
    __syncthreads();
    return warps[threadIdx.x % WARPS];
}

// Likewise of another block of the cluster.
template <int BLOCKS>
DEVICE Moments tell_blocks(Moments moments, Exchange& exchange, int turn) {
#ifdef CLUSTERS
    if (threadIdx.x == 0) exchange.block[turn] = moments;
    wait_for_cluster();
    moments = moments_of_block(&exchange.block[turn], threadIdx.x % BLOCKS);
#endif
    return moments;
}

template <int LANES, int BLOCKS>
DEVICE Moments merge_warps(Moments moments, Exchange& exchange, int& turn) {
    if (LANES <= 32) return moments;
    constexpr int WARPS = LANES > 32 ? LANES / 32 : 1;
    moments = merge_sets<WARPS>(tell_warps<WARPS>(moments, exchange, turn));
    if (BLOCKS > 1) moments = merge_sets<BLOCKS>(tell_blocks<BLOCKS>(moments, exchange, turn));
    turn ^= 1;
    return moments;
}

template <int LANES, int BLOCKS>
DEVICE float largest_of_row(float value, Exchange& exchange, int& turn) {
    value = largest_of_lanes<LANES>(value);
    if (LANES <= 32) return value;
    constexpr int WARPS = LANES > 32 ? LANES / 32 : 1;
    value = largest_of_lanes<WARPS>(tell_warps<WARPS>({0.0f, value, 0.0f}, exchange, turn).mean);
    if (BLOCKS > 1) value = largest_of_lanes<BLOCKS>(tell_blocks<BLOCKS>({0.0f, value, 0.0f}, exchange, turn).mean);
    turn ^= 1;
    return value;
}

// Squares of differences far below 2^-80 times the variance are lost near its lower bound, and that does no harm.
DEVICE bool out_of_range(float variance) { return !(variance > 0x1p-80f && variance < 0x1p+100f); }

// The power of two that brings the largest magnitude of a row near 1.
DEVICE float scale_for(float largest) {
    const int exponent = (__float_as_int(largest) >> 23) & 0xff;
    const int kept = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    return __int_as_float((254 - kept) << 23);
}

DEVICE float inverse_std(float variance) { return variance > 0.0f ? 1.0f / sqrtf(variance) : 0.0f; }

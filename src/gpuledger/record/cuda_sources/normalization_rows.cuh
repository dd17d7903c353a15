// A row as slots of four values, and the moments of values, of lanes and of warps.
#pragma once

#include "normalization.cuh"

struct Row {  // a row cut into slots of four values, from the start of x
    long long first_slot;
    int skipped;  // values of the first slot that belong to the row before
    int length;
};

#if ELEMENT == 0
typedef float4 Slot;
DEVICE float4 widen_slot(Slot slot) { return slot; }
DEVICE Slot narrow_slot(float4 values) { return values; }
#else
typedef uint2 Slot;
DEVICE float4 widen_slot(Slot slot) {
    return make_float4(widen(low_of(slot.x)), widen(high_of(slot.x)), widen(low_of(slot.y)), widen(high_of(slot.y)));
}
DEVICE Slot narrow_slot(float4 values) { return make_uint2(pack(values.x, values.y), pack(values.z, values.w)); }
#endif

template <bool STREAM>
DEVICE float4 load_slot(const Element* from) {
    const Slot* slot = reinterpret_cast<const Slot*>(from);
    return widen_slot(STREAM && STREAMING ? __ldcs(slot) : *slot);
}

DEVICE void store_slot(Element* to, float4 values) {
    Slot* slot = reinterpret_cast<Slot*>(to);
    if (STREAMING) {
        __stcs(slot, narrow_slot(values));
    } else {
        *slot = narrow_slot(values);
    }
}

template <bool ALIGNED>
DEVICE Row locate(long long row, int length) {
    const long long begin = row * length;
    return {begin >> 2, ALIGNED ? 0 : static_cast<int>(begin & 3), length};
}

// Which of a slot's four values belong to the row, a bit each: all or none, but at a row's ends that are not aligned.
template <bool ALIGNED>
DEVICE unsigned members(Row row, int slot) {
    const int index = 4 * slot - row.skipped, left = row.length - index;
    if (ALIGNED) return left > 0 ? 15u : 0u;
    const unsigned begun = index >= 0 ? 15u : index > -4 ? (15u << -index) & 15u : 0u;
    return left >= 4 ? begun : left > 0 ? begun & (15u >> (4 - left)) : 0u;
}

// The same of all slots that a thread has, the first one lowest.
template <int LANES, int SLOTS, bool ALIGNED>
DEVICE unsigned members_of_thread(Row row, int slot) {
    static_assert(SLOTS <= 8, "eight slots of four bits");
    unsigned bits = 0;
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) bits |= members<ALIGNED>(row, slot + s * LANES) << 4 * s;
    return bits;
}

// Have the compiler forget what it knows of a value: it would keep 32 conditions in registers rather than test bits
// anew.
DEVICE unsigned afresh(unsigned bits) {
    asm volatile("" : "+r"(bits));
    return bits;
}

// Load a slot. What does not belong to the row becomes 0, or, where slots are whole or empty, the row's last slot: its
// value does not matter, and nothing here waits for a load, so that those of all slots are under way together.
template <bool STREAM, bool ALIGNED>
DEVICE float4 load_row_slot(const Element* x, Row row, int slot, unsigned bits) {
    if (ALIGNED) {
        const int last = row.length > 4 ? row.length / 4 - 1 : 0;
        return load_slot<STREAM>(x + 4 * (row.first_slot + (slot < last ? slot : last)));
    }
    const Element* from = x + 4 * (row.first_slot + slot);
    float4 values = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if ((bits & 15) == 15) {
        values = load_slot<STREAM>(from);
    } else {
        if (bits & 1) values.x = widen(from[0]);
        if (bits & 2) values.y = widen(from[1]);
        if (bits & 4) values.z = widen(from[2]);
        if (bits & 8) values.w = widen(from[3]);
    }
    return values;
}

template <bool ALIGNED>
DEVICE void store_row_slot(Element* y, Row row, int slot, unsigned bits, float4 values) {
    Element* to = y + 4 * (row.first_slot + slot);
    if ((bits & 15) == 15) {
        store_slot(to, values);
    } else if (!ALIGNED) {
        if (bits & 1) to[0] = narrow(values.x);
        if (bits & 2) to[1] = narrow(values.y);
        if (bits & 4) to[2] = narrow(values.z);
        if (bits & 8) to[3] = narrow(values.w);
    }
}

DEVICE float4 difference(float4 x, float scale, float reference) {
    return make_float4(fmaf(x.x, scale, -reference), fmaf(x.y, scale, -reference), fmaf(x.z, scale, -reference),
                       fmaf(x.w, scale, -reference));
}

DEVICE float4 standardise(float4 d, float mean, float factor) {
    return make_float4((d.x - mean) * factor, (d.y - mean) * factor, (d.z - mean) * factor, (d.w - mean) * factor);
}

DEVICE float magnitude(float4 x) { return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))); }

// Sum of those of a slot's values that belong to the row, and of their squared deviations.
DEVICE float total(float4 d, unsigned bits) {
    const float x = bits & 1 ? d.x : 0.0f, y = bits & 2 ? d.y : 0.0f;
    const float z = bits & 4 ? d.z : 0.0f, w = bits & 8 ? d.w : 0.0f;
    return (x + y) + (z + w);
}

DEVICE float squares(float4 d, unsigned bits, float mean) {
    const float x = bits & 1 ? d.x - mean : 0.0f, y = bits & 2 ? d.y - mean : 0.0f;
    const float z = bits & 4 ? d.z - mean : 0.0f, w = bits & 8 ? d.w - mean : 0.0f;
    return fmaf(x, x, y * y) + fmaf(z, z, w * w);
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

// What the warps of a block tell each other, in two copies by turns: so one barrier for each exchange is enough.
struct Exchange {
    Moments warps[2][32];
};

template <int LANES>
DEVICE Moments merge_warps(Moments moments, Exchange& exchange, int& turn) {
    if (LANES <= 32) return moments;
    const int lane = threadIdx.x % 32;
    Moments* warps = exchange.warps[turn];
    turn ^= 1;
    if (lane == 0) warps[threadIdx.x / 32] = moments;
    __syncthreads();
    const Moments none = {0.0f, 0.0f, 0.0f};
    return merge_lanes(lane < LANES / 32 ? warps[lane] : none, 32);
}

template <int LANES>
DEVICE float largest_of_row(float value, Exchange& exchange, int& turn) {
    value = largest_of_lanes<LANES>(value);
    if (LANES <= 32) return value;
    const int lane = threadIdx.x % 32;
    Moments* warps = exchange.warps[turn];
    turn ^= 1;
    if (lane == 0) warps[threadIdx.x / 32].mean = value;
    __syncthreads();
    return largest_of_lanes<32>(lane < LANES / 32 ? warps[lane].mean : 0.0f);
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

// How many values of a row lie in `count` slots from `slot` on.
DEVICE int values_in(Row row, int slot, int count) {
    const int begin = 4 * slot - row.skipped, end = begin + 4 * count;
    return max((end < row.length ? end : row.length) - (begin > 0 ? begin : 0), 0);
}

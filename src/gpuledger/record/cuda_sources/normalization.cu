// Row normalization y = (x - mean) / std of x[rows, length], each row on its own: computed in single precision from
// elements of fp32, fp16 or bf16, into which results are rounded to nearest even.
//
// What it means in every case, the same for all kernels here:
//  * std is the population's: the variance is divided by the length. There is no epsilon.
//  * A row of equal values (so also one of length 1) has std 0 and becomes zeros.
//  * A row with a NaN or an infinity becomes NaN.
//  * Any finite values will do: rows whose variance would leave the range of single precision are scaled by a power of
//    two first, which changes no digit of the result.
//  * Sums are of x - x[0], x[0] being the row's first value: where values lie close together far from zero this
//    difference is exact, so that nothing cancels.
//
// x and y must be aligned to 16 bytes, as allocations are; rows need not be. Elements go four at a time, a slot: 16 bytes
// of fp32, 8 of the others.
// Compile with --fmad=false: every rounding is then the one that is written here, and a CPU gives the same bits.

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

    // The shared memory of a block is gone when it ends.
    __device__ __forceinline__ void leave() const { wait_for_cluster(); }
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
        const float start = widen(x[4 * row.first_slot + row.skipped]);
        const int slots = (row.skipped + length + 3) / 4;
        const int whole = (slots + LANES * SLOTS - 1) / (LANES * SLOTS);
        // This block's: every blocks-th from its rank on.
        const int rounds = (whole - rank + blocks - 1) / blocks;
        const int first_kept = rounds - room;

        float scale = 1.0f, mean, variance;
        for (int attempt = 0;; ++attempt) {
            const float reference = start * scale;
            Moments moments = {0.0f, 0.0f, 0.0f};
            for (int round = 0; round < rounds; ++round) {
                const int slot = (round * blocks + rank) * SLOTS * LANES + lane;
                unsigned bits = members_of_thread<LANES, SLOTS, ALIGNED>(row, slot);
                float4 values[SLOTS];
#pragma unroll
                for (int s = 0; s < SLOTS; ++s) {
                    // To be read again, most of it: not marked as streaming.
                    values[s] = load_row_slot<false, ALIGNED>(x, row, slot + s * LANES, bits >> 4 * s);
                }
                if (round >= first_kept) {
                    // For this thread alone: no barrier.
#pragma unroll
                    for (int s = 0; s < SLOTS; ++s) kept[((round - first_kept) * SLOTS + s) * LANES + lane] = values[s];
                }
                const int held = __popc(bits);
                bits = afresh(bits);
                float sum = 0.0f;
#pragma unroll
                for (int s = 0; s < SLOTS; ++s) {
                    values[s] = difference(values[s], scale, reference);
                    sum += total(values[s], bits >> 4 * s);
                }
                const float group = held > 0 ? sum / static_cast<float>(held) : 0.0f;
                float m2 = 0.0f;
                bits = afresh(bits);
#pragma unroll
                for (int s = 0; s < SLOTS; ++s) {
                    m2 += squares(values[s], bits >> 4 * s, group);
                }
                moments = merge(moments, {static_cast<float>(held), group, m2});
            }
            const Moments all = team.merge_blocks(merge_warps<LANES>(merge_lanes(moments, 32), exchange, turn));
            mean = all.mean;
            variance = all.m2 / static_cast<float>(length);
            if (attempt > 0 || !out_of_range(variance)) break;
            float largest = 0.0f;
            for (int slot = rank * LANES + lane; slot < slots; slot += blocks * LANES) {
                const float4 found = load_row_slot<false, ALIGNED>(x, row, slot, members<ALIGNED>(row, slot));
                largest = fmaxf(largest, magnitude(found));
            }
            scale = scale_for(team.largest_of_blocks(largest_of_row<LANES>(largest, exchange, turn)));
        }

        const float factor = inverse_std(variance);
        for (int round = rounds - 1; round >= 0; --round) {
            const int slot = (round * blocks + rank) * SLOTS * LANES + lane;
            unsigned bits = members_of_thread<LANES, SLOTS, ALIGNED>(row, slot);
            float4 values[SLOTS];
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                values[s] = round >= first_kept
                                ? kept[((round - first_kept) * SLOTS + s) * LANES + lane]
                                : load_row_slot<true, ALIGNED>(x, row, slot + s * LANES, bits >> 4 * s);
            }
            bits = afresh(bits);
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                const float4 d = difference(values[s], scale, start * scale);
                store_row_slot<ALIGNED>(y, row, slot + s * LANES, bits >> 4 * s, standardise(d, mean, factor));
            }
        }
    }
    team.leave();
}

template <int LANES, int SLOTS, bool ALIGNED>
DEVICE void normalize_alone(const Element* x, Element* y, long long rows, int length) {
    normalize_streaming<LANES, SLOTS, ALIGNED>(x, y, rows, length, Alone());
}

// Straightforward: a block of 256 threads for each row; it reads the row three times, four bytes at a time (mean,
// variance, result), and adds up in a tree in shared memory.
DEVICE float block_sum(float value, float* partial) {
    __syncthreads();
    partial[threadIdx.x] = value;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    __syncthreads();
    return partial[0];
}

DEVICE float block_largest(float value, float* partial) {
    __syncthreads();
    partial[threadIdx.x] = value;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) {
            partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + half]);
        }
    }
    __syncthreads();
    return partial[0];
}

extern "C" __global__ void __launch_bounds__(256)
    two_pass(const Element* __restrict__ x, Element* __restrict__ y, long long rows, int length) {
    __shared__ float partial[256];
    for (long long index = blockIdx.x; index < rows; index += gridDim.x) {
        const Element* from = x + index * length;
        float scale = 1.0f, reference = widen(from[0]), mean, variance;
        for (int attempt = 0;; ++attempt) {
            float sum = 0.0f;
            for (int i = threadIdx.x; i < length; i += blockDim.x) sum += widen(from[i]) * scale - reference;
            mean = block_sum(sum, partial) / static_cast<float>(length);
            float squares = 0.0f;
            for (int i = threadIdx.x; i < length; i += blockDim.x) {
                const float deviation = widen(from[i]) * scale - reference - mean;
                squares += deviation * deviation;
            }
            variance = block_sum(squares, partial) / static_cast<float>(length);
            if (attempt > 0 || !out_of_range(variance)) break;
            float largest = 0.0f;
            for (int i = threadIdx.x; i < length; i += blockDim.x) largest = fmaxf(largest, fabsf(widen(from[i])));
            scale = scale_for(block_largest(largest, partial));
            reference = widen(from[0]) * scale;
        }
        const float factor = inverse_std(variance);
        for (int i = threadIdx.x; i < length; i += blockDim.x) {
            y[index * length + i] = narrow((widen(from[i]) * scale - reference - mean) * factor);
        }
    }
}

// Threads that an SM must be able to hold, from which follow the registers of each: 64 with 1,024 threads. With eight
// slots of data some more let all loads go out before the first arrives; on Blackwell it takes up to 90.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define RESIDENT_OF_EIGHT 512
#else
#define RESIDENT_OF_EIGHT 768
#endif
#define RESIDENT(SLOTS, THREADS) \
    ((SLOTS) < 8 || (THREADS) > RESIDENT_OF_EIGHT ? 1024 : RESIDENT_OF_EIGHT) / (THREADS)

// For any length, and for lengths that are a multiple of 4, whose rows are all aligned.
#define KERNEL(NAME, FUNCTION, LANES, SLOTS, THREADS)                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT(SLOTS, THREADS))                               \
        NAME##_##LANES##x##SLOTS(const Element* x, Element* y, long long rows, int length) {                      \
        FUNCTION<LANES, SLOTS, false>(x, y, rows, length);                                                        \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT(SLOTS, THREADS))                               \
        NAME##_##LANES##x##SLOTS##_aligned(const Element* x, Element* y, long long rows, int length) {            \
        FUNCTION<LANES, SLOTS, true>(x, y, rows, length);                                                         \
    }

KERNEL(one_pass, normalize_in_registers, 4, 1, 256)
KERNEL(one_pass, normalize_in_registers, 8, 1, 256)
KERNEL(one_pass, normalize_in_registers, 16, 1, 256)
KERNEL(one_pass, normalize_in_registers, 32, 1, 256)
KERNEL(one_pass, normalize_in_registers, 32, 2, 256)
KERNEL(one_pass, normalize_in_registers, 32, 4, 256)
KERNEL(one_pass, normalize_in_registers, 32, 8, 256)
KERNEL(one_pass, normalize_in_registers, 128, 2, 128)
KERNEL(one_pass, normalize_in_registers, 128, 4, 128)
KERNEL(one_pass, normalize_in_registers, 128, 8, 128)
KERNEL(one_pass, normalize_in_registers, 256, 4, 256)
KERNEL(one_pass, normalize_in_registers, 256, 8, 256)
KERNEL(one_pass, normalize_in_registers, 512, 4, 512)
KERNEL(one_pass, normalize_in_registers, 512, 8, 512)
KERNEL(one_pass, normalize_in_registers, 1024, 4, 1024)
KERNEL(one_pass, normalize_in_registers, 1024, 8, 1024)
KERNEL(streaming, normalize_alone, 1024, 4, 1024)

#ifdef CLUSTERS
template <int LANES, int SLOTS, bool ALIGNED>
DEVICE void normalize_together(const Element* x, Element* y, long long rows, int length) {
    SHARED(Pair, pair);
    normalize_streaming<LANES, SLOTS, ALIGNED>(x, y, rows, length, Together(pair.moments));
}

// The blocks of a cluster have a row together, so that their shared memories hold it.
KERNEL(CLUSTERS clustered, normalize_together, 1024, 4, 1024)
#endif

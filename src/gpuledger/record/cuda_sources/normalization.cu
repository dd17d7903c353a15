// Row normalization y = (x - mean) / std of x[rows, length] in single precision, each row on its own.
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
// x and y must be aligned to 16 bytes, as allocations are; rows need not be.
// Compile with --fmad=false: every rounding is then the one that is written here, and a CPU gives the same bits.

#ifndef STREAMING
#define STREAMING 1  // 1: tell the L2 that data will not be used again (ld.global.cs, st.global.cs)
#endif

#define DEVICE static __device__ __forceinline__

#ifndef DYNAMIC_SHARED  // a CPU has its own
#define DYNAMIC_SHARED(TYPE, NAME) extern __shared__ TYPE NAME[]
DEVICE unsigned dynamic_shared_bytes() {
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}
#endif

constexpr unsigned EVERY_LANE = 0xffffffffu;

struct Moments {  // of some of a row's differences to the row's first value
    float count, mean, m2;
};

struct Row {  // a row cut into slots of four values at addresses that are multiples of 16 bytes
    long long first_slot;
    int skipped;  // values of the first slot that belong to the row before
    int length;
};

template <bool STREAM>
DEVICE float4 load_slot(const float4* from) {
    return STREAM && STREAMING ? __ldcs(from) : *from;
}

DEVICE void store_slot(float4* to, float4 values) {
    if (STREAMING) {
        __stcs(to, values);
    } else {
        *to = values;
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
DEVICE float4 load_row_slot(const float* x, Row row, int slot, unsigned bits) {
    if (ALIGNED) {
        const int last = row.length > 4 ? row.length / 4 - 1 : 0;
        return load_slot<STREAM>(reinterpret_cast<const float4*>(x) + row.first_slot + (slot < last ? slot : last));
    }
    const float* from = x + 4 * (row.first_slot + slot);
    float4 values = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if ((bits & 15) == 15) {
        values = load_slot<STREAM>(reinterpret_cast<const float4*>(from));
    } else {
        if (bits & 1) values.x = from[0];
        if (bits & 2) values.y = from[1];
        if (bits & 4) values.z = from[2];
        if (bits & 8) values.w = from[3];
    }
    return values;
}

template <bool ALIGNED>
DEVICE void store_row_slot(float* y, Row row, int slot, unsigned bits, float4 values) {
    float* to = y + 4 * (row.first_slot + slot);
    if ((bits & 15) == 15) {
        store_slot(reinterpret_cast<float4*>(to), values);
    } else if (!ALIGNED) {
        if (bits & 1) to[0] = values.x;
        if (bits & 2) to[1] = values.y;
        if (bits & 4) to[2] = values.z;
        if (bits & 8) to[3] = values.w;
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
DEVICE void normalize_in_registers(const float* __restrict__ x, float* __restrict__ y, long long rows, int length) {
    __shared__ Exchange exchange;
    int turn = 0;
    const int lane = threadIdx.x % LANES;
    const int rows_of_block = LANES <= 32 ? blockDim.x / LANES : 1;
    for (long long first = static_cast<long long>(blockIdx.x) * rows_of_block; first < rows;
         first += static_cast<long long>(gridDim.x) * rows_of_block) {
        const long long index = first + threadIdx.x / LANES;
        const bool live = index < rows;
        const Row row = locate<ALIGNED>(live ? index : first, live ? length : 0);
        const float start = x[4 * row.first_slot + row.skipped];
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

// Optimised, for rows that registers do not hold: a block goes over a row once for its moments, each thread merging
// SLOTS slots at a time, then backwards to write. The end of the row stays in as much dynamic shared memory as the launch
// gives, in rounds of 16 * LANES * SLOTS bytes; the rest is read twice, what was read last, and so is most likely still
// in L2, first.
template <int LANES, int SLOTS, bool ALIGNED>
DEVICE void normalize_streaming(const float* __restrict__ x, float* __restrict__ y, long long rows, int length) {
    __shared__ Exchange exchange;
    DYNAMIC_SHARED(float4, kept);
    int turn = 0;
    const int lane = threadIdx.x;
    const int room = dynamic_shared_bytes() / (16 * LANES * SLOTS);
    for (long long index = blockIdx.x; index < rows; index += gridDim.x) {
        const Row row = locate<ALIGNED>(index, length);
        const float start = x[4 * row.first_slot + row.skipped];
        const int slots = (row.skipped + length + 3) / 4;
        const int rounds = (slots + LANES * SLOTS - 1) / (LANES * SLOTS);
        const int first_kept = rounds - room;

        float scale = 1.0f, mean, variance;
        for (int attempt = 0;; ++attempt) {
            const float reference = start * scale;
            Moments moments = {0.0f, 0.0f, 0.0f};
            for (int round = 0; round < rounds; ++round) {
                const int slot = round * SLOTS * LANES + lane;
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
            const Moments all = merge_warps<LANES>(merge_lanes(moments, 32), exchange, turn);
            mean = all.mean;
            variance = all.m2 / static_cast<float>(length);
            if (attempt > 0 || !out_of_range(variance)) break;
            float largest = 0.0f;
            for (int slot = lane; slot < slots; slot += LANES) {
                const float4 found = load_row_slot<false, ALIGNED>(x, row, slot, members<ALIGNED>(row, slot));
                largest = fmaxf(largest, magnitude(found));
            }
            scale = scale_for(largest_of_row<LANES>(largest, exchange, turn));
        }

        const float factor = inverse_std(variance);
        for (int round = rounds - 1; round >= 0; --round) {
            const int slot = round * SLOTS * LANES + lane;
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
    two_pass(const float* __restrict__ x, float* __restrict__ y, long long rows, int length) {
    __shared__ float partial[256];
    for (long long index = blockIdx.x; index < rows; index += gridDim.x) {
        const float* from = x + index * length;
        float scale = 1.0f, reference = from[0], mean, variance;
        for (int attempt = 0;; ++attempt) {
            float sum = 0.0f;
            for (int i = threadIdx.x; i < length; i += blockDim.x) sum += from[i] * scale - reference;
            mean = block_sum(sum, partial) / static_cast<float>(length);
            float squares = 0.0f;
            for (int i = threadIdx.x; i < length; i += blockDim.x) {
                const float deviation = from[i] * scale - reference - mean;
                squares += deviation * deviation;
            }
            variance = block_sum(squares, partial) / static_cast<float>(length);
            if (attempt > 0 || !out_of_range(variance)) break;
            float largest = 0.0f;
            for (int i = threadIdx.x; i < length; i += blockDim.x) largest = fmaxf(largest, fabsf(from[i]));
            scale = scale_for(block_largest(largest, partial));
            reference = from[0] * scale;
        }
        const float factor = inverse_std(variance);
        for (int i = threadIdx.x; i < length; i += blockDim.x) {
            y[index * length + i] = (from[i] * scale - reference - mean) * factor;
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
        NAME##_##LANES##x##SLOTS(const float* x, float* y, long long rows, int length) {                          \
        FUNCTION<LANES, SLOTS, false>(x, y, rows, length);                                                        \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT(SLOTS, THREADS))                               \
        NAME##_##LANES##x##SLOTS##_aligned(const float* x, float* y, long long rows, int length) {                \
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
KERNEL(streaming, normalize_streaming, 1024, 4, 1024)

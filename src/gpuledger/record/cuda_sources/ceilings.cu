// What the hardware can do at most, measured: copying, multiplying and adding, launching.

#ifndef STREAMING
#define STREAMING 1  // 1: tell the L2 that data will not be used again (ld.global.cs, st.global.cs)
#endif

// Copy 16 bytes at a time, UNROLL of them in flight in each thread.
template <int UNROLL>
static __device__ __forceinline__ void copy(const float4* __restrict__ from, float4* __restrict__ to, long long count) {
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x * UNROLL;
    for (long long base = static_cast<long long>(blockIdx.x) * blockDim.x * UNROLL + threadIdx.x; base < count;
         base += step) {
        float4 values[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            // Beyond the end the last is read again, so that no load waits for a condition.
            const long long index = base + u * static_cast<long long>(blockDim.x);
            const float4* source = from + (index < count ? index : count - 1);
            values[u] = STREAMING ? __ldcs(source) : *source;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const long long index = base + u * static_cast<long long>(blockDim.x);
            if (index >= count) break;
            if (STREAMING) {
                __stcs(to + index, values[u]);
            } else {
                to[index] = values[u];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(512) copy_1(const float4* from, float4* to, long long count) {
    copy<1>(from, to, count);
}

extern "C" __global__ void __launch_bounds__(512) copy_4(const float4* from, float4* to, long long count) {
    copy<4>(from, to, count);
}

extern "C" __global__ void __launch_bounds__(512) copy_8(const float4* from, float4* to, long long count) {
    copy<8>(from, to, count);
}

// 8 independent chains of fused multiply-adds, 16 links each per iteration: 2 * 8 * 16 FLOP per thread and iteration. A
// thread writes the sum of its chains, so that none of them can be optimised away. With the loop unrolled, 512 of 515
// instructions are multiply-adds.
extern "C" __global__ void __launch_bounds__(256) multiply_add(float* out, int iterations, float factor, float addend) {
    float chains[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) chains[c] = static_cast<float>(threadIdx.x % 32 + c);
#pragma unroll 4
    for (int i = 0; i < iterations; ++i) {
#pragma unroll
        for (int link = 0; link < 16; ++link) {
#pragma unroll
            for (int c = 0; c < 8; ++c) chains[c] = fmaf(chains[c], factor, addend);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < 8; ++c) sum += chains[c];
    out[static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x] = sum;
}

// The cost of a launch.
extern "C" __global__ void empty() {}

// Flushes the L2 by reading more than it holds. Unlike writing, this leaves no dirty lines, which would be written back
// during the launch that is timed next. Several passes give the host time to enqueue that launch. The store never happens;
// it keeps the loads from being optimised away.
extern "C" __global__ void __launch_bounds__(512) read_all(const float4* from, float* never, long long count, int passes) {
    float sum = 0.0f;
    for (int pass = 0; pass < passes; ++pass) {
        for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
             i += static_cast<long long>(gridDim.x) * blockDim.x) {
            const float4 value = __ldcg(from + i);
            sum += value.x + value.y + value.z + value.w;
        }
    }
    if (sum == 1.0f) *never = sum;  // the memory that is read holds zeros
}

#ifndef DYNAMIC_SHARED  // a CPU has no such clocks
// The SM clock: cycles, and nanoseconds by the GPU's global timer, from tick to tick of the timer. One thread.
extern "C" __global__ void measure_clock(unsigned long long* cycles_and_ns, unsigned long long at_least_ns) {
    unsigned long long before, start, now, first, last;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(before)::"memory");
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start)::"memory");
        asm volatile("mov.u64 %0, %%clock64;" : "=l"(first)::"memory");
    } while (start == before);
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
        asm volatile("mov.u64 %0, %%clock64;" : "=l"(last)::"memory");
    } while (now - start < at_least_ns);
    cycles_and_ns[0] = last - first;
    cycles_and_ns[1] = now - start;
}
#endif

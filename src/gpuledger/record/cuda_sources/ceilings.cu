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

// 8 independent chains of fused multiply-adds, 16 links each in an iteration: 2 * 8 * 16 FLOP per thread and iteration. A
// thread writes the sum of its chains, so that none of it can be left out.
extern "C" __global__ void __launch_bounds__(256) multiply_add(float* out, int iterations, float factor, float addend) {
    float chains[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) chains[c] = static_cast<float>(threadIdx.x % 32 + c);
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

// What it takes to launch anything at all.
extern "C" __global__ void empty() {}

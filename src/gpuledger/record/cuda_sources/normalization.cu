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
// x and y must be aligned to 16 bytes, as allocations are; rows need not be. Elements go 16 bytes at a time, a slot: four
// of fp32, eight of the others.
// Compile with --fmad=false: every rounding is then the one that is written here, and a CPU gives the same bits.

#include "normalization_registers.cuh"
#include "normalization_streaming.cuh"

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
// slots of data, and on Blackwell with fewer of 16 bits, more let all loads go out before the first arrives.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define RESIDENT_OF_EIGHT 512
#define RESIDENT_OF_FEWER (VALUES > 4 ? 768 : 1024)
#else
#define RESIDENT_OF_EIGHT 1024
#define RESIDENT_OF_FEWER 1024
#endif
DEVICE constexpr int resident(int slots, int threads) {
    const int wanted = slots < 8 ? RESIDENT_OF_FEWER : RESIDENT_OF_EIGHT;
    return (threads > wanted ? 1024 : wanted) / threads;
}

// For any length, and for rows that are all aligned to a slot.
#define KERNEL(NAME, FUNCTION, LANES, SLOTS, THREADS, ...)                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, resident(SLOTS, THREADS))                               \
        NAME##_##LANES##x##SLOTS(const Element* x, Element* y, long long rows, int length) {                      \
        FUNCTION<LANES, SLOTS, false, ##__VA_ARGS__>(x, y, rows, length);                                         \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, resident(SLOTS, THREADS))                               \
        NAME##_##LANES##x##SLOTS##_aligned(const Element* x, Element* y, long long rows, int length) {            \
        FUNCTION<LANES, SLOTS, true, ##__VA_ARGS__>(x, y, rows, length);                                          \
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
// More of a short row under way in each thread.
KERNEL(one_pass, normalize_in_registers, 4, 4, 256)
KERNEL(one_pass, normalize_in_registers, 8, 2, 256)
KERNEL(one_pass, normalize_in_registers, 8, 4, 256)
KERNEL(one_pass, normalize_in_registers, 16, 2, 256)
KERNEL(streaming, normalize_alone, 1024, 4, 1024)

#ifdef CLUSTERS
KERNEL(CLUSTERS(2) cluster2, normalize_in_registers, 512, 8, 512, 2)
KERNEL(CLUSTERS(4) cluster4, normalize_in_registers, 512, 8, 512, 4)
KERNEL(CLUSTERS(8) cluster8, normalize_in_registers, 512, 8, 512, 8)
KERNEL(CLUSTERS(8) clustered, normalize_together, 1024, 4, 1024)
#endif

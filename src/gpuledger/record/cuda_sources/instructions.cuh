// The instructions that the probed kernels are made of, one function each, without any header of the CUDA toolkit.
//
// PTX ISA: mma.m16n8k16 (fragment layouts), cp.async, special registers. With HOST_EMULATION defined, the includer has
// declared all of these before and a C++ compiler builds the same kernels.
#pragma once

typedef unsigned short half_bits;  // fp16, as the tensor cores take it

#ifndef HOST_EMULATION

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
// The registers of a thread are limited so that so many blocks fit on an SM.
#define RESIDENT_KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]

DEVICE unsigned long long sm_clock() {
    unsigned long long cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
    return cycles;
}

DEVICE unsigned int sm_number() {
    unsigned int number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

// Two fp32 to packed fp16: `low` to the lower half.
DEVICE unsigned int pack_halves(float low, float high) {
    unsigned int packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

DEVICE float exponential_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

DEVICE float exchange(float value, int lane_mask) { return __shfl_xor_sync(0xffffffffu, value, lane_mask); }

DEVICE void wait_for_block() { __syncthreads(); }

// 16 bytes from global to shared memory, past the registers and past L1.
DEVICE void start_copy(void *shared, const void *global) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}

DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` groups of copies of this thread are under way.
template <int pending> DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// d += a·b on one warp: a is 16×16, b is 16×8, d is 16×8 in fp32.
DEVICE void multiply_accumulate(float (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

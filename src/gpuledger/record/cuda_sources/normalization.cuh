// What the normalization kernels stand on: shared memory, clusters, and elements of three types. On a CPU the includer has
// declared what depends on the device.
#pragma once

#ifndef ELEMENT
#define ELEMENT 0  // 0: fp32, 1: fp16, 2: bf16
#endif

#define DEVICE static __device__ __forceinline__

struct Moments {  // of some of a row's differences to the row's first value
    float count, mean, m2;
};

#ifndef DYNAMIC_SHARED  // a CPU has its own
#define DYNAMIC_SHARED(TYPE, NAME) extern __shared__ TYPE NAME[]
#define SHARED(TYPE, NAME) __shared__ TYPE NAME
DEVICE unsigned dynamic_shared_bytes() {
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

#if ELEMENT == 1
DEVICE float from_half(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

DEVICE unsigned short to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

#if __CUDA_ARCH__ >= 900
DEVICE unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

DEVICE unsigned cluster_blocks() {
    unsigned blocks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

// Only what the first warp wrote before is there for the others after.
DEVICE void wait_for_cluster() {
    if (threadIdx.x < 32) {
        asm volatile("barrier.cluster.arrive;" ::: "memory");
    } else {
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    }
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

// The shared memory of a block is gone when it ends. What the threads wrote to device memory need not be there yet.
DEVICE void leave_cluster() { asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory"); }

// What another block of the cluster has in its shared memory at the place of `mine`.
DEVICE Moments moments_of_block(const Moments* mine, unsigned rank) {
    unsigned address;
    Moments found;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(mine))), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%3];\n\tld.shared::cluster.f32 %1, [%3+4];\n\t"
                 "ld.shared::cluster.f32 %2, [%3+8];"
                 : "=f"(found.count), "=f"(found.mean), "=f"(found.m2)
                 : "r"(address)
                 : "memory");
    return found;
}
#define CLUSTERS(BLOCKS) __cluster_dims__(BLOCKS, 1, 1)
#endif
#endif

#if ELEMENT == 0
typedef float Element;
DEVICE float widen(Element value) { return value; }
DEVICE Element narrow(float value) { return value; }
#else
struct Element {
    unsigned short bits;
};
#if ELEMENT == 1
DEVICE float widen(Element value) { return from_half(value.bits); }
DEVICE Element narrow(float value) { return {to_half(value)}; }
#else
DEVICE float widen(Element value) { return __int_as_float(static_cast<int>(value.bits) << 16); }
DEVICE Element narrow(float value) {
    const unsigned bits = static_cast<unsigned>(__float_as_int(value));
    // To nearest, ties to even; a NaN stays one.
    const unsigned rounded = value == value ? bits + 0x7fffu + (bits >> 16 & 1) : 0x7fc00000u;
    return {static_cast<unsigned short>(rounded >> 16)};
}
#endif
DEVICE unsigned pack(float low, float high) {  // one instruction where there is one; a NaN may have other bits
#if ELEMENT == 2 && __CUDA_ARCH__ >= 800
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return narrow(low).bits | static_cast<unsigned>(narrow(high).bits) << 16;
#endif
}
DEVICE Element low_of(unsigned packed) { return {static_cast<unsigned short>(packed & 0xffff)}; }
DEVICE Element high_of(unsigned packed) { return {static_cast<unsigned short>(packed >> 16)}; }
#endif

constexpr int VALUES = 16 / sizeof(Element);  // of a slot, 16 bytes
constexpr unsigned EVERY_LANE = 0xffffffffu;

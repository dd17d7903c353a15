// Probes, as a kernel carries them: PROBE says which one is compiled in. A kernel without one is compiled of the same
// source, so that registers and times differ by nothing but the probe.
//
// What is saved, at which level and in which order is Neutrino's trace format: slices of records, a slice for every
// thread or every warp, blocks first. Unsaved slots keep the zeros that the buffer was cleared with.
#pragma once

#include "instructions.cuh"

#define PROBE_NONE 0
#define PROBE_BLOCK_SCHED 1       // warp: {u64 clock at entry, u32 cycles until exit, u32 SM}
#define PROBE_GMEM_BYTES 2        // thread: {u32 bytes of loads and stores, u32 bytes of asynchronous copies}
#define PROBE_TENSOROP_COUNT 3    // thread: {u64 matrix multiply-accumulates}
#define PROBE_DMAT 4              // thread: every access {u64 cycles since entry, u64 address}
#define PROBE_PROGRAM_PROGRESS 5  // thread: every iteration {u64 clock}
#define PROBE_COUNT 6             // thread: {u64 accesses}: how long the slices of PROBE_DMAT must be
#define PROBE_TIMELINE 7          // warp: every iteration {u64 clock}; after these, what BLOCK_SCHED saves of the launch

#ifndef PROBE
#define PROBE PROBE_NONE
#endif

#if PROBE == PROBE_NONE
#define PROBE_PARAMETERS
#define PROBE_BEGIN Probe probe
#else
#define PROBE_PARAMETERS , unsigned long long *probe_records, unsigned int probe_slots
#define PROBE_BEGIN Probe probe(probe_records, probe_slots)
#endif

struct Probe {
#if PROBE != PROBE_NONE
    unsigned long long *slice;
    unsigned long long *warp_slice;  // of the warp-level record
    unsigned int slots;
    unsigned long long entered;  // or what is counted
    unsigned int saved;

    DEVICE_MEMBER Probe(unsigned long long *records, unsigned int slots)
        : warp_slice(nullptr), slots(slots), entered(0), saved(0) {
        unsigned long long block = (unsigned long long)(gridDim.y * blockIdx.z + blockIdx.y) * gridDim.x + blockIdx.x;
        unsigned int threads = blockDim.x * blockDim.y * blockDim.z;
        unsigned int thread = (blockDim.y * threadIdx.z + threadIdx.y) * blockDim.x + threadIdx.x;
#if PROBE == PROBE_BLOCK_SCHED
        slice = warp_slice = records + 2 * (block * (threads / 32) + thread / 32);
#elif PROBE == PROBE_TIMELINE
        unsigned long long warp = block * (threads / 32) + thread / 32;
        unsigned long long warps = (unsigned long long)gridDim.x * gridDim.y * gridDim.z * (threads / 32);
        slice = records + slots * warp;
        warp_slice = records + slots * warps + 2 * warp;
#elif PROBE == PROBE_DMAT
        slice = records + 2 * slots * (block * threads + thread);
#else
        slice = records + slots * (block * threads + thread);
#endif
#if PROBE == PROBE_BLOCK_SCHED || PROBE == PROBE_DMAT || PROBE == PROBE_TIMELINE
        entered = sm_clock();
#endif
    }
#endif

    DEVICE_MEMBER static bool leads_warp() {
        return (((blockDim.y * threadIdx.z + threadIdx.y) * blockDim.x + threadIdx.x) & 31) == 0;
    }

    // A load or a store of global memory, before it is issued.
    DEVICE_MEMBER void access(const void *address, unsigned int bytes) {
#if PROBE == PROBE_GMEM_BYTES
        entered += bytes;
#endif
        every_access(address);
    }

    // An asynchronous copy from global to shared memory, before it is issued.
    DEVICE_MEMBER void copy(const void *address, unsigned int bytes) {
#if PROBE == PROBE_GMEM_BYTES
        entered += (unsigned long long)bytes << 32;
#endif
        every_access(address);
    }

    DEVICE_MEMBER void every_access(const void *address) {
#if PROBE == PROBE_DMAT
        // Neutrino has no such bound; a slice that is too short would run on into the next thread's.
        if (saved < slots) {
            slice[2 * saved] = sm_clock() - entered;
            slice[2 * saved + 1] = (unsigned long long)address;
            saved++;
        }
#elif PROBE == PROBE_COUNT
        entered++;
#endif
    }

    DEVICE_MEMBER void tensor_operation() {
#if PROBE == PROBE_TENSOROP_COUNT
        entered++;
#endif
    }

    DEVICE_MEMBER void branch() {
#if PROBE == PROBE_PROGRAM_PROGRESS
        if (saved < slots) slice[saved++] = sm_clock();
#elif PROBE == PROBE_TIMELINE
        if (saved < slots && leads_warp()) slice[saved++] = sm_clock();
#endif
    }

    DEVICE_MEMBER void end() {
#if PROBE == PROBE_BLOCK_SCHED || PROBE == PROBE_TIMELINE
        unsigned int elapsed = (unsigned int)(sm_clock() - entered);
        if (leads_warp()) {
            warp_slice[0] = entered;
            warp_slice[1] = (unsigned long long)sm_number() << 32 | elapsed;
        }
#elif PROBE == PROBE_GMEM_BYTES || PROBE == PROBE_TENSOROP_COUNT || PROBE == PROBE_COUNT
        slice[0] = entered;
#endif
    }
};

// Enough of CUDA to run a kernel's source on a CPU: each thread is a fiber, barriers and shuffles wait for one another
// as on a GPU, blocks run in turn, those of a cluster together. A barrier that not all threads reach, or a shuffle that not all lanes take part in,
// is found out; so is an access of 16 bytes that is not aligned, and one that leaves its array by more than 12 bytes.

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define SHARED(TYPE, NAME) TYPE& NAME = emulation::shared_of_block<TYPE>()
#define DYNAMIC_SHARED(TYPE, NAME) TYPE* const NAME = reinterpret_cast<TYPE*>(emulation::dynamic_of_block())
#define CLUSTERS(BLOCKS)

struct alignas(16) float4 {
    float x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

static dim3 threadIdx = {0, 0, 0}, blockIdx = {0, 0, 0}, blockDim, gridDim;

namespace emulation {

constexpr size_t STACK = 64 * 1024, MOST_BLOCKS = 8, SHARED_BYTES = 4096;
static const char* failure = nullptr;

struct Barrier {
    unsigned arrived = 0, generation = 0;
};
struct Fiber {
    ucontext_t context;  // to begin with
    jmp_buf place;       // where it waits
    std::unique_ptr<char[]> stack;
    unsigned thread = 0, rank = 0;  // in its block, and of its block in the cluster
    bool begun = false, done = false;
};

static std::vector<Fiber> fibers;
static std::vector<Barrier> warps;
static std::vector<uint32_t> exchange;  // two copies by turns for each thread
static std::vector<float4> dynamic;  // shared memory that the launch gives a block; while it runs, of a cluster's blocks
static size_t dynamic_size;          // of each block
static Barrier blocks[MOST_BLOCKS], cluster;
static jmp_buf scheduler;
static unsigned current, cluster_size = 1;
static bool progress;
static std::function<void()> body;

static void fail(const char* what) {
    if (!failure) failure = what;
}

// A jump from stack to stack: swapcontext would do the same with a system call for the mask of signals.
static void leave_fiber() {
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}

static void resume_fiber() {
    Fiber& fiber = fibers[current];
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
}

static void wait(Barrier& barrier, unsigned threads) {
    const unsigned generation = barrier.generation;
    progress = true;
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == generation) leave_fiber();
    progress = true;
}

static unsigned rank() { return fibers[current].rank; }

// Of each block, at the same distance for every type.
template <class T>
static T& shared_of_block() {
    static_assert(sizeof(T) <= SHARED_BYTES, "no more is kept for a block");
    alignas(16) static char memory[MOST_BLOCKS][SHARED_BYTES];
    return *reinterpret_cast<T*>(memory[rank()]);
}

static float4* dynamic_of_block() { return dynamic.data() + rank() * dynamic_size; }

static unsigned lanes() { return std::min(32u, blockDim.x - threadIdx.x / 32 * 32); }

static uint32_t swap_lanes(uint32_t value, unsigned partner) {
    const unsigned warp = threadIdx.x / 32, threads = lanes();
    Barrier& barrier = warps[rank() * ((blockDim.x + 31) / 32) + warp];
    uint32_t* half = &exchange[(2 * rank() + (barrier.generation & 1)) * blockDim.x];
    half[threadIdx.x] = value;
    wait(barrier, threads);
    if (partner >= threads) fail("a shuffle reads a lane that is not there");
    return half[32 * warp + partner % threads];
}

// What a fiber does: a thread of each block in turn.
static void enter() {
    for (;;) {
        body();
        fibers[current].done = true;
        progress = true;
        leave_fiber();
    }
}

// Run a grid of one-dimensional blocks, `together` of which form a cluster. Each warp goes on until it has to wait for
// another one; `backwards` lets the last one go first, which changes no result unless there is a race.
static const char* run(dim3 grid, unsigned threads, bool backwards, std::function<void()> kernel, unsigned together = 1) {
    failure = nullptr;
    body = std::move(kernel);
    gridDim = grid;
    blockDim.x = threads;
    cluster_size = together;
    dynamic_size = dynamic.size();
    dynamic.resize(together * dynamic_size);
    if (fibers.size() < together * threads) fibers.resize(together * threads);
    const unsigned warps_of_block = (threads + 31) / 32;
    for (unsigned b = 0; b < grid.x * grid.y * grid.z && !failure; b += together) {
        std::fill_n(blocks, MOST_BLOCKS, Barrier{});
        cluster = {};
        warps.assign(together * warps_of_block, {});
        exchange.assign(2 * together * threads, 0);
        for (unsigned f = 0; f < together * threads; ++f) {
            Fiber& fiber = fibers[f];
            fiber.thread = f % threads;
            fiber.rank = f / threads;
            if (!fiber.stack) fiber.stack.reset(new char[STACK]);
            // One that is in the middle of a block that failed begins anew.
            fiber.begun = fiber.begun && fiber.done;
            fiber.done = false;
            if (fiber.begun) continue;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get();
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, enter, 0);
        }
        for (bool left = true; left && !failure;) {
            left = false;
            bool any = false;
            for (unsigned n = 0; n < warps.size(); ++n) {
                const unsigned warp = backwards ? warps.size() - 1 - n : n;
                const unsigned of_block = warp / warps_of_block, first = 32 * (warp % warps_of_block);
                const unsigned at = b + of_block;
                do {
                    progress = false;
                    for (unsigned t = first; t < std::min(threads, first + 32); ++t) {
                        current = of_block * threads + t;
                        if (fibers[current].done) continue;
                        left = true;
                        threadIdx.x = t;
                        blockIdx = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
                        resume_fiber();
                    }
                    any = any || progress;
                } while (progress);
            }
            if (left && !any) fail("threads wait for others that never come");
        }
    }
    dynamic.resize(dynamic_size);
    return failure;
}

// An array that ends where the next access would be a fault, up to what keeps its start aligned to 16 bytes.
struct Guarded {
    size_t bytes, page = sysconf(_SC_PAGESIZE), mapped;
    char *map, *data;

    explicit Guarded(size_t bytes) : bytes(bytes) {
        const size_t padded = (bytes + 15) / 16 * 16;
        mapped = (padded + page - 1) / page * page + 2 * page;
        map = static_cast<char*>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(map, page, PROT_NONE);
        mprotect(map + mapped - page, page, PROT_NONE);
        data = map + mapped - page - padded;
        std::memset(map + page, 0xff, mapped - 2 * page);  // NaN: what is read there spoils the result
    }
    ~Guarded() { munmap(map, mapped); }

    bool untouched_around() const {
        for (const char* at = map + page; at < map + mapped - page; ++at) {
            if ((at < data || at >= data + bytes) && *at != '\xff') return false;
        }
        return true;
    }
};

template <typename T>
static T* aligned(T* address) {
    constexpr uintptr_t size = sizeof(T) == 8 ? 8 : 16;
    if (reinterpret_cast<uintptr_t>(address) % size) fail("an access of 8 or 16 bytes is not aligned");
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) / size * size);
}

static float from_half(uint32_t bits) {
    uint32_t sign = bits & 0x8000u, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent     ? std::ldexp(1024.0f + fraction, int(exponent) - 25)
                                     : std::ldexp(float(fraction), -24);
    return sign ? -magnitude : magnitude;
}

static uint32_t to_half(float value) {
    uint32_t sign = std::signbit(value) ? 0x8000u : 0u;
    float magnitude = std::fabs(value);
    if (std::isnan(value)) return sign | 0x7e00u;
    if (magnitude >= 65520.0f) return sign | 0x7c00u;
    if (magnitude == 0) return sign;
    int exponent = std::max(std::ilogb(magnitude), -14);
    // nearbyint rounds to even; a fraction that becomes 2048 carries over into the exponent by itself.
    uint32_t fraction = uint32_t(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    return sign | (fraction >= 1024 ? (uint32_t(exponent + 14) << 10) + fraction : fraction);
}

}  // namespace emulation

static inline unsigned dynamic_shared_bytes() { return emulation::dynamic_size * sizeof(float4); }
static inline void __syncthreads() { emulation::wait(emulation::blocks[emulation::rank()], blockDim.x); }

static inline float from_half(unsigned short bits) { return emulation::from_half(bits); }
static inline unsigned short to_half(float value) { return emulation::to_half(value); }

static inline unsigned cluster_rank() { return emulation::rank(); }
static inline unsigned cluster_blocks() { return emulation::cluster_size; }
static inline void wait_for_cluster() { emulation::wait(emulation::cluster, blockDim.x * emulation::cluster_size); }
static inline void leave_cluster() { wait_for_cluster(); }
template <class T>
static inline T moments_of_block(const T* mine, unsigned rank) {
    const long distance = (static_cast<long>(rank) - emulation::rank()) * emulation::SHARED_BYTES;
    return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(mine) + distance);
}

static inline float __shfl_xor_sync(unsigned, float value, int step) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits = emulation::swap_lanes(bits, threadIdx.x % 32 ^ step);
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline int __any_sync(unsigned, int predicate) {
    uint32_t found = predicate != 0;
    for (int step = 16; step > 0; step /= 2) found |= emulation::swap_lanes(found, threadIdx.x % 32 ^ step);
    return found;
}

template <class T>
static inline T __ldcs(const T* from) {
    return *emulation::aligned(from);
}
static inline float4 __ldcg(const float4* from) { return *emulation::aligned(from); }
template <class T>
static inline void __stcs(T* to, T values) {
    *emulation::aligned(to) = values;
}
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __float_as_int(float value) {
    int bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
static inline float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
using std::max;

// Enough of CUDA to run a kernel's source on a CPU: each thread is a fiber, barriers and shuffles wait for one another
// as on a GPU, blocks run in turn. A barrier that not all threads reach, or a shuffle that not all lanes take part in,
// is found out; so is an access of 16 bytes that is not aligned, and one that leaves its array by more than 12 bytes.

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
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
#define DYNAMIC_SHARED(TYPE, NAME) TYPE* const NAME = reinterpret_cast<TYPE*>(emulation::dynamic.data())

struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

static dim3 threadIdx = {0, 0, 0}, blockIdx = {0, 0, 0}, blockDim, gridDim;

namespace emulation {

constexpr size_t STACK = 64 * 1024;
static const char* failure = nullptr;

struct Barrier {
    unsigned arrived = 0, generation = 0;
};
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool done = false;
};

static std::vector<Fiber> fibers;
static std::vector<Barrier> warps;
static std::vector<uint32_t> exchange;  // two copies by turns for each thread
static std::vector<float4> dynamic;  // shared memory that the launch gives a block
static Barrier block;
static ucontext_t scheduler;
static unsigned current;
static bool progress;
static std::function<void()> body;

static void fail(const char* what) {
    if (!failure) failure = what;
}

static void wait(Barrier& barrier, unsigned threads) {
    const unsigned generation = barrier.generation;
    progress = true;
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == generation) swapcontext(&fibers[current].context, &scheduler);
    progress = true;
}

static unsigned lanes() { return std::min(32u, blockDim.x - threadIdx.x / 32 * 32); }

static uint32_t swap_lanes(uint32_t value, unsigned partner) {
    const unsigned warp = threadIdx.x / 32, threads = lanes();
    Barrier& barrier = warps[warp];
    const unsigned half = (barrier.generation & 1) * blockDim.x;
    exchange[half + threadIdx.x] = value;
    wait(barrier, threads);
    if (partner >= threads) fail("a shuffle reads a lane that is not there");
    return exchange[half + 32 * warp + partner % threads];
}

static void enter() {
    body();
    fibers[current].done = true;
    progress = true;
}

// Run a grid of one-dimensional blocks. Each warp goes on until it has to wait for another one; `backwards` lets the last one go first, which
// changes no result unless there is a race.
static const char* run(dim3 grid, unsigned threads, bool backwards, std::function<void()> kernel) {
    failure = nullptr;
    body = std::move(kernel);
    gridDim = grid;
    blockDim.x = threads;
    if (fibers.size() < threads) fibers.resize(threads);
    for (unsigned b = 0; b < grid.x * grid.y * grid.z && !failure; ++b) {
        blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
        block = {};
        warps.assign((threads + 31) / 32, {});
        exchange.assign(2 * threads, 0);
        for (unsigned t = 0; t < threads; ++t) {
            Fiber& fiber = fibers[t];
            if (!fiber.stack) fiber.stack.reset(new char[STACK]);
            fiber.done = false;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get();
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = &scheduler;
            makecontext(&fiber.context, enter, 0);
        }
        for (bool left = true; left && !failure;) {
            left = false;
            bool any = false;
            for (unsigned n = 0; n < warps.size(); ++n) {
                const unsigned warp = backwards ? warps.size() - 1 - n : n;
                do {
                    progress = false;
                    for (unsigned t = 32 * warp; t < std::min(threads, 32 * warp + 32); ++t) {
                        if (fibers[t].done) continue;
                        left = true;
                        current = threadIdx.x = t;
                        swapcontext(&scheduler, &fibers[t].context);
                    }
                    any = any || progress;
                } while (progress);
            }
            if (left && !any) fail("threads wait for others that never come");
        }
    }
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
    if (reinterpret_cast<uintptr_t>(address) % 16) fail("an access of 16 bytes is not aligned");
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) / 16 * 16);
}

}  // namespace emulation

static inline unsigned dynamic_shared_bytes() { return emulation::dynamic.size() * sizeof(float4); }
static inline void __syncthreads() { emulation::wait(emulation::block, blockDim.x); }

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

static inline float4 __ldcs(const float4* from) { return *emulation::aligned(from); }
static inline float4 __ldcg(const float4* from) { return *emulation::aligned(from); }
static inline void __stcs(float4* to, float4 values) { *emulation::aligned(to) = values; }
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

// c = a·bᵀ in fp16 with fp32 accumulation on tensor cores: a is m×k, b is n×k, c is m×n, all row-major.
//
// A block of 8 warps (2×4) computes a tile of 128×128, 32 of k at a time; the next 32 are copied while the tensor cores
// work on these. m and n are multiples of 128, k of 32. A block takes 40 KiB of static shared memory; more dynamic shared
// memory than it uses makes it alone on its SM.
#include "probes.cuh"

#define TILE 128
#define STEP 32
#define PITCH (STEP + 8)  // halves from row to row: fragments of a warp then lie in 32 different banks

// A slab of 128 rows × 32 columns of a row-major matrix with k columns: 512 copies of 16 bytes by 256 threads.
DEVICE void load_slab(Probe &probe, half_bits *slab, const half_bits *rows, unsigned int k) {
    for (unsigned int copy = threadIdx.x; copy < TILE * STEP / 8; copy += 256) {
        unsigned int row = copy / (STEP / 8), column = copy % (STEP / 8) * 8;
        const half_bits *from = rows + (unsigned long long)row * k + column;
        probe.copy(from, 16);
        start_copy(slab + row * PITCH + column, from);
    }
}

DEVICE unsigned int pair(const half_bits *shared) { return *(const unsigned int *)shared; }

// Two blocks of 256 threads leave a thread 128 of an SM's registers, and any compiler is close to that.
RESIDENT_KERNEL(256, 2)
gemm(const half_bits *a, const half_bits *b, half_bits *c, unsigned int n, unsigned int k PROBE_PARAMETERS) {
    PROBE_BEGIN;
    SHARED_ARRAY(half_bits, slabs, 2 * 2 * TILE * PITCH);
    unsigned int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    unsigned int row = warp / 4 * 64, column = warp % 4 * 32;  // of the warp's 64×32 in the tile
    const half_bits *a_rows = a + (unsigned long long)blockIdx.y * TILE * k;
    const half_bits *b_rows = b + (unsigned long long)blockIdx.x * TILE * k;
    float sums[4][4][4] = {};

    load_slab(probe, slabs, a_rows, k);
    load_slab(probe, slabs + TILE * PITCH, b_rows, k);
    close_copies();
    for (unsigned int step = 0; step < k / STEP; step++) {
        probe.branch();
        if (step + 1 < k / STEP) {
            half_bits *next = slabs + (step + 1) % 2 * 2 * TILE * PITCH;
            load_slab(probe, next, a_rows + (step + 1) * STEP, k);
            load_slab(probe, next + TILE * PITCH, b_rows + (step + 1) * STEP, k);
        }
        close_copies();
        wait_for_copies<1>();
        wait_for_block();
        const half_bits *a_slab = slabs + step % 2 * 2 * TILE * PITCH + (row + group) * PITCH + 2 * member;
        const half_bits *b_slab = slabs + (step % 2 * 2 + 1) * TILE * PITCH + (column + group) * PITCH + 2 * member;
#pragma unroll
        for (unsigned int inner = 0; inner < STEP; inner += 16) {
            unsigned int a_part[4][4], b_part[4][2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const half_bits *part = a_slab + i * 16 * PITCH + inner;
                a_part[i][0] = pair(part);
                a_part[i][1] = pair(part + 8 * PITCH);
                a_part[i][2] = pair(part + 8);
                a_part[i][3] = pair(part + 8 * PITCH + 8);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const half_bits *part = b_slab + j * 8 * PITCH + inner;
                b_part[j][0] = pair(part);
                b_part[j][1] = pair(part + 8);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    probe.tensor_operation();
                    multiply_accumulate(sums[i][j], a_part[i], b_part[j]);
                }
        }
        wait_for_block();  // nobody reads this slab any more when it is copied over
    }
    half_bits *corner = c + (unsigned long long)(blockIdx.y * TILE + row + group) * n + blockIdx.x * TILE + column + 2 * member;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int lower = 0; lower < 2; lower++) {
                unsigned int *to = (unsigned int *)(corner + (unsigned long long)(16 * i + 8 * lower) * n + 8 * j);
                probe.access(to, 4);
                *to = pack_halves(sums[i][j][2 * lower], sums[i][j][2 * lower + 1]);
            }
    probe.end();
}

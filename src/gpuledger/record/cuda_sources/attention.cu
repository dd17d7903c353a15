// out = softmax(query·keyᵀ·scale)·value by the online softmax of FlashAttention-2 (T. Dao, 2023, algorithm 1), fp16 with
// fp32 accumulation on tensor cores. All tensors are (heads, tokens, 64), row-major; tokens is a multiple of 64.
//
// A block of 4 warps takes 64 queries of a head (blockIdx.x; blockIdx.y is the head), a warp 16 of them, and goes
// through keys and values 64 at a time; the next keys and values are copied while the tensor cores work on these. A
// block takes 45 KiB of static shared memory; dynamic shared memory that it does not use makes it alone on its SM.
#include "probes.cuh"

#define TILE 64
#define DIMENSION 64
#define PITCH (DIMENSION + 8)  // halves from row to row: fragments of a warp then lie in 32 different banks

// A tile of 64 rows: 512 copies of 16 bytes by 128 threads.
DEVICE void load_tile(Probe &probe, half_bits *tile, const half_bits *rows) {
    for (unsigned int copy = threadIdx.x; copy < TILE * DIMENSION / 8; copy += 128) {
        unsigned int row = copy / (DIMENSION / 8), column = copy % (DIMENSION / 8) * 8;
        const half_bits *from = rows + row * DIMENSION + column;
        probe.copy(from, 16);
        start_copy(tile + row * PITCH + column, from);
    }
}

DEVICE unsigned int pair(const half_bits *shared) { return *(const unsigned int *)shared; }

DEVICE float larger(float x, float y) { return x > y ? x : y; }

KERNEL(128)
attention(const half_bits *query, const half_bits *key, const half_bits *value, half_bits *out, unsigned int tokens,
          float scale_log2 PROBE_PARAMETERS) {
    PROBE_BEGIN;
    SHARED_ARRAY(half_bits, tiles, 5 * TILE * PITCH);  // queries, then twice keys and values
    unsigned int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    unsigned long long head = (unsigned long long)blockIdx.y * tokens * DIMENSION;
    unsigned long long first = head + (unsigned long long)blockIdx.x * TILE * DIMENSION;
    float sums[8][4] = {}, largest[2] = {-1e30f, -1e30f}, total[2] = {0.0f, 0.0f};
    unsigned int query_part[4][4];

    load_tile(probe, tiles, query + first);
    load_tile(probe, tiles + TILE * PITCH, key + head);
    load_tile(probe, tiles + 2 * TILE * PITCH, value + head);
    close_copies();
    for (unsigned int step = 0; step < tokens / TILE; step++) {
        probe.branch();
        if (step + 1 < tokens / TILE) {
            half_bits *next = tiles + (1 + (step + 1) % 2 * 2) * TILE * PITCH;
            unsigned long long rows = head + (unsigned long long)(step + 1) * TILE * DIMENSION;
            load_tile(probe, next, key + rows);
            load_tile(probe, next + TILE * PITCH, value + rows);
        }
        close_copies();
        wait_for_copies<1>();
        wait_for_block();
        if (step == 0) {
            const half_bits *rows = tiles + (16 * warp + group) * PITCH + 2 * member;
#pragma unroll
            for (int part = 0; part < 4; part++) {
                query_part[part][0] = pair(rows + 16 * part);
                query_part[part][1] = pair(rows + 8 * PITCH + 16 * part);
                query_part[part][2] = pair(rows + 16 * part + 8);
                query_part[part][3] = pair(rows + 8 * PITCH + 16 * part + 8);
            }
        }
        const half_bits *keys = tiles + (1 + step % 2 * 2) * TILE * PITCH;
        const half_bits *values = keys + TILE * PITCH;

        // scores[j] holds 16 queries × 8 keys; this thread two of them for each of two queries.
        float scores[8][4] = {};
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int part = 0; part < 4; part++) {
                const half_bits *row = keys + (8 * j + group) * PITCH + 16 * part + 2 * member;
                unsigned int key_part[2] = {pair(row), pair(row + 8)};
                probe.tensor_operation();
                multiply_accumulate(scores[j], query_part[part], key_part);
            }
#pragma unroll
        for (int lower = 0; lower < 2; lower++) {
            float peak = largest[lower];
#pragma unroll
            for (int j = 0; j < 8; j++) peak = larger(peak, larger(scores[j][2 * lower], scores[j][2 * lower + 1]) * scale_log2);
            // The four threads of a group hold one row.
            peak = larger(peak, exchange(peak, 1));
            peak = larger(peak, exchange(peak, 2));
            float shrink = exponential_of_two(largest[lower] - peak), added = 0.0f;
            largest[lower] = peak;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 2 * lower; i < 2 * lower + 2; i++) {
                    scores[j][i] = exponential_of_two(scores[j][i] * scale_log2 - peak);
                    added += scores[j][i];
                    sums[j][i] *= shrink;
                }
            total[lower] = total[lower] * shrink + added;
        }
#pragma unroll
        for (int part = 0; part < 4; part++) {
            // The accumulators of two score tiles are the operand of the next product, without leaving their thread.
            unsigned int weights[4] = {pack_halves(scores[2 * part][0], scores[2 * part][1]),
                                       pack_halves(scores[2 * part][2], scores[2 * part][3]),
                                       pack_halves(scores[2 * part + 1][0], scores[2 * part + 1][1]),
                                       pack_halves(scores[2 * part + 1][2], scores[2 * part + 1][3])};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const half_bits *row = values + (16 * part + 2 * member) * PITCH + 8 * j + group;
                unsigned int value_part[2] = {row[0] | (unsigned int)row[PITCH] << 16,
                                              row[8 * PITCH] | (unsigned int)row[9 * PITCH] << 16};
                probe.tensor_operation();
                multiply_accumulate(sums[j], weights, value_part);
            }
        }
        wait_for_block();  // nobody reads these tiles any more when they are copied over
    }
    half_bits *corner = out + first + (16 * warp + group) * DIMENSION + 2 * member;
#pragma unroll
    for (int lower = 0; lower < 2; lower++) {
        float whole = total[lower];
        whole += exchange(whole, 1);
        whole += exchange(whole, 2);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            unsigned int *to = (unsigned int *)(corner + 8 * lower * DIMENSION + 8 * j);
            probe.access(to, 4);
            *to = pack_halves(sums[j][2 * lower] / whole, sums[j][2 * lower + 1] / whole);
        }
    }
    probe.end();
}

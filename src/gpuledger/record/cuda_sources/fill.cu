// Zeros into a tensor, as torch.zeros does it: a block of 128 threads fills 1 KiB and ends, 8 bytes a thread. The
// persistent variant starts as many blocks as fit at once, which then go through all of the tensor.
#include "probes.cuh"

struct alignas(8) Halves {
    unsigned int low, high;
};

KERNEL(128) fill(Halves *out, unsigned long long count PROBE_PARAMETERS) {
    PROBE_BEGIN;
    unsigned long long place = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (place < count) {
        probe.access(out + place, sizeof(Halves));
        out[place] = Halves{0u, 0u};
    }
    probe.end();
}

KERNEL(128) fill_persistent(Halves *out, unsigned long long count PROBE_PARAMETERS) {
    PROBE_BEGIN;
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long place = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; place < count; place += step) {
        probe.branch();
        probe.access(out + place, sizeof(Halves));
        out[place] = Halves{0u, 0u};
    }
    probe.end();
}

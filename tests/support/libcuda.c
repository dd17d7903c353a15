/* What gpuledger calls of NVIDIA's libcuda, with its prototypes, in the memory of the host: a kernel named double_it
   doubles numbers, others do nothing; work on a stream that is being captured is put off. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int Result;
typedef unsigned long long Pointer;
typedef struct Work { int kind; Pointer to, from; size_t count; unsigned char byte; struct Work *next; } Work;
typedef struct { Work *first, **last; } Graph;
typedef struct { char name[64]; int attributes[10]; } Function;

static Graph *capturing;
static const int ATTRIBUTES[][2] = {{16, 132}, {38, 52428800}, {75, 9}, {76, 0}, {81, 233472}, {97, 232448}};

static void run(const Work *work) {
    if (work->kind == 0) memcpy((void *)work->to, (void *)work->from, work->count);
    if (work->kind == 1) memset((void *)work->to, work->byte, work->count);
    if (work->kind == 2) for (size_t i = 0; i < work->count; i++) ((float *)work->to)[i] *= 2;
}

static Result enqueue(Work work, void *stream) {
    if (!capturing) return run(&work), 0;
    if (!stream) return 900; /* the default stream cannot be captured */
    *capturing->last = malloc(sizeof work);
    **capturing->last = work;
    capturing->last = &(*capturing->last)->next;
    return 0;
}

Result cuInit(unsigned flags) { return flags; }
Result cuDriverGetVersion(int *version) { return *version = 13000, 0; }
Result cuGetErrorName(Result error, const char **text) { return *text = error == 1 ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OTHER", 0; }
Result cuGetErrorString(Result error, const char **text) { return *text = "what it means", 0; }
Result cuDeviceGet(int *device, int ordinal) { return *device = 5, ordinal; }
Result cuDeviceGetName(char *name, int length, int device) { return strncpy(name, "NVIDIA H100 80GB HBM3", length), device != 5; }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = 81559ull << 20, device != 5; }
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    for (int i = 0; i < 6; i++) if (ATTRIBUTES[i][0] == attribute) return *value = ATTRIBUTES[i][1], device != 5;
    return 1;
}
Result cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &capturing, device != 5; }
Result cuCtxSetCurrent(void *context) { return context != &capturing; }
Result cuCtxSynchronize(void) { return 0; }
Result cuMemAlloc_v2(Pointer *address, size_t bytes) { return bytes ? *address = (Pointer)malloc(bytes), 0 : 1; }
Result cuMemFree_v2(Pointer address) { return free((void *)address), 0; }
Result cuMemcpyHtoD_v2(Pointer to, const void *from, size_t bytes) { return memcpy((void *)to, from, bytes), 0; }
Result cuMemcpyDtoH_v2(void *to, Pointer from, size_t bytes) { return memcpy(to, (void *)from, bytes), 0; }
Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void *stream) {
    return enqueue((Work){0, to, from, bytes}, stream);
}
Result cuMemsetD8Async(Pointer to, unsigned char byte, size_t count, void *stream) {
    return enqueue((Work){1, to, 0, count, byte}, stream);
}
Result cuModuleLoadData(void **module, const void *image) { return *module = (void *)image, memcmp(image, "\177ELF", 4) != 0; }
Result cuModuleGetFunction(void **function, void *module, const char *name) {
    Function *made = calloc(1, sizeof *made);
    strncpy(made->name, name, 63);
    made->attributes[1] = 1024, made->attributes[4] = 40;
    return *function = made, module == 0;
}
Result cuFuncGetAttribute(int *value, int attribute, Function *function) { return *value = function->attributes[attribute], 0; }
Result cuFuncSetAttribute(Function *function, int attribute, int value) {
    if (attribute < 8 || value + 1024 > 232448) return 1;
    return function->attributes[attribute] = value, 0;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *function, int threads, size_t shared_bytes) {
    return *blocks = function->attributes[8] == (int)shared_bytes ? 2048 / threads : -1, 0;
}
Result cuLaunchKernel(Function *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                      unsigned threads_z, unsigned shared_bytes, void *stream, void **arguments, void **extra) {
    unsigned threads = threads_x * threads_y * threads_z;
    if (!x || !y || y > 65535 || !z || z > 65535 || !threads || threads > 1024 || extra) return 1;
    if ((int)shared_bytes != function->attributes[8]) return 1;
    if (strcmp(function->name, "double_it")) return enqueue((Work){3}, stream);
    return enqueue((Work){2, *(Pointer *)arguments[0], 0, *(long long *)arguments[1]}, stream);
}
Result cuStreamCreate(void **stream, unsigned flags) { return *stream = &capturing, flags != 1; }
Result cuStreamDestroy_v2(void *stream) { return stream != &capturing; }
Result cuStreamSynchronize(void *stream) { return stream != &capturing; }
Result cuEventCreate(void **event, unsigned flags) { return *event = malloc(sizeof(double)), flags; }
Result cuEventRecord(void *event, void *stream) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return *(double *)event = 1e3 * now.tv_sec + 1e-6 * now.tv_nsec, 0;
}
Result cuEventSynchronize(void *event) { return 0; }
Result cuEventElapsedTime(float *time, void *start, void *end) { return *time = *(double *)end - *(double *)start, 0; }
Result cuEventDestroy_v2(void *event) { return free(event), 0; }
Result cuStreamBeginCapture_v2(void *stream, int mode) {
    capturing = calloc(1, sizeof *capturing);
    capturing->last = &capturing->first;
    return stream && mode == 2 ? 0 : 1;
}
Result cuStreamEndCapture(void *stream, Graph **graph) { return *graph = capturing, capturing = 0, 0; }
Result cuGraphInstantiateWithFlags(Work **executable, Graph *graph, unsigned long long flags) {
    return *executable = graph->first, flags != 0;
}
Result cuGraphDestroy(Graph *graph) { return free(graph), 0; }
Result cuGraphLaunch(Work *work, void *stream) {
    for (; work; work = work->next) run(work);
    return stream != &capturing;
}
Result cuGraphExecDestroy(Work *work) {
    for (Work *next; work; work = next) next = work->next, free(work);
    return 0;
}
Result cuProfilerStart(void) { return 0; }
Result cuProfilerStop(void) { return 0; }

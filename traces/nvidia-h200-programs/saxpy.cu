// A vector addition and a sum by blocks, in an NVTX range and as CUDA graphs: nvcc -O2 -arch=sm_90 -o saxpy saxpy.cu
#include <cstdio>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

__global__ void saxpy(int n, float a, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}

__global__ void block_sum(int n, const float *x, float *s) {
  __shared__ float t[256];
  float v = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) v += x[i];
  t[threadIdx.x] = v;
  __syncthreads();
  for (int k = 128; k; k /= 2) {
    if (threadIdx.x < k) t[threadIdx.x] += t[threadIdx.x + k];
    __syncthreads();
  }
  if (!threadIdx.x) s[blockIdx.x] = t[0];
}

int main() {
  int n = 1 << 26;
  float *x, *y, *s, h;
  cudaMalloc(&x, 4l * n);
  cudaMalloc(&y, 4l * n);
  cudaMalloc(&s, 4096);
  cudaMemset(x, 0, 4l * n);
  cudaMemset(y, 0, 4l * n);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  auto both = [&](int times) {
    for (int i = 0; i < times; i++) {
      saxpy<<<n / 256, 256, 0, stream>>>(n, 2.f, x, y);
      block_sum<<<528, 256, 0, stream>>>(n, y, s);
    }
  };
  saxpy<<<n / 256, 256, 0, stream>>>(n, 2.f, x, y);
  cudaStreamSynchronize(stream);
  nvtxRangePushA("step");
  both(3);
  cudaStreamSynchronize(stream);
  nvtxRangePop();
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  both(5);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&ready, graph, 0);
  nvtxRangePushA("graphs");
  for (int i = 0; i < 4; i++) cudaGraphLaunch(ready, stream);
  cudaStreamSynchronize(stream);
  nvtxRangePop();
  cudaMemcpy(&h, s, 4, cudaMemcpyDeviceToHost);
  printf("%g %s\n", h, cudaGetErrorString(cudaGetLastError()));
}

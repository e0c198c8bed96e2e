// CUDA kernels for the executor's own tests. Compiled once, to one PTX file with many entries.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

#include <cstdint>

extern "C" __global__ void vector_add(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}

// The sum of 256 values per block, through a tree in shared memory.
extern "C" __global__ void block_sum(const float* x, float* out) {
  __shared__ float partial[256];
  int t = threadIdx.x;
  partial[t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  for (int step = 128; step > 0; step >>= 1) {
    if (t < step) partial[t] += partial[t + step];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = partial[0];
}

extern "C" __global__ void warp_sum(const double* x, double* out, int distance) {
  double value = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int step = distance; step > 0; step >>= 1)
    value += __shfl_xor_sync(0xffffffffu, value, step);
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

extern "C" __global__ void double_math(const double* x, double* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double v = x[i];
  out[i] = log(v);
  out[n + i] = exp(v / 50);
  out[2 * n + i] = log2(v);
  out[3 * n + i] = log1p(v);
  out[4 * n + i] = sqrt(v);
  out[5 * n + i] = 1.0 / v;
  out[6 * n + i] = pow(v, 0.3);
  out[7 * n + i] = exp2(v / 70);
  out[8 * n + i] = expm1(v / 90);
  out[9 * n + i] = tanh(v / 10);
  out[10 * n + i] = floor(v) + fmod(v, 3.0);
}

extern "C" __global__ void float_math(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  out[i] = logf(v);
  out[n + i] = expf(v / 50);
  out[2 * n + i] = __logf(v);
  out[3 * n + i] = tanhf(v / 10);
  out[4 * n + i] = sqrtf(v);
  out[5 * n + i] = rsqrtf(v);
  out[6 * n + i] = powf(v, 0.3f);
  out[7 * n + i] = log1pf(v);
}

template <class T>
__device__ void divide(const T* a, const T* b, T* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = a[i] / b[i];
  out[n + i] = a[i] % b[i];
  out[2 * n + i] = a[i] / T(7);
}
extern "C" __global__ void divide_s32(const int* a, const int* b, int* out, int n) {
  divide(a, b, out, n);
}
extern "C" __global__ void divide_u32(const unsigned* a, const unsigned* b, unsigned* out, int n) {
  divide(a, b, out, n);
}
extern "C" __global__ void divide_s64(const int64_t* a, const int64_t* b, int64_t* out, int n) {
  divide(a, b, out, n);
}
extern "C" __global__ void divide_u64(const uint64_t* a, const uint64_t* b, uint64_t* out, int n) {
  divide(a, b, out, n);
}

extern "C" __global__ void bit_counts(const unsigned* x, const unsigned long long* y, int* out,
                                      int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = __popc(x[i]);
  out[n + i] = __clz(x[i]);
  out[2 * n + i] = __ffs(x[i]);
  out[3 * n + i] = __brev(x[i]);
  out[4 * n + i] = __popcll(y[i]);
  out[5 * n + i] = __clzll(y[i]);
  out[6 * n + i] = __ffsll(y[i]);
  out[7 * n + i] = __umul64hi(y[i], y[i] ^ 0x5555) >> 32;
  out[8 * n + i] = __funnelshift_l(x[i], x[i] ^ 77, i);
  out[9 * n + i] = __byte_perm(x[i], i, 0x4172);
}

extern "C" __global__ void votes(const int* x, unsigned* out) {
  int i = threadIdx.x, n = blockDim.x;
  out[i] = __ballot_sync(0xffffffffu, x[i] > 2);
  out[n + i] = __match_any_sync(0xffffffffu, x[i]);
  out[2 * n + i] = __any_sync(0xffffffffu, x[i] == 5) * 2 + __all_sync(0xffffffffu, x[i] < 7);
  out[3 * n + i] = __reduce_add_sync(0xffffffffu, x[i]);
  out[4 * n + i] = __reduce_min_sync(0xffffffffu, x[i]);
  if (x[i] & 1)
    out[5 * n + i] = __activemask();
  else
    out[5 * n + i] = __shfl_down_sync(__ballot_sync(__activemask(), 1), x[i], 0) + 1000;
}

extern "C" __global__ void atomics(const int* x, int* counts, unsigned long long* best, double* sum,
                                   int n) {
  __shared__ int bins[8];
  __shared__ unsigned long long low;
  if (threadIdx.x < 8) bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) low = ~0ull;
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    atomicAdd(&bins[x[i] & 7], 1);
    atomicMin(&low, (unsigned long long)x[i] << 20 | i);
    atomicAdd(sum, (double)x[i]);
  }
  __syncthreads();
  if (threadIdx.x < 8) atomicAdd(&counts[threadIdx.x], bins[threadIdx.x]);
  if (threadIdx.x == 0) atomicMin(best, low);
}

// A 64 x 4 tile of floats, copied asynchronously with zero fill, then read transposed.
extern "C" __global__ void async_copy(const float4* x, float* out, int rows) {
  __shared__ float4 tile[64];
  int t = threadIdx.x;
  __pipeline_memcpy_async(&tile[t], &x[t < rows ? t : 0], 16, t < rows ? 0 : 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  for (int j = 0; j < 4; j++) out[j * 64 + t] = ((float*)tile)[(63 - t) * 4 + j];
}

// d = a b + c for one m16n8k16 tile; a is [16, 16] row-major, b is [8, 16] (transposed).
template <bool BF16>
__device__ void tile_product(const unsigned* a, const unsigned* b, float* out) {
  int lane = threadIdx.x, g = lane / 4, q = lane % 4;
  unsigned a0 = a[g * 8 + q], a1 = a[(g + 8) * 8 + q];
  unsigned a2 = a[g * 8 + q + 4], a3 = a[(g + 8) * 8 + q + 4];
  unsigned b0 = b[g * 8 + q], b1 = b[g * 8 + q + 4];
  float d[4] = {1, 2, 3, 4};
  if (BF16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  out[g * 8 + 2 * q] = d[0], out[g * 8 + 2 * q + 1] = d[1];
  out[(g + 8) * 8 + 2 * q] = d[2], out[(g + 8) * 8 + 2 * q + 1] = d[3];
}
extern "C" __global__ void tile_f16(const unsigned* a, const unsigned* b, float* out) {
  tile_product<false>(a, b, out);
}
extern "C" __global__ void tile_bf16(const unsigned* a, const unsigned* b, float* out) {
  tile_product<true>(a, b, out);
}

// One m16n8k8 tile in TF32; a is [16, 8] row-major, b is [8, 8] (transposed).
extern "C" __global__ void tile_tf32(const float* a, const float* b, float* out) {
  int lane = threadIdx.x, g = lane / 4, q = lane % 4;
  float d[4] = {0, 0, 0, 0};
  unsigned r[6];
  float s[6] = {a[g * 8 + q],           a[(g + 8) * 8 + q], a[g * 8 + q + 4],
                a[(g + 8) * 8 + q + 4], b[g * 8 + q],       b[g * 8 + q + 4]};
  for (int i = 0; i < 6; i++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[i]) : "f"(s[i]));
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]));
  out[g * 8 + 2 * q] = d[0], out[g * 8 + 2 * q + 1] = d[1];
  out[(g + 8) * 8 + 2 * q] = d[2], out[(g + 8) * 8 + 2 * q + 1] = d[3];
}

// f64 tensor cores through WMMA, which is the only use of m8n8k4.
extern "C" __global__ void tile_f64(const double* a, const double* b, double* out) {
  int lane = threadIdx.x, g = lane / 4, q = lane % 4;
  double d0 = 0.5, d1 = 0.25;
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+d"(d0), "+d"(d1)
               : "d"(a[g * 4 + q]), "d"(b[g * 4 + q]));
  out[g * 8 + 2 * q] = d0, out[g * 8 + 2 * q + 1] = d1;
}

// Half-precision arithmetic, scalar and packed.
extern "C" __global__ void half_math(const __half2* x, __half2* out, const __nv_bfloat162* y,
                                     __nv_bfloat162* out2) {
  int i = threadIdx.x;
  out[i] = __hfma2(x[i], x[i], __hadd2(x[i], __float2half2_rn(1.5f)));
  out2[i] = __hfma2(y[i], y[i], __hmul2(y[i], __float2bfloat162_rn(1.5f)));
}

// A table in constant memory, a switch and divergent loops of different lengths.
__constant__ double table[5] = {1.5, -2.25, 3.125, 1e300, 0.1};
extern "C" __global__ void divergent(const int* x, double* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double value = 0;
  for (int j = 0; j < x[i]; j++) {
    switch (x[j] % 7) {
      case 0: value += table[j % 5 == 3 ? 0 : j % 5]; break;
      case 1: value -= 1; break;
      case 2:
        value = value * 0.5;
        if (value > 3) continue;
        break;
      case 3: value = -value; break;
      case 4: value = fabs(value) + j; break;
      case 5: value = value * value / 4; break;
      default: value += 0.125;
    }
    if (value > 100) {
      value = 99;
      break;
    }
  }
  out[i] = value;
}

// Reads from shared memory with a given stride, after conflict-free writes.
extern "C" __global__ void strided(int* out, int stride) {
  __shared__ int box[1024];
  for (int i = 0; i < 32; i++) box[i * 32 + threadIdx.x] = i * 32 + threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = box[threadIdx.x * stride];
}
extern "C" __global__ void gather(const int* x, int* out, int stride) {
  out[threadIdx.x] = x[threadIdx.x * stride];
}

// Dynamic shared memory; each thread reverses the block.
extern "C" __global__ void reverse(int* x) {
  extern __shared__ int box[];
  box[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = box[blockDim.x - 1 - threadIdx.x];
}

// Two template instances, whose entries have mangled names.
template <int SCALE>
__global__ void scaled(int* x) {
  x[threadIdx.x] *= SCALE;
}
template __global__ void scaled<3>(int*);
template __global__ void scaled<5>(int*);

struct Pair {
  int first;
  double second;
};
extern "C" __global__ void struct_argument(double* out, Pair pair) {
  out[threadIdx.x] = pair.first * pair.second;
}

__device__ __noinline__ double horner(double x, int n) {
  double y = 1;
  for (int i = 0; i < n; i++) y = y * x + i;
  return y;
}
extern "C" __global__ void with_calls(double* x) {
  x[threadIdx.x] = horner(x[threadIdx.x], 3) + horner(2.0, threadIdx.x % 5);
}

// Barriers that reduce, warp barriers, and shuffles and votes among parts of a warp.
extern "C" __global__ void sync_operations(const int* x, int* out) {
  __shared__ int box[128];
  int t = threadIdx.x, n = blockDim.x;
  out[t] = __syncthreads_count(x[t] > 2);
  out[n + t] = __syncthreads_or(x[t] == 5) * 2 + __syncthreads_and(x[t] < 7);
  box[t] = x[t];
  __syncwarp();
  out[2 * n + t] = box[t ^ 1];
  unsigned same = __match_any_sync(0xffffffffu, x[t]);
  out[3 * n + t] = __shfl_sync(same, t, __ffs(same) - 1);
  out[4 * n + t] = __ballot_sync(same, t & 1);
  out[5 * n + t] = __shfl_up_sync(0xffffffffu, x[t], 1, 8);
}

// Half of the threads leave before the barrier, which hardware allows.
extern "C" __global__ void __launch_bounds__(64) early_exit(int* x) {
  __shared__ int box[64];
  if (threadIdx.x % 2) return;
  box[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = box[62 - threadIdx.x];
}

// Generic addresses, the shared window and inline assembly with registers of its own.
extern "C" __global__ void generic_addresses(int* x, int which) {
  __shared__ int box[32];
  int t = threadIdx.x, value;
  box[t] = 5;
  __syncthreads();
  int* place = which ? box : x;
  place[t] += 2;
  __syncthreads();
  x[32 + t] = box[t];
  unsigned address = (unsigned)__cvta_generic_to_shared(box + t);
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address));
  asm volatile(
      "{ .reg .pred p; .reg .b32 q; setp.gt.s32 p, %0, 6; selp.b32 q, 1, 0, p; add.s32 %0, %0, q; }"
      : "+r"(value));
  x[64 + t] = value;
}

__device__ unsigned long long counter = 7;
extern "C" __global__ void compare_and_swap(double* high, unsigned long long* tickets, short* small,
                                            unsigned char* tiny) {
  unsigned long long *place = (unsigned long long*)high, old = *place, assumed;
  do {
    assumed = old;
    double next = fmax(__longlong_as_double(assumed), (double)threadIdx.x);
    old = atomicCAS(place, assumed, __double_as_longlong(next));
  } while (assumed != old);
  tickets[threadIdx.x] = atomicAdd(&counter, 1ull);
  small[threadIdx.x] = small[threadIdx.x] * 3 - 70000;
  tiny[threadIdx.x] = tiny[threadIdx.x] >> 1 | 128;
}

// Broken on purpose.
extern "C" __global__ void no_barrier(int* x) {
  __shared__ int box[128];
  box[threadIdx.x] = 0;
  __syncthreads();
  box[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = box[127 - threadIdx.x];
}
extern "C" __global__ void no_mask_load(const volatile float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float value = x[i];
  if (i < n) out[i] = value;
}
extern "C" __global__ void no_mask_store(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = i < n ? x[i] : 0;
}
extern "C" __global__ void inactive_shuffle(int* x) {
  if (threadIdx.x < 16)
    x[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[threadIdx.x], 1);
  else
    x[threadIdx.x] = -1;
}
extern "C" __global__ void exited_shuffle(int* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[threadIdx.x], 1);
}
extern "C" __global__ void misaligned(const float* x, float4* out) {
  out[threadIdx.x] = *(const float4*)(x + 1 + 4 * threadIdx.x);
}
extern "C" __global__ void no_wait(const float4* x, float4* out) {
  __shared__ float4 tile[32];
  __pipeline_memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], 16);
  __pipeline_commit();
  __syncthreads();
  out[threadIdx.x] = tile[31 - threadIdx.x];
}
extern "C" __global__ void divergent_barrier(int* x) {
  __shared__ int box[64];
  box[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x % 2) __syncthreads();
  x[threadIdx.x] = box[threadIdx.x] + 1;
}
extern "C" __global__ void shared_overrun(int* x, int shift) {
  __shared__ int box[64];
  box[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = box[threadIdx.x + shift];
}
extern "C" __global__ void endless(volatile int* x) {
  while (x[0] == 0) {
  }
  x[1] = 1;
}
extern "C" __global__ void uninitialised(int* x) {
  __shared__ int box[64];
  if (threadIdx.x < 40) box[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = box[threadIdx.x];
}

#pragma once

// Algorithm headers are plain C++; under nvcc the same functions are device code too.
#ifdef __CUDACC__
#define BWT_HD __host__ __device__
#define BWT_NOINLINE
#else
#define BWT_HD
// Keeps rarely used arithmetic out of unrolled loops, where it would cost minutes to compile.
#define BWT_NOINLINE __attribute__((noinline))
#endif

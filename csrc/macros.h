#pragma once

// Algorithm headers are plain C++; under nvcc the same functions are device code too.
#ifdef __CUDACC__
#define BWT_HD __host__ __device__
#else
#define BWT_HD
#endif

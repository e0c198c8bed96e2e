// Includes BWT_SIMD_FILE once per instruction-set level. That file puts its code into
//   namespace bwt { namespace BWT_SIMD { namespace { ... } } }
// and may use BWT_SIMD_BYTES, the width of a vector register. It must include nothing itself:
// headers compiled under a raised target would leak that target into shared inline functions.
// No include guard: one use per kernel file.
#include "cpu/simd/level.h"
#ifdef BWT_SIMD_X86
#include <immintrin.h>
#endif

#define BWT_SIMD baseline
#define BWT_SIMD_BYTES 16
#include BWT_SIMD_FILE
#undef BWT_SIMD
#undef BWT_SIMD_BYTES

#ifdef BWT_SIMD_X86

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2")
#endif
#define BWT_SIMD avx2
#define BWT_SIMD_BYTES 32
#include BWT_SIMD_FILE
#undef BWT_SIMD
#undef BWT_SIMD_BYTES
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(                                                    \
    __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,bmi2"))), \
    apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,bmi2,prefer-vector-width=512")
#endif
#define BWT_SIMD avx512
#define BWT_SIMD_BYTES 64
#include BWT_SIMD_FILE
#undef BWT_SIMD
#undef BWT_SIMD_BYTES
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // BWT_SIMD_X86
#undef BWT_SIMD_FILE

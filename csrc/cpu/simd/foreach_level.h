// Includes BWT_SIMD_FILE once per instruction-set level. That file puts its code into
//   namespace bwt { namespace BWT_SIMD { namespace { ... } } }
// and may use BWT_SIMD_BYTES, the width of a vector register. It includes nothing but files of the
// same kind: other headers, compiled under a raised target, would leak that target into inline
// functions that everyone shares. What those files need is included here, and by the file that
// includes this one. No include guard: one use per op.
//
// Templates of such a file are called from outside by BWT_SIMD_CALL: a template is compiled for the
// target that was set where it is defined, wherever its instantiation is asked for. The innermost
// namespace has no name, so that the names of one op do not meet those of another.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

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

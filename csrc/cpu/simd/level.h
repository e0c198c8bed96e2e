// Run-time choice of the instruction set. Kernels are compiled once per level (foreach_level.h) and
// the best level that this machine has is called, so one binary serves every machine.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define BWT_SIMD_X86 1
#endif

namespace bwt {

enum class Simd : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

// The level in use: the machine's best, capped by the environment variable BWT_SIMD.
Simd simd_level();

const char* simd_name(Simd level);

// Calls FUNCTION from the namespace compiled for a level that this machine has.
#ifdef BWT_SIMD_X86
#define BWT_SIMD_CALL_AT(LEVEL, FUNCTION, ...)                            \
  ((LEVEL) == ::bwt::Simd::kAvx512 ? ::bwt::avx512::FUNCTION(__VA_ARGS__) \
   : (LEVEL) == ::bwt::Simd::kAvx2 ? ::bwt::avx2::FUNCTION(__VA_ARGS__)   \
                                   : ::bwt::baseline::FUNCTION(__VA_ARGS__))
#else
#define BWT_SIMD_CALL_AT(LEVEL, FUNCTION, ...) ::bwt::baseline::FUNCTION(__VA_ARGS__)
#endif
// The same for the level in use.
#define BWT_SIMD_CALL(FUNCTION, ...) BWT_SIMD_CALL_AT(::bwt::simd_level(), FUNCTION, __VA_ARGS__)

}  // namespace bwt

#include "cpu/simd/level.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace bwt {
namespace {

Simd best_level() {
#ifdef BWT_SIMD_X86
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi2")) {
    return Simd::kBaseline;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    return Simd::kAvx512;
  }
  return Simd::kAvx2;
#else
  return Simd::kBaseline;
#endif
}

Simd capped_level() {
  const Simd best = best_level();
  const char* wanted = std::getenv("BWT_SIMD");
  if (wanted == nullptr) return best;
  for (Simd level : {Simd::kBaseline, Simd::kAvx2, Simd::kAvx512}) {
    if (std::strcmp(wanted, simd_name(level)) == 0) return level < best ? level : best;
  }
  return best;
}

}  // namespace

Simd simd_level() {
  static const Simd level = capped_level();
  return level;
}

const char* simd_name(Simd level) {
  switch (level) {
    case Simd::kAvx512: return "avx512";
    case Simd::kAvx2: return "avx2";
    default: return "baseline";
  }
}

}  // namespace bwt

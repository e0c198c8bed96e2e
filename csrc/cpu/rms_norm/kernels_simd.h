// rms_norm and add_rms_norm (arguments.h) for one instruction-set level. Included once per level by
// simd/foreach_level.h.
//
// A row is read twice, the second time from the cache. Sums are rounded as if their terms came from
// ops of their own: x + (branch + bias), and what the norm passes on plus what the total gets.
#include "cpu/simd/vector.h"

namespace bwt {
namespace BWT_SIMD {
namespace {

template <class T, bool kBranch, bool kBias>
void forward_row(const RmsNormForward<T> a, int64_t size, T epsilon) {
  Vec<T> squares = {};
  each_vector<T>(size, [&](int64_t i, int64_t count) {
    Vec<T> v = load_at_most(a.x + i, count);
    if constexpr (kBranch) {
      Vec<T> added = load_at_most(a.branch + i, count);
      if constexpr (kBias) added += load_at_most(a.bias + i, count);
      v += added;
      store_at_most<T>(a.total + i, v, count);
    }
    squares += v * v;
  });
  const T mean = sum_lanes<T>(squares)[0] / T(size);
  const T scale = T(1) / T(__builtin_sqrt(mean + epsilon));
  *a.scale = scale;
  const T* total = kBranch ? a.total : a.x;
  each_vector<T>(size, [&](int64_t i, int64_t count) {
    const Vec<T> unit = load_at_most(total + i, count) * scale;
    store_at_most<T>(a.y + i, unit * load_at_most(a.weight + i, count), count);
  });
}

template <class T, bool kTotal, bool kBias>
void backward_row(const RmsNormBackward<T> a, int64_t size) {
  Vec<T> products = {};
  each_vector<T>(size, [&](int64_t i, int64_t count) {
    const Vec<T> product = load_at_most(a.grad_y + i, count) * load_at_most(a.total + i, count);
    products += product * load_at_most(a.weight + i, count);
    const Vec<T> sum = load_at_most(a.grad_weight + i, count);
    store_at_most<T>(a.grad_weight + i, product * a.scale + sum, count);
  });
  const T along = sum_lanes<T>(products)[0] / T(size) * a.scale * a.scale;
  each_vector<T>(size, [&](int64_t i, int64_t count) {
    const Vec<T> grad = load_at_most(a.grad_y + i, count) * load_at_most(a.weight + i, count);
    Vec<T> v = rounded<T>((grad - load_at_most(a.total + i, count) * along) * a.scale);
    if constexpr (kTotal) v += load_at_most(a.grad_total + i, count);
    store_at_most<T>(a.grad_x + i, v, count);
    if constexpr (kBias) {
      store_at_most<T>(a.grad_bias + i, load_at_most(a.grad_bias + i, count) + v, count);
    }
  });
}

template <class T>
void rms_norm_forward_row(const RmsNormForward<T>& a, int64_t size, T epsilon) {
  if (!a.branch) return forward_row<T, false, false>(a, size, epsilon);
  a.bias ? forward_row<T, true, true>(a, size, epsilon)
         : forward_row<T, true, false>(a, size, epsilon);
}

template <class T>
void rms_norm_backward_row(const RmsNormBackward<T>& a, int64_t size) {
  if (a.grad_total) {
    a.grad_bias ? backward_row<T, true, true>(a, size) : backward_row<T, true, false>(a, size);
  } else {
    a.grad_bias ? backward_row<T, false, true>(a, size) : backward_row<T, false, false>(a, size);
  }
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

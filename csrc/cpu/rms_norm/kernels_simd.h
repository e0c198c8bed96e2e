// rms_norm (arguments.h) for one instruction-set level. Included once per level by
// simd/foreach_level.h.
//
// A row is read twice, the second time from the cache.
#include "cpu/simd/vector.h"

namespace bwt {
namespace BWT_SIMD {
namespace {

// work(i, count) for each vector of a row, the last one perhaps of fewer lanes.
template <class T, class Work>
[[gnu::always_inline]] inline void each_vector(int64_t size, Work work) {
  int64_t i = 0;
  for (; i + kLanes<T> <= size; i += kLanes<T>) work(i, kLanes<T>);
  if (i < size) work(i, size - i);
}

template <class T>
void forward_row(const RmsNormForward<T>& a, int64_t row) {
  const T* x = a.x + row * a.size;
  T* y = a.y + row * a.size;
  Vec<T> squares = {};
  each_vector<T>(a.size, [&](int64_t i, int64_t count) {
    const Vec<T> v = load_at_most(x + i, count);
    squares += v * v;
  });
  const T mean = sum_lanes<T>(squares)[0] / T(a.size);
  const T scale = T(1) / T(__builtin_sqrt(mean + a.epsilon));
  a.scale[row] = scale;
  each_vector<T>(a.size, [&](int64_t i, int64_t count) {
    const Vec<T> unit = load_at_most(x + i, count) * scale;
    store_at_most<T>(y + i, unit * load_at_most(a.weight + i, count), count);
  });
}

template <class T>
void backward_row(const RmsNormBackward<T>& a, int64_t row, T* grad_weight) {
  const T* x = a.x + row * a.size;
  const T* grad_y = a.grad_y + row * a.size;
  T* grad_x = a.grad_x + row * a.size;
  const T scale = a.scale[row];
  Vec<T> products = {};
  each_vector<T>(a.size, [&](int64_t i, int64_t count) {
    const Vec<T> product = load_at_most(grad_y + i, count) * load_at_most(x + i, count);
    products += product * load_at_most(a.weight + i, count);
    const Vec<T> sum = load_at_most(grad_weight + i, count);
    store_at_most<T>(grad_weight + i, product * scale + sum, count);
  });
  const T along = sum_lanes<T>(products)[0] / T(a.size) * scale * scale;
  each_vector<T>(a.size, [&](int64_t i, int64_t count) {
    const Vec<T> grad = load_at_most(grad_y + i, count) * load_at_most(a.weight + i, count);
    store_at_most<T>(grad_x + i, (grad - load_at_most(x + i, count) * along) * scale, count);
  });
}

template <class T>
void forward_rows(const RmsNormForward<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) forward_row(a, row);
}

// Adds to grad_weight [C] what these rows contribute to the gradient of the weight.
template <class T>
void backward_rows(const RmsNormBackward<T>& a, int64_t begin, int64_t end, T* grad_weight) {
  for (int64_t row = begin; row < end; ++row) backward_row(a, row, grad_weight);
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

// The forward pass of attention, and the softmax that the backward pass also needs.

namespace bwt {
namespace BWT_SIMD {
namespace {

// For each row of scores s in a block, with the largest element m.
template <class T>
struct RowSums {
  RowSums(Arena& arena, int64_t rows, bool wants_moment)
      : max(arena.take<T>(round_up(rows, kLanes<T>))),
        sum(arena.take<T>(round_up(rows, kLanes<T>))),
        moment(wants_moment ? arena.take<T>(round_up(rows, kLanes<T>)) : nullptr) {}

  T* max;     // m
  T* sum;     // sum_j exp(s_j - m), or 1 if m is -inf
  T* moment;  // sum_j exp(s_j - m) * (s_j - m), or null: not wanted
};

// exp(score - max) of a tile of rows, of which row 0 sees `keys` keys and each further row `more`
// more, up to a whole vector. Keys that are not seen get a score of -inf and an exponential of
// zero, and so do all keys of a row that sees no other scores.
template <class T, int kRows = kTileRows>
void exponentials(int64_t rows, T* scores, T* to, int64_t stride, int64_t keys, int64_t more,
                  const RowSums<T>& sums, int64_t first) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return exponentials<T, kRows - 1>(rows, scores, to, stride, keys, more, sums, first);
    }
  }
  constexpr int n = kLanes<T>;
  const Vec<T> lowest = broadcast(-std::numeric_limits<T>::infinity());
  const int64_t seen_by_all = round_down(keys, n);
  const int64_t end = round_up(keys + more * (kRows - 1), n);

  Vec<T> max[kRows];
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) max[row] = lowest;
  for (int64_t key = 0; key < seen_by_all; key += n) {
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      max[row] = maximum<T>(max[row], load(scores + row * stride + key));
    }
  }
  for (int64_t key = seen_by_all; key < end; key += n) {
    const Vec<T> beyond_row_0 = lane_numbers<T>() + T(key - keys);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      T* at = scores + row * stride + key;
      const Vec<T> masked = beyond_row_0 < T(row) * T(more) ? load(at) : lowest;
      store(at, masked);
      max[row] = maximum<T>(max[row], masked);
    }
  }

  Vec<T> sum[kRows];
  Vec<T> moment[kRows];
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    max[row] = max_lanes<T>(max[row]);
    sums.max[first + row] = max[row][0];
    max[row] = max[row] == lowest ? Vec<T>{} : max[row];  // -inf - -inf is NaN
    sum[row] = Vec<T>{};
    moment[row] = Vec<T>{};
  }
  for (int64_t key = 0; key < end; key += n) {
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      // The floor keeps the moment finite where the exponential is zero. A NaN stays one.
      const Vec<T> x = maximum<T>(load(scores + row * stride + key) - max[row],
                                  broadcast(VectorTraits<T>::kExpFloor));
      const Vec<T> e = exp<T>(x);
      store(to + row * stride + key, e);
      sum[row] += e;
      if (sums.moment) moment[row] += e * x;
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    const T total = sum_lanes<T>(sum[row])[0];
    sums.sum[first + row] = total == 0 ? 1 : total;
    if (total != total) sums.max[first + row] = total;  // NaN, which a maximum passes over
    if (sums.moment) sums.moment[first + row] = sum_lanes<T>(moment[row])[0];
  }
}

// to[0, columns) = factor * from[0, filled), then zeros; filled is a whole number of vectors. The
// last vector overlaps the one before it if the columns are not a whole number of vectors.
template <class T>
void write_row(const T* from, int64_t filled, T factor, T* to, int64_t columns) {
  constexpr int n = kLanes<T>;
  const int64_t last = columns - n;
  if (last < 0) return store_partial(to, filled > 0 ? load(from) * factor : Vec<T>{}, columns);
  if (filled < columns) store(to + last, Vec<T>{});  // before the values that it overlaps
  int64_t i = 0;
  for (; i < filled && i <= last; i += n) store(to + i, load(from + i) * factor);
  if (i < filled) store(to + last, load(from + last) * factor);
  for (; i < last; i += n) store(to + i, Vec<T>{});
}

// The softmax of a block of scores as padded weights of the same stride, maybe in place, or as
// `captured` weights [block rows, keys] if that is not null. Changes scores that are not seen.
template <class T>
void softmax(const Block& block, T* scores, T* weights, int64_t stride, T* captured,
             const RowSums<T>& sums) {
  for (int64_t row = 0, end; row < block.rows; row = end) {
    end = block.tiles.end(row);
    exponentials<T>(end - row, scores + row * stride, weights + row * stride, stride,
                    block.visible_keys(row), block.shape.causal, sums, row);
    for (int64_t r = row; r < end; ++r) {
      T* from = weights + r * stride;
      T* to = captured ? captured + r * block.shape.keys : from;
      const int64_t columns = captured ? block.shape.keys : block.padded_columns<T>(r);
      const int64_t visible = block.visible_keys(r);
      const T factor = 1 / sums.sum[r];
      write_row(from, round_up(visible, kLanes<T>), factor, to, columns);
      if (factor != factor) clear(to + visible, columns - visible);  // 0 * NaN is not 0
    }
  }
}

// lse = max + log(sum) and entropy = (log(sum) - moment / sum) / log(2). Rounding must not make an
// entropy negative.
template <class T>
void write_lse_and_entropy(const RowSums<T>& sums, int64_t rows, T* lse, T* entropy) {
  for (int64_t i = 0; i < rows; i += kLanes<T>) {
    const Vec<T> sum = load(sums.sum + i);
    const Vec<T> log_sum = log<T>(sum);
    if (lse) store_at_most(lse + i, load(sums.max + i) + log_sum, rows - i);
    if (entropy) {
      const Vec<T> bits = (log_sum - load(sums.moment + i) / sum) * VectorTraits<T>::kLog2e;
      store_at_most(entropy + i, maximum<T>(bits, Vec<T>{}), rows - i);
    }
  }
}

// Whether a row saw no score but -inf; `largest` may also be the lse.
template <class T>
bool is_blind(T largest) {
  return largest == -std::numeric_limits<T>::infinity();
}

// result [rows, dim] = 0 in blind rows, which products of zeros and infinities would miss.
template <class T>
void clear_blind(const T* largest, int64_t rows, T* result, int64_t stride, int64_t dim) {
  for (int64_t row = 0; row < rows; ++row) {
    if (is_blind(largest[row])) clear(result + row * stride, dim);
  }
}

template <class T>
struct ForwardScratch {
  ForwardScratch(const AttentionForward<T>& a, Arena& arena)
      : rows(block_rows<T>(a.shape)),
        stride(scores_stride<T>(a.shape)),
        keys(arena.take<T>(panels_size<T>(a.shape.keys, a.shape.dim))),
        values(arena.take<T>(panels_size<T>(a.shape.dim, a.shape.keys))),
        scores(arena.take<T>(rows * stride)),
        captures(a, rows, stride, arena),
        sums(arena, rows, a.entropy) {}

  int64_t rows;
  int64_t stride;
  T* keys;    // panels [dim, keys], scaled
  T* values;  // panels [keys, dim]
  T* scores;  // [rows, keys], and weights
  CapturesScratch<T> captures;
  RowSums<T> sums;
};

template <class T>
void fetch_pair(const AttentionForward<T>& a, int64_t pair, Fetch& fetch) {
  const auto& [batch, heads, queries, keys, dim, causal] = a.shape;
  fetch.add(a.k.at(pair, heads, 0), a.k.time_stride, keys, dim);
  fetch.add(a.v.at(pair, heads, 0), a.v.time_stride, keys, dim);
  fetch.add(a.q.at(pair, heads, 0), a.q.time_stride, queries, dim);
  if (writes_weights(a)) fetch.add(a.weights + pair * queries * keys, keys, queries, keys);
  fetch.add(a.out.at(pair, heads, 0), a.out.time_stride, queries, dim);
}

// What the blocks of a pair share.
template <class T>
struct ForwardPair {
  ForwardPair(const AttentionForward<T>& a, int64_t pair_, int64_t end,
              const ForwardScratch<T>& scratch)
      : pair(pair_),
        keys(pack_transposed(a.k.at(pair, a.shape.heads, 0), a.k.time_stride, a.shape.keys,
                             a.shape.dim, a.scale, scratch.keys)),
        values(pack(a.v.at(pair, a.shape.heads, 0), a.v.time_stride, a.shape.keys, a.shape.dim,
                    scratch.values)) {
    if (pair + 1 < end) fetch_pair(a, pair + 1, fetch);
  }

  int64_t pair;
  Panels<T> keys;
  Panels<T> values;
  Fetch fetch;
};

template <class T>
void forward_block(const AttentionForward<T>& a, const Block& block,
                   const ForwardScratch<T>& scratch, ForwardPair<T>& x) {
  const AttentionShape& shape = a.shape;
  const int64_t row = x.pair * shape.queries + block.first;
  T* captured = writes_weights(a) ? a.weights + row * shape.keys : nullptr;
  multiply_over_dim(block, a.q.at(x.pair, shape.heads, block.first), a.q.time_stride, x.keys,
                    scratch.scores, scratch.stride, false, x.fetch);
  find_largest(a, block, x.pair, scratch.scores, scratch.stride);
  softmax(block, scratch.scores, scratch.scores, scratch.stride, captured, scratch.sums);
  if (a.lse || a.entropy) {
    write_lse_and_entropy(scratch.sums, block.rows, a.lse ? a.lse + row : nullptr,
                          a.entropy ? scratch.captures.entropy : nullptr);
  }
  write_captures(a, block, x.pair, captured ? captured : scratch.scores,
                 captured ? shape.keys : scratch.stride, scratch.sums.max, scratch.captures);
  T* out = a.out.at(x.pair, shape.heads, block.first);
  multiply_over_keys(block, captured ? captured : scratch.scores,
                     captured ? shape.keys : scratch.stride, x.values, out, a.out.time_stride,
                     x.fetch);
  clear_blind(scratch.sums.max, block.rows, out, a.out.time_stride, shape.dim);
}

template <class T>
void compute_pairs(const AttentionForward<T>& a, int64_t begin, int64_t end, void* memory) {
  Arena arena(memory);
  const ForwardScratch<T> scratch(a, arena);
  for (int64_t pair = begin; pair < end; ++pair) {
    ForwardPair<T> x(a, pair, end, scratch);
    for (int64_t first = 0; first < a.shape.queries; first += scratch.rows) {
      forward_block(a, Block(a.shape, first, scratch.rows), scratch, x);
    }
  }
}

template <class T>
int64_t scratch_bytes(const AttentionForward<T>& a) {
  Arena arena(nullptr);
  const ForwardScratch<T> scratch(a, arena);
  return arena.bytes();
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

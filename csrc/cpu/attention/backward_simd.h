// The backward pass of attention.

namespace bwt {
namespace BWT_SIMD {
namespace {

template <class T>
struct BackwardScratch {
  BackwardScratch(const AttentionBackward<T>& a, Arena& arena)
      : rows(block_rows<T>(a.shape)),
        stride(scores_stride<T>(a.shape)),
        keys(arena.take<T>(panels_size<T>(a.shape.dim, a.shape.keys))),
        keys_transposed(arena.take<T>(panels_size<T>(a.shape.keys, a.shape.dim))),
        values_transposed(arena.take<T>(panels_size<T>(a.shape.keys, a.shape.dim))),
        queries(arena.take<T>(panels_size<T>(a.shape.dim, rows))),
        grad_out(arena.take<T>(panels_size<T>(a.shape.dim, rows))),
        weights(arena.take<T>(rows * stride)),
        grad(arena.take<T>(rows * stride)),
        sums(arena, rows, false) {}

  int64_t rows;
  int64_t stride;
  T* keys;               // panels [keys, dim]
  T* keys_transposed;    // panels [dim, keys], scaled
  T* values_transposed;  // panels [dim, keys]
  T* queries;            // panels [rows, dim]
  T* grad_out;           // panels [rows, dim]
  T* weights;            // [rows, keys]
  T* grad;  // [rows, keys]: the scores, then the gradient at the weights, at the scores
  RowSums<T> sums;
};

// The logarithm of a weight is its score minus the lse.
template <class T>
bool needs_scores(const AttentionBackward<T>& a) {
  return !a.weights || a.grad_entropy;
}

template <class T>
void fetch_pair(const AttentionBackward<T>& a, int64_t pair, Fetch& fetch) {
  const auto& [batch, heads, queries, keys, dim, causal] = a.shape;
  fetch.add(a.k.at(pair, heads, 0), a.k.time_stride, keys, dim);
  fetch.add(a.v.at(pair, heads, 0), a.v.time_stride, keys, dim);
  if (a.weights) fetch.add(a.weights + pair * queries * keys, keys, queries, keys);
  if (a.grad_out.data) {
    fetch.add(a.grad_out.at(pair, heads, 0), a.grad_out.time_stride, queries, dim);
  }
  fetch.add(a.q.at(pair, heads, 0), a.q.time_stride, queries, dim);
  fetch.add(a.grad_v.at(pair, heads, 0), a.grad_v.time_stride, keys, dim);
  fetch.add(a.grad_q.at(pair, heads, 0), a.grad_q.time_stride, queries, dim);
  fetch.add(a.grad_k.at(pair, heads, 0), a.grad_k.time_stride, keys, dim);
}

// What the blocks of a pair share.
template <class T>
struct BackwardPair {
  BackwardPair(const AttentionBackward<T>& a, int64_t pair_, int64_t end,
               const BackwardScratch<T>& scratch)
      : pair(pair_) {
    const AttentionShape& shape = a.shape;
    const T* k = a.k.at(pair, shape.heads, 0);
    keys = pack(k, a.k.time_stride, shape.keys, shape.dim, scratch.keys);
    if (needs_scores(a)) {
      keys_transposed = pack_transposed(k, a.k.time_stride, shape.keys, shape.dim, a.scale,
                                        scratch.keys_transposed);
    }
    if (a.grad_out.data) {
      values_transposed = pack_transposed(a.v.at(pair, shape.heads, 0), a.v.time_stride, shape.keys,
                                          shape.dim, T(1), scratch.values_transposed);
    }
    if (pair + 1 < end) fetch_pair(a, pair + 1, fetch);
  }

  int64_t pair;
  Panels<T> keys;
  Panels<T> keys_transposed;
  Panels<T> values_transposed;
  Fetch fetch;
};

// to[0, columns) = from[0, filled), then zeros; columns is a whole number of vectors.
template <class T>
void copy_row(const T* from, int64_t filled, T* to, int64_t columns) {
  constexpr int n = kLanes<T>;
  const int64_t whole = columns <= filled ? columns : columns - n;
  if (whole < columns) {
    // The last values overlap the vector before.
    store(to + whole, filled < n ? load_partial(from, filled) : Vec<T>{});
    if (filled >= n) store(to + filled - n, load(from + filled - n));
  }
  for (int64_t i = 0; i < whole; i += n) store(to + i, load(from + i));
}

template <class T>
void get_weights(const AttentionBackward<T>& a, const Block& block,
                 const BackwardScratch<T>& scratch, BackwardPair<T>& x) {
  if (needs_scores(a)) {
    multiply_over_dim(block, a.q.at(x.pair, a.shape.heads, block.first), a.q.time_stride,
                      x.keys_transposed, scratch.grad, scratch.stride, false, x.fetch);
    softmax<T>(block, scratch.grad, scratch.weights, scratch.stride, nullptr, scratch.sums);
    return;
  }
  const int64_t keys = a.shape.keys;
  const T* from = a.weights + (x.pair * a.shape.queries + block.first) * keys;
  for (int64_t row = 0; row < block.rows; ++row, from += keys) {
    copy_row(from, keys, scratch.weights + row * scratch.stride, block.padded_columns<T>(row));
  }
}

// The gradient at the weights, without what comes from grad_out.
template <class T>
void start_grad(const AttentionBackward<T>& a, const Block& block, int64_t pair,
                const BackwardScratch<T>& scratch) {
  const int64_t keys = a.shape.keys;
  const int64_t head = a.chosen.head(pair, a.shape.heads);
  T* lse = scratch.sums.max;
  if (a.grad_entropy) write_lse_and_entropy<T>(scratch.sums, block.rows, lse, nullptr);
  for (int64_t row = 0, columns = 0, end = 0; row < block.rows; ++row) {
    if (row == end) {
      columns = block.tile_columns<T>(row);
      end = block.tiles.end(row);
    }
    T* grad = scratch.grad + row * scratch.stride;
    const int64_t captured = a.chosen.row(head, block.first + row);
    if (captured < 0) {
      clear(grad, columns);
      continue;
    }
    for (int64_t i = 0; i < columns; i += kLanes<T>) {
      Vec<T> g = {};
      if (a.grad_entropy) {
        // In this order the floor replaces a NaN: a blind row subtracts -inf from -inf.
        const Vec<T> log_weight =
            maximum<T>(broadcast(VectorTraits<T>::kExpFloor), load(grad + i) - lse[row]);
        g = -a.grad_entropy[captured] * VectorTraits<T>::kLog2e * log_weight;
      }
      if (a.grad_weights) g += load_at_most(a.grad_weights + captured * keys + i, keys - i);
      if (a.grad_received) g += load_at_most(a.grad_received + head * keys + i, keys - i);
      store(grad + i, g);
    }
    for (int64_t i = captured * a.top_k; i < (captured + 1) * a.top_k; ++i) {
      add_at(grad, a.top_positions[i], a.grad_top_k[i], block.visible_keys(row));
    }
  }
}

// grad_j = scale * weights_j * (grad_j - sum_i weights_i grad_i + grad_lse) for a tile of rows, of
// which row 0 sees `keys` keys and each further row `more` more, up to a whole vector.
template <class T, int kRows = kTileRows>
void softmax_grad_rows(int64_t rows, const T* weights, T* grad, int64_t stride, int64_t keys,
                       int64_t more, T scale, const T* grad_lse) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return softmax_grad_rows<T, kRows - 1>(rows, weights, grad, stride, keys, more, scale,
                                             grad_lse);
    }
  }
  const int64_t seen_by_all = round_down(keys, kLanes<T>);
  const int64_t columns = round_up(keys + more * (kRows - 1), kLanes<T>);
  Vec<T> shift[kRows];
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) shift[row] = Vec<T>{};
  for (int64_t i = 0; i < seen_by_all; i += kLanes<T>) {
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      shift[row] -= load(weights + row * stride + i) * load(grad + row * stride + i);
    }
  }
  for (int64_t i = seen_by_all; i < columns; i += kLanes<T>) {
    const Vec<T> beyond_row_0 = lane_numbers<T>() + T(i - keys);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const Vec<T> seen =
          beyond_row_0 < T(row) * T(more) ? load(grad + row * stride + i) : Vec<T>{};
      shift[row] -= load(weights + row * stride + i) * seen;
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    shift[row] = sum_lanes<T>(shift[row]) + (grad_lse ? grad_lse[row] : 0);
  }
  for (int64_t i = 0; i < columns; i += kLanes<T>) {
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      T* at = grad + row * stride + i;
      store(at, load(weights + row * stride + i) * scale * (load(at) + shift[row]));
    }
  }
}

// The gradients of the largest scores, each at its place.
template <class T>
void add_grad_max_logit(const AttentionBackward<T>& a, const Block& block, int64_t pair,
                        const BackwardScratch<T>& scratch) {
  const int64_t head = a.chosen.head(pair, a.shape.heads);
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t captured = a.chosen.row(head, block.first + row);
    if (captured < 0) continue;
    add_at(scratch.grad + row * scratch.stride, a.argmax[captured],
           a.scale * a.grad_max_logit[captured], block.visible_keys(row));
  }
}

template <class T>
void softmax_grad(const AttentionBackward<T>& a, const Block& block, int64_t pair,
                  const BackwardScratch<T>& scratch) {
  const T* grad_lse = a.grad_lse ? a.grad_lse + pair * a.shape.queries + block.first : nullptr;
  const int64_t stride = scratch.stride;
  for (int64_t row = 0, end; row < block.rows; row = end) {
    end = block.tiles.end(row);
    const int64_t columns = block.tile_columns<T>(row);
    softmax_grad_rows<T>(end - row, scratch.weights + row * stride, scratch.grad + row * stride,
                         stride, block.visible_keys(row), a.shape.causal, a.scale,
                         grad_lse ? grad_lse + row : nullptr);
    for (int64_t r = row; r < end; ++r) {
      const int64_t padded_columns = block.padded_columns<T>(r);
      for (int64_t i = columns; i < padded_columns; i += kLanes<T>) {
        store(scratch.grad + r * stride + i, Vec<T>{});
      }
    }
  }
}

// The queries of a block as panels. A blind row has no gradient, so its zeros must not be
// multiplied by the infinities that blinded it.
template <class T>
Panels<T> pack_queries(const AttentionBackward<T>& a, const Block& block, const T* lse, const T* q,
                       const BackwardScratch<T>& scratch) {
  const int64_t dim = a.shape.dim;
  int64_t blind = 0;
  for (int64_t row = 0; row < block.rows; ++row) blind += is_blind(lse[row]);
  if (blind == 0) return pack(q, a.q.time_stride, block.rows, dim, scratch.queries);
  const Panels<T> panels = pack_always(q, a.q.time_stride, block.rows, dim, scratch.queries);
  for (int64_t d = 0; d < dim; d += kPanel<T>) {
    clear_blind(lse, block.rows, scratch.queries + d * block.rows, kPanel<T>, kPanel<T>);
  }
  clear_blind(lse, block.rows, scratch.grad, scratch.stride, scratch.stride);
  return panels;
}

template <class T>
void backward_block(const AttentionBackward<T>& a, const Block& block,
                    const BackwardScratch<T>& scratch, BackwardPair<T>& x) {
  const int64_t heads = a.shape.heads;
  const int64_t dim = a.shape.dim;
  // The last block comes first, and it sees all keys; the others add to grad_k and grad_v.
  const bool accumulate = block.first + block.rows < a.shape.queries;
  const bool started =
      a.grad_weights || a.grad_entropy || a.grad_received || a.grad_top_k || !a.grad_out.data;
  get_weights(a, block, scratch, x);
  if (started) start_grad(a, block, x.pair, scratch);
  if (a.grad_out.data) {
    const T* grad_out = a.grad_out.at(x.pair, heads, block.first);
    multiply_over_dim(block, grad_out, a.grad_out.time_stride, x.values_transposed, scratch.grad,
                      scratch.stride, started, x.fetch);
    multiply_over_queries(block, scratch.weights, scratch.stride,
                          pack(grad_out, a.grad_out.time_stride, block.rows, dim, scratch.grad_out),
                          a.grad_v.at(x.pair, heads, 0), a.grad_v.time_stride, accumulate, x.fetch);
  }
  softmax_grad(a, block, x.pair, scratch);
  if (a.grad_max_logit) add_grad_max_logit(a, block, x.pair, scratch);
  const T* lse = a.lse + x.pair * a.shape.queries + block.first;
  const T* q = a.q.at(x.pair, heads, block.first);
  const Panels<T> queries = pack_queries(a, block, lse, q, scratch);
  T* grad_q = a.grad_q.at(x.pair, heads, block.first);
  multiply_over_keys(block, scratch.grad, scratch.stride, x.keys, grad_q, a.grad_q.time_stride,
                     x.fetch);
  clear_blind(lse, block.rows, grad_q, a.grad_q.time_stride, dim);
  multiply_over_queries(block, scratch.grad, scratch.stride, queries, a.grad_k.at(x.pair, heads, 0),
                        a.grad_k.time_stride, accumulate, x.fetch);
}

template <class T>
void backward_pair(const AttentionBackward<T>& a, const BackwardScratch<T>& scratch,
                   BackwardPair<T>& x) {
  const AttentionShape& shape = a.shape;
  if (!a.grad_out.data) {
    for (int64_t key = 0; key < shape.keys; ++key) {
      write_row<T>(nullptr, 0, 0, a.grad_v.at(x.pair, shape.heads, key), shape.dim);
    }
  }
  const int64_t last = round_down(shape.queries - 1, scratch.rows);
  for (int64_t first = last; first >= 0; first -= scratch.rows) {
    backward_block(a, Block(shape, first, scratch.rows), scratch, x);
  }
}

template <class T>
void compute_pairs(const AttentionBackward<T>& a, int64_t begin, int64_t end, void* memory) {
  Arena arena(memory);
  const BackwardScratch<T> scratch(a, arena);
  for (int64_t pair = begin; pair < end; ++pair) {
    BackwardPair<T> x(a, pair, end, scratch);
    backward_pair(a, scratch, x);
  }
}

template <class T>
int64_t scratch_bytes(const AttentionBackward<T>& a) {
  Arena arena(nullptr);
  const BackwardScratch<T> scratch(a, arena);
  return arena.bytes();
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

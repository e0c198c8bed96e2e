// What the forward pass captures besides weights: the largest scores of each row, and sums over
// rows.

namespace bwt {
namespace BWT_SIMD {
namespace {

// Whether normalised weights are written where they are captured, at once: otherwise they are
// normalised in scratch, and chosen rows are copied.
template <class T>
bool writes_weights(const AttentionForward<T>& a) {
  return a.weights && a.chosen.is_all();
}

// How many of the largest scores of a row are looked for.
template <class T>
int64_t count_largest(const AttentionForward<T>& a) {
  return a.top_k > 0 ? a.top_k : a.argmax != nullptr;
}

template <class T>
struct CapturesScratch {
  CapturesScratch(const AttentionForward<T>& a, int64_t rows, int64_t stride, Arena& arena)
      : entropy(a.entropy ? arena.take<T>(round_up(rows, kLanes<T>)) : nullptr),
        received(a.received ? arena.take<T>(stride) : nullptr) {}

  T* entropy;   // [rows]
  T* received;  // [keys], so far
};

// The largest scores so far of as many rows as there are lanes, in descending order, and the keys
// that have them, as numbers of the same type: those are exact up to 2^24.
template <class T, int kCount>
struct Largest {
  Vec<T> score[kCount];
  Vec<T> key[kCount];

  Largest() {
    for (int i = 0; i < kCount; ++i) {
      score[i] = broadcast(-std::numeric_limits<T>::infinity());
      key[i] = broadcast(T(-1));
    }
  }

  // A later key: behind those with equal scores. All behind it move by one place, in every lane
  // alike, so that nothing depends on a guess of the processor. NaN and -inf are never larger.
  [[gnu::always_inline]] void add(Vec<T> x, T number) {
    const Vec<T> keys = broadcast(number);
    Bits<T> is_larger = x > score[kCount - 1];
#pragma GCC unroll 16
    for (int i = kCount - 1; i > 0; --i) {
      const Bits<T> moves = x > score[i - 1];
      score[i] = is_larger ? (moves ? score[i - 1] : x) : score[i];
      key[i] = is_larger ? (moves ? key[i - 1] : keys) : key[i];
      is_larger = moves;
    }
    score[0] = is_larger ? x : score[0];
    key[0] = is_larger ? keys : key[0];
  }
};

// Rows of scores that are searched together, one in each lane.
template <class T>
struct SearchedRows {
  const T* scores[kLanes<T>];
  T visible[kLanes<T>];  // keys
  int64_t* positions[kLanes<T>];
  int64_t count = 0;

  void add(const T* row, int64_t keys, int64_t* found) {
    scores[count] = row;
    visible[count] = T(keys);
    positions[count++] = found;
  }
};

// Positions of the `count` <= kCount largest scores of each row, those of equal scores in their
// order; -1 where no score above -inf is left.
template <class T, int kCount>
void search(SearchedRows<T>& rows, int64_t count) {
  constexpr int n = kLanes<T>;
  const Vec<T> lowest = broadcast(-std::numeric_limits<T>::infinity());
  const int64_t used = rows.count;
  while (rows.count < n) rows.add(rows.scores[0], int64_t(rows.visible[0]), rows.positions[0]);
  const Vec<T> visible = load(rows.visible);
  const int64_t end = int64_t(max_lanes<T>(visible)[0]);
  const int64_t seen_by_all = int64_t(-max_lanes<T>(-visible)[0]);
  Largest<T, kCount> largest;
  for (int64_t key = 0; key < end; key += n) {
    Vec<T> square[n];
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) square[i] = load(rows.scores[i] + key);
    transpose<T>(square);
    if (key + n <= seen_by_all) {
      for (int i = 0; i < n; ++i) largest.add(square[i], T(key + i));
    } else {
      for (int i = 0; i < n; ++i) {
        largest.add(visible > T(key + i) ? square[i] : lowest, T(key + i));
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    T keys[n];
    store(keys, largest.key[i]);
    for (int64_t row = 0; row < used; ++row) rows.positions[row][i] = int64_t(keys[row]);
  }
  rows.count = 0;
}

template <class T>
void search(SearchedRows<T>& rows, int64_t count) {
  if (rows.count == 0) return;
  if (count == 1) return search<T, 1>(rows, count);
  if (count <= 4) return search<T, 4>(rows, count);
  if (count <= 8) return search<T, 8>(rows, count);
  search<T, kMaxTopK>(rows, count);
}

// Of the raw scores of a block, which the softmax then takes the place of.
template <class T>
void find_largest(const AttentionForward<T>& a, const Block& block, int64_t pair, const T* scores,
                  int64_t stride) {
  const int64_t count = count_largest(a);
  if (count == 0) return;
  const int64_t head = a.chosen.head(pair, a.shape.heads);
  SearchedRows<T> rows;
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t captured = a.chosen.row(head, block.first + row);
    if (captured < 0) continue;
    int64_t* found = a.top_k > 0 ? a.top_positions + captured * a.top_k : a.argmax + captured;
    rows.add(scores + row * stride, block.visible_keys(row), found);
    if (rows.count == kLanes<T>) search(rows, count);
  }
  search(rows, count);
}

// sums[0, keys) += each of the rows.
template <class T, int kRows = kTileRows>
void add_rows(int64_t count, const T* const* rows, int64_t keys, T* sums) {
  if constexpr (kRows > 1) {
    if (count < kRows) return add_rows<T, kRows - 1>(count, rows, keys, sums);
  }
  each_vector<T>(keys, [&](int64_t i, int64_t lanes) {
    Vec<T> sum = load(sums + i);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) sum += load_at_most(rows[row] + i, lanes);
    store(sums + i, sum);
  });
}

// Adds the weights of the captured rows of a block to what each key received.
template <class T>
void add_received(const AttentionForward<T>& a, const Block& block, int64_t head, const T* weights,
                  int64_t stride, T* received) {
  for (int64_t row = 0, end; row < block.rows; row = end) {
    end = block.tiles.end(row);
    const T* rows[kTileRows];
    int64_t count = 0;
    for (int64_t r = row; r < end; ++r) {
      if (a.chosen.row(head, block.first + r) >= 0) rows[count++] = weights + r * stride;
    }
    if (count > 0) add_rows<T>(count, rows, block.tile_keys(row), received);
  }
}

template <class T>
void write_captured_row(const AttentionForward<T>& a, int64_t captured, const T* weights,
                        int64_t visible, T max, T entropy) {
  const int64_t keys = a.shape.keys;
  if (a.weights && !writes_weights(a)) {
    T* to = a.weights + captured * keys;
    __builtin_memcpy(to, weights, visible * sizeof(T));
    clear(to + visible, keys - visible);
  }
  if (a.entropy) a.entropy[captured] = entropy;
  if (a.max_logit) a.max_logit[captured] = max;
  if (a.argmax && a.top_k > 0) a.argmax[captured] = a.top_positions[captured * a.top_k];
  for (int64_t i = captured * a.top_k; i < (captured + 1) * a.top_k; ++i) {
    const int64_t position = a.top_positions[i];
    a.top_weights[i] = position < 0 ? 0 : weights[position];
  }
}

// All that is captured of a block of normalised weights, but weights that are where they belong.
template <class T>
void write_captures(const AttentionForward<T>& a, const Block& block, int64_t pair,
                    const T* weights, int64_t stride, const T* max,
                    const CapturesScratch<T>& scratch) {
  const AttentionShape& shape = a.shape;
  const int64_t head = a.chosen.head(pair, shape.heads);
  if (head < 0) return;
  if (a.received) {
    if (block.first == 0) clear(scratch.received, shape.keys);
    add_received(a, block, head, weights, stride, scratch.received);
    if (block.first + block.rows == shape.queries) {
      __builtin_memcpy(a.received + head * shape.keys, scratch.received, shape.keys * sizeof(T));
    }
  }
  const bool copies_weights = a.weights && !writes_weights(a);
  if (!copies_weights && !a.entropy && !a.max_logit && a.top_k == 0) return;
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t captured = a.chosen.row(head, block.first + row);
    if (captured < 0) continue;
    write_captured_row(a, captured, weights + row * stride, block.visible_keys(row), max[row],
                       a.entropy ? scratch.entropy[row] : T(0));
  }
}

// row[position] += x, if it is one of the first `keys`.
template <class T>
void add_at(T* row, int64_t position, T x, int64_t keys) {
  if (0 <= position && position < keys) row[position] += x;
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

// Noiseless sequences: a scan of the steps, then the rows.

namespace bwt {
namespace BWT_SIMD {
namespace {

// Which keys and values the current sequence has shown. Entries bear the number of their sequence,
// so that forgetting costs nothing.
class Seen {
 public:
  explicit Seen(int symbols) : key_seen_(symbols), value_seen_(symbols), value_of_(symbols) {}
  void forget() { ++sequence_; }
  int value_of(int64_t key) const { return key_seen_[key] == sequence_ ? value_of_[key] : -1; }
  bool has_value(int64_t value) const { return value_seen_[value] == sequence_; }
  void learn(int64_t key, int64_t value) {
    key_seen_[key] = value_seen_[value] = sequence_;
    value_of_[key] = static_cast<int32_t>(value);
  }

 private:
  int64_t sequence_ = 0;
  std::vector<int64_t> key_seen_, value_seen_;
  std::vector<int32_t> value_of_;
};

// Loops of vectors: for a short row a call of memset or memcpy costs more than the row. This one
// writes whole vectors: there must be room for one beyond the row.
template <class Out>
[[gnu::always_inline]] inline void fill(Out* row, int count, Out value) {
  using Vector = typename Lanes<Out>::Vector;
  for (int i = 0; i < count; i += Lanes<Out>::kCount) {
    *reinterpret_cast<Vector*>(row + i) = Vector{} + value;
  }
}

// The last vector overlaps the one before: no tail.
template <class Out>
[[gnu::always_inline]] inline void copy(const Out* from, Out* to, int64_t count) {
  constexpr int kLanes = Lanes<Out>::kCount;
  using Vector = typename Lanes<Out>::Vector;
  const auto copy_vector = [&](int64_t i) {
    *reinterpret_cast<Vector*>(to + i) = *reinterpret_cast<const Vector*>(from + i);
  };
  if (count < kLanes) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i < count - kLanes; i += kLanes) copy_vector(i);
  copy_vector(count - kLanes);
}

// Ids of type Id in the rows of a tensor.
template <class Id>
struct IdRow {
  const Id* data;
  int64_t stride;

  explicit IdRow(const IdView& view)
      : data(reinterpret_cast<const Id*>(view.data)),
        stride(view.column_bytes / static_cast<int64_t>(sizeof(Id))) {}
  Id operator[](int64_t t) const { return data[t * stride]; }
};

// First pass over a sequence: its steps, the step at which each value was first used, entropies and
// evidence. Steps are numbers of type Out, so that rows are written by comparing vectors of one
// type.
template <class Id, class Out>
int64_t scan_noiseless(const StepView& view, int symbols, Seen& seen,
                       const CountTables<Out>& tables, NoiselessStep<Out>* steps, Out* used_at,
                       const RowWriter<Out>& out) {
  const IdRow<Id> keys(view.keys), values(view.values);
  const uint64_t limit = symbols;
  fill(used_at, symbols, std::numeric_limits<Out>::infinity());
  seen.forget();
  int unused = symbols;
  for (int64_t t = 0; t < view.length; ++t) {
    const Id key = keys[t], value = values[t];
    if (static_cast<uint64_t>(key) >= limit) return encode_fault(t, Fault::kKeyRange);
    const int known = seen.value_of(key);
    const bool fresh = known < 0;
    const int sharing = fresh ? unused : 0;
    steps[t] = {static_cast<Out>(known), tables.share[sharing]};
    out.entropy[t] = tables.log2_count[sharing];
    if (static_cast<uint64_t>(value) >= limit) return encode_fault(t, Fault::kValueRange);
    if (fresh ? seen.has_value(value) : known != static_cast<int>(value)) {
      return encode_fault(t, Fault::kContradiction);
    }
    seen.learn(key, value);
    if (fresh) used_at[value] = static_cast<Out>(t);
    unused -= fresh;
    out.log_evidence[t] = tables.log_evidence[unused];
  }
  return kNoFault;
}

// Sets of symbols, as many as a vector has words: each id is put into the set of its lane.
using Words = typename Lanes<uint64_t>::Vector;
constexpr int kWords = Lanes<uint64_t>::kCount;

// Unions of neighbouring sets of a and of b, by turns.
template <std::size_t... kLane>
[[gnu::always_inline]] inline Words join_pairs(Words a, Words b, std::index_sequence<kLane...>) {
  const Words even = __builtin_shufflevector(a, b, (kLane % 2 ? kLane - 1 + kWords : kLane)...);
  const Words odd = __builtin_shufflevector(a, b, (kLane % 2 ? kLane + kWords : kLane + 1)...);
  return even | odd;
}

// Whether keys are distinct, and values too, and all in [0, symbols), for symbols < kWordBits and
// at least kWords steps. An id met twice does no harm to a set, so the last vector may overlap the
// one before.
template <class Id>
[[gnu::always_inline]] inline bool are_distinct(const Id* keys, const Id* values, int64_t length,
                                                int symbols) {
  typedef Id Ids __attribute__((vector_size(sizeof(Id) * kWords), aligned(sizeof(Id))));
  Words key_set = {}, value_set = {}, all_bits = {};
  const auto add = [&](int64_t t) __attribute__((always_inline)) {
    // What is negative becomes large.
    const Words key = __builtin_convertvector(*reinterpret_cast<const Ids*>(keys + t), Words);
    const Words value = __builtin_convertvector(*reinterpret_cast<const Ids*>(values + t), Words);
    all_bits |= key | value;
    key_set |= (Words{} + 1) << (key & (kWordBits - 1));
    value_set |= (Words{} + 1) << (value & (kWordBits - 1));
  };
#pragma GCC unroll 4
  for (int64_t t = 0; t < length - kWords; t += kWords) add(t);
  add(length - kWords);
  // An id that no word has a bit for fills the set, to fail the test below.
  key_set |= reinterpret_cast<Words>(all_bits >= kWordBits);
  const Words sets = join_pairs(key_set, value_set, std::make_index_sequence<kWords>());
  uint64_t seen_keys = 0, seen_values = 0;
  for (int i = 0; i < kWords; i += 2) seen_keys |= sets[i], seen_values |= sets[i + 1];
  return ((seen_keys | seen_values) >> symbols) == 0 && __builtin_popcountll(seen_keys) == length &&
         __builtin_popcountll(seen_values) == length;
}

// The common case of distinct keys, where sequences differ only in when each value is used. Shares
// grow from step to step, so the share at that step tells it. Returns false, for the scan above to
// decide, if anything is repeated or wrong.
template <class Id, class Out>
[[gnu::always_inline]] inline bool scan_distinct(const Id* keys, const Id* values, int64_t length,
                                                 int symbols, const Out* share, Out* used_at) {
  if (!are_distinct(keys, values, length, symbols)) return false;
  fill(used_at, symbols, std::numeric_limits<Out>::infinity());
  // Through integer registers, which the machine can load and store more of at a time.
  using Word = std::conditional_t<sizeof(Out) == sizeof(uint32_t), uint32_t, uint64_t>;
#pragma GCC unroll 4
  for (int64_t t = 0; t < length; ++t) {
    Word word;
    __builtin_memcpy(&word, share + t, sizeof word);
    __builtin_memcpy(used_at + values[t], &word, sizeof word);
  }
  return true;
}

// Continues `used_at` periodically, so that a vector can start in any column.
template <class Out>
[[gnu::always_inline]] inline void continue_columns(int symbols, Out* used_at) {
  for (int at = symbols; at < symbols + Lanes<Out>::kCount; at += symbols) {
    copy(used_at, used_at + at, std::min(symbols, Lanes<Out>::kCount));
  }
}

// As many rows of distinct keys as fill whole vectors. What their columns compare with is the same
// in every period and stays in registers.
template <int kSymbols, class Out>
class Period {
  using Vector = typename Lanes<Out>::Vector;
  static constexpr int kLanes = Lanes<Out>::kCount;
  static_assert(kSymbols >= kLanes, "a vector would meet more than two rows");

 public:
  static constexpr int kRows = kLanes / std::gcd(kSymbols, kLanes);
  static constexpr int kEntries = kRows * kSymbols;
  static constexpr int kVectors = kEntries / kLanes;

  explicit Period(const Out* used_at) {
    for (int k = 0; k < kVectors; ++k) used_[k] = load(used_at + k * kLanes % kSymbols);
  }

  // `shares` has that of each entry.
  [[gnu::always_inline]] void write(const Out* shares, Out* rows) const {
    Vector of_row[kRows];
    for (int row = 0; row < kRows; ++row) of_row[row] = load(shares + row * kSymbols);
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) {
      const int first = k * kLanes, row = first / kSymbols;
      const bool straddles = first + kLanes > (row + 1) * kSymbols;
      const Vector share = straddles ? load(shares + first) : of_row[row];
      *reinterpret_cast<Vector*>(rows + first) = used_[k] >= share ? share : Vector{};
    }
  }

 private:
  static const Vector& load(const Out* from) { return *reinterpret_cast<const Vector*>(from); }

  Vector used_[kVectors];
};

// Writes the rows of distinct keys as one run of aligned vectors, for a store that straddles cache
// lines costs as much as several; the first and the last vector overlap their neighbours. kSymbols
// is 0 where a period would be too long for the registers.
template <int kSymbols, class Out>
void write_distinct(const DistinctTables<Out>& tables, const Out* used_at, Out* rows) {
  constexpr int kLanes = Lanes<Out>::kCount;
  using Vector = typename Lanes<Out>::Vector;
  const Out* shares = tables.shares.data();
  const int32_t* columns = tables.columns.data();
  const auto write = [&](int64_t i) {
    const Vector used = *reinterpret_cast<const Vector*>(used_at + columns[i]);
    const Vector share = *reinterpret_cast<const Vector*>(shares + i);
    *reinterpret_cast<Vector*>(rows + i) = used >= share ? share : Vector{};
  };
  const int64_t entries = tables.shares.size(), last = entries - kLanes;
  int64_t i = -reinterpret_cast<uintptr_t>(rows) % BWT_SIMD_BYTES / sizeof(Out);
  write(0);
  if constexpr (kSymbols > 0) {
    using Rows = Period<kSymbols, Out>;
    for (; i <= last && columns[i] != 0; i += kLanes) write(i);
    const Rows period(used_at);
    for (; i + Rows::kEntries <= entries; i += Rows::kEntries) period.write(shares + i, rows + i);
  }
  for (; i <= last; i += kLanes) write(i);
  write(last);
}

template <class Out>
using DistinctWriter = void (*)(const DistinctTables<Out>&, const Out*, Out*);

template <class Out, int kSymbols = Lanes<Out>::kCount>
DistinctWriter<Out> distinct_writer_for(int symbols) {
  constexpr int kMostVectors = 7;
  if constexpr (kSymbols == kWordBits) {
    return write_distinct<0, Out>;
  } else {
    if constexpr (Period<kSymbols, Out>::kVectors <= kMostVectors) {
      if (symbols == kSymbols) return write_distinct<kSymbols, Out>;
    }
    return distinct_writer_for<Out, kSymbols + 1>(symbols);
  }
}

// The columns 0..V-1 in vectors, the last of which overlaps the one before: no tail.
template <class Out, int kVectors>
struct Columns {
  using Vector = typename Lanes<Out>::Vector;
  static constexpr int kLanes = Lanes<Out>::kCount;

  int first[kVectors];

  explicit Columns(int symbols) {
    for (int i = 0; i < kVectors; ++i) first[i] = i + 1 < kVectors ? i * kLanes : symbols - kLanes;
  }
};

// Writes the rows of scanned steps from registers. Nothing branches on the data, for whether a key
// is new cannot be predicted.
template <int kVectors, class Out>
void write_rows(int64_t rows, int symbols, const NoiselessStep<Out>* steps, const Out* used_at,
                Out* row) {
  using Vector = typename Lanes<Out>::Vector;
  const Columns<Out, kVectors> columns(symbols);
  Vector used[kVectors], value[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    used[i] = *reinterpret_cast<const Vector*>(used_at + columns.first[i]);
    for (int lane = 0; lane < columns.kLanes; ++lane) {
      value[i][lane] = static_cast<Out>(columns.first[i] + lane);
    }
  }
  const Vector one = Vector{} + Out(1);
  Vector step = {};
  for (int64_t t = 0; t < rows; ++t, row += symbols, step += one) {
    const Vector share = steps[t].share - Vector{};
    for (int i = 0; i < kVectors; ++i) {
      const Vector p = used[i] >= step ? share : Vector{};
      *reinterpret_cast<Vector*>(row + columns.first[i]) = value[i] == steps[t].known ? one : p;
    }
  }
}

// The same for rows that are shorter than a vector or too long for the registers.
template <class Out>
void write_rows_in_memory(int64_t rows, int symbols, const NoiselessStep<Out>* steps,
                          const Out* used_at, Out* row) {
  for (int64_t t = 0; t < rows; ++t, row += symbols) {
    const Out step = static_cast<Out>(t), share = steps[t].share;
    for (int v = 0; v < symbols; ++v) row[v] = used_at[v] >= step ? share : Out(0);
    if (steps[t].known >= 0) row[static_cast<int>(steps[t].known)] = Out(1);
  }
}

template <class Out>
auto row_writer_for(int symbols) {
  constexpr int kLanes = Lanes<Out>::kCount;
  if (symbols < kLanes) return write_rows_in_memory<Out>;
  switch ((symbols + kLanes - 1) / kLanes) {
    case 1: return write_rows<1, Out>;
    case 2: return write_rows<2, Out>;
    case 3: return write_rows<3, Out>;
    case 4: return write_rows<4, Out>;
    case 5: return write_rows<5, Out>;
    default: return write_rows_in_memory<Out>;
  }
}

template <class Id, class Out, class Report>
void noiseless_sequences(int64_t begin, int64_t end, const StepView& batch, int symbols,
                         const CountTables<Out>& tables, const RowWriter<Out>& writer,
                         Report report) {
  const auto write = row_writer_for<Out>(symbols);
  const auto write_distinct = distinct_writer_for<Out>(symbols);
  const IdView &keys = batch.keys, &values = batch.values;
  const bool dense = keys.column_bytes == sizeof(Id) && values.column_bytes == sizeof(Id);
  const bool may_be_distinct = dense && tables.distinct.has_value() && batch.length >= kWords &&
                               batch.length * symbols >= Lanes<Out>::kCount;
  // Sequences go through the stages in groups: vectors cannot be read from what was stored a moment
  // ago in smaller pieces without waiting for the cache, and for all stores before.
  constexpr int64_t kGroup = 4;
  const int64_t width = 2 * symbols + Lanes<Out>::kCount;
  std::vector<Out> used_at(kGroup * width);
  std::vector<NoiselessStep<Out>> steps(batch.length);
  Seen seen(symbols);
  bool distinct[kGroup] = {};
  for (int64_t first = begin; first < end; first += kGroup) {
    const int64_t count = std::min(kGroup, end - first);
    for (int64_t i = 0; may_be_distinct && i < count; ++i) {
      const int64_t b = first + i;
      distinct[i] =
          scan_distinct(reinterpret_cast<const Id*>(keys.data + b * keys.row_bytes),
                        reinterpret_cast<const Id*>(values.data + b * values.row_bytes),
                        batch.length, symbols, tables.distinct->share.data(), &used_at[i * width]);
    }
    for (int64_t i = 0; i < count; ++i) continue_columns(symbols, &used_at[i * width]);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t b = first + i;
      RowWriter<Out> out = writer.at(b, batch.length, symbols);
      if (distinct[i]) {
        write_distinct(*tables.distinct, &used_at[i * width], out.posterior);
        copy(tables.distinct->entropy.data(), out.entropy, batch.length);
        copy(tables.distinct->log_evidence.data(), out.log_evidence, batch.length);
        continue;
      }
      const int64_t fault = scan_noiseless<Id>(batch.row(b), symbols, seen, tables, steps.data(),
                                               &used_at[i * width], out);
      const int64_t rows = fault == kNoFault ? batch.length : out.rows_before(fault);
      write(rows, symbols, steps.data(), &used_at[i * width], out.posterior);
      if (fault != kNoFault) report(b, fault, out);
    }
  }
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

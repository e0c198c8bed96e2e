// Noiseless sequences: a scan of the steps, then the rows.
// Included per instruction set by bijection_posterior_simd.h.

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

// Loops of vectors: for a short row a call of memset or memcpy costs more than the row.
template <class Out>
void fill(Out* row, int count, Out value) {
  constexpr int kLanes = Lanes<Out>::kCount;
  using Vector = typename Lanes<Out>::Vector;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) *reinterpret_cast<Vector*>(row + i) = Vector{} + value;
  for (; i < count; ++i) row[i] = value;
}

// The last vector overlaps the one before: no tail.
template <class Out>
void copy(const Out* from, Out* to, int64_t count) {
  constexpr int kLanes = Lanes<Out>::kCount;
  using Vector = typename Lanes<Out>::Vector;
  if (count < kLanes) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t at = std::min(i, count - kLanes);
    *reinterpret_cast<Vector*>(to + at) = *reinterpret_cast<const Vector*>(from + at);
  }
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

// Whether ids are distinct and all in [0, symbols). Ids seen twice do no harm to a set of bits, so
// the last vector may overlap the one before.
template <class Id>
bool are_distinct(const Id* ids, int64_t count, int symbols) {
  constexpr int kLanes = Lanes<uint64_t>::kCount;
  using Vector = typename Lanes<uint64_t>::Vector;
  typedef Id Ids __attribute__((vector_size(sizeof(Id) * kLanes), aligned(sizeof(Id))));
  Vector seen = {}, largest = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Ids here = *reinterpret_cast<const Ids*>(ids + std::min(i, count - kLanes));
    const Vector wide = __builtin_convertvector(here, Vector);  // what is negative becomes large
    largest |= wide;
    seen |= (Vector{} + 1) << (wide & (kWordBits - 1));
  }
  uint64_t all_seen = 0, all_largest = 0;
  for (int i = 0; i < kLanes; ++i) all_seen |= seen[i], all_largest |= largest[i];
  const uint64_t allowed = ~uint64_t{0} >> (kWordBits - symbols);
  return all_largest < kWordBits && (all_seen & ~allowed) == 0 &&
         __builtin_popcountll(all_seen) == count;
}

// The common case of distinct keys, where sequences differ only in when each value is used. Shares
// grow from step to step, so the share at that step tells it. Returns false, for the scan above to
// decide, if anything is repeated or wrong.
template <class Id, class Out>
bool scan_distinct(const Id* keys, const Id* values, int64_t length, int symbols, const Out* share,
                   Out* used_at) {
  if (!are_distinct(keys, length, symbols) || !are_distinct(values, length, symbols)) return false;
  fill(used_at, symbols, std::numeric_limits<Out>::infinity());
#pragma GCC unroll 4
  for (int64_t t = 0; t < length; ++t) used_at[values[t]] = share[t];
  return true;
}

// Writes the rows of distinct keys as one run of aligned vectors, for a store that straddles cache
// lines costs as much as several; the first and the last vector overlap their neighbours. The same
// columns come again after kPeriod vectors, which are kept in registers; kPeriod = 0: after too
// many. `used_at` is continued periodically, so that a vector can start in any column.
template <int kPeriod, class Out>
void write_distinct(int symbols, const DistinctTables<Out>& tables, Out* used_at, Out* rows) {
  constexpr int kLanes = Lanes<Out>::kCount;
  using Vector = typename Lanes<Out>::Vector;
  for (int at = symbols; at < symbols + kLanes; at += symbols) copy(used_at, used_at + at, symbols);
  const Out* shares = tables.shares.data();
  const int32_t* columns = tables.columns.data();
  const auto write = [&](int64_t i, const Vector& used) {
    const Vector share = *reinterpret_cast<const Vector*>(shares + i);
    *reinterpret_cast<Vector*>(rows + i) = used >= share ? share : Vector{};
  };
  const auto used_from = [&](int64_t i) -> const Vector& {
    return *reinterpret_cast<const Vector*>(used_at + columns[i]);
  };
  const int64_t last = tables.shares.size() - kLanes;
  int64_t i = -reinterpret_cast<uintptr_t>(rows) % BWT_SIMD_BYTES / sizeof(Out);
  write(0, used_from(0));
  if constexpr (kPeriod > 0) {
    constexpr int64_t kAhead = (kPeriod - 1) * kLanes;
    if (i + kAhead <= last) {
      Vector used[kPeriod];
      for (int k = 0; k < kPeriod; ++k) used[k] = used_from(i + k * kLanes);
      for (; i + kAhead <= last; i += kPeriod * kLanes) {
#pragma GCC unroll 8
        for (int k = 0; k < kPeriod; ++k) write(i + k * kLanes, used[k]);
      }
    }
  }
  for (; i <= last; i += kLanes) write(i, used_from(i));
  write(last, used_from(last));
}

template <class Out>
auto distinct_writer_for(int symbols) {
  switch (symbols / std::gcd(symbols, Lanes<Out>::kCount)) {
    case 1: return write_distinct<1, Out>;
    case 2: return write_distinct<2, Out>;
    case 3: return write_distinct<3, Out>;
    case 4: return write_distinct<4, Out>;
    case 5: return write_distinct<5, Out>;
    case 6: return write_distinct<6, Out>;
    case 7: return write_distinct<7, Out>;
    default: return write_distinct<0, Out>;
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
  const bool may_be_distinct = dense && tables.distinct.has_value() &&
                               batch.length >= Lanes<uint64_t>::kCount &&
                               batch.length * symbols >= Lanes<Out>::kCount;
  // Sequences are scanned in groups before they are written: vectors cannot be read from scalars
  // that were stored a moment ago without waiting for the cache.
  constexpr int64_t kGroup = 16;
  const int64_t width = std::max(2 * symbols + Lanes<Out>::kCount, kWordBits);
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
    for (int64_t i = 0; i < count; ++i) {
      const int64_t b = first + i;
      RowWriter<Out> out = writer.at(b, batch.length, symbols);
      if (distinct[i]) {
        write_distinct(symbols, *tables.distinct, &used_at[i * width], out.posterior);
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

// Noiseless sequences: a scan of the steps, then the rows. Included per instruction set by
// bijection_posterior_simd.h.

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

template <class Out>
void copy(const Out* from, Out* to, int64_t count) {
  constexpr int kLanes = Lanes<Out>::kCount;
  using Vector = typename Lanes<Out>::Vector;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    *reinterpret_cast<Vector*>(to + i) = *reinterpret_cast<const Vector*>(from + i);
  }
  for (; i < count; ++i) to[i] = from[i];
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

constexpr int kBits = 64;

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

// The same for the common case of all keys distinct, where only the values differ between
// sequences. Returns false, for the scan above to decide, if anything is repeated or wrong.
template <class Id, class Out>
bool scan_distinct(const StepView& view, int symbols, const CountTables<Out>& tables, Out* used_at,
                   const RowWriter<Out>& out) {
  if (symbols > kBits || view.length > symbols) return false;
  const IdRow<Id> keys(view.keys), values(view.values);
  const uint64_t limit = symbols;
  uint64_t seen_keys = 0, seen_values = 0;
  bool outside = false;
  fill(used_at, symbols, std::numeric_limits<Out>::infinity());
  Out step = 0;
  for (int64_t t = 0; t < view.length; ++t, step += 1) {
    const uint64_t key = keys[t], value = values[t];
    outside |= (key >= limit) | (value >= limit);
    seen_keys |= uint64_t{1} << (key % kBits);
    seen_values |= uint64_t{1} << (value % kBits);
    used_at[value % kBits] = step;
  }
  if (outside || __builtin_popcountll(seen_keys) != view.length ||
      __builtin_popcountll(seen_values) != view.length) {
    return false;
  }
  copy(tables.fresh_entropy.data(), out.entropy, view.length);
  copy(tables.fresh_evidence.data(), out.log_evidence, view.length);
  return true;
}

// The columns 0..V-1 in vectors, the last of which overlaps the one before: no tail.
template <class Out, int kVectors>
struct Columns {
  using Vector = typename Lanes<Out>::Vector;
  static constexpr int kLanes = Lanes<Out>::kCount;

  int first[kVectors];
  Vector used[kVectors];  // the step at which a value was used
  Vector value[kVectors];

  Columns(int symbols, const Out* used_at) {
    Vector lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<Out>(i);
    for (int i = 0; i < kVectors; ++i) {
      first[i] = i + 1 < kVectors ? i * kLanes : symbols - kLanes;
      used[i] = *reinterpret_cast<const Vector*>(used_at + first[i]);
      value[i] = lane + static_cast<Out>(first[i]);
    }
  }
};

// Writes rows from registers. Nothing branches on the data, for whether a key is new cannot be
// predicted.
template <int kVectors, bool kRepeats, class Out>
void write_rows(int64_t rows, int symbols, const NoiselessStep<Out>* steps, const Out* used_at,
                Out* row) {
  using Vector = typename Lanes<Out>::Vector;
  const Columns<Out, kVectors> columns(symbols, used_at);
  const Vector one = Vector{} + Out(1);
  Vector step = {};
  for (int64_t t = 0; t < rows; ++t, row += symbols, step += one) {
    const Vector share = Vector{} + steps[t].share;
    for (int i = 0; i < kVectors; ++i) {
      Vector p = columns.used[i] >= step ? share : Vector{};
      if constexpr (kRepeats) p = columns.value[i] == steps[t].known ? one : p;
      *reinterpret_cast<Vector*>(row + columns.first[i]) = p;
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

template <class Out, bool kRepeats>
auto row_writer_for(int symbols) {
  constexpr int kLanes = Lanes<Out>::kCount;
  if (symbols < kLanes) return write_rows_in_memory<Out>;
  switch ((symbols + kLanes - 1) / kLanes) {
    case 1: return write_rows<1, kRepeats, Out>;
    case 2: return write_rows<2, kRepeats, Out>;
    case 3: return write_rows<3, kRepeats, Out>;
    case 4: return write_rows<4, kRepeats, Out>;
    case 5: return write_rows<5, kRepeats, Out>;
    default: return write_rows_in_memory<Out>;
  }
}

template <class Id, class Out, class Report>
void noiseless_sequences(int64_t begin, int64_t end, const StepView& batch, int symbols,
                         const CountTables<Out>& tables, const RowWriter<Out>& writer,
                         Report report) {
  const auto write = row_writer_for<Out, true>(symbols);
  const auto write_distinct = row_writer_for<Out, false>(symbols);
  Seen seen(symbols);
  std::vector<Out> used_at(std::max(symbols, kBits));
  std::vector<NoiselessStep<Out>> steps(batch.length);
  for (int64_t b = begin; b < end; ++b) {
    const StepView view = batch.row(b);
    RowWriter<Out> out = writer.at(b, batch.length, symbols);
    if (scan_distinct<Id>(view, symbols, tables, used_at.data(), out)) {
      write_distinct(batch.length, symbols, tables.fresh.data(), used_at.data(), out.posterior);
      continue;
    }
    const int64_t fault =
        scan_noiseless<Id>(view, symbols, seen, tables, steps.data(), used_at.data(), out);
    const int64_t rows = fault == kNoFault ? batch.length : out.rows_before(fault);
    write(rows, symbols, steps.data(), used_at.data(), out.posterior);
    if (fault != kNoFault) report(b, fault, out);
  }
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

// CPU implementation of bwt::bijection_posterior: threads over sequences, SIMD inside one.
#include <torch/csrc/stable/library.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "cpu/bijection_posterior/arguments.h"
#include "cpu/checks.h"
#include "cpu/pieces.h"
#include "cpu/tensors.h"
#include "host_device/bijection_posterior/channel_gradient.h"
#include "host_device/bijection_posterior/ladder.h"
#include "host_device/bijection_posterior/row_writer.h"
#include "host_device/wide.h"

#define BWT_SIMD_FILE "cpu/bijection_posterior/kernels_simd.h"
#include "cpu/simd/foreach_level.h"

namespace bwt {
namespace {

IdView id_view(const Tensor& ids) {
  const bool wide = ids.scalar_type() == ScalarType::Long;
  const int64_t bytes = wide ? sizeof(int64_t) : sizeof(int32_t);
  return {data<char>(ids), wide, ids.stride(0) * bytes, ids.stride(1) * bytes};
}

StepView step_view(const Tensor& keys, const Tensor& values) {
  return {id_view(keys), id_view(values), keys.size(1)};
}

class FirstFault {
 public:
  void report(int64_t sequence, int64_t length, int64_t fault) {
    const int64_t mine = sequence * length * 4 + fault;
    int64_t seen = first_.load(std::memory_order_relaxed);
    while (mine < seen && !first_.compare_exchange_weak(seen, mine)) {
    }
  }
  int64_t get() const { return first_.load(); }

 private:
  std::atomic<int64_t> first_{kNoFault};
};

struct Outputs {
  Tensor posterior, entropy, log_evidence;

  template <class Out>
  RowWriter<Out> writer() const {
    return {mutable_data<Out>(posterior), mutable_data<Out>(entropy),
            mutable_data<Out>(log_evidence)};
  }
};

template <class Out>
void settle(int64_t sequence, int64_t fault, RowWriter<Out>& out, int64_t length, int symbols,
            FirstFault& first_fault) {
  out.clear(SerialTeam{}, fault, length, symbols);
  first_fault.report(sequence, length, fault);
}

template <class Id, class Out>
void noiseless(const Tensor& keys, const Tensor& values, int symbols, const Outputs& outputs,
               FirstFault& first_fault) {
  const int64_t length = keys.size(1);
  const StepView steps = step_view(keys, values);
  const RowWriter<Out> writer = outputs.writer<Out>();
  const CountTables<Out> tables(symbols, length);
  const int64_t grain = 1 + 16384 / (1 + length * symbols);
  torch::stable::parallel_for(0, keys.size(0), grain, [&](int64_t begin, int64_t end) {
    BWT_SIMD_CALL(noiseless_sequences<Id>, begin, end, steps, symbols, tables, writer,
                  [&](int64_t b, int64_t fault, RowWriter<Out>& out) {
                    settle(b, fault, out, length, symbols, first_fault);
                  });
  });
}

// Zeroed and lazily mapped: pages of levels that a short sequence never reaches cost nothing.
template <class Real>
struct TableMemory {
  TableMemory(int symbols, bool adjoints)
      : numbers(static_cast<Real*>(std::calloc(
            BWT_SIMD_CALL(BlockedTable<Real>::size, symbols, adjoints), sizeof(Real)))) {
    STD_TORCH_CHECK(numbers != nullptr, "bijection_posterior: no memory for the subset table");
  }
  ~TableMemory() { std::free(numbers); }
  TableMemory(const TableMemory&) = delete;
  TableMemory& operator=(const TableMemory&) = delete;

  Real* numbers;
};

template <class Real, class Out>
void noisy(const Tensor& keys, const Tensor& values, int symbols, const Tensor& channel,
           const Outputs& outputs, FirstFault& first_fault) {
  const int64_t length = keys.size(1);
  const StepView steps = step_view(keys, values);
  const RowWriter<Out> writer = outputs.writer<Out>();
  torch::stable::parallel_for(0, keys.size(0), 1, [&](int64_t begin, int64_t end) {
    TableMemory<Real> table(symbols, false);
    BWT_SIMD_CALL(
        noisy_sequences, begin, end, steps, symbols, data<double>(channel), table.numbers, false,
        [&](int64_t b) { return writer.at(b, length, symbols); },
        [&](int64_t b, int64_t fault, RowWriter<Out>& out) {
          settle(b, fault, out, length, symbols, first_fault);
        });
  });
}

template <class Real, class In>
void channel_gradient(const Tensor& d_posterior, const Tensor& d_entropy,
                      const Tensor& d_later_evidence, const Tensor& keys, const Tensor& values,
                      const Tensor& channel, double* total) {
  const int64_t batch = keys.size(0), length = keys.size(1);
  const int symbols = static_cast<int>(channel.size(0));
  const StepView steps = step_view(keys, values);
  const int64_t pieces = std::min(batch, kGradientPieces);
  const size_t entries = static_cast<size_t>(symbols) * symbols;
  std::vector<double> sums(pieces * entries);
  torch::stable::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    TableMemory<Real> table(symbols, true);
    for (int64_t piece = begin; piece < end; ++piece) {
      const auto sink = [&](int64_t b) {
        return ChannelGradient<Real, In>{
            data<In>(d_posterior) + b * length * symbols, data<In>(d_entropy) + b * length,
            data<double>(d_later_evidence) + b * length, sums.data() + piece * entries};
      };
      BWT_SIMD_CALL(noisy_sequences, batch * piece / pieces, batch * (piece + 1) / pieces, steps,
                    symbols, data<double>(channel), table.numbers, true, sink, [](auto...) {});
    }
  });
  for (int64_t piece = 0; piece < pieces; ++piece) {
    for (size_t i = 0; i < entries; ++i) total[i] += sums[piece * entries + i];
  }
}

using Results = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kOp = "bijection_posterior";

void check_ids(const Tensor& keys, const Tensor& values) {
  check_that(is_id_matrix(keys), kOp, "keys");
  check_that(
      values.scalar_type() == keys.scalar_type() && has_sizes(values, {keys.size(0), keys.size(1)}),
      kOp, "values");
}

void check_channel(const Tensor& channel) {
  check_that(channel.dim() == 2, kOp, "channel");
  const int64_t symbols = channel.size(0);
  check_that(channel.scalar_type() == ScalarType::Double && channel.size(1) == symbols &&
                 1 <= symbols && symbols <= kMaxNoisySymbols,
             kOp, "channel");
}

Outputs new_outputs(const Tensor& keys, int64_t symbols, ScalarType dtype) {
  const int64_t batch = keys.size(0), length = keys.size(1);
  return {allocate(keys, {batch, length, symbols}, dtype), allocate(keys, {batch, length}, dtype),
          allocate(keys, {batch, length}, dtype)};
}

Results results(const Outputs& outputs, const FirstFault& first_fault) {
  Tensor fault = allocate(outputs.entropy, {1}, ScalarType::Long);
  *mutable_data<int64_t>(fault) = first_fault.get();
  return {outputs.posterior, outputs.entropy, outputs.log_evidence, fault};
}

Results bijection_posterior_noiseless(const Tensor& keys, const Tensor& values, int64_t num_symbols,
                                      ScalarType dtype) {
  check_ids(keys, values);
  check_that(1 <= num_symbols && num_symbols <= kMaxSymbols, kOp, "num_symbols");
  check_that(is_float(dtype), kOp, "dtype");
  const Outputs outputs = new_outputs(keys, num_symbols, dtype);
  FirstFault first_fault;
  const bool narrow = dtype == ScalarType::Float;
  const bool wide_ids = keys.scalar_type() == ScalarType::Long;
  auto run = wide_ids ? (narrow ? noiseless<int64_t, float> : noiseless<int64_t, double>)
                      : (narrow ? noiseless<int32_t, float> : noiseless<int32_t, double>);
  run(keys, values, static_cast<int>(num_symbols), outputs, first_fault);
  return results(outputs, first_fault);
}

Results bijection_posterior_noisy(const Tensor& keys, const Tensor& values,
                                  const Tensor& any_channel, ScalarType dtype) {
  check_ids(keys, values);
  check_channel(any_channel);
  check_that(is_float(dtype), kOp, "dtype");
  const Tensor channel = packed(any_channel);
  const Outputs outputs = new_outputs(keys, channel.size(0), dtype);
  FirstFault first_fault;
  const bool narrow = dtype == ScalarType::Float;
  auto run = needs_wide(data<double>(channel), channel.numel(), keys.size(1))
                 ? (narrow ? noisy<Wide, float> : noisy<Wide, double>)
                 : (narrow ? noisy<double, float> : noisy<double, double>);
  run(keys, values, static_cast<int>(channel.size(0)), channel, outputs, first_fault);
  return results(outputs, first_fault);
}

Tensor bijection_posterior_backward(const Tensor& d_posterior, const Tensor& d_entropy,
                                    const Tensor& d_later_evidence, const Tensor& keys,
                                    const Tensor& values, const Tensor& any_channel) {
  check_ids(keys, values);
  check_channel(any_channel);
  const int64_t batch = keys.size(0), length = keys.size(1);
  const ArgumentCheck same(kOp, d_posterior.scalar_type(), "grad_posterior");
  same.sizes("grad_posterior", d_posterior, {batch, length, any_channel.size(0)});
  same.sizes("grad_entropy", d_entropy, {batch, length});
  check_that(d_later_evidence.scalar_type() == ScalarType::Double &&
                 has_sizes(d_later_evidence, {batch, length}),
             kOp, "grad_later_evidence");
  const Tensor channel = packed(any_channel);
  Tensor d_channel = torch::stable::new_zeros(channel, {channel.size(0), channel.size(1)});
  double* total = mutable_data<double>(d_channel);
  const bool narrow = d_posterior.scalar_type() == ScalarType::Float;
  auto run = needs_wide(data<double>(channel), channel.numel(), keys.size(1))
                 ? (narrow ? channel_gradient<Wide, float> : channel_gradient<Wide, double>)
                 : (narrow ? channel_gradient<double, float> : channel_gradient<double, double>);
  run(packed(d_posterior), packed(d_entropy), packed(d_later_evidence), keys, values, channel,
      total);
  return d_channel;
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) {
  m.impl("bijection_posterior", TORCH_BOX(&bwt::bijection_posterior_noiseless));
  m.impl("bijection_posterior.noisy", TORCH_BOX(&bwt::bijection_posterior_noisy));
  m.impl("bijection_posterior_backward", TORCH_BOX(&bwt::bijection_posterior_backward));
}

// CUDA implementation of bwt::bijection_posterior: tensors in, launches, tensors out.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/bijection_posterior/noiseless.cuh"
#include "cuda/bijection_posterior/noisy.cuh"

namespace bwt {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Levels in global memory may take this much together; more sequences wait their turn.
constexpr size_t kWorkspaceBytes = size_t{1} << 30;
// Of 256 threads, on a processor: more would only add to what the L2 cache cannot hold.
constexpr int kBlocksWithLevelsInGlobalMemory = 4;

template <class T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// Says in one line what failed, where torch's own check adds lines of advice.
template <class... Words>
void check(cudaError_t error, const Words&... what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // lest the next launch be blamed for it
  std::ostringstream message;
  message << "bijection_posterior: " << cudaGetErrorString(error) << ": ";
  (message << ... << what);
  throw std::runtime_error(message.str());
}

cudaStream_t current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  STD_CUDA_CHECK(cudaGetDevice(&device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};

template <class T>
std::unique_ptr<T, DeviceFree> copy_to_device(const std::vector<T>& host) {
  const size_t bytes = host.size() * sizeof(T);
  T* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "the table of subsets takes ", bytes,
        " bytes of the GPU; free some of its memory");
  std::unique_ptr<T, DeviceFree> copy(memory);
  STD_CUDA_CHECK(cudaMemcpy(memory, host.data(), bytes, cudaMemcpyHostToDevice));
  return copy;
}

// The lattice with its tables on the device, and what a block needs for it.
struct DeviceLattice {
  LatticeTables tables;
  int threads, capacity;
  std::unique_ptr<int, DeviceFree> numbers;
  std::unique_ptr<uint16_t, DeviceFree> steps;

  explicit DeviceLattice(int symbols)
      : tables(symbols),
        threads(symbols <= 10 ? 128 : 256),
        capacity(tables.capacity(threads / kWarp)),
        numbers(copy_to_device(tables.numbers)),
        steps(copy_to_device(tables.steps)) {}

  Lattice view() const { return tables.at(numbers.get(), steps.get()); }
};

// Made once per device and number of symbols and kept, for a captured graph still reads it: 130 kB
// at V = 20, 1.8 MB at V = 24.
const DeviceLattice& device_lattice(int symbols) {
  static std::mutex mutex;
  static auto& made = *new std::map<std::pair<int, int>, DeviceLattice>;  // outlives the driver
  int device = 0;
  STD_CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard<std::mutex> lock(mutex);
  return made.try_emplace({device, symbols}, symbols).first->second;
}

struct Plan {
  int blocks, threads;
  size_t shared_bytes;
  std::optional<Tensor> workspace;
};

template <class Kernel, class... Arguments>
void launch(Kernel kernel, const Plan& plan, cudaStream_t stream, Arguments... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(plan.shared_bytes)),
        "a block cannot have ", plan.shared_bytes, " bytes of shared memory; use fewer symbols");
  kernel<<<plan.blocks, plan.threads, plan.shared_bytes, stream>>>(arguments...);
  check(cudaGetLastError(), plan.blocks, " blocks of ", plan.threads, " threads with ",
        plan.shared_bytes,
        " bytes of shared memory; CUDA_LAUNCH_BLOCKING=1 tells if an earlier kernel failed");
}

// The channel row by row, and whether doubles are wide enough for it, on the device.
struct PreparedChannel {
  Tensor rows, wide;

  PreparedChannel(const Tensor& channel, int64_t length, cudaStream_t stream)
      : rows(torch::stable::contiguous(channel)),
        wide(torch::stable::new_empty(channel, {1}, ScalarType::Int)) {
    launch(channel_range_kernel, Plan{1, kWarp, 0, std::nullopt}, stream, data<const double>(rows),
           static_cast<int>(rows.numel()), length, data<int>(wide));
  }
};

// Sequences that run side by side; more wait their turn.
int64_t resident_blocks(int64_t batch, int each_processor = 8) {
  return std::min<int64_t>(batch,
                           each_processor * device_attribute(cudaDevAttrMultiProcessorCount));
}

// A launch, and the memory of its blocks.
struct NoisyPlan : Plan {
  Lattice lattice;
  int capacity, numbers;
};

// Where the levels live and how many blocks run at once. Gradients need all levels again on the way
// down, and the adjoint of each that a descent has stopped at.
template <class Real>
NoisyPlan plan_noisy(const Tensor& keys, int symbols, bool adjoints) {
  const DeviceLattice& made = device_lattice(symbols);
  NoisyPlan plan{{0, made.threads, 0, std::nullopt}, made.view(), 1 << symbols, 2 << symbols};
  if (!adjoints) {
    plan.capacity = made.capacity;
    plan.numbers = plan.capacity + made.tables.margin();
  }
  const size_t levels = sizeof(Real) * plan.numbers;
  plan.shared_bytes = NoisyBatch<Real>::scratch_bytes(symbols) +
                      NoisyBatch<Real>::partial_bytes(plan.lattice, plan.threads);
  if (plan.shared_bytes + levels <=
      size_t(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))) {
    plan.shared_bytes += levels;
    plan.blocks = static_cast<int>(resident_blocks(keys.size(0)));
  } else {
    const int64_t fitting = std::max<int64_t>(1, kWorkspaceBytes / levels);
    const int64_t resident = resident_blocks(keys.size(0), kBlocksWithLevelsInGlobalMemory);
    plan.blocks = static_cast<int>(std::min(resident, fitting));
    plan.workspace = torch::stable::new_empty(keys, {plan.blocks, static_cast<int64_t>(levels)},
                                              ScalarType::Byte);
  }
  return plan;
}

template <class Real>
NoisyBatch<Real> noisy_batch(const Tensor& keys, const Tensor& values,
                             const PreparedChannel& channel, const NoisyPlan& plan,
                             int64_t* first_fault) {
  return {data<const int64_t>(keys),
          data<const int64_t>(values),
          keys.size(0),
          keys.size(1),
          data<const double>(channel.rows),
          plan.lattice,
          plan.capacity,
          plan.numbers,
          plan.workspace ? data<Real>(*plan.workspace) : nullptr,
          first_fault,
          data<const int>(channel.wide)};
}

template <class Out>
void noiseless(const Tensor& keys, const Tensor& values, int symbols, RowWriter<Out> out,
               int64_t* first_fault, cudaStream_t stream) {
  const int64_t batch = keys.size(0);
  const int bytes = 2 * symbols * static_cast<int>(sizeof(int));  // of one warp
  const int warps = std::clamp(48 * 1024 / bytes, 1, 4);
  const int64_t blocks = std::min<int64_t>((batch + warps - 1) / warps, 1 << 20);
  const Plan plan{static_cast<int>(blocks), warps * kWarp, size_t(bytes) * warps, std::nullopt};
  launch(noiseless_kernel<Out>, plan, stream,
         NoiselessBatch<Out>{data<const int64_t>(keys), data<const int64_t>(values), batch,
                             keys.size(1), symbols, out, first_fault});
}

template <class Real, class Out>
void noisy(const Tensor& keys, const Tensor& values, int symbols, const PreparedChannel& channel,
           RowWriter<Out> out, int64_t* first_fault, cudaStream_t stream) {
  const NoisyPlan plan = plan_noisy<Real>(keys, symbols, false);
  launch(noisy_kernel<Real, Out>, plan, stream,
         noisy_batch<Real>(keys, values, channel, plan, first_fault), out);
}

template <class Real, class In>
void channel_gradient(const Tensor (&gradients)[3], const Tensor& keys, const Tensor& values,
                      int symbols, const PreparedChannel& channel, const Tensor& sums,
                      cudaStream_t stream) {
  const NoisyPlan plan = plan_noisy<Real>(keys, symbols, true);
  launch(channel_gradient_kernel<Real, In>, plan, stream,
         noisy_batch<Real>(keys, values, channel, plan, nullptr), data<const In>(gradients[0]),
         data<const In>(gradients[1]), data<const double>(gradients[2]), data<double>(sums));
}

Tensor as_rows(const Tensor& ids) {
  return torch::stable::contiguous(torch::stable::to(ids, ScalarType::Long));
}

template <class Out>
void run_forward(const Tensor& keys, const Tensor& values, int symbols,
                 const std::optional<Tensor>& channel, const Tensor& posterior,
                 const Tensor& entropy, const Tensor& log_evidence, int64_t* first_fault) {
  const RowWriter<Out> out{data<Out>(posterior), data<Out>(entropy), data<Out>(log_evidence)};
  const cudaStream_t stream = current_stream(keys);
  if (!channel.has_value()) return noiseless<Out>(keys, values, symbols, out, first_fault, stream);
  const PreparedChannel prepared(*channel, keys.size(1), stream);
  noisy<double, Out>(keys, values, symbols, prepared, out, first_fault, stream);
  noisy<Wide, Out>(keys, values, symbols, prepared, out, first_fault, stream);
}

using Results = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Results forward(const Tensor& keys, const Tensor& values, int64_t num_symbols,
                const std::optional<Tensor>& channel, ScalarType dtype) {
  const torch::stable::accelerator::DeviceGuard guard(keys.get_device_index());
  const int64_t batch = keys.size(0), length = keys.size(1);
  Tensor posterior = torch::stable::new_empty(keys, {batch, length, num_symbols}, dtype);
  Tensor entropy = torch::stable::new_empty(keys, {batch, length}, dtype);
  Tensor log_evidence = torch::stable::new_empty(keys, {batch, length}, dtype);
  Tensor fault = torch::stable::new_empty(keys, {1}, ScalarType::Long);
  STD_CUDA_CHECK(cudaMemsetAsync(fault.data_ptr(), 0x7f, sizeof(int64_t), current_stream(keys)));
  if (batch > 0 && length > 0) {
    auto run = dtype == ScalarType::Float ? run_forward<float> : run_forward<double>;
    run(as_rows(keys), as_rows(values), static_cast<int>(num_symbols), channel, posterior, entropy,
        log_evidence, data<int64_t>(fault));
  }
  return {posterior, entropy, log_evidence, fault};
}

Results bijection_posterior(const Tensor& keys, const Tensor& values, int64_t num_symbols,
                            ScalarType dtype) {
  return forward(keys, values, num_symbols, std::nullopt, dtype);
}

Results bijection_posterior_noisy(const Tensor& keys, const Tensor& values, const Tensor& channel,
                                  ScalarType dtype) {
  return forward(keys, values, channel.size(0), channel, dtype);
}

Tensor bijection_posterior_backward(const Tensor& d_posterior, const Tensor& d_entropy,
                                    const Tensor& d_later_evidence, const Tensor& keys,
                                    const Tensor& values, const Tensor& channel) {
  const torch::stable::accelerator::DeviceGuard guard(keys.get_device_index());
  const int symbols = static_cast<int>(channel.size(0));
  if (keys.numel() == 0) return torch::stable::new_zeros(channel, {symbols, symbols});
  const cudaStream_t stream = current_stream(keys);
  const PreparedChannel prepared(channel, keys.size(1), stream);
  const Tensor gradients[] = {torch::stable::contiguous(d_posterior),
                              torch::stable::contiguous(d_entropy),
                              torch::stable::contiguous(d_later_evidence)};
  // One of the two kernels adds to the sums of its blocks; neither has more than this.
  const int64_t blocks = resident_blocks(keys.size(0));
  Tensor sums = torch::stable::new_zeros(keys, {blocks, symbols, symbols}, ScalarType::Double);
  const bool narrow = d_posterior.scalar_type() == ScalarType::Float;
  for (auto run : {narrow ? channel_gradient<double, float> : channel_gradient<double, double>,
                   narrow ? channel_gradient<Wide, float> : channel_gradient<Wide, double>}) {
    run(gradients, as_rows(keys), as_rows(values), symbols, prepared, sums, stream);
  }
  const int64_t blocks_axis = 0;
  return torch::stable::sum(sums, {{&blocks_axis, 1}});
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CUDA, m) {
  m.impl("bijection_posterior", TORCH_BOX(&bwt::bijection_posterior));
  m.impl("bijection_posterior.noisy", TORCH_BOX(&bwt::bijection_posterior_noisy));
  m.impl("bijection_posterior_backward", TORCH_BOX(&bwt::bijection_posterior_backward));
}

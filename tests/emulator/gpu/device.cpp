// A CUDA device made of host memory, for a build of torch that has none: torch finds a device, its
// tensors are real ones with the CUDA dispatch key, and an op without a CUDA implementation runs on
// the CPU.
//
// To be loaded before torch, which looks for CUDA once.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/hash.h>

#include "graphs.h"

namespace {

using c10::DeviceIndex;
using c10::Stream;

int device_count = 1;
thread_local DeviceIndex current_device = 0;
// What makes the host wait for a GPU, or a GPU for the host.
std::atomic<int64_t> host_reads{0}, host_copies{0};
std::atomic<int64_t> kernels{0}, replays{0};  // that the host has launched

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  Device getDevice() const override { return Device(type(), current_device); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(Device device) const override {
    if (device.index() >= 0) current_device = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override { setDevice(device); }
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return device_count; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override { refuse_while_capturing(); }
  void synchronizeEvent(void*) const override { refuse_while_capturing(); }
  void synchronizeDevice(const DeviceIndex) const override { refuse_while_capturing(); }
  bool isStreamCapturing(const Stream&) const { return capturing != nullptr; }  // torch 2.13 asks
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return device_count; }
  DeviceIndex deviceCount() const override { return device_count; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  bool isPinnedPtr(const void*) const override { return false; }
};

Device indexed(std::optional<Device> device) {
  return device && device->has_index() ? *device : Device(c10::DeviceType::CUDA, current_device);
}

// The arguments of one call on their way to the CPU.
struct Arguments {
  std::optional<Device> device;
  std::vector<std::pair<Tensor, Tensor>> moved;  // device, host

  Tensor move(const Tensor& tensor, bool may_mix, const std::string& op) {
    if (!tensor.defined()) return tensor;
    if (tensor.is_cpu()) {
      TORCH_CHECK(may_mix || tensor.dim() == 0,
                  "Expected all tensors to be on the same device: ", op,
                  " got one on the CPU beside those on cuda");
      return capturing ? tensor.clone() : tensor;  // a graph has its value as of now
    }
    TORCH_CHECK(may_mix || !device || *device == tensor.device(),
                "Expected all tensors to be on the same device: ", op, " got two GPUs");
    device = tensor.device();
    moved.emplace_back(tensor, to_host(tensor));
    return moved.back().second;
  }

  IValue move(const IValue& value, bool may_mix, const std::string& op) {
    if (value.isTensor()) return move(value.toTensor(), may_mix, op);
    if (value.isTensorList()) {
      std::vector<Tensor> list = value.toTensorVector();
      for (Tensor& tensor : list) tensor = move(tensor, may_mix, op);
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor> tensor : value.toOptionalTensorList()) {
        list.push_back(tensor ? std::optional(move(*tensor, may_mix, op)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) {
      device = indexed(value.toDevice());
      return Device(c10::DeviceType::CPU);
    }
    return value;
  }

  // A tensor that the op was given is returned as it was given.
  IValue back(const IValue& value, Device to) const {
    if (value.isTensor()) return back(value.toTensor(), to);
    if (value.isTensorList()) {
      std::vector<Tensor> list = value.toTensorVector();
      for (Tensor& tensor : list) tensor = back(tensor, to);
      return list;
    }
    return value;
  }

  Tensor back(const Tensor& tensor, Device to) const {
    for (const auto& [original, host] : moved) {
      if (host.is_same(tensor)) return original;
    }
    return to_device(tensor, to);
  }
};

// Ops whose result, or its size, the host has to know.
const std::set<std::string> kReads{"aten::_local_scalar_dense",
                                   "aten::nonzero",
                                   "aten::masked_select",
                                   "aten::equal",
                                   "aten::is_nonzero",
                                   "aten::bincount",
                                   "aten::_unique2",
                                   "aten::unique_dim",
                                   "aten::unique_consecutive",
                                   "aten::unique_dim_consecutive"};
// Ops whose first two arguments may be on different devices.
const std::set<std::string> kCopies{"aten::copy_", "aten::_foreach_copy_"};
// Ops without a kernel.
const std::set<std::string> kNoKernel{"aten::_local_scalar_dense",
                                      "aten::empty",
                                      "aten::empty_strided",
                                      "aten::resize_",
                                      "aten::set_",
                                      "aten::record_stream"};

bool is_view(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return std::any_of(returns.begin(), returns.end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

std::vector<Tensor> tensors(const IValue& value) {
  return value.isTensor() ? std::vector<Tensor>{value.toTensor()} : value.toTensorVector();
}

enum class Work { kKernel, kNone, kRead, kCopy };

Work work_of(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments) {
  const std::string& op = schema.name();
  if (kReads.count(op)) return Work::kRead;
  if (kNoKernel.count(op) || is_view(schema)) return Work::kNone;
  if (!kCopies.count(op)) return Work::kKernel;
  const auto targets = tensors(arguments[0]), sources = tensors(arguments[1]);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].device() == sources[i].device()) continue;
    return targets[i].is_cpu() ? Work::kRead : Work::kCopy;
  }
  return Work::kKernel;
}

void count(Work work) {
  if (work == Work::kNone) return;
  if (work == Work::kKernel) {
    ++kernels;
  } else {
    ++(work == Work::kRead ? host_reads : host_copies);
    refuse_while_capturing();
  }
}

// Notes a call that has been made, with its arguments and results on the host.
void note(Graph& graph, const c10::OperatorHandle& op, torch::jit::Stack given,
          torch::jit::Stack results, const Arguments& arguments) {
  if (is_view(op.schema())) return;
  Node node{op, std::move(given), std::move(results), {}};
  for (const auto& entry : arguments.moved) {
    const Storage& storage = entry.first.storage();
    if (!graph.pool.count(storage.unsafeGetStorageImpl())) {
      node.borrowed.push_back(storage.getWeakStorageImpl());
    }
  }
  graph.add(std::move(node));
}

// Runs an op on the CPU twins of its arguments.
void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  TORCH_CHECK_NOT_IMPLEMENTED(name.rfind("aten::", 0) == 0, name,
                              " has no implementation for CUDA tensors");
  torch::jit::Stack call(stack->end() - schema.arguments().size(), stack->end());
  torch::jit::drop(*stack, call.size());
  count(work_of(schema, call));
  Arguments arguments;
  for (IValue& value : call) value = arguments.move(value, kCopies.count(name), name);
  const Device device = arguments.device.value_or(Device(c10::DeviceType::CUDA, current_device));
  Graph* graph = capturing;
  torch::jit::Stack given;
  if (graph != nullptr) {
    graph->check_generators(op, call);
    given = call;
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call);
  for (const auto& [original, host] : arguments.moved) follow(original, host);
  for (const IValue& result : call) stack->push_back(arguments.back(result, device));
  if (graph != nullptr) note(*graph, op, std::move(given), std::move(call), arguments);
}

// By way of the dispatcher's stack, as the ops without a function of their own.
template <class... Given>
Tensor boxed(const char* name, const char* overload, const Given&... given) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  torch::jit::Stack stack;
  torch::jit::push(stack, given...);
  on_the_host(op, &stack);
  return stack.back().toTensor();
}

// Allocations take the straight way: that of the others would dominate the time of a host that
// launches nothing. While a graph captures they are noted, as it does not keep what was in them.
Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout> layout, std::optional<Device> device,
             std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  if (capturing != nullptr) {
    return boxed("aten::empty", "memory_format", size, dtype, layout, device, pinned, format);
  }
  return to_device(at::empty(size, at::TensorOptions().dtype(dtype), format), indexed(device));
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<Device> device, std::optional<bool> pinned) {
  if (capturing != nullptr) {
    return boxed("aten::empty_strided", "", size, stride, dtype, layout, device, pinned);
  }
  return to_device(at::empty_strided(size, stride, at::TensorOptions().dtype(dtype)),
                   indexed(device));
}

}  // namespace

namespace at {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", Hooks)
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
}

// Ops for all devices that would look for CUDA code of torch's own.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  for (const char* name : {"copy_", "convolution", "convolution_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
  }
  // One op, as on a GPU, and not one for each tensor of the list.
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.rfind("aten::_foreach_", 0) != 0) continue;
    const std::string name = c10::toString(op).substr(std::strlen("aten::"));
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
  }
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
}

extern "C" {
void emulated_gpus(int count) { device_count = count; }
int emulated_device() { return current_device; }
void emulated_set_device(int index) { current_device = static_cast<DeviceIndex>(index); }
int64_t emulated_host_reads() { return host_reads; }
int64_t emulated_host_copies() { return host_copies; }
int64_t emulated_kernels() { return kernels; }
int64_t emulated_replays() { return replays; }
bool emulated_capturing() { return capturing != nullptr; }

// For what the host must not do while a graph captures: whether one does. It fails then.
bool emulated_refuses() {
  Graph* graph = capturing;
  if (graph != nullptr) graph->invalid = true;
  return graph != nullptr;
}

// A kernel that is not torch's has been launched. Its place in the graph that captures, or -1.
int64_t emulated_foreign() {
  ++kernels;
  Graph* graph = capturing;
  return graph == nullptr ? -1 : graph->add(std::nullopt);
}

void emulated_replayed() { ++replays; }

// The allocation of the device that holds an address; false if there is none.
bool emulated_range(uintptr_t address, uintptr_t* start, size_t* bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return false;
  --next;
  *start = next->first;
  *bytes = next->second;
  return address < next->first + next->second;
}
}

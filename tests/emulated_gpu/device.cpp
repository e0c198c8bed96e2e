// A CUDA device made of host memory, for a build of torch that has none: torch finds a device, its
// tensors are real ones with the CUDA dispatch key, and an op without a CUDA implementation runs on
// the CPU. Every CUDA storage is the twin of a CPU storage: same memory, other device.
//
// To be loaded before torch, which looks for CUDA once.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/hash.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <mutex>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::IValue;
using c10::Storage;
using c10::StorageImpl;
using c10::Stream;

int device_count = 1;
thread_local DeviceIndex current_device = 0;
// What makes the host wait for a GPU, or a GPU for the host.
std::atomic<int64_t> host_reads{0}, host_copies{0};

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
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
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

// The twins of CPU storages that have one, and what of memory belongs to the device.
std::mutex mutex;
std::map<StorageImpl*, c10::weak_intrusive_ptr<StorageImpl>> twins;
std::map<uintptr_t, size_t> ranges;

struct Twin {
  Storage host;
  uintptr_t start;
};

void forget(void* context) {
  auto* twin = static_cast<Twin*>(context);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ranges.erase(twin->start);
    const auto found = twins.find(twin->host.unsafeGetStorageImpl());
    if (found != twins.end() && found->second.expired()) twins.erase(found);
  }
  delete twin;
}

c10::DataPtr twin_pointer(const Storage& host, Device device) {
  const auto start = reinterpret_cast<uintptr_t>(host.data());
  const std::lock_guard<std::mutex> lock(mutex);
  if (host.nbytes() > 0) ranges[start] = host.nbytes();
  return {host.mutable_data(), new Twin{host, start}, forget, device};
}

const Storage& host_storage(const StorageImpl& storage) {
  return static_cast<Twin*>(storage.data_ptr().get_context())->host;
}

// The twin that a CPU storage has, or a new one. A storage that lives under two devices' names
// would hide a mistake, so there is one twin at most.
Storage device_storage(const Storage& host, Device device) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = twins.find(host.unsafeGetStorageImpl());
    if (found != twins.end()) {
      if (auto alive = found->second.lock()) return Storage(alive);
    }
  }
  Storage made(c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), host.nbytes(),
                                                twin_pointer(host, device), nullptr, false));
  const std::lock_guard<std::mutex> lock(mutex);
  twins.insert_or_assign(
      host.unsafeGetStorageImpl(),
      c10::weak_intrusive_ptr<StorageImpl>(
          c10::intrusive_ptr<StorageImpl>::reclaim_copy(made.unsafeGetStorageImpl())));
  return made;
}

Tensor tensor_on(const Storage& storage, const Tensor& like, c10::DispatchKey key) {
  const c10::InferenceMode guard(like.is_inference());
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                         c10::DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  return made;
}

Tensor to_host(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return tensor_on(host_storage(*tensor.storage().unsafeGetStorageImpl()), tensor,
                   c10::DispatchKey::CPU);
}

Tensor to_device(const Tensor& tensor, Device device) {
  if (!tensor.defined() || !tensor.is_cpu()) return tensor;
  return tensor_on(device_storage(tensor.storage(), device), tensor, c10::DispatchKey::CUDA);
}

// What an op that works in place has done to the CPU tensor happens to its twin.
void follow(const Tensor& tensor, const Tensor& host) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const Storage& now = host.storage();
  if (host_storage(*storage).unsafeGetStorageImpl() != now.unsafeGetStorageImpl()) {
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(device_storage(now, tensor.device()));
  } else if (storage->data() != now.data() || storage->nbytes() != now.nbytes()) {
    const Storage kept = now;  // it has grown elsewhere
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
    storage->set_data_ptr_noswap(twin_pointer(kept, tensor.device()));
    storage->set_nbytes(kept.nbytes());
  }
  if (tensor.sizes() != host.sizes() || tensor.strides() != host.strides() ||
      tensor.storage_offset() != host.storage_offset()) {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(),
                                                        host.storage_offset());
  }
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
      return tensor;
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
      const Device wanted = value.toDevice();
      device = wanted.has_index() ? wanted : Device(c10::DeviceType::CUDA, current_device);
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

const std::set<std::string> kReads{"aten::_local_scalar_dense", "aten::nonzero",
                                   "aten::masked_select", "aten::equal", "aten::is_nonzero"};

void count(const std::string& op, const torch::jit::Stack& stack, size_t first) {
  if (kReads.count(op)) ++host_reads;
  if (op != "aten::copy_") return;
  const Tensor& target = stack[first].toTensor();
  const Tensor& source = stack[first + 1].toTensor();
  if (target.device() != source.device()) ++(target.is_cpu() ? host_reads : host_copies);
}

// Runs an op on the CPU twins of its arguments.
void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = schema.operator_name().name;
  TORCH_CHECK_NOT_IMPLEMENTED(name.rfind("aten::", 0) == 0, name,
                              " has no implementation for CUDA tensors");
  const size_t first = stack->size() - schema.arguments().size();
  count(name, *stack, first);
  Arguments arguments;
  for (size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = arguments.move((*stack)[i], name == "aten::copy_", name);
  }
  const Device device = arguments.device.value_or(Device(c10::DeviceType::CUDA, current_device));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (const auto& [original, host] : arguments.moved) follow(original, host);
  for (IValue& result : *stack) result = arguments.back(result, device);
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
}

extern "C" {
void emulated_gpus(int count) { device_count = count; }
int emulated_device() { return current_device; }
void emulated_set_device(int index) { current_device = static_cast<DeviceIndex>(index); }
int64_t emulated_host_reads() { return host_reads; }
int64_t emulated_host_copies() { return host_copies; }

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

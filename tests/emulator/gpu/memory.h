// The memory of the emulated device. Every CUDA storage is the twin of a CPU storage: same memory,
// other device.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

using at::Tensor;
using c10::Device;
using c10::Storage;
using c10::StorageImpl;

// The twins of CPU storages that have one, and what of memory belongs to the device.
std::mutex mutex;
std::map<StorageImpl*, c10::weak_intrusive_ptr<StorageImpl>> twins;
std::map<uintptr_t, size_t> ranges;
std::map<StorageImpl*, Storage>* kept = nullptr;  // device storages made from now on, if wanted

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
  if (kept != nullptr) kept->emplace(made.unsafeGetStorageImpl(), made);
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

// Lets nobody free what is made from now on, until it is called with null.
void keep_storages(std::map<StorageImpl*, Storage>* place) {
  const std::lock_guard<std::mutex> lock(mutex);
  kept = place;
}

// All that is in the device's memory.
std::map<uintptr_t, std::string> contents() {
  const std::lock_guard<std::mutex> lock(mutex);
  std::map<uintptr_t, std::string> found;
  for (const auto& [start, bytes] : ranges) {
    found.emplace(start, std::string(reinterpret_cast<const char*>(start), bytes));
  }
  return found;
}

// Puts it back, where the memory is still there.
void restore(const std::map<uintptr_t, std::string>& contents) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [start, bytes] : contents) {
    const auto range = ranges.find(start);
    if (range == ranges.end() || range->second != bytes.size()) continue;
    std::memcpy(reinterpret_cast<char*>(start), bytes.data(), bytes.size());
  }
}

}  // namespace

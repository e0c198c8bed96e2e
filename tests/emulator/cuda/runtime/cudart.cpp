// The part of the CUDA runtime that bwt._C_cuda uses, with launches handed to Python. Everything
// runs at once; only copies to the host wait for the stream, so that a forgotten wait is seen.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime.h"

Settings emulated_settings{0, 2, 163 * 1024, 0, 0};

namespace {

constexpr size_t kSharedWithoutAsking = 48 * 1024;
constexpr int kPoison = 0xa5;

struct Kernel {
  const char* name;
  size_t shared_bytes = kSharedWithoutAsking;
};

struct CallConfiguration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};

struct Device {
  std::mutex mutex;  // of tensors: other extensions let theirs go in their own threads
  std::map<const void*, Kernel> kernels;
  std::multimap<void*, Range> tensors;
  std::map<uintptr_t, Range> blocks;
  std::vector<std::function<void()>> pending;
  std::vector<CallConfiguration> configurations;
  Launcher launcher = nullptr;
  Refuses refuses = [] { return false; };
  Memset memset = [](void*, int, size_t) {};
  cudaError_t last_error = cudaSuccess;
  int current = -1;
  size_t waits = 0;
};

Device& device() {
  static Device* only = new Device;  // outlives the destructors of the extension
  return *only;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) device().last_error = error;
  return error;
}

bool fails_now(int32_t& countdown) { return countdown > 0 && --countdown == 0; }

bool wrong_device() { return device().current != emulated_settings.index; }

bool wrong_place(cudaStream_t stream) {
  return wrong_device() || stream != static_cast<cudaStream_t>(emulated_stream());
}

std::vector<Range> ranges() {
  const std::lock_guard lock(device().mutex);
  std::vector<Range> all;
  for (const auto& entry : device().tensors) all.push_back(entry.second);
  for (const auto& entry : device().blocks) all.push_back(entry.second);
  return all;
}

// The bytes of device memory, or null where they are not all inside one range.
char* host_bytes(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (const Range& range : ranges()) {
    if (begin >= range.device && begin + bytes <= range.device + range.bytes) {
      return static_cast<char*>(range.host) + (begin - range.device);
    }
  }
  return nullptr;
}

cudaError_t copy_to_device(void* to, const void* from, size_t bytes) {
  char* target = host_bytes(to, bytes);
  if (target == nullptr) return remember(cudaErrorInvalidValue);
  std::memcpy(target, from, bytes);
  return cudaSuccess;
}

void wait() {
  ++device().waits;
  for (const auto& copy : device().pending) copy();
  device().pending.clear();
}

cudaError_t launch(Kernel& kernel, const CallConfiguration& asked, void** arguments) {
  const auto [grid, block, shared_bytes, stream] = asked;
  if (fails_now(emulated_settings.failing_launch)) return cudaErrorLaunchOutOfResources;
  if (wrong_place(stream)) return cudaErrorInvalidResourceHandle;
  if (shared_bytes > kernel.shared_bytes) return cudaErrorInvalidValue;
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0 || threads > 1024) {
    return cudaErrorInvalidConfiguration;
  }
  const std::vector<Range> memory = ranges();
  const Launch told{kernel.name,
                    {grid.x, grid.y, grid.z},
                    {block.x, block.y, block.z},
                    shared_bytes,
                    arguments,
                    memory.data(),
                    memory.size()};
  return device().launcher(&told) ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace

extern "C" {

void emulated_set_launcher(Launcher launcher) { device().launcher = launcher; }

void emulated_set_graphs(Refuses refuses, Memset told) {
  device().refuses = refuses;
  device().memset = told;
}

size_t emulated_allocated_bytes() {
  size_t total = 0;
  for (const auto& entry : device().blocks) total += entry.second.bytes;
  return total;
}

size_t emulated_waits() { return device().waits; }

size_t emulated_pending_copies() { return device().pending.size(); }

void emulated_note_tensor(void* tensor, void* data, size_t bytes, bool writeable) {
  const std::lock_guard lock(device().mutex);
  const Range range{reinterpret_cast<uintptr_t>(data), data, bytes, writeable};
  if (bytes > 0) device().tensors.emplace(tensor, range);
}

void emulated_forget_tensor(void* tensor) {
  const std::lock_guard lock(device().mutex);
  device().tensors.erase(tensor);
}

void* emulated_stream() { return &device(); }

int emulated_set_device(int index) { return std::exchange(device().current, index); }

// Registration, done by constructors of the extension.

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  device().kernels[host] = Kernel{name};
}

// A kernel<<<...>>>() pushes its configuration and calls a function that pops it and launches.

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream) {
  device().configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  const CallConfiguration asked = device().configurations.back();
  device().configurations.pop_back();
  *grid = asked.grid;
  *block = asked.block;
  *shared_bytes = asked.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = asked.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(&device().kernels.at(host));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return remember(
      launch(*reinterpret_cast<Kernel*>(kernel), {grid, block, shared_bytes, stream}, arguments));
}

cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  return remember(
      launch(device().kernels.at(host), {grid, block, shared_bytes, stream}, arguments));
}

cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      value > emulated_settings.shared_bytes_per_block) {
    return remember(cudaErrorInvalidValue);
  }
  device().kernels.at(host).shared_bytes = value;
  return cudaSuccess;
}

// Devices.

cudaError_t cudaGetDevice(int* index) {
  *index = device().current;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = emulated_settings.multiprocessors; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = emulated_settings.shared_bytes_per_block;
      break;
    default: return remember(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

// Memory.

cudaError_t cudaMalloc(void** address, size_t bytes) {
  if (device().refuses()) return remember(cudaErrorStreamCaptureUnsupported);
  if (wrong_device()) return remember(cudaErrorInvalidDevice);
  if (fails_now(emulated_settings.failing_malloc)) return remember(cudaErrorMemoryAllocation);
  *address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*address == MAP_FAILED) return remember(cudaErrorMemoryAllocation);
  const auto place = reinterpret_cast<uintptr_t>(*address);
  device().blocks[place] = {place, std::memset(operator new(bytes), kPoison, bytes), bytes, true};
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  const auto found = device().blocks.find(reinterpret_cast<uintptr_t>(address));
  if (found == device().blocks.end()) return remember(cudaErrorInvalidValue);
  munmap(address, found->second.bytes);
  operator delete(found->second.host);
  device().blocks.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (wrong_place(stream)) return remember(cudaErrorInvalidResourceHandle);
  if (device().refuses()) return remember(cudaErrorStreamCaptureUnsupported);
  if (kind == cudaMemcpyHostToDevice) return copy_to_device(to, from, bytes);
  const char* source = host_bytes(from, bytes);
  if (kind != cudaMemcpyDeviceToHost || source == nullptr) return remember(cudaErrorInvalidValue);
  std::memset(to, kPoison, bytes);
  device().pending.push_back([to, now = std::vector<char>(source, source + bytes)] {
    std::memcpy(to, now.data(), now.size());
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error =
      cudaMemcpyAsync(to, from, bytes, kind, static_cast<cudaStream_t>(emulated_stream()));
  wait();
  return error;
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  if (wrong_place(stream)) return remember(cudaErrorInvalidResourceHandle);
  char* target = host_bytes(address, bytes);
  if (target == nullptr) return remember(cudaErrorInvalidValue);
  std::memset(target, value, bytes);
  device().memset(target, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (wrong_place(stream)) return remember(cudaErrorInvalidResourceHandle);
  if (device().refuses()) return remember(cudaErrorStreamCaptureUnsupported);
  wait();
  return cudaSuccess;
}

// Errors.

cudaError_t cudaGetLastError() { return std::exchange(device().last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default: return "unrecognized error code";
  }
}
}

// The part of libtorch_cuda that bwt._C_cuda uses, and what has to be seen on the way from the
// extension to libtorch_cpu: which memory it may touch, and on which device it is.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstring>
#include <string>

#include "runtime.h"

namespace {

// The function of this name behind the one here.
template <class Function>
Function* real(const char* name) {
  static void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// From the first to the last element.
size_t span_bytes(AtenTensorHandle tensor) {
  int64_t dimensions = 0, *sizes = nullptr, *strides = nullptr, last = 0;
  int32_t dtype = 0;
  aoti_torch_get_dim(tensor, &dimensions);
  aoti_torch_get_sizes(tensor, &sizes);
  aoti_torch_get_strides(tensor, &strides);
  aoti_torch_get_dtype(tensor, &dtype);
  for (int64_t i = 0; i < dimensions; ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return (last + 1) * aoti_torch_dtype_element_size(dtype);
}

template <class Pointer>
AOTITorchError note(const char* getter, AtenTensorHandle tensor, Pointer* data, bool writeable) {
  const AOTITorchError error =
      real<AOTITorchError(AtenTensorHandle, Pointer*)>(getter)(tensor, data);
  if (error == AOTI_TORCH_SUCCESS) {
    emulated_note_tensor(tensor, const_cast<void*>(static_cast<const void*>(*data)),
                         span_bytes(tensor), writeable);
  }
  return error;
}

// Tensors on the CPU, which stand for those of the emulated device, have the index -1.
int device_of(int32_t index) { return index < 0 ? emulated_settings.index : index; }

}  // namespace

extern "C" {

AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = emulated_stream();
  return AOTI_TORCH_SUCCESS;
}

// As torch says it: the error, then lines of advice; what the runtime remembers is cleared.
AOTITorchError torch_c10_cuda_check_msg(int32_t error, const char*, const char*, uint32_t, bool,
                                        char** message) {
  *message = nullptr;
  if (error == cudaSuccess) return AOTI_TORCH_SUCCESS;
  cudaGetLastError();
  const std::string name = cudaGetErrorString(static_cast<cudaError_t>(error));
  const std::string text = "CUDA error: " + name + "\nThe cause may lie in an earlier call.\n";
  *message = new char[text.size() + 1];
  std::strcpy(*message, text.c_str());
  return AOTI_TORCH_SUCCESS;
}

void torch_c10_cuda_free_error_msg(char* message) { delete[] message; }

AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** data) {
  return note(__func__, tensor, data, true);
}

AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** data) {
  return note(__func__, tensor, data, true);
}

AOTITorchError torch_get_const_data_ptr(AtenTensorHandle tensor, const void** data) {
  return note(__func__, tensor, data, false);
}

AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor) {
  emulated_forget_tensor(tensor);
  return real<AOTITorchError(AtenTensorHandle)>(__func__)(tensor);
}

// A guard is the device to return to, two up so that none is null.
AOTITorchError aoti_torch_create_device_guard(int32_t index, DeviceGuardHandle* guard) {
  const intptr_t before = emulated_set_device(device_of(index));
  *guard = reinterpret_cast<DeviceGuardHandle>(before + 2);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle guard) {
  emulated_set_device(static_cast<int>(reinterpret_cast<intptr_t>(guard) - 2));
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_device_guard_set_index(DeviceGuardHandle, int32_t index) {
  emulated_set_device(device_of(index));
  return AOTI_TORCH_SUCCESS;
}
}

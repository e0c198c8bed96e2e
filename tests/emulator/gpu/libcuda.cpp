// The part of the CUDA driver that Triton's launcher calls. A launch goes to a function of
// Python's, which runs the kernel's PTX; everything else is answered from a table.
#include <cuda.h>

#include <cstring>
#include <map>
#include <string>

namespace {

using Range = bool (*)(uintptr_t address, uintptr_t* start, size_t* bytes);
using Load = int (*)();
using Launch = int (*)(int kernel, const unsigned* grid, const unsigned* block,
                       unsigned shared_bytes, void** parameters);

Range range_of;
Load load_module;
Launch launch_kernel;                // null: launches do nothing
std::string failure = "no failure";  // of the last launch

const std::map<CUdevice_attribute, int> kAttributes{
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 163 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 164 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 256},
};

template <class Handle>
Handle handle(intptr_t number) {
  return reinterpret_cast<Handle>(number);
}

}  // namespace

extern "C" {

void emulated_driver(Range range, Load load, Launch launch) {
  range_of = range;
  load_module = load;
  launch_kernel = launch;
}

void emulated_failure(const char* text) { failure = text; }

CUresult cuGetErrorString(CUresult code, const char** text) {
  *text = code == CUDA_ERROR_LAUNCH_FAILED ? failure.c_str() : "error of the emulated driver";
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const auto found = kAttributes.find(attribute);
  if (found == kAttributes.end()) return CUDA_ERROR_INVALID_VALUE;
  *value = found->second;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = handle<CUcontext>(1);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) { return cuDevicePrimaryCtxRetain(context, 0); }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t*, CUlimit) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuModuleLoadData(CUmodule* module, const void*) {
  *module = handle<CUmodule>(load_module());
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char*) {
  *function = handle<CUfunction>(reinterpret_cast<intptr_t>(module));
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

CUresult cuOccupancyMaxActiveClusters(int*, CUfunction, const CUlaunchConfig*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const int*, const int*,
                                 cuuint32_t, cuuint32_t, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

// A pointer to what is not the device's memory is refused, as by a GPU.
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  uintptr_t start;
  size_t bytes;
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
  if (!range_of(pointer, &start, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(data, &pointer, sizeof(pointer));
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void**) {
  if (!launch_kernel) return CUDA_SUCCESS;
  const unsigned grid[]{config->gridDimX, config->gridDimY, config->gridDimZ};
  const unsigned block[]{config->blockDimX, config->blockDimY, config->blockDimZ};
  const int kernel = static_cast<int>(reinterpret_cast<intptr_t>(function));
  const int failed = launch_kernel(kernel, grid, block, config->sharedMemBytes, parameters);
  return failed ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
}

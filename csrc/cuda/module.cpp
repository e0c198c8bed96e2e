// The Python module bwt._C_cuda: importing it registers the CUDA implementations.
#include <Python.h>

// What setup.py had nvcc compile for, such as sm_80,sm_90,compute_90.
#define BWT_QUOTED(...) #__VA_ARGS__
#define BWT_EXPANDED_AND_QUOTED(...) BWT_QUOTED(__VA_ARGS__)

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_C_cuda",
    "CUDA kernels of bwt.",
    -1,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

PyMODINIT_FUNC PyInit__C_cuda() {
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  PyModule_AddStringConstant(module, "targets", BWT_EXPANDED_AND_QUOTED(BWT_CUDA_TARGETS));
  return module;
}

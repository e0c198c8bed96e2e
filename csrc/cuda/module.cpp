// The Python module bwt._C_cuda: importing it registers the CUDA implementations.
#include <Python.h>

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

PyMODINIT_FUNC PyInit__C_cuda() { return PyModule_Create(&definition); }

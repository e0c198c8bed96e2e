// The Python module bwt._C: importing it registers the CPU implementations. Their schemas are
// defined in Python (bwt/ops/_library.py), so that they exist without this library too.
#include <Python.h>

#include "cpu/simd/level.h"

namespace {

PyObject* simd_in_use(PyObject*, PyObject*) {
  return PyUnicode_FromString(bwt::simd_name(bwt::simd_level()));
}

PyMethodDef methods[] = {
    {"simd", simd_in_use, METH_NOARGS, "Name of the instruction-set level in use."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_C",
    "Native CPU kernels of bwt.",
    -1,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }

"""The torch operators of bwt: their schemas, and the libraries that implement them.

Schemas are defined here, not in C++, so that they exist without the native extension: the library
only adds implementations, and CUDA ones written in Triton are added from Python in the same way.
"""

import importlib

import torch

library = torch.library.Library("bwt", "DEF")

BUILD_HINT = "build it with `make build` or `pip install -e .` in the bwt checkout"


def define(schema: str) -> None:
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def _load(module: str) -> str | None:
    """Imports an extension; returns why it cannot be used, or None."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return f"{module} is not built; {BUILD_HINT}"
    except ImportError as error:
        return f"{module} does not load ({error}); {BUILD_HINT}"
    return None


native_fault = _load("bwt._C")
cuda_fault = (
    _load("bwt._C_cuda")
    if torch.cuda.is_available()
    else "torch sees no CUDA device on this machine"
)

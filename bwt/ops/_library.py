"""The torch operators of bwt: their schemas, and the libraries that implement them.

Schemas are defined here, not in C++, so that they exist without the native extension: the library
only adds implementations, and CUDA ones written in Triton are added from Python in the same way.
"""

import importlib
import importlib.util

import torch

library = torch.library.Library("bwt", "DEF")

BUILD_HINT = "build it with `make build` or `pip install -e .` in the bwt checkout"
REBUILD_HINT = "build it again with `make rebuild` or `pip install -e .` in the bwt checkout"


def define(schema: str) -> None:
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def _load(module: str, hint: str = BUILD_HINT) -> str | None:
    """Imports an extension; returns why it cannot be used, or None."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return f"{module} is not built; {hint}"
    except ImportError as error:
        return f"{module} does not load ({error}); {REBUILD_HINT}"
    return None


def _load_cuda() -> str | None:
    if not torch.cuda.is_available():
        return "torch sees no CUDA device on this machine"
    if torch.version.cuda is None:
        return "bwt._C_cuda is for NVIDIA devices, and this torch is built for ROCm"
    release = torch.version.cuda.partition(".")[0]
    # Building without nvcc succeeds and leaves it out, so nvcc comes first.
    return _load("bwt._C_cuda", f"with nvcc of CUDA {release} on the PATH, {BUILD_HINT}")


native_fault = _load("bwt._C")
cuda_fault = _load_cuda()
triton_fault = (
    None if importlib.util.find_spec("triton") else "triton is not installed; `pip install triton`"
)

"""The PTX executor proves itself.

The tests lie beside the executor, in ptx/proof_*.py; here are only the compiled kernels.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite(
    *(f"ptx.proof_{name}" for name in ("broken", "cuda", "tools", "triton", "units"))
)

from ptx.proof_broken import *  # noqa: E402, F403
from ptx.proof_cuda import *  # noqa: E402, F403
from ptx.proof_tools import compile_cuda, compile_triton  # noqa: E402
from ptx.proof_triton import *  # noqa: E402, F403
from ptx.proof_units import *  # noqa: E402, F403


@pytest.fixture(scope="session")
def cuda(tmp_path_factory):
    """The PTX of all CUDA samples."""
    text = compile_cuda(tmp_path_factory.mktemp("cuda"))
    if text is None:
        pytest.skip("nvcc is not installed")
    return text


@pytest.fixture(scope="session")
def triton_kernels(tmp_path_factory):
    """Compiled Triton samples by name."""
    pytest.importorskip("triton", reason="Triton is not installed")
    return compile_triton(tmp_path_factory.mktemp("triton"))
